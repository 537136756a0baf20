//! The execution mode, where packets do not tell it.

use cofi_insn::CodeSource;
use cofi_packet::ExecMode;

use crate::FlowDecoder;

impl<C: CodeSource> FlowDecoder<'_, C> {
    /// Code runs in `mode` from here on, until a packet tells otherwise: of RTIT, none does. To be called before anything is decoded,
    /// or after an event.
    pub fn assume_mode(&mut self, mode: ExecMode) {
        if self.mode != mode {
            self.mode = mode;
            self.restart_walk();
        }
    }
}
