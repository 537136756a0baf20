//! Time, estimated from timing packets as libipt estimates it.

use std::ffi::c_int;

use crate::boundary::put;
use crate::config::{Config, Errata};
use crate::error::Error;
use crate::event::{Event, flag};

/// TSC ticks in 1/256.
const FRACTION: u32 = 8;

/// What a core cycle is in TSC ticks, as far as packets tell it.
#[derive(Clone, Copy, Debug, Default)]
struct Calibration {
    /// TSC ticks a cycle, in 1/256; 0 if nothing tells.
    ratio: u64,
    /// The crystal clock of the MTC from which cycles are counted, and how many there were.
    mtc: Option<u8>,
    cycles_since_mtc: u64,
    /// The TSC of the PSB+ from which cycles are counted, and how many there were.
    tsc: Option<u64>,
    cycles_since_tsc: u64,
    /// A PSB came since that MTC.
    psb_since_mtc: bool,
}

impl Calibration {
    fn set(&mut self, ticks: u64, cycles: u64) {
        if let Some(ratio) = (ticks << FRACTION).checked_div(cycles) {
            self.ratio = ratio;
        }
    }
}

/// What callers are told of the time at some place of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moment {
    /// The estimate.
    now: u64,
    lost_mtc: u32,
    lost_cyc: u32,
    have_tsc: bool,
    cbr: u8,
}

/// The clock of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    moment: Moment,
    /// CPUID.15H: crystal ticks (EAX) and TSC ticks (EBX) of the same time.
    crystal: u32,
    tsc_of_crystal: u32,
    /// How many bits of the crystal clock an MTC leaves out.
    mtc_freq: u8,
    nom_freq: u8,
    /// The last TSC, or edge of the crystal clock.
    base: u64,
    /// What cycles have added to it.
    from_cycles: u64,
    /// There was a TMA since.
    have_tma: bool,
    /// The crystal clock and the TSC ticks since its edge, of a TMA behind which no MTC came yet.
    tma: Option<(u16, u16)>,
    /// The crystal clock of the last MTC.
    mtc: Option<u8>,
    calibration: Calibration,
    /// PSBs may have swallowed cycles (SKL168).
    psb_swallows: bool,
}

impl Clock {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            moment: Moment::default(),
            crystal: config.cpuid_15_eax,
            tsc_of_crystal: config.cpuid_15_ebx,
            mtc_freq: config.mtc_freq.min(15),
            nom_freq: config.nom_freq,
            base: 0,
            from_cycles: 0,
            have_tma: false,
            tma: None,
            mtc: None,
            calibration: Calibration::default(),
            psb_swallows: config.errata.has(Errata::SKL168),
        }
    }

    /// A PSB.
    pub(crate) fn psb(&mut self) {
        self.calibration.psb_since_mtc = true;
    }

    /// A TSC packet of its own: the clocks may have stood still.
    pub(crate) fn tsc(&mut self, tsc: u64) {
        let ratio = self.calibration.ratio;
        self.calibration = Calibration {
            ratio,
            ..Calibration::default()
        };
        self.set(tsc);
    }

    fn set(&mut self, tsc: u64) {
        (self.moment.now, self.base, self.from_cycles) = (tsc, tsc, 0);
        self.moment.have_tsc = true;
        self.have_tma = false;
        (self.tma, self.mtc) = (None, None);
        (self.moment.lost_mtc, self.moment.lost_cyc) = (0, 0);
    }

    /// A TSC packet of a PSB+: two of them tell what cycles between them were.
    pub(crate) fn tsc_of_psb(&mut self, tsc: u64) {
        let calibration = &mut self.calibration;
        if let Some(before) = calibration.tsc.replace(tsc)
            && calibration.mtc.is_none()
        {
            calibration.set(
                tsc.wrapping_sub(before) & ((1 << 48) - 1),
                calibration.cycles_since_tsc,
            );
        }
        calibration.cycles_since_tsc = 0;
        self.set(tsc);
    }

    /// Packets were lost, and cycles with them.
    pub(crate) fn overflow(&mut self) {
        self.calibration = Calibration::default();
    }

    /// A CBR packet.
    pub(crate) fn cbr(&mut self, ratio: u8) {
        self.moment.cbr = ratio;
        if self.nom_freq != 0 {
            self.calibration.set(self.nom_freq.into(), ratio.into());
        }
    }

    /// A TMA packet, which belongs to the TSC before it.
    pub(crate) fn tma(&mut self, ctc: u16, fast: u16) -> Result<(), Error> {
        if !self.moment.have_tsc || self.have_tma {
            return Err(Error::BadContext);
        }
        self.have_tma = true;
        self.tma = Some((ctc, fast));
        self.mtc = None;
        Ok(())
    }

    /// TSC ticks of crystal ticks; none without CPUID.15H.
    fn ticks(&self, crystal: u64) -> Option<u64> {
        if self.tsc_of_crystal == 0 {
            return None;
        }
        (crystal * u64::from(self.tsc_of_crystal)).checked_div(self.crystal.into())
    }

    fn calibrate(&mut self, mtc: u8) {
        let Calibration {
            mtc: before,
            cycles_since_mtc: cycles,
            psb_since_mtc,
            ..
        } = self.calibration;
        if let Some(before) = before {
            if cycles == 0 {
                return;
            }
            // SKL168: where an MTC is missing behind a PSB, a CYC is missing, too.
            let swallowed = self.psb_swallows && psb_since_mtc && mtc.wrapping_sub(before) > 1;
            if !swallowed
                && let Some(ticks) =
                    self.ticks(u64::from(mtc.wrapping_sub(before)) << self.mtc_freq)
            {
                self.calibration.set(ticks, cycles);
            }
        }
        self.calibration.mtc = Some(mtc);
        self.calibration.cycles_since_mtc = 0;
        self.calibration.psb_since_mtc = false;
    }

    /// An MTC packet.
    pub(crate) fn mtc(&mut self, mtc: u8) {
        self.calibrate(mtc);
        let crystal = match (self.mtc, self.tma) {
            (Some(before), _) => u64::from(mtc.wrapping_sub(before)) << self.mtc_freq,
            (None, Some((ctc, fast))) => {
                // The TMA's edge lies within a tick of the MTC's.
                let before = (ctc >> self.mtc_freq) as u8;
                let into = u64::from(ctc) & ((1 << self.mtc_freq) - 1);
                let mut ticks = u64::from(mtc.wrapping_sub(before)) << self.mtc_freq;
                if ticks < into {
                    ticks += 256 << self.mtc_freq;
                }
                self.base = self.base.wrapping_sub(fast.into());
                ticks - into
            }
            (None, None) if self.moment.have_tsc => return,
            (None, None) => {
                self.mtc = Some(mtc);
                return;
            }
        };
        self.mtc = Some(mtc);
        self.tma = None;
        self.moment.lost_cyc = 0;
        self.from_cycles = 0;
        if let Some(ticks) = self.ticks(crystal) {
            self.base = self.base.wrapping_add(ticks);
            self.moment.now = self.base;
        }
    }

    /// A CYC packet.
    pub(crate) fn cyc(&mut self, cycles: u64) {
        let calibration = &mut self.calibration;
        calibration.cycles_since_mtc = calibration.cycles_since_mtc.saturating_add(cycles);
        calibration.cycles_since_tsc = calibration.cycles_since_tsc.saturating_add(cycles);
        if calibration.ratio == 0 {
            self.moment.lost_cyc = self.moment.lost_cyc.saturating_add(1);
            return;
        }
        let ticks = cycles.wrapping_mul(calibration.ratio) >> FRACTION;
        self.from_cycles = self.from_cycles.wrapping_add(ticks);
        self.moment.now = self.base.wrapping_add(self.from_cycles);
    }

    /// What is told of the time here.
    #[inline(always)]
    pub(crate) fn moment(&self) -> Moment {
        self.moment
    }

    /// The event with this time.
    pub(crate) fn stamp(&self, event: Event) -> Event {
        self.moment.stamp(event)
    }
}

impl Moment {
    /// The event with this time.
    pub(crate) fn stamp(&self, event: Event) -> Event {
        Event {
            flags: event.flags | if self.have_tsc { flag::HAS_TSC } else { 0 },
            tsc: self.now,
            lost_mtc: self.lost_mtc,
            lost_cyc: self.lost_cyc,
            ..event
        }
    }

    /// Tells the caller the time.
    ///
    /// # Safety
    /// The pointers are null, or there is room.
    pub(crate) unsafe fn tell(
        &self,
        time: *mut u64,
        lost_mtc: *mut u32,
        lost_cyc: *mut u32,
    ) -> Result<c_int, Error> {
        if time.is_null() {
            return Err(Error::Invalid);
        }
        // SAFETY: as the caller says.
        unsafe {
            put(time, self.now);
            put(lost_mtc, self.lost_mtc);
            put(lost_cyc, self.lost_cyc);
        }
        if self.have_tsc {
            Ok(0)
        } else {
            Err(Error::NoTime)
        }
    }

    /// Tells the caller the core:bus ratio.
    ///
    /// # Safety
    /// The pointer is null, or there is room.
    pub(crate) unsafe fn tell_ratio(&self, ratio: *mut u32) -> Result<c_int, Error> {
        if ratio.is_null() {
            return Err(Error::Invalid);
        }
        if self.cbr == 0 {
            return Err(Error::NoCbr);
        }
        // SAFETY: as the caller says.
        unsafe { put(ratio, self.cbr.into()) };
        Ok(0)
    }
}
