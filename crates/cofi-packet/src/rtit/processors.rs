//! The processors that have RTIT (1.2). Nothing enumerates it (3.1).

/// Family, model, stepping: Silvermont, and last Airmont.
const PROCESSORS: [(u16, u8, u8); 7] = [
    (0x6, 0x37, 0x8),
    (0x6, 0x5d, 0x0),
    (0x6, 0x5d, 0x1),
    (0x6, 0x4a, 0x8),
    (0x6, 0x4d, 0x8),
    (0x6, 0x5a, 0x0),
    (0x6, 0x4c, 0x3),
];

/// Whether a processor, as CPUID leaf 1 names it, has RTIT: family and model with their extensions.
///
/// ```
/// use cofi_packet::rtit::has_rtit;
///
/// assert!(has_rtit(0x6, 0x4c, 0x3), "Airmont");
/// assert!(!has_rtit(0x6, 0x5c, 0x9), "Goldmont has Intel PT");
/// ```
#[must_use]
pub fn has_rtit(family: u16, model: u8, stepping: u8) -> bool {
    PROCESSORS.contains(&(family, model, stepping))
}
