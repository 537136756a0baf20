//! Signals: which handlers the program has set, and what a handler's frame on the stack says of what was interrupted.
#![allow(
    unsafe_code,
    reason = "a lock that is held across fork; each use has its justification"
)]

use crate::layout::record;
use crate::sync::Lock;
use crate::sys::{peek32, peek64};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

/// Addresses of signal handlers, each with the restorer that stands below its frame.
type Handlers = Vec<(u64, u64)>;
/// Those that the program has set.
static HANDLERS: Lock<Handlers> = Lock::new(Vec::new());

/// Whether a signal's handler is called with a `siginfo`: else its place in the frame holds what was there before.
static WITH_INFO: [AtomicBool; SIGNALS] = [const { AtomicBool::new(false) }; SIGNALS];
/// One more than the highest signal.
const SIGNALS: usize = 65;

/// Offsets in the CPU's state, the same in all versions: sixteen registers of eight bytes.
const RSP: u64 = 4 * 8;
const RDX: u64 = 2 * 8;
const RSI: u64 = 6 * 8;
const RDI: u64 = 7 * 8;
/// In the frame of a signal, behind the restorer's address, is a `ucontext`; in that, the registers of what was interrupted.
const REGISTERS_IN_UCONTEXT: u64 = 40;
/// Their numbers there.
mod context {
    pub(super) const RDI: u64 = 8;
    pub(super) const RSI: u64 = 9;
    pub(super) const RDX: u64 = 12;
    pub(super) const RSP: u64 = 15;
    pub(super) const RIP: u64 = 16;
}
/// Flag of a `sigaction`.
const SA_SIGINFO: u64 = 4;
/// `si_code` in a `siginfo`.
const CODE_IN_SIGINFO: u64 = 8;
/// `si_addr` in a `siginfo`.
const ADDRESS_IN_SIGINFO: u64 = 16;

/// A signal's frame on the stack: where its `ucontext` is, and the handler's two other arguments.
struct Frame {
    context: u64,
    signal: u64,
    info: u64,
}

impl Frame {
    /// The frame of a handler that begins with these registers. `None` if it was called as any other function.
    fn of(handlers: &[(u64, u64)], rsp: u64, [signal, info, context]: [u64; 3]) -> Option<Self> {
        let restorer = peek64(rsp)?;
        let is_known = handlers.iter().any(|(_, known)| *known == restorer);
        (is_known && Some(context) == rsp.checked_add(8)).then_some(Self {
            context,
            signal,
            info,
        })
    }

    /// A register of what was interrupted, by its number in the `ucontext`.
    fn register(&self, number: u64) -> Option<u64> {
        let offset = REGISTERS_IN_UCONTEXT + number * 8;
        peek64(self.context.checked_add(offset)?)
    }
}

/// What a handler's first block finds: the interrupted address, the signal, its code and its address. `None` if it was called as any
/// other function.
pub(crate) fn frame(state: u64) -> Option<[u32; 6]> {
    let handlers = HANDLERS.lock();
    let register = |offset| peek64(state.checked_add(offset)?);
    let arguments = [register(RDI)?, register(RSI)?, register(RDX)?];
    let mut frame = Frame::of(&handlers, register(RSP)?, arguments)?;
    let mut ip = frame.register(context::RIP)?;
    // Several signals at once: the handler of the one is interrupted by the other before it has run anything. The program
    // itself was interrupted by the first of them, whose frame is the deepest.
    for _ in 0..SIGNALS {
        if !handlers.iter().any(|(handler, _)| *handler == ip) {
            break;
        }
        let rsp = frame.register(context::RSP)?;
        let arguments = [
            frame.register(context::RDI)?,
            frame.register(context::RSI)?,
            frame.register(context::RDX)?,
        ];
        let Some(deeper) = Frame::of(&handlers, rsp, arguments) else {
            break;
        };
        frame = deeper;
        ip = frame.register(context::RIP)?;
    }
    let with_info = WITH_INFO
        .get(frame.signal as usize)
        .is_some_and(|with| with.load(Ordering::Relaxed));
    let (code, address) = match with_info {
        true => (
            peek32(frame.info.checked_add(CODE_IN_SIGINFO)?)?,
            peek64(frame.info.checked_add(ADDRESS_IN_SIGINFO)?)?,
        ),
        false => (record::NO_CODE, 0),
    };
    let halves = |value: u64| [value as u32, (value >> 32) as u32];
    let ([low, high], [address_low, address_high]) = (halves(ip), halves(address));
    let signal = frame.signal as u32;
    Some([low, high, signal, code, address_low, address_high])
}

/// Where the stack is, with the CPU in this state.
pub(crate) fn stack(state: u64) -> Option<u64> {
    peek64(state.checked_add(RSP)?)
}

/// Whether a handler begins at this address.
pub(crate) fn is_handler(address: u64) -> bool {
    HANDLERS
        .lock()
        .iter()
        .any(|(handler, _)| *handler == address)
}

/// The program sets what a signal does.
pub(crate) fn set_action(signal: u64, action: u64) {
    // struct kernel_sigaction: handler, flags, restorer. Guest memory is at its own addresses here.
    if let (Some(with), Some(flags)) = (
        WITH_INFO.get(signal as usize),
        peek64(action.wrapping_add(8)),
    ) {
        with.store(flags & SA_SIGINFO != 0, Ordering::Relaxed);
    }
    if let (Some(handler @ 2..), Some(restorer)) = (peek64(action), peek64(action.wrapping_add(16)))
    {
        let mut handlers = HANDLERS.lock();
        if !handlers.contains(&(handler, restorer)) {
            handlers.push((handler, restorer));
        }
    }
}

/// Before fork: no other thread is to hold the lock, which nobody would ever release in the child. (The one of the blocks needs
/// nothing: QEMU forks while no other thread translates.)
pub(crate) extern "C" fn hold() {
    HANDLERS.hold();
}

/// After fork, in the parent and in the child.
///
/// # Safety
/// [`hold`] was called in the thread that forks.
pub(crate) unsafe extern "C" fn release() {
    // SAFETY: as the caller says.
    unsafe { HANDLERS.release() }
}
