//! Error codes, as `enum pt_error_code` numbers them.

use std::ffi::{CStr, c_char, c_int};

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $words:literal;)*) => {
        /// An error code. Functions return it negated.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(i32)]
        pub enum Error {
            $($(#[$doc])* $name = $number,)*
        }

        /// What `pt_errstr` says of a number.
        fn words(number: c_int) -> &'static CStr {
            match number {
                0 => c"OK",
                $($number => $words,)*
                _ => c"internal error.",
            }
        }
    };
}

errors! {
    /// An error of the library itself.
    Internal = 1, c"internal error";
    /// An argument cannot be.
    Invalid = 2, c"invalid argument";
    /// The decoder is not synchronised.
    NoSync = 3, c"decoder out of sync";
    /// No packet begins so.
    BadOpcode = 4, c"unknown opcode";
    /// A packet holds what it may not.
    BadPacket = 5, c"unknown packet";
    /// A packet stands where it may not.
    BadContext = 6, c"unexpected packet context";
    /// The stream is at its end.
    End = 7, c"reached end of trace stream";
    /// The stream does not answer the question.
    BadQuery = 8, c"trace stream does not match query";
    /// There is no memory.
    NoMemory = 9, c"out of memory";
    /// The configuration cannot be.
    BadConfig = 10, c"bad configuration";
    /// There is no address.
    NoIp = 11, c"no ip";
    /// The address was suppressed.
    IpSuppressed = 12, c"ip has been suppressed";
    /// There is no code at this address.
    NoMap = 13, c"no memory mapped at this address";
    /// The bytes are no instruction.
    BadInsn = 14, c"unknown instruction";
    /// There was no TSC packet.
    NoTime = 15, c"no timing information";
    /// There was no CBR packet.
    NoCbr = 16, c"no core:bus ratio";
    /// A section is not there.
    BadImage = 17, c"bad image";
    /// A lock failed.
    BadLock = 18, c"locking error";
    /// The library cannot do that.
    NotSupported = 19, c"not supported";
    /// A compressed return has no call.
    RetStackEmpty = 20, c"compressed return without call";
    /// A compressed return is a TNT result of 0.
    BadRetComp = 21, c"bad compressed return";
    /// A PSB+ contradicts what was known.
    BadStatusUpdate = 22, c"bad status update";
    /// Tracing should have been enabled.
    NoEnable = 23, c"expected tracing enabled event";
    /// An event was not taken.
    EventIgnored = 24, c"event ignored";
    /// A number is too large.
    Overflow = 25, c"overflow";
    /// A file cannot be read.
    BadFile = 26, c"bad file";
    /// Nothing is known of this processor.
    BadCpu = 27, c"unknown cpu";
}

impl Error {
    /// What functions return.
    #[inline]
    pub const fn code(self) -> c_int {
        -(self as c_int)
    }

    /// The error that a caller's function returned; what is no error code is an error of its own.
    pub fn from_code(code: c_int) -> Self {
        const ALL: [Error; 27] = [
            Error::Internal,
            Error::Invalid,
            Error::NoSync,
            Error::BadOpcode,
            Error::BadPacket,
            Error::BadContext,
            Error::End,
            Error::BadQuery,
            Error::NoMemory,
            Error::BadConfig,
            Error::NoIp,
            Error::IpSuppressed,
            Error::NoMap,
            Error::BadInsn,
            Error::NoTime,
            Error::NoCbr,
            Error::BadImage,
            Error::BadLock,
            Error::NotSupported,
            Error::RetStackEmpty,
            Error::BadRetComp,
            Error::BadStatusUpdate,
            Error::NoEnable,
            Error::EventIgnored,
            Error::Overflow,
            Error::BadFile,
            Error::BadCpu,
        ];
        usize::try_from(code.unsigned_abs())
            .ok()
            .and_then(|number| ALL.get(number.wrapping_sub(1)))
            .copied()
            .unwrap_or(Error::Internal)
    }
}

/// The words of an error code.
#[unsafe(no_mangle)]
pub extern "C" fn pt_errstr(code: c_int) -> *const c_char {
    words(code).as_ptr()
}
