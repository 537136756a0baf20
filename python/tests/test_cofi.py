"""What Python is told is what the command tells. (COFI names the command; `python -m unittest` in the environment where the wheel is installed.)"""

import collections
import contextlib
import doctest
import gc
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

import numpy as np
import polars
import pyarrow as pa

import cofi

COFI = os.environ.get("COFI", "cofi")

# A program with calls, recursion, indirect branches and a signal handler.
PROGRAM = r"""
#include <signal.h>
#include <stdlib.h>
static volatile int hits;
static void handler(int number) { hits += number; }
static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
int main(void) {
    int values[200];
    signal(SIGUSR1, handler);
    for (int i = 0; i < 200; i++) values[i] = (i * 7919) % 1009;
    qsort(values, 200, sizeof(int), compare);
    raise(SIGUSR1);
    return fibonacci(15) == 610 && hits ? 0 : 1;
}
"""


def command(*words):
    """What the command writes, a line of JSON each."""
    done = subprocess.run([COFI, *map(str, words)], stdout=subprocess.PIPE, check=False)
    assert done.returncode in (0, 1), done
    return [json.loads(line) for line in done.stdout.splitlines()]


def address(text):
    return None if text is None else int(text, 16)


def told(gaps):
    return [(gap.kind, gap.offset, gap.instructions) for gap in gaps]


class Recorded(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        folder = Path(cls.folder.name)
        # (Its name is one that a page must not take for its own.)
        source, program = folder / "program.c", folder / "<b>x"
        source.write_text(PROGRAM)
        subprocess.run(["gcc", "-O1", "-g", "-o", program, source], check=True)
        cls.path = folder / "x.data"
        subprocess.run([COFI, "record", "-o", cls.path, "--", program], check=True, stderr=subprocess.DEVNULL)
        # The same with a hole: bytes in the middle of the trace are spoilt.
        cls.damaged = folder / "damaged.data"
        recording = cofi.open(cls.path)
        data = bytearray(cls.path.read_bytes())
        packets = recording.threads[0].data
        where = data.find(packets[len(packets) // 2 :][:4096])
        assert where > 0
        data[where : where + 64] = b"\xff" * 64
        cls.damaged.write_bytes(data)
        (folder / "damaged.data.code").symlink_to(folder / "x.data.code")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def both(self):
        for path in (self.path, self.damaged):
            with self.subTest(path=path.name):
                yield path, cofi.open(path)

    def gaps(self, recording):
        """The gaps that the events tell, the first of those between which nothing ran."""
        all_gaps, at = [], None
        for happening in recording.threads[0].events():
            if isinstance(happening, cofi.Gap):
                if happening.instructions != at:
                    all_gaps.append(happening)
                at = happening.instructions
        return told(all_gaps)

    def test_instructions(self):
        for path, recording in self.both():
            for thread in recording.threads:
                lines = command("insn", "--json", path)
                wanted = [address(line["insn"]) for line in lines if "insn" in line]
                batches = list(thread.instructions(batch=1000))
                found = np.concatenate([batch.ip for batch in batches])
                self.assertEqual(found.tolist(), wanted)
                before = 0
                for batch in batches:
                    self.assertEqual(batch.first, before)
                    self.assertEqual(len(batch), len(batch.ip))
                    self.assertEqual(len(batch.length), len(batch))
                    self.assertTrue((batch.length > 0).all() and (batch.length <= 15).all())
                    before += len(batch)
                gaps = [batch.gap_before for batch in batches if batch.gap_before is not None]
                self.assertEqual(bool(gaps), path == self.damaged)
                self.assertEqual(told(gaps), self.gaps(recording))

    def test_blocks(self):
        for path, recording in self.both():
            for thread in recording.threads:
                lines = [line for line in command("blocks", "--json", path) if "block" in line]
                wanted = [(address(line["block"]), address(line["end"]), line["insns"], line["last"]) for line in lines]
                for timed in (False, True):
                    found, gaps = [], []
                    for batch in thread.blocks(batch=777, time=timed):
                        classes = [cofi.CLASSES[number] for number in batch.class_]
                        rows = zip(batch.ip.tolist(), batch.end.tolist(), batch.instructions.tolist(), classes)
                        found.extend(rows)
                        self.assertEqual(len(batch.tsc), len(batch) if timed else 0)
                        if timed:
                            known = batch.tsc[batch.tsc != cofi.NO_TIME]
                            self.assertTrue((np.diff(known) >= 0).all())
                        if batch.gap_before is not None:
                            gaps.append(batch.gap_before)
                    self.assertEqual(found, wanted)
                    self.assertEqual(told(gaps), self.gaps(recording))

    def test_events_and_gaps(self):
        for path, recording in self.both():
            lines = command("insn", "--json", path)
            wanted = []
            for line in lines:
                if "error" in line:
                    wanted.append(("gap", line["kind"], line["offset"]))
                elif "event" in line and line["event"] != "signal":
                    wanted.append((line["event"], address(line.get("ip"))))
            found = []
            for happening in recording.threads[0].events():
                if isinstance(happening, cofi.Gap):
                    found.append(("gap", happening.kind, happening.offset))
                else:
                    found.append((happening.kind, happening.fields.get("ip")))
            self.assertEqual(found, wanted)

    def test_calls(self):
        lines = [line for line in command("calls", "--json", self.path) if "call" in line]
        wanted = collections.Counter((line["call"], line["kind"], line["left"], line["insns"]) for line in lines)
        recording = cofi.open(self.path)
        found = collections.Counter()
        calls = recording.threads[0].calls(batch=100)
        for batch in calls:
            self.assertLessEqual(len(batch), 100)
            for function, kind, left, count in zip(batch.function, batch.kind, batch.left, batch.instructions):
                name = recording.function_name(int(function))
                found[name, cofi.CALL_KINDS[kind], cofi.CALL_LEFT[left], int(count)] += 1
            self.assertTrue((batch.era == 0).all())
        self.assertEqual(calls.gaps, 0)
        self.assertEqual(found, wanted)
        self.assertEqual(sum(count for (name, *_), count in found.items() if name == "fibonacci"), 1973)

    def test_calls_end_at_a_gap(self):
        calls = cofi.open(self.damaged).threads[0].calls()
        left, eras, known = collections.Counter(), set(), set()
        for batch in calls:
            for row in zip(batch.tid.tolist(), batch.era.tolist(), batch.number.tolist()):
                self.assertNotIn(row, known)
                known.add(row)
            left.update(cofi.CALL_LEFT[number] for number in batch.left)
            eras.update(batch.era.tolist())
        self.assertGreater(calls.gaps, 0)
        self.assertGreater(left["gap"], 0)
        self.assertGreater(len(eras), 1)

    def iterators(self, thread):
        yield lambda: thread.instructions(batch=1000)
        yield lambda: thread.blocks(batch=777)
        yield lambda: thread.blocks(batch=777, time=True)
        yield lambda: thread.calls(batch=100)

    def columns(self, batch, names):
        """The arrays of a batch as Arrow has them: what stands for nothing is nothing, and so is what was not wanted."""
        for name in names:
            values = getattr(batch, name).tolist()
            nothing = {"parent": cofi.NO_CALL, "tsc": cofi.NO_TIME, "begin_tsc": cofi.NO_TIME, "end_tsc": cofi.NO_TIME}.get(name)
            yield name, [None if value == nothing else value for value in values] or [None] * len(batch)

    def test_arrow_has_what_the_arrays_have(self):
        nothing = set()
        for path, recording in self.both():
            for make in self.iterators(recording.threads[0]):
                table = pa.table(make())
                schema = pa.schema(make())
                self.assertEqual(table.schema, schema)
                read = {name: [] for name in schema.names}
                for batch in make():
                    record = pa.record_batch(batch)
                    record.validate(full=True)
                    self.assertEqual(record.schema, schema)
                    self.assertEqual(pa.schema(batch), schema)
                    wanted = dict(self.columns(batch, schema.names))
                    self.assertEqual(record.to_pydict(), wanted)
                    for name, values in wanted.items():
                        self.assertEqual(str(schema.field(name).type), str(getattr(batch, name).dtype))
                        read[name].extend(values)
                        if None in values:
                            nothing.add(name)
                table.validate(full=True)
                self.assertEqual(table.to_pydict(), read)
                self.assertGreater(len(table), 0)
                frame = polars.DataFrame(make())
                self.assertEqual(frame.to_dict(as_series=False), read)
        self.assertLessEqual({"tsc", "parent"}, nothing)

    def test_arrow_keeps_what_it_was_given(self):
        thread = cofi.open(self.path).threads[0]
        batch = next(thread.blocks())
        frame, first = polars.DataFrame(batch), int(batch.ip[0])
        batch.ip[0] = 0
        self.assertEqual(frame["ip"][0], first)
        del batch
        gc.collect()
        self.assertEqual(frame["ip"][0], first)
        # A capsule that nobody takes frees what it has, and a stream goes on where the iterator stands.
        next(thread.blocks()).__arrow_c_array__()
        blocks = thread.blocks(batch=10)
        blocks.__arrow_c_stream__()
        begun = next(blocks)
        rest = pa.table(blocks)
        self.assertEqual(len(begun) + len(rest), len(pa.table(thread.blocks())))
        self.assertEqual(list(blocks), [])

    def test_summary_and_check(self):
        recording = cofi.open(self.path)
        summary = recording.summary()
        self.assertEqual(summary.gaps, 0)
        self.assertEqual(int(summary.counts.sum()), summary.instructions)
        self.assertEqual(dict(zip(summary.names, summary.entries.tolist()))["fibonacci"], 1973)
        (check,) = recording.check()
        self.assertTrue(check.is_whole)
        self.assertEqual(check.instructions, summary.instructions)
        (check,) = cofi.open(self.damaged).check()
        self.assertFalse(check.is_whole)
        self.assertGreater(check.gap_count, 0)

    def test_archives_and_recordings_of_a_catalogue(self):
        folder = Path(self.folder.name)
        archive, catalogue = folder / "x.cofi", folder / "catalogue"
        subprocess.run([COFI, "archive", "-o", archive, self.path], check=True, stderr=subprocess.DEVNULL)
        subprocess.run([COFI, "archive", "--into", catalogue, self.path], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wanted = cofi.open(self.path).summary()
        kept = list((catalogue / "recordings").iterdir())
        self.assertEqual(len(kept), 1)
        for path in [archive, *kept]:
            with self.subTest(path=path.name):
                recording = cofi.open(path)
                self.assertTrue(recording.check()[0].is_whole)
                found = recording.summary()
                self.assertEqual(found.instructions, wanted.instructions)
                self.assertEqual(found.names, wanted.names)
                self.assertEqual(found.counts.tolist(), wanted.counts.tolist())
        cut = folder / "cut.cofi"
        cut.write_bytes(archive.read_bytes()[:1500])
        with self.assertRaises(cofi.CofiError):
            cofi.open(cut)

    def test_programs_of_the_pages(self):
        """They read `cofi.data` in their folder."""
        here, root = os.getcwd(), Path(__file__).resolve().parent.parent
        count = 0
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "cofi.data").symlink_to(self.path)
            (Path(folder) / "cofi.data.code").symlink_to(Path(f"{self.path}.code"))
            for page in (root / "README.md", root.parent / "README.md"):
                for block in page.read_text().split("```python\n")[1:]:
                    program = block.split("```")[0]
                    if '"cofi.data"' not in program:
                        continue
                    count += 1
                    os.chdir(folder)
                    try:
                        with contextlib.redirect_stdout(io.StringIO()) as said:
                            exec(compile(program, str(page), "exec"), {})
                    finally:
                        os.chdir(here)
                    self.assertGreater(len(said.getvalue().splitlines()), 0)
        self.assertEqual(count, 3)

    def test_what_is_shown_in_a_notebook_is_text(self):
        html = cofi.open(self.path)._repr_html_() + cofi.open(self.path).summary()._repr_html_()
        self.assertIn("fibonacci", html)
        self.assertIn("&lt;b&gt;x", html)
        self.assertNotIn("<b>", html)

    def test_iterators_outlive_their_recording_and_may_be_left(self):
        instructions = cofi.open(self.path).threads[0].instructions(batch=10)
        gc.collect()
        first = next(iter(instructions))
        self.assertGreaterEqual(len(first), 10)
        del instructions
        gc.collect()
        whole = sum(len(batch) for batch in cofi.open(self.path).threads[0].instructions())
        self.assertGreater(whole, 1000)

    def test_threads_may_share_an_iterator(self):
        recording = cofi.open(self.path)
        wanted = recording.summary().instructions
        for _ in range(20):
            shared, found = recording.threads[0].instructions(batch=2000), []

            def count():
                found.append(sum(len(batch) for batch in shared))

            threads = [threading.Thread(target=count) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual((len(found), sum(found)), (4, wanted))

    def test_what_cannot_be_read_is_said(self):
        with self.assertRaises(FileNotFoundError):
            cofi.open("no such file")
        bad = Path(self.folder.name) / "bad.data"
        bad.write_bytes(self.path.read_bytes()[:40])
        with self.assertRaises(cofi.CofiError):
            cofi.open(bad)
        with self.assertRaises(ValueError):
            cofi.open(self.path, format="elf")
        with self.assertRaises(ValueError):
            cofi.open(self.path).threads[0].blocks(batch=0)
        with self.assertRaises(IndexError):
            cofi.open(self.path).function_name(12345)


class Made(unittest.TestCase):
    def test_packets_of_text(self):
        text = "psb\npsbend\ntip.pge 0x401000\ntnt.8 TNT\ntip.pgd -"
        data = cofi.assemble(text)
        packets = cofi.packets(data)
        self.assertEqual([str(packet) for packet in packets], text.splitlines())
        self.assertEqual(sum(packet.size for packet in packets), len(data))
        self.assertEqual(cofi.assemble("\n".join(map(str, packets))), data)
        spoilt = cofi.packets(data + b"\x02\xff\xff")
        self.assertTrue(spoilt[-1].is_error)
        self.assertEqual(spoilt[-1].offset, len(data))
        with self.assertRaisesRegex(ValueError, "line 2"):
            cofi.assemble("psb\nnonsense")

    def test_the_law(self):
        """Of what a unit sends, the decoder makes what it was told."""
        # dec ecx; jnz -4; call +1; hlt; ret
        code = bytes([0xFF, 0xC9, 0x75, 0xFC, 0xE8, 1, 0, 0, 0, 0xF4, 0xC3])
        base, ran = 0x401000, []
        unit = cofi.Unit("skylake")
        unit.start(ip=base)
        for turn in range(30):
            ran += [base, base + 2]
            unit.retire(base, 2)
            unit.retire(base + 2, 2, "conditional", base if turn < 29 else None)
        ran += [base + 4, base + 10]
        unit.retire(base + 4, 5, "direct_call", base + 10)
        unit.retire(base + 10, 1, "return", base + 9)
        data = unit.stop(ip=base + 9)
        with tempfile.TemporaryDirectory() as folder:
            path, file = Path(folder) / "x.pt", Path(folder) / "code"
            path.write_bytes(data)
            file.write_bytes(code)
            recording = cofi.open(path, raw=[f"{file}:{base:#x}"])
            (thread,) = recording.threads
            batches = list(thread.instructions())
            self.assertEqual([batch.gap_before for batch in batches], [None])
            self.assertEqual(batches[0].ip.tolist(), ran)

    def test_faults(self):
        unit = cofi.Unit("broadwell")
        with self.assertRaisesRegex(cofi.Fault, "#GP"):
            unit.rdmsr("IA32_RTIT_ADDR0_A")
        with self.assertRaises(ValueError):
            unit.rdmsr("IA32_NONE")
        with self.assertRaises(ValueError):
            cofi.Unit("pentium")
        with self.assertRaises(ValueError):
            unit.retire(0, 2, "return")
        unit = cofi.Unit(caps={"ptwrite": True}, options={"tnt": "long"})
        self.assertEqual(unit.rdmsr("IA32_RTIT_CTL"), 0)
        self.assertFalse(unit.packet_en)

    def test_output_that_is_not_whole(self):
        unit = cofi.Unit("skylake")
        unit.check_output()
        # A range of 256 bytes that begins in its middle.
        unit.wrmsr("IA32_RTIT_OUTPUT_BASE", 0x80)
        unit.wrmsr("IA32_RTIT_OUTPUT_MASK_PTRS", 0xFF)
        unit.wrmsr("IA32_RTIT_CTL", 1 | 1 << 3 | 1 << 13)
        with self.assertRaisesRegex(cofi.OutputLost, "Error"):
            unit.check_output()
        unit = cofi.Unit("skylake", options={"buffer.size": 64, "buffer.drain_bytes": 0})
        unit.start(ip=0x401000)
        unit.check_output()
        for _ in range(100):
            unit.retire(0x401000, 2, "indirect_jump", 0x401000)
        with self.assertRaisesRegex(cofi.OutputLost, "1 overflow"):
            unit.check_output()


def load_tests(loader, tests, pattern):
    tests.addTests(doctest.DocTestSuite(cofi))
    readme = Path(__file__).parent.parent / "README.md"
    tests.addTests(doctest.DocFileSuite(str(readme), module_relative=False, optionflags=doctest.ELLIPSIS))
    return tests


if __name__ == "__main__":
    sys.exit(unittest.main())
