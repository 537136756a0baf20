"""A catalogue in an object store is what one in a folder is: `cofi archive --into s3://…` and what reads its recordings.

COFI, COFI_SQL and COFI_CLUSTER name the programs.
"""

import collections
import copy
import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from moto.s3.models import S3Backend

from server import Server

COFI, COFI_SQL, COFI_CLUSTER = (os.environ[name] for name in ("COFI", "COFI_SQL", "COFI_CLUSTER"))
ROOT = "s3://runs/fleet/today"
BELOW = "fleet/today/"

server = Server()
# `cofi` finds the program beside itself or on PATH.
environment = dict(
    server.environment,
    PATH="%s:%s" % (pathlib.Path(COFI_CLUSTER).resolve().parent, os.environ["PATH"]),
)


def archive(into, *words, **more):
    return subprocess.run(
        [COFI, "archive", "--into", into, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        **more,
    )


def told(into, *words, code=0):
    """The objects that a command writes."""
    done = archive(into, "--json", *words)
    assert done.returncode == code, done
    return [json.loads(line) for line in done.stdout.splitlines()]


def without_place(objects):
    """What does not depend on where and when."""
    return [{key: value for key, value in it.items() if key not in ("path", "added")} for it in objects]


def bare(folder, name, nops, pads=0):
    """A trace of some instructions, and what must be said of it."""
    text = folder / "packets.txt"
    text.write_text("psb\npsbend\ntip.pge 0x401000\ntip.pgd -\n")
    packets, code = folder / (name + ".pt"), folder / (name + ".bin")
    subprocess.run([COFI, "asm", text, "-o", packets], check=True)
    with packets.open("ab") as out:
        out.write(bytes(pads))
    code.write_bytes(b"\x90" * nops + b"\x0f\x05")
    return ["--raw", "%s:0x401000" % code, packets]


def make_old(read, write, name):
    """The recorded time of adding, set back to 2001."""
    write(name, re.sub(rb'("added": )\d{10}', rb"\g<1>1000000000", read(name), count=1))


class Watched:
    """Has something called before each object is made, by its name below the catalogue."""

    def __init__(self, before):
        self.before = before

    def __enter__(self):
        self.real = S3Backend.put_object

        def put_object(backend, bucket_name, key_name, *words, **more):
            self.before(key_name.removeprefix(BELOW))
            return self.real(backend, bucket_name, key_name, *words, **more)

        S3Backend.put_object = put_object

    def __exit__(self, *_):
        S3Backend.put_object = self.real


def as_in_a_folder(folder):
    """The same steps in a folder and in a store tell the same."""
    data = folder / "gzip.data"
    record = [COFI, "record", "--engine", "qemu", "--output", data, "--", "gzip", "--version"]
    subprocess.run(record, check=True, stdout=subprocess.DEVNULL)
    beside = folder / "catalogue"
    steps = [
        [data],
        ["--name", "again", data],
        [data],
        bare(folder, "first", 3),
        bare(folder, "second", 3),
        bare(folder, "third", 7),
        ["--list"],
    ]
    for step in steps:
        here, there = told(beside, *step), told(ROOT, *step)
        assert without_place(here) == without_place(there), (step, here, there)
        for one, other in zip(here, there):
            assert ("path" in one) == ("path" in other)
            if "path" in one:
                tail = pathlib.Path(one["path"]).relative_to(beside)
                assert other["path"] == "%s/%s" % (ROOT, tail), other
    assert archive(ROOT, "--list").stdout.count("\n") == archive(beside, "--list").stdout.count("\n")
    below = [str(path.relative_to(beside)) for path in beside.rglob("*") if path.is_file()]
    assert server.names(BELOW) == sorted(below), below
    # What is old goes, with the code that nobody else needs.
    for name in ["recordings/first.cofi", "recordings/third.cofi"]:
        make_old(lambda name: (beside / name).read_bytes(), lambda name, body: (beside / name).write_bytes(body), name)
        make_old(lambda name: server.get(BELOW + name), lambda name, body: server.put(BELOW + name, body), name)
    for step in [["--prune", "1d"], ["--list"]]:
        here, there = told(beside, *step), told(ROOT, *step)
        assert without_place(here) == without_place(there), (step, here, there)
    # Its recordings are read in their place, and their code with them: what they were made of is gone.
    data.unlink()
    statement = "SELECT tid, function, file, count(*) AS n, sum(instructions) AS i FROM calls GROUP BY 1, 2, 3"
    kept = ["recordings/gzip.cofi", "recordings/again.cofi"]
    wanted = rows([COFI_SQL, "sql", "--json", *(beside / name for name in kept), statement])
    found = rows([COFI_CLUSTER, "try", "--json", *("%s/%s" % (ROOT, name) for name in kept), statement])
    assert wanted and found == wanted, (found - wanted, wanted - found)
    # (The largest is the C library, which all but bare packets need.)
    names = [name for name in server.names(BELOW) if name.startswith("code/")]
    lost = BELOW + max(names, key=lambda name: server.keys()[BELOW + name].size)
    body = server.get(lost)
    server.delete(lost)
    done = subprocess.run(
        [COFI_CLUSTER, "try", "--json", "%s/%s" % (ROOT, kept[0]), statement], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 2 and lost in done.stderr, done.stderr
    assert archive(ROOT, "--list").returncode == 1
    server.put(lost, body)
    assert told(ROOT, "--prune", "0s")[-1]["summary"]["left"] == 0
    assert server.names(BELOW) == ["cofi-catalogue"], server.names(BELOW)


def rows(command):
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return collections.Counter(done.stdout.splitlines())


def interrupted(folder):
    """Killed at any time, with the program that speaks to the store, a recording is whole or not there."""
    words = bare(folder, "killed", 1000)
    told(ROOT, *bare(folder, "kept", 3))
    before = without_place(told(ROOT, "--list")[:-1])
    points = 0
    for wanted in ["incoming/", "code/", "recordings/"]:
        command = [COFI, "archive", "--into", ROOT, *map(str, words)]
        child = subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.DEVNULL)

        def kill(name):
            nonlocal points
            if name.startswith(wanted) and child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                points += 1

        with Watched(kill):
            child.wait(timeout=60)
            # (What was sent may be written after the sender's end, as by any store.)
            deadline = time.monotonic() + 30
            while wanted == "recordings/" and "recordings/killed.cofi" not in server.names(BELOW):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        listed = told(ROOT, "--list")
        recordings = [it for it in without_place(listed[:-1]) if it["recording"] != "killed"]
        assert recordings == [{**it, "shared_bytes": 0} for it in before], (wanted, listed)
    assert points == 3
    # Those who were killed are taken for dead after ten minutes, not before.
    said = [name for name in server.names(BELOW) if name.startswith("incoming/adds-")]
    assert said, server.names(BELOW)
    for name in said:
        server.keys()[BELOW + name].last_modified -= datetime.timedelta(minutes=11)
    server.put(BELOW + "incoming/0123456789abcdef", b"half a recording")
    server.delete(BELOW + "recordings/killed.cofi")
    summary = told(ROOT, "--prune", "1d")[-1]["summary"]
    assert summary["unfinished_files"] == len(said) + 1 and summary["code_files"] == 1, summary
    assert summary["left"] == 1
    assert not any(name.startswith("incoming/") for name in server.names(BELOW))
    assert without_place(told(ROOT, "--list")[:-1]) == before


def at_the_same_time(folder):
    """Several who add at a time, and who prunes meanwhile."""
    children = []
    for number in range(6):
        words = bare(folder, "same%d" % number, 100 + number // 2)
        command = [COFI, "archive", "--into", ROOT, "--name", "same", *map(str, words)]
        children.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    prune = subprocess.Popen([COFI, "archive", "--into", ROOT, "--prune", "1d"], env=environment, stdout=subprocess.DEVNULL)
    for child in children:
        _, said = child.communicate(timeout=300)
        assert child.returncode == 0, said
    assert prune.wait(timeout=300) == 0
    *recordings, last = told(ROOT, "--list")
    names = sorted(it["recording"] for it in recordings if it["recording"] != "kept")
    assert names == ["same", *("same-%d" % number for number in range(2, 7))], names
    assert all(it["missing_files"] == 0 for it in recordings), recordings
    assert last["summary"]["code_files"] == 4, last
    assert not any(name.startswith("incoming/") for name in server.names(BELOW))


def waiting(folder):
    """Who prunes waits for who adds, and both for who prunes; nobody waits for who is gone."""
    prune, add = ["--prune", "1d"], [*map(str, bare(folder, "waits", 3)), "--name", "same"]
    for name, words, until in [("adds", prune, "nobody adds"), ("prunes", prune, "nobody adds"), ("prunes", add, "nobody prunes")]:
        said = BELOW + "incoming/%s-%016x" % (name, 7)
        server.put(said, b"0")
        command = [COFI, "archive", "--into", ROOT, *words]
        child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        line = child.stderr.readline()
        assert "waiting until " + until in line and child.poll() is None, line
        server.delete(said)
        child.communicate(timeout=60)
        assert child.returncode == 0
        server.put(said, b"0")
        server.keys()[said].last_modified -= datetime.timedelta(minutes=11)
        done = archive(ROOT, *words)
        assert done.returncode == 0 and "waiting" not in done.stderr, done
        assert not any(name.startswith("incoming/") for name in server.names(BELOW))


def taken_for_dead(folder):
    """Who sleeps so long that another prunes meanwhile finds out, and has its code there in the end."""
    words = bare(folder, "sleeper", 5000)
    times = 0

    def prune(name):
        nonlocal times
        if name == "recordings/sleeper.cofi" and times == 0:
            times += 1
            # What a pruning does that takes it for dead: it knows nothing of the recording.
            for key in server.names(BELOW):
                if key.startswith("incoming/adds-"):
                    server.keys().pop(BELOW + key)
            size = 5002
            for key in [key for key in server.names(BELOW) if key.startswith("code/")]:
                if server.keys()[BELOW + key].size == size:
                    server.keys().pop(BELOW + key)
                    times += 1

    with Watched(prune):
        added = told(ROOT, *words)
    assert times == 2, times
    assert added[0]["new_code_files"] == 1 and not added[0]["was_there"], added
    found = [it for it in told(ROOT, "--list")[:-1] if it["recording"] == "sleeper"]
    assert found[0]["missing_files"] == 0, found


def large(folder):
    """What is written in parts."""
    words = bare(folder, "large", 4, pads=40 << 20)
    added = told(ROOT, *words)[0]
    assert added["size"] > 40 << 20 and not added["was_there"], added
    assert told(ROOT, *words)[0]["was_there"]
    beside = folder / "large-catalogue"
    assert told(beside, *words)[0]["size"] == added["size"]
    here, there = (beside / "recordings/large.cofi").read_bytes(), server.get(BELOW + "recordings/large.cofi")
    without = re.compile(rb'"added": \d{10}')
    assert without.sub(b"", here[:65536], count=1) == without.sub(b"", there[:65536], count=1)
    assert here[65536:] == there[65536:]
    assert not any(name.startswith("incoming/") for name in server.names(BELOW))


def hostile(folder):
    """Names that nobody gave, and other places."""
    good = server.get(BELOW + "recordings/kept.cofi")
    before = len(told(ROOT, "--list")) - 1
    harmless = ["recordings/a~[#].cofi", "recordings/ü %2f%.cofi", "recordings/renamed.data", "code/none/letter"]
    for name in [*harmless, "recordings/folder/in.cofi"]:
        server.put(BELOW + name, good)
    server.put(BELOW + "recordings/", b"")
    assert told(ROOT, "--prune", "1d")[-1]["summary"]["left"] == before + 3
    assert "code/none/letter" in server.names(BELOW)
    # A recording that cannot be read is told, and then no code is removed.
    server.put(BELOW + "recordings/evil.cofi", good[:700])
    listed = archive(ROOT, "--list")
    assert listed.returncode == 1 and "recordings/evil.cofi" in listed.stderr, listed
    server.put(BELOW + "recordings/empty.cofi", b"")
    pruned = archive(ROOT, "--prune", "0s")
    assert pruned.returncode == 2 and "no code is removed" in pruned.stderr, pruned
    for name in ["evil", "empty"]:
        server.delete(BELOW + "recordings/%s.cofi" % name)
    # A name that leads elsewhere is told; nothing is removed.
    for name in ["recordings/../../x.cofi", "recordings//x.cofi", "recordings/a\x1b[31m.cofi"]:
        # (Clients of the server would not send some of these.)
        odd = copy.copy(server.keys()[BELOW + "recordings/kept.cofi"])
        odd.name = BELOW + name
        server.keys()[odd.name] = odd
        names = server.names(BELOW)
        for words in [["--list"], ["--prune", "0s"]]:
            done = archive(ROOT, *words)
            assert done.returncode == 2 and "recordings" in done.stderr and "panicked" not in done.stderr, done
            assert "\x1b" not in done.stderr, done
        assert server.names(BELOW) == names
        server.keys().pop(BELOW + name)
    # What is no catalogue is refused, and stays as it is.
    server.put("other/letter", b"text")
    words = bare(folder, "trace", 3)
    for more in [words, ["--list"], ["--prune", "0s"]]:
        done = archive("s3://runs/other", *more)
        assert done.returncode == 2 and "is no catalogue" in done.stderr, done
    assert server.names("other/") == ["letter"]
    server.put("later/cofi-catalogue", b"cofi catalogue 2\n")
    assert "another version" in archive("s3://runs/later", "--list").stderr
    for wrong, word in [("s3://", "expected s3://"), ("s3://runs/none", "there is no catalogue"), ("s3://nobody/x", "nobody")]:
        done = archive(wrong, "--list")
        assert done.returncode == 2 and word in done.stderr, done
    # Nothing is made for a trace that is not there.
    assert archive("s3://runs/fresh", folder / "missing.data").returncode == 2
    assert server.names("fresh") == []
    # Without the program that knows stores, it is said where to get it.
    alone = folder / "cofi"
    shutil.copy(COFI, alone)
    done = subprocess.run(
        [alone, "archive", "--into", ROOT, "--list"], capture_output=True, text=True, env=dict(environment, PATH="/nowhere")
    )
    assert done.returncode == 2 and "cofi-cluster" in done.stderr and "cargo build" in done.stderr, done


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        begin = time.monotonic()
        for test in [as_in_a_folder, interrupted, at_the_same_time, waiting, taken_for_dead, large, hostile]:
            test(folder)
            print("a catalogue in a store: %s, after %.1f s" % (test.__name__, time.monotonic() - begin))
    server.stop()


sys.exit(main())
