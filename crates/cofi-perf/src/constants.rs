//! The numbers of the format, as types that print their names.

use std::fmt;

/// Declares an open set of numbers with names.
macro_rules! numbers {
    ($(#[$doc:meta])* $name:ident($repr:ty) { $($(#[$vdoc:meta])* $konst:ident = $value:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $repr);

        impl $name {
            $($(#[$vdoc])* pub const $konst: Self = Self($value);)*

            /// The name of the number, if it has one here.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$konst => Some(stringify!($konst)),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.pad(name),
                    None => write!(f, "{}", self.0),
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "{}({})", stringify!($name), self.0),
                }
            }
        }
    };
}

numbers! {
    /// The kind of a record: below 64 written by the kernel, from 64 on by perf itself.
    RecordKind(u32) {
        /// A mapping, without protection and inode.
        MMAP = 1,
        /// Records were lost.
        LOST = 2,
        /// A thread's name changed.
        COMM = 3,
        /// A thread ended.
        EXIT = 4,
        /// Sampling was throttled.
        THROTTLE = 5,
        /// Sampling is no longer throttled.
        UNTHROTTLE = 6,
        /// A thread began.
        FORK = 7,
        /// Counter values.
        READ = 8,
        /// A sample.
        SAMPLE = 9,
        /// A mapping.
        MMAP2 = 10,
        /// New bytes in the AUX area.
        AUX = 11,
        /// Instruction tracing of a thread began.
        ITRACE_START = 12,
        /// Samples were lost.
        LOST_SAMPLES = 13,
        /// The thread was switched in or out.
        SWITCH = 14,
        /// A CPU switched from one thread to another.
        SWITCH_CPU_WIDE = 15,
        /// The namespaces of a process.
        NAMESPACES = 16,
        /// A kernel symbol appeared or went away.
        KSYMBOL = 17,
        /// A BPF program was loaded or unloaded.
        BPF_EVENT = 18,
        /// A control group.
        CGROUP = 19,
        /// The kernel changed its own code.
        TEXT_POKE = 20,
        /// The hardware's id of an event whose data go to the AUX area.
        AUX_OUTPUT_HW_ID = 21,
        /// The attributes of an event (pipe mode).
        HEADER_ATTR = 64,
        /// The name of an event type (obsolete).
        HEADER_EVENT_TYPE = 65,
        /// Formats of tracepoints.
        HEADER_TRACING_DATA = 66,
        /// The build id of a binary.
        HEADER_BUILD_ID = 67,
        /// Every buffer has been read once since the last of these.
        FINISHED_ROUND = 68,
        /// Which event ids belong to which CPU and thread.
        ID_INDEX = 69,
        /// What the AUX area traces hold.
        AUXTRACE_INFO = 70,
        /// Bytes of an AUX area trace.
        AUXTRACE = 71,
        /// An error of decoding an AUX area trace.
        AUXTRACE_ERROR = 72,
        /// The threads recorded.
        THREAD_MAP = 73,
        /// The CPUs recorded.
        CPU_MAP = 74,
        /// The settings of `perf stat`.
        STAT_CONFIG = 75,
        /// A count of `perf stat`.
        STAT = 76,
        /// An interval of `perf stat`.
        STAT_ROUND = 77,
        /// A change of an event.
        EVENT_UPDATE = 78,
        /// How the timestamp counter converts to perf's time.
        TIME_CONV = 79,
        /// A feature section (pipe mode).
        HEADER_FEATURE = 80,
        /// Compressed records.
        COMPRESSED = 81,
        /// The synthesised records at the beginning end here.
        FINISHED_INIT = 82,
        /// Compressed records, of newer perf.
        COMPRESSED2 = 83,
    }
}

impl RecordKind {
    /// Whether the kernel writes records of this kind (perf itself may write them, too).
    #[must_use]
    pub fn is_kernel(self) -> bool {
        self.0 < 64
    }
}

numbers! {
    /// A feature section: a piece of information about the file and the machine.
    Feature(u32) {
        /// Formats of tracepoints.
        TRACING_DATA = 1,
        /// The build ids of the binaries.
        BUILD_ID = 2,
        /// The machine's name.
        HOSTNAME = 3,
        /// The kernel's release.
        OSRELEASE = 4,
        /// perf's version.
        VERSION = 5,
        /// The architecture.
        ARCH = 6,
        /// The number of CPUs available and online.
        NRCPUS = 7,
        /// The CPU's name.
        CPUDESC = 8,
        /// The CPU's vendor, family, model and stepping.
        CPUID = 9,
        /// The memory of the machine.
        TOTAL_MEM = 10,
        /// perf's command line.
        CMDLINE = 11,
        /// The events with their names and ids.
        EVENT_DESC = 12,
        /// Cores and sockets.
        CPU_TOPOLOGY = 13,
        /// Memory nodes.
        NUMA_TOPOLOGY = 14,
        /// Samples hold branch stacks.
        BRANCH_STACK = 15,
        /// Names and numbers of the performance monitoring units.
        PMU_MAPPINGS = 16,
        /// Groups of events.
        GROUP_DESC = 17,
        /// Where the AUXTRACE records stand.
        AUXTRACE = 18,
        /// The file is of `perf stat`.
        STAT = 19,
        /// The caches.
        CACHE = 20,
        /// The first and the last sample's time.
        SAMPLE_TIME = 21,
        /// Memory blocks.
        MEM_TOPOLOGY = 22,
        /// The clock of the times.
        CLOCKID = 23,
        /// The version of the directory format.
        DIR_FORMAT = 24,
        /// BPF programs.
        BPF_PROG_INFO = 25,
        /// BPF type information.
        BPF_BTF = 26,
        /// The records are compressed.
        COMPRESSED = 27,
        /// Capabilities of the cpu PMU.
        CPU_PMU_CAPS = 28,
        /// Reference times of the clock.
        CLOCK_DATA = 29,
        /// Performance and efficiency cores.
        HYBRID_TOPOLOGY = 30,
        /// Capabilities of the PMUs.
        PMU_CAPS = 31,
    }
}

/// The `misc` field of a record's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Misc(pub u16);

/// What the processor was running when a record was made, or what a mapping belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CpuMode {
    /// Not told.
    Unknown,
    /// The kernel.
    Kernel,
    /// A user program.
    User,
    /// A hypervisor.
    Hypervisor,
    /// The kernel of a guest.
    GuestKernel,
    /// A user program of a guest.
    GuestUser,
    /// A number without a meaning yet.
    Other(u8),
}

impl Misc {
    /// The field of a record about user code.
    pub const USER: Self = Self(2);
    /// COMM: the name changed because of an exec; FORK: likewise.
    pub(crate) const EXEC: u16 = 1 << 13;
    /// SWITCH: out.
    pub(crate) const SWITCH_OUT: u16 = 1 << 13;
    /// BUILD_ID: the size of the id stands behind it.
    pub(crate) const BUILD_ID_SIZE: u16 = 1 << 15;
    /// MMAP2: a build id in place of the inode.
    pub(crate) const MMAP_BUILD_ID: u16 = 1 << 14;

    /// Whose code the record is about.
    #[must_use]
    pub fn cpu_mode(self) -> CpuMode {
        match self.0 & 7 {
            0 => CpuMode::Unknown,
            1 => CpuMode::Kernel,
            2 => CpuMode::User,
            3 => CpuMode::Hypervisor,
            4 => CpuMode::GuestKernel,
            5 => CpuMode::GuestUser,
            other => CpuMode::Other(other as u8),
        }
    }

    pub(crate) fn has(self, bit: u16) -> bool {
        self.0 & bit != 0
    }
}

/// Which fields an event's samples, and the trailers of its other records, have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct SampleType(pub u64);

impl SampleType {
    /// The instruction pointer.
    pub const IP: Self = Self(1 << 0);
    /// Process and thread.
    pub const TID: Self = Self(1 << 1);
    /// The time.
    pub const TIME: Self = Self(1 << 2);
    /// A data address.
    pub const ADDR: Self = Self(1 << 3);
    /// The id of the event (of its group's leader).
    pub const ID: Self = Self(1 << 6);
    /// Counter values.
    pub const READ: Self = Self(1 << 4);
    /// The call chain.
    pub const CALLCHAIN: Self = Self(1 << 5);
    /// The CPU.
    pub const CPU: Self = Self(1 << 7);
    /// The sampling period.
    pub const PERIOD: Self = Self(1 << 8);
    /// The id of the event itself.
    pub const STREAM_ID: Self = Self(1 << 9);
    /// The fields of a tracepoint, or other data as its source gives them.
    pub const RAW: Self = Self(1 << 10);
    /// The last branches.
    pub const BRANCH_STACK: Self = Self(1 << 11);
    /// The user's registers.
    pub const REGS_USER: Self = Self(1 << 12);
    /// The user's stack.
    pub const STACK_USER: Self = Self(1 << 13);
    /// The weight of a memory access.
    pub const WEIGHT: Self = Self(1 << 14);
    /// Where the data came from.
    pub const DATA_SRC: Self = Self(1 << 15);
    /// What happened to a transaction.
    pub const TRANSACTION: Self = Self(1 << 17);
    /// The registers at the interrupt.
    pub const REGS_INTR: Self = Self(1 << 18);
    /// A physical address.
    pub const PHYS_ADDR: Self = Self(1 << 19);
    /// A piece of the AUX area.
    pub const AUX: Self = Self(1 << 20);
    /// The control group.
    pub const CGROUP: Self = Self(1 << 21);
    /// The size of the data's page.
    pub const DATA_PAGE_SIZE: Self = Self(1 << 22);
    /// The size of the code's page.
    pub const CODE_PAGE_SIZE: Self = Self(1 << 23);
    /// The weight, in three parts.
    pub const WEIGHT_STRUCT: Self = Self(1 << 24);
    /// The id at a place that does not depend on the other fields.
    pub const IDENTIFIER: Self = Self(1 << 16);

    /// Whether all fields of `other` are there.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The fields of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The bits that decide a trailer's layout.
    pub(crate) fn trailer_bits(self) -> u64 {
        const ALL: u64 = SampleType::TID.0
            | SampleType::TIME.0
            | SampleType::ID.0
            | SampleType::STREAM_ID.0
            | SampleType::CPU.0
            | SampleType::IDENTIFIER.0;
        self.0 & ALL
    }

    /// Where the id is in a sample's body.
    pub(crate) fn sample_id_place(self) -> Option<usize> {
        let before = [Self::IP, Self::TID, Self::TIME, Self::ADDR];
        self.id_place(0, &before)
    }

    /// Where the id is in a trailer, counted from its end.
    pub(crate) fn trailer_id_place(self) -> Option<usize> {
        self.id_place(8, &[Self::STREAM_ID, Self::CPU])
    }

    /// With IDENTIFIER at a fixed place, else beside the fields that are there.
    fn id_place(self, fixed: usize, beside: &[Self]) -> Option<usize> {
        if self.contains(Self::IDENTIFIER) {
            return Some(fixed);
        }
        let fields = beside.iter().filter(|field| self.contains(**field)).count();
        self.contains(Self::ID).then_some(fixed + 8 * fields)
    }

    /// The size of the trailer of records that are not samples.
    pub(crate) fn trailer_size(self) -> usize {
        self.trailer_bits().count_ones() as usize * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_print_their_names() {
        assert_eq!(RecordKind::AUXTRACE.to_string(), "AUXTRACE");
        assert_eq!(RecordKind(4711).to_string(), "4711");
        assert_eq!(format!("{:?}", Feature(99)), "Feature(99)");
        assert_eq!(format!("{:?}", Feature(12)), "EVENT_DESC");
    }

    #[test]
    fn a_trailer_counts_eight_bytes_a_field() {
        assert_eq!(SampleType(0x10087).trailer_size(), 32);
        assert_eq!(SampleType(0x10083).trailer_size(), 24);
        assert_eq!(SampleType(0).trailer_size(), 0);
    }

    #[test]
    fn the_id_is_where_the_other_fields_leave_it() {
        assert_eq!(SampleType(0x10087).sample_id_place(), Some(0));
        assert_eq!(SampleType(0x10087).trailer_id_place(), Some(8));
        // IP|TID|TIME|ID|CPU: three fields before, one behind.
        assert_eq!(SampleType(0xc7).sample_id_place(), Some(24));
        assert_eq!(SampleType(0xc7).trailer_id_place(), Some(16));
        assert_eq!(SampleType(0x87).sample_id_place(), None);
        assert_eq!(SampleType(0x87).trailer_id_place(), None);
    }
}
