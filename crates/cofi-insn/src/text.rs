//! Instructions as text, for people.

use alloc::string::String;
use cofi_packet::{ExecMode, Ip};
use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};

/// The instruction at the start of `bytes`, which stands at `ip` and runs in `mode`, in Intel's syntax; `(bad)` where
/// the bytes are none.
///
/// ```
/// use cofi_packet::{ExecMode, Ip};
/// assert_eq!(cofi_insn::text(&[0x75, 0xfc], Ip(0x1002), ExecMode::Bits64), "jne 0x1000");
/// ```
#[must_use]
pub fn text(bytes: &[u8], ip: Ip, mode: ExecMode) -> String {
    let mut decoder = Decoder::with_ip(mode.bits(), bytes, ip.0, DecoderOptions::NO_INVALID_CHECK);
    let mut formatter = IntelFormatter::new();
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    options.set_branch_leading_zeros(false);
    options.set_show_branch_size(false);
    options.set_space_after_operand_separator(true);
    options.set_rip_relative_addresses(false);
    let mut text = String::new();
    formatter.format(&decoder.decode(), &mut text);
    text
}
