from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Union

import numpy as np
from numpy.typing import NDArray

__version__: str

CLASSES: list[str]
"""The words for what an instruction is, by the numbers of `class_`."""
CALL_KINDS: list[str]
"""How a call began, by the numbers of `CallBatch.kind`."""
CALL_LEFT: list[str]
"""How a call was left, by the numbers of `CallBatch.left`."""
NO_CALL: int
"""In `CallBatch.parent`: no call of the trace is around."""
NO_TIME: int
"""In arrays of times: no packet tells one."""

_Path = Union[str, PathLike[str]]

class CofiError(Exception):
    """A recording cannot be read."""

class Fault(Exception):
    """What the processor raises where an access breaks a rule: #GP or #UD, with the rule."""

class OutputLost(Exception):
    """The output of a trace unit does not hold all that was to be traced."""

def open(
    path: _Path,
    *,
    elf: Sequence[str] = ...,
    raw: Sequence[str] = ...,
    folders: Sequence[_Path] = ...,
    kallsyms: _Path | None = None,
    format: str | None = None,
    cpu: tuple[int, int, int] | None = None,
) -> Recording:
    """Opens a recording: a perf.data file, of Cofi or of perf, or bare packets. The whole file is read; it is decoded when it is asked for.

    elf: programs and libraries that every process has mapped: "FILE", or "FILE:ADDRESS" with the address where it is loaded (for bare packets).
    raw: files of bare code: "FILE:ADDRESS".
    folders: where to look for files of code that are not where the recording says.
    kallsyms: a list of the kernel's functions, as /proc/kallsyms is.
    format: "perf", "pt" or "rtit", if it is not to be recognised.
    cpu: family, model and stepping of the processor, whose errata are worked around.
    """

class Recording:
    """A recording. It stays in memory as long as anything of it is in use."""

    @property
    def path(self) -> Path: ...
    @property
    def threads(self) -> list[Thread]:
        """Its streams: one a thread, or one a processor."""
    @property
    def missing(self) -> list[str]:
        """What is not in it although it ran, in one sentence each, as far as its recorder knows; and what is wrong with it as a whole."""
    @property
    def code_problems(self) -> list[str]:
        """Code that could not be read, in one sentence each, as far as it has been asked for."""
    @property
    def functions(self) -> list[str]:
        """The names of all functions that batches have had numbers of, by number."""
    def function_name(self, number: int) -> str:
        """The name of a function, by the number that batches have."""
    def function_file(self, number: int) -> Path | None:
        """The file in which the code of a function is."""
    def summary(self) -> Summary:
        """Decodes everything, on all processors, and counts."""
    def check(self) -> list[StreamCheck]:
        """Decodes everything, on all processors, and tells each place where a part is missing (the first 10,000 of a stream)."""
    def _repr_html_(self) -> str: ...

class Thread:
    """One stream: what a thread ran, or what a processor did.

    Instructions, blocks and calls are decoded by a thread of its own for each iterator, which is two batches ahead at most, and ends when nobody has the iterator any more. Several
    threads may share an iterator: each batch goes to one of them.
    """

    @property
    def tid(self) -> int | None:
        """The thread; none of a processor's stream."""
    @property
    def cpu(self) -> int | None:
        """The processor; none of a thread's stream."""
    @property
    def pid(self) -> int | None:
        """The process of a thread."""
    @property
    def name(self) -> str | None:
        """What the thread is called."""
    @property
    def data(self) -> bytes:
        """The bytes of its packets."""
    def instructions(self, *, batch: int = ...) -> Instructions:
        """The instructions that ran, in batches of about so many."""
    def blocks(self, *, batch: int = ..., time: bool = False) -> Blocks:
        """The blocks that ran, in batches of about so many; with the time of each if that is wanted."""
    def calls(self, *, batch: int = ...) -> Calls:
        """The calls, in the order in which they were left, in batches of about so many."""
    def events(self) -> Events:
        """Events and gaps, in their order. An overflow is both: the event, and then the gap."""

class Instructions:
    def __iter__(self) -> Iterator[InstructionBatch]: ...
    def __next__(self) -> InstructionBatch: ...
    def __arrow_c_schema__(self) -> object:
        """Arrow's description of the columns, as a capsule. What is NO_TIME or NO_CALL in arrays is null there."""
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The batches that are still to come as Arrow's stream, without copies. `pyarrow.table` and `polars.DataFrame` take the iterator itself. It does not say
        what is missing between rows: see Recording.check."""

class Blocks:
    def __iter__(self) -> Iterator[BlockBatch]: ...
    def __next__(self) -> BlockBatch: ...
    def __arrow_c_schema__(self) -> object:
        """Arrow's description of the columns, as a capsule. What is NO_TIME or NO_CALL in arrays is null there."""
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The batches that are still to come as Arrow's stream, without copies. `pyarrow.table` and `polars.DataFrame` take the iterator itself. It does not say
        what is missing between rows: see Recording.check."""

class Events:
    def __iter__(self) -> Iterator[Event | Gap]: ...
    def __next__(self) -> Event | Gap: ...

class Calls:
    def __iter__(self) -> Iterator[CallBatch]: ...
    def __next__(self) -> CallBatch: ...
    def __arrow_c_schema__(self) -> object:
        """Arrow's description of the columns, as a capsule. What is NO_TIME or NO_CALL in arrays is null there."""
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The batches that are still to come as Arrow's stream, without copies. `pyarrow.table` and `polars.DataFrame` take the iterator itself. It does not say
        what is missing between rows: see Recording.check."""
    @property
    def gaps(self) -> int:
        """How many gaps have been found so far; all of them once the iterator has ended. At each all open calls are left, as nobody knows what ran."""

class InstructionBatch:
    """Instructions that ran one after the other, none missing between them. The last batch may be empty: then its gap is the end of the trace."""

    @property
    def ip(self) -> NDArray[np.uint64]:
        """Their addresses."""
    @property
    def length(self) -> NDArray[np.uint8]:
        """Their lengths in bytes."""
    @property
    def class_(self) -> NDArray[np.uint8]:
        """What they are: indices into CLASSES."""
    @property
    def first(self) -> int:
        """How many instructions of the stream ran before."""
    @property
    def gap_before(self) -> Gap | None:
        """What is missing right before (the first thing, if there are several); none if nothing is."""
    def __arrow_c_schema__(self) -> object:
        """Arrow's description of the columns, as a capsule. What is NO_TIME or NO_CALL in arrays is null there."""
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """The columns as Arrow has them, as two capsules: copies. `pyarrow.record_batch` and `polars.DataFrame` take the batch itself."""
    def __len__(self) -> int: ...

class BlockBatch:
    """Blocks that ran one after the other, none missing between them. A block ends with an instruction of which only the trace tells where it led, or before an
    event. The last batch may be empty: then its gap is the end of the trace."""

    @property
    def ip(self) -> NDArray[np.uint64]:
        """The address of the first instruction of each."""
    @property
    def end(self) -> NDArray[np.uint64]:
        """The address of the last instruction of each."""
    @property
    def instructions(self) -> NDArray[np.uint32]:
        """How many instructions each has."""
    @property
    def class_(self) -> NDArray[np.uint8]:
        """What the last instruction of each is: indices into CLASSES."""
    @property
    def function(self) -> NDArray[np.uint32]:
        """The function of the first instruction of each: see Recording.functions."""
    @property
    def offset(self) -> NDArray[np.uint64]:
        """Where in the stream the last packet begins that was used for each."""
    @property
    def tsc(self) -> NDArray[np.int64]:
        """The estimated time stamp counter at the end of each, or NO_TIME; empty if times were not wanted."""
    @property
    def gap_before(self) -> Gap | None:
        """What is missing right before (the first thing, if there are several); none if nothing is."""
    def __arrow_c_schema__(self) -> object:
        """Arrow's description of the columns, as a capsule. What is NO_TIME or NO_CALL in arrays is null there."""
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """The columns as Arrow has them, as two capsules: copies. `pyarrow.record_batch` and `polars.DataFrame` take the batch itself."""
    def __len__(self) -> int: ...

class CallBatch:
    """Calls, in the order in which they were left."""

    @property
    def tid(self) -> NDArray[np.uint32]:
        """The thread."""
    @property
    def era(self) -> NDArray[np.uint32]:
        """How often numbers have begun anew before: behind a gap, and where another program begins. A call is known by tid, era and number."""
    @property
    def number(self) -> NDArray[np.int64]:
        """In the order in which the calls of a thread begin; negative if it was open before the trace."""
    @property
    def parent(self) -> NDArray[np.int64]:
        """The number of the call around it, or NO_CALL."""
    @property
    def depth(self) -> NDArray[np.int32]:
        """How many calls are around it; what was open before the trace lies at negative depths."""
    @property
    def function(self) -> NDArray[np.uint32]:
        """The function: see Recording.functions."""
    @property
    def ip(self) -> NDArray[np.uint64]:
        """The address at which control entered it."""
    @property
    def kind(self) -> NDArray[np.uint8]:
        """How it began: indices into CALL_KINDS."""
    @property
    def left(self) -> NDArray[np.uint8]:
        """How it was left: indices into CALL_LEFT."""
    @property
    def begin(self) -> NDArray[np.uint64]:
        """The instructions of the thread before it."""
    @property
    def end(self) -> NDArray[np.uint64]:
        """The instructions of the thread before its end."""
    @property
    def begin_tsc(self) -> NDArray[np.int64]:
        """The estimated time stamp counter at its beginning, or NO_TIME."""
    @property
    def end_tsc(self) -> NDArray[np.int64]:
        """The same at its end."""
    @property
    def instructions(self) -> NDArray[np.uint64]:
        """The instructions that ran in it, with those of its callees."""
    @property
    def self_instructions(self) -> NDArray[np.uint64]:
        """Those of itself alone."""
    def __arrow_c_schema__(self) -> object:
        """Arrow's description of the columns, as a capsule. What is NO_TIME or NO_CALL in arrays is null there."""
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """The columns as Arrow has them, as two capsules: copies. `pyarrow.record_batch` and `polars.DataFrame` take the batch itself."""
    def __len__(self) -> int: ...

class Event:
    """Something that happened between two instructions."""

    @property
    def kind(self) -> str:
        """What: "enabled", "async_branch", "overflow", …: the names of `cofi events --json`."""
    @property
    def offset(self) -> int:
        """Where in the stream the last packet begins that was used up to here."""
    @property
    def tsc(self) -> int | None:
        """The estimated time stamp counter, as far as packets tell."""
    @property
    def instructions(self) -> int:
        """How many instructions of the stream ran before it."""
    @property
    def fields(self) -> dict[str, int | bool | str | None]:
        """Its values, by the names that `cofi events --json` has."""

class Gap:
    """A place where a part of the flow is missing: nobody knows what ran there."""

    @property
    def kind(self) -> str:
        """The word for its cause, as `cofi check` has it: "overflow", "missing", "no-code", …"""
    @property
    def text(self) -> str:
        """The cause in a sentence."""
    @property
    def offset(self) -> int:
        """Where in the stream."""
    @property
    def ip(self) -> int | None:
        """The instruction reached last, if that is known."""
    @property
    def instructions(self) -> int:
        """How many instructions of the stream are known to have run before it."""

class StreamCheck:
    """How whole a stream is."""

    @property
    def instructions(self) -> int:
        """Instructions that could be told."""
    @property
    def gap_count(self) -> int:
        """How many gaps there are."""
    @property
    def gaps(self) -> list[tuple[str, int, int]]:
        """The first gaps: the word for the cause, where in the stream, and how many bytes could not be used."""
    @property
    def is_whole(self) -> bool:
        """Whether nothing is known to be missing."""

class Summary:
    """What a recording was about."""

    @property
    def instructions(self) -> int:
        """All instructions."""
    @property
    def gaps(self) -> int:
        """Where the flow is missing, how often."""
    @property
    def names(self) -> list[str]:
        """The functions' names, the one with the most instructions of its own first."""
    @property
    def files(self) -> list[Path | None]:
        """The files of their code."""
    @property
    def counts(self) -> NDArray[np.uint64]:
        """The instructions of each."""
    @property
    def entries(self) -> NDArray[np.uint64]:
        """How often the first instruction of each ran."""
    def _repr_html_(self) -> str: ...

class Packet:
    """A packet, or bytes that are none."""

    @property
    def offset(self) -> int:
        """Where it begins."""
    @property
    def size(self) -> int:
        """How many bytes it has."""
    @property
    def text(self) -> str:
        """Its text, from which `assemble` makes the same bytes: "tip.pge 0x401000"; of bytes that are no packet, why."""
    @property
    def name(self) -> str:
        """The word with which the text begins; "error" of bytes that are no packet."""
    @property
    def is_error(self) -> bool:
        """Whether it is none."""

def packets(data: bytes, *, format: str = "pt", cycle_accurate: bool = False) -> list[Packet]:
    """The packets of a stream of bytes, which begins with a packet. Bytes that are none are told as such, up to the next PSB."""

def assemble(text: str, *, format: str = "pt", cycle_accurate: bool = False) -> bytes:
    """The bytes of packets that stand in a text, one in a line, as `cofi asm` reads them."""

class Unit:
    """A processor's trace unit: told what retires and what happens, it makes the packets that the processor would.

    Its output goes to one region of memory, of which only what was stored is kept.

    processor: a generation, as `cofi unit generations` names them.
    caps, options: other capabilities, and what the manual leaves to the processor: {"ptwrite": True}, {"tnt": "long"}.
    """

    def __new__(
        cls,
        processor: str = "skylake",
        *,
        cpl: int = 3,
        cr3: int = 0,
        mode: int = 64,
        caps: Mapping[str, int | str] | None = None,
        options: Mapping[str, int | str] | None = None,
    ) -> Unit: ...
    def rdmsr(self, register: str | int) -> int:
        """Reads a register, by its name ("IA32_RTIT_CTL") or address."""
    def wrmsr(self, register: str | int, value: int, *, ip: int = 0, length: int = 2) -> None:
        """Writes a register, by an instruction at `ip` of `length` bytes."""
    def start(self, flags: int = 0, *, ip: int = 0) -> None:
        """Sets the registers for a trace of user code into a region of 2 MiB, and TraceEn: `flags` are bits of IA32_RTIT_CTL beside TraceEn, User and BranchEn."""
    def stop(self, *, ip: int = 0) -> bytes:
        """Clears TraceEn, by an instruction at `ip`, and takes what was stored."""
    def clock(self, tsc: int, cycles: int | None = None) -> None:
        """The clock goes on to this time stamp counter, and to as many core cycles if these are not given. It never goes back."""
    def retire(self, ip: int, length: int, kind: str = "other", to: int | None = None) -> None:
        """An instruction at `ip` of `length` bytes retired.

        kind: "other", "conditional", "direct_jump", "direct_call", "indirect_jump", "indirect_call" or "return".
        to: where it led; a conditional branch without it was not taken.
        """
    def far_branch(self, ip: int, length: int, to: int, *, cpl: int, cr3: int = 0, mode: int = 64) -> None:
        """A far branch at `ip` of `length` bytes (SYSCALL, SYSRET, IRET, …) led to `to`, where this holds."""
    def interrupt(
        self,
        ip: int,
        vector: int,
        to: int,
        *,
        cpl: int = 0,
        cr3: int = 0,
        mode: int = 64,
        page_fault: int | None = None,
    ) -> None:
        """An interrupt, exception or fault was taken at `ip`, with this vector, and led to `to`, where this holds."""
    def mov_cr3(self, ip: int, length: int, cr3: int) -> None:
        """MOV to CR3 at `ip` retired."""
    def take(self) -> bytes:
        """The bytes that were stored since this was called last. Results of branches that wait for their packet are stored later: `stop` sends all."""
    def check_output(self) -> None:
        """Raises OutputLost if the output has failed or stopped, or packets were lost, as far as the registers and the internal buffer know: to be asked before the trace is taken for whole."""
    @property
    def packet_en(self) -> bool:
        """PacketEn: whether what retires now makes packets."""
