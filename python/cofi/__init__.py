"""Processor Trace for Python.

A recording is opened, and its streams are walked in batches of NumPy arrays; no object is made for an instruction.

>>> import cofi
>>> trace = cofi.assemble("psb\\npsbend\\nmode.exec 64\\ntip.pge 0x401000\\ntnt TN\\ntip.pgd -")
>>> [packet.name for packet in cofi.packets(trace)]
['psb', 'psbend', 'mode.exec', 'tip.pge', 'tnt.8', 'tip.pgd']

The trace unit makes packets of what a processor does:

>>> unit = cofi.Unit("skylake")
>>> unit.start(ip=0x401000)
>>> unit.retire(0x401000, 2, "conditional", 0x401008)
>>> unit.retire(0x401008, 1, "indirect_jump", 0x402000)
>>> [str(packet) for packet in cofi.packets(unit.stop(ip=0x402000))][-4:]
['tnt.8 T', 'tip 0x402000', 'fup 0x402000', 'tip.pgd -']

What breaks a rule of the manual is the fault that it names:

>>> unit.wrmsr("IA32_RTIT_CTL", 1 << 63)
Traceback (most recent call last):
    ...
cofi.Fault: #GP: MSR 0x570, value 0x8000000000000000: a reserved bit is set (33.2.8.1)
"""

from ._cofi import (
    CALL_KINDS,
    CALL_LEFT,
    CLASSES,
    NO_CALL,
    NO_TIME,
    BlockBatch,
    Blocks,
    CallBatch,
    Calls,
    CofiError,
    Event,
    Events,
    Fault,
    Gap,
    InstructionBatch,
    Instructions,
    OutputLost,
    Packet,
    Recording,
    StreamCheck,
    Summary,
    Thread,
    Unit,
    __version__,
    assemble,
    open,
    packets,
)

__all__ = [
    "CALL_KINDS",
    "CALL_LEFT",
    "CLASSES",
    "NO_CALL",
    "NO_TIME",
    "BlockBatch",
    "Blocks",
    "CallBatch",
    "Calls",
    "CofiError",
    "Event",
    "Events",
    "Fault",
    "Gap",
    "InstructionBatch",
    "Instructions",
    "OutputLost",
    "Packet",
    "Recording",
    "StreamCheck",
    "Summary",
    "Thread",
    "Unit",
    "__version__",
    "assemble",
    "open",
    "packets",
]
