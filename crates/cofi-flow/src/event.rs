//! What the decoder yields.

use cofi_insn::{Checksum, Class, advance};
use cofi_packet::intel::{BlockType, CfeType, Kind, Packet, TsxState};
use cofi_packet::{ExecMode, Ip, StreamOffset, Tnt, Tsc, rtit};

use crate::{AnyKind, FlowError};

/// One item of the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// An instruction that retired.
    Insn(Executed),
    /// Something else that happened, in its place.
    Event(Event),
    /// The flow was lost here; it goes on where the address is known again.
    Error(FlowError),
}

impl From<Event> for Item {
    fn from(event: Event) -> Self {
        Self::Event(event)
    }
}

impl From<FlowError> for Item {
    fn from(error: FlowError) -> Self {
        Self::Error(error)
    }
}

/// An instruction that retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Executed {
    /// Its address.
    pub ip: Ip,
    /// Its length in bytes.
    pub len: u8,
    /// Its class.
    pub class: Class,
    /// The mode it ran in.
    pub mode: ExecMode,
    /// A [digest](cofi_insn::Insn::digest) of its bytes.
    pub digest: u32,
}

impl Executed {
    /// The checksum of its address and bytes.
    #[inline]
    #[must_use]
    pub const fn checksum(&self) -> Checksum {
        Checksum::of(self.ip, self.digest)
    }
}

/// A piece of the flow: [`Item`], with instructions in runs.
#[derive(Clone, Debug)]
pub enum Part<'d> {
    /// Instructions that retired one after the other.
    Run(Run<'d>),
    /// Something else that happened, in its place.
    Event(Event),
    /// The flow was lost here; it goes on where the address is known again.
    Error(FlowError),
}

/// Instructions that retired one after the other, standing one after the other: plain ones, then perhaps one of another
/// class.
#[derive(Clone, Debug)]
pub struct Run<'d> {
    pub(crate) ip: Ip,
    pub(crate) mode: ExecMode,
    pub(crate) plain: &'d [u8],
    /// The digest of each of them.
    pub(crate) digests: &'d [u32],
    pub(crate) last: Option<Executed>,
    pub(crate) offset: usize,
}

impl<'d> Run<'d> {
    /// One instruction.
    pub(crate) const fn single(insn: Executed, offset: usize) -> Self {
        Self {
            ip: insn.ip,
            mode: insn.mode,
            plain: &[],
            digests: &[],
            last: Some(insn),
            offset,
        }
    }

    /// The address of the first instruction.
    #[must_use]
    pub const fn ip(&self) -> Ip {
        self.ip
    }

    /// The mode in which they ran.
    #[must_use]
    pub const fn mode(&self) -> ExecMode {
        self.mode
    }

    /// How many instructions there are, at least one.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a run is never empty")]
    pub const fn len(&self) -> usize {
        self.plain.len() + self.last.is_some() as usize
    }

    /// Where in the stream the last packet begins that was used for these instructions.
    #[must_use]
    pub const fn offset(&self) -> StreamOffset {
        StreamOffset(self.offset as u64)
    }

    /// The lengths of the instructions of class [`Class::Other`] with which the run begins.
    #[must_use]
    pub const fn plain(&self) -> &'d [u8] {
        self.plain
    }

    /// The instruction of another class with which the run ends; none if the run was interrupted before.
    #[must_use]
    pub const fn last(&self) -> Option<Executed> {
        self.last
    }

    /// The checksum of all of them.
    #[must_use]
    pub fn checksum(&self) -> Checksum {
        let mut checksum = Checksum::EMPTY;
        self.for_each(|insn| checksum = checksum.then(insn.checksum()));
        checksum
    }

    /// Calls `visit` for each instruction: the fastest way to them.
    #[inline]
    pub fn for_each(&self, mut visit: impl FnMut(Executed)) {
        // (With the mode known, an instruction is an addition.)
        match self.mode {
            ExecMode::Bits64 => self.for_each_plain(ExecMode::Bits64, &mut visit),
            mode => self.for_each_plain(mode, &mut visit),
        }
        if let Some(last) = self.last {
            visit(last);
        }
    }

    #[inline(always)]
    fn for_each_plain(&self, mode: ExecMode, visit: &mut impl FnMut(Executed)) {
        let mut ip = self.ip;
        for (&len, &digest) in self.plain.iter().zip(self.digests) {
            visit(Executed {
                ip,
                len,
                class: Class::Other,
                mode,
                digest,
            });
            ip = advance(ip, len, mode);
        }
    }

    /// The instructions.
    pub fn iter(&self) -> impl Iterator<Item = Executed> + use<'d> {
        let (mut ip, mode) = (self.ip, self.mode);
        let plain = self.plain.iter().zip(self.digests);
        let plain = plain.map(move |(&len, &digest)| {
            let insn = Executed {
                ip,
                len,
                class: Class::Other,
                mode,
                digest,
            };
            ip = advance(ip, len, mode);
            insn
        });
        plain.chain(self.last)
    }
}

/// Something that happened between two instructions.
///
/// [`Target`](Self::Target), [`Branches`](Self::Branches) and [`Tick`](Self::Tick) come from
/// [`EventDecoder`](crate::EventDecoder) alone: where instructions are told, they are part of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Tracing is on, from this address.
    Enabled {
        /// The first instruction.
        ip: Ip,
        /// Whether this is just where tracing had gone off.
        resumed: bool,
    },
    /// The instruction before switched tracing off.
    Disabled {
        /// Where control went, if the trace may tell.
        ip: Option<Ip>,
    },
    /// Control went elsewhere between two instructions: an interrupt, a fault, an aborted transaction, …
    AsyncBranch {
        /// The instruction that would have been next.
        from: Ip,
        /// The one that was.
        to: Ip,
    },
    /// Tracing went off between two instructions.
    AsyncDisabled {
        /// The instruction that would have been next.
        at: Ip,
        /// Where control went, if the trace may tell.
        ip: Option<Ip>,
    },
    /// Paging was switched on or off (CR0.PG): linear addresses are physical ones while it is off. Of RTIT; on is what is taken for granted.
    PagingEnabled {
        /// Whether it is on from here on.
        on: bool,
    },
    /// The page tables changed.
    Paging {
        /// The new CR3, address part.
        cr3: u64,
        /// Whether this is in a guest (VMX non-root operation).
        nr: bool,
    },
    /// Packets were lost.
    Overflow {
        /// Where tracing goes on; none if tracing is off.
        ip: Option<Ip>,
    },
    /// The execution mode changed, or is known for the first time.
    ExecMode {
        /// The mode from here on.
        mode: ExecMode,
        /// RFLAGS.IF, which is meaningful with event tracing only.
        interrupt_flag: bool,
    },
    /// A transaction began, was committed or was aborted.
    Tsx {
        /// What became of it.
        state: TsxState,
        /// Where; none if tracing is off.
        ip: Option<Ip>,
    },
    /// Tracing stopped because control entered a TraceStop range.
    Stop,
    /// The VMCS pointer changed.
    Vmcs {
        /// Its new value.
        base: u64,
    },
    /// Execution stopped for power-saving.
    ExStop {
        /// At which instruction, if known.
        ip: Option<Ip>,
    },
    /// `MWAIT` or the like requested a power state.
    Mwait {
        /// Its hints.
        hints: u8,
        /// Its extensions.
        ext: u8,
    },
    /// A power state deeper than C0.0 was entered.
    Pwre {
        /// On the hardware's own initiative.
        hw: bool,
        /// The state, as encoded.
        state: u8,
        /// The sub-state, as encoded.
        sub_state: u8,
    },
    /// Back to C0.0.
    Pwrx {
        /// The last core state, as encoded.
        last: u8,
        /// The deepest core state, as encoded.
        deepest: u8,
        /// Why, a bit a reason.
        wake: u8,
    },
    /// `PTWRITE` wrote a value.
    Ptwrite {
        /// The instruction, if known.
        ip: Option<Ip>,
        /// The value.
        payload: u64,
        /// 4 or 8 bytes.
        size: u8,
    },
    /// A control flow event of event tracing.
    Control {
        /// Which.
        event: ControlEvent,
        /// The vector of an interrupt, exception or SIPI.
        vector: Option<u8>,
        /// Where, if known.
        ip: Option<Ip>,
    },
    /// Data about the control flow event that follows.
    EventData {
        /// The type field: 0 page fault address, 1 VM-exit qualification, 2 VM-exit reason.
        kind: u8,
        /// The payload.
        payload: u64,
    },
    /// A block of state values begins (33.4.1.1), such as a PEBS record's; its items follow.
    Block {
        /// What it holds.
        kind: BlockType,
        /// How many bytes its items' values have: 4 or 8.
        size: u8,
        /// The instruction to which it belongs, if known.
        ip: Option<Ip>,
    },
    /// A value in the block that began last.
    BlockItem {
        /// What the block holds.
        block: BlockType,
        /// Which value of such a block, as encoded ([`StateValue`](cofi_packet::intel::StateValue)).
        id: u8,
        /// The value.
        payload: u64,
    },
    /// A trigger fired; beyond chapter 33.
    Trigger {
        /// Which triggers, as encoded.
        vector: u8,
        /// Whether more than one fired.
        multiple: bool,
        /// The instruction count, if there is one.
        count: Option<u16>,
        /// Where, if known.
        ip: Option<Ip>,
    },
    /// After an error: from here on the flow is known again.
    Resync {
        /// Where control is; none if tracing is off.
        ip: Option<Ip>,
        /// How many bytes of the stream lie between the packet at which it was lost, and the one that told this.
        lost: u64,
    },
    /// Something that means a thing to those alone who know the processor's model (33.4.2.19). It belongs to no instruction.
    Maintenance {
        /// The payload.
        payload: u64,
    },
    /// A branch led here: an indirect or far one that has executed (33.4.2.2).
    Target {
        /// Where.
        ip: Ip,
    },
    /// Conditional branches were taken or not; a taken one may be a compressed return (33.4.2.1).
    Branches {
        /// What they did.
        tnt: Tnt<47>,
    },
    /// A timing packet.
    Tick(Tick),
}

/// A timing packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tick {
    /// The time stamp counter (33.4.2.11).
    Tsc(Tsc),
    /// How the crystal clock stands to the time stamp counter (33.4.2.13).
    Tma {
        /// The low 16 bits of the crystal clock.
        ctc: u16,
        /// How many ticks of the time stamp counter the last edge of the crystal clock is past.
        fc: u16,
    },
    /// Eight bits of the crystal clock (33.4.2.12).
    Mtc {
        /// The bits, those from MTCFreq on.
        ctc: u8,
    },
    /// Core cycles since the last such packet (33.4.2.14); of RTIT, the count that follows a packet (4.2.14).
    Cyc {
        /// How many.
        cycles: u64,
    },
    /// The core:bus ratio (33.4.2.10).
    Cbr {
        /// The ratio.
        ratio: u8,
    },
    /// Of RTIT: the time and the frequency (4.2.13).
    Sts {
        /// The lower 40 bits of the hardware's time stamp counter.
        tsc: u64,
        /// The actual core:bus ratio.
        actual: u8,
        /// What it comes to with clock modulation.
        effective: u8,
    },
    /// Of RTIT: eight bits of the hardware's time stamp counter (4.2.12).
    MiniTime {
        /// MTC_Range: the bits are those from 7 + 2 × `range` on.
        range: u8,
        /// The bits.
        tsc: u8,
    },
}

impl Tick {
    /// What a packet tells, if it is a timing packet.
    pub(crate) fn from_packet(packet: &Packet) -> Option<Self> {
        Some(match *packet {
            Packet::Tsc { tsc } => Self::Tsc(Tsc(tsc.get())),
            Packet::Tma { ctc, fc } => Self::Tma {
                ctc,
                fc: fc.get() as u16,
            },
            Packet::Mtc { ctc } => Self::Mtc { ctc },
            Packet::Cyc { cycles } => Self::Cyc { cycles },
            Packet::Cbr { ratio } => Self::Cbr { ratio },
            _ => return None,
        })
    }

    /// The packet's kind. The cycle counts of RTIT belong to packets of many kinds; the kind of Intel PT's packet stands for them.
    #[must_use]
    pub const fn kind(&self) -> AnyKind {
        AnyKind::IntelPt(match self {
            Self::Tsc(_) => Kind::Tsc,
            Self::Tma { .. } => Kind::Tma,
            Self::Mtc { .. } => Kind::Mtc,
            Self::Cyc { .. } => Kind::Cyc,
            Self::Cbr { .. } => Kind::Cbr,
            Self::Sts { .. } => return AnyKind::Rtit(rtit::Kind::Sts),
            Self::MiniTime { .. } => return AnyKind::Rtit(rtit::Kind::Mtc),
        })
    }
}

/// The control flow events (table 33-50).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ControlEvent {
    /// An interrupt, exception or fault was delivered.
    Interrupt,
    /// Return from interrupt.
    Iret,
    /// System management interrupt.
    Smi,
    /// Return from system management mode.
    Rsm,
    /// Start-up inter-processor interrupt.
    Sipi,
    /// INIT.
    Init,
    /// VM entry.
    VmEntry,
    /// VM exit.
    VmExit,
    /// VM exit because of an interrupt or exception.
    VmExitIntr,
    /// Shutdown.
    Shutdown,
    /// A user interrupt was delivered.
    Uintr,
    /// Return from a user interrupt.
    Uiret,
    /// A software interrupt under FRED; beyond chapter 33.
    SoftwareInterrupt,
    /// SYSCALL or SYSENTER under FRED; beyond chapter 33.
    Syscall,
    /// A type that the manual reserves.
    Reserved(u8),
}

impl ControlEvent {
    /// The event of a CFE packet's type field.
    #[must_use]
    pub const fn from_type(kind: CfeType) -> Self {
        match kind {
            CfeType::INTR => Self::Interrupt,
            CfeType::IRET => Self::Iret,
            CfeType::SMI => Self::Smi,
            CfeType::RSM => Self::Rsm,
            CfeType::SIPI => Self::Sipi,
            CfeType::INIT => Self::Init,
            CfeType::VMENTRY => Self::VmEntry,
            CfeType::VMEXIT => Self::VmExit,
            CfeType::VMEXIT_INTR => Self::VmExitIntr,
            CfeType::SHUTDOWN => Self::Shutdown,
            CfeType::UINTR => Self::Uintr,
            CfeType::UIRET => Self::Uiret,
            CfeType::SWINTR => Self::SoftwareInterrupt,
            CfeType::SYSCALL => Self::Syscall,
            other => Self::Reserved(other.get()),
        }
    }

    /// Whether the vector field means something.
    #[must_use]
    pub const fn has_vector(self) -> bool {
        matches!(
            self,
            Self::Interrupt | Self::Sipi | Self::VmExitIntr | Self::Uintr | Self::SoftwareInterrupt
        )
    }
}
