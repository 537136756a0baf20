"""Recordings in an object store give the rows that they give as files.

Starts a server with the interface of S3 on 127.0.0.1, and clusters that read from it. COFI, COFI_SQL and COFI_CLUSTER name the programs.
"""

import collections
import json
import os
import pathlib
import re
import subprocess
import tempfile

from server import Server

COFI, COFI_SQL, COFI_CLUSTER = (os.environ[name] for name in ("COFI", "COFI_SQL", "COFI_CLUSTER"))

STATEMENTS = [
    "SELECT tid, name, instructions FROM threads",
    "SELECT function, file, instructions FROM functions",
    "SELECT tid, era, call, function, begin_ns, instructions FROM calls",
    "SELECT t.name, b.function, count(*) AS n FROM blocks() b JOIN threads t ON b.tid = t.tid GROUP BY 1, 2",
]


def rows(command, **more):
    """The rows that a command writes, each with how often it comes."""
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **more)
    return collections.Counter(done.stdout.splitlines())


def planned(address, statement, environment):
    """How many parts of streams a statement decodes, and how many it leaves out, as the client plans it."""
    command = [COFI_CLUSTER, "try", "--csv", address, "EXPLAIN " + statement]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    counts = [re.search(r"\b%s=(\d+)" % word, done.stdout) for word in ("parts", "skipped")]
    assert all(counts), done.stdout
    return [int(count[1]) for count in counts]


def what_is_kept(server, folder):
    """What is kept of a recording is the object `KEY.parts`: it leaves out parts, and the rows are the same."""
    data = folder / "long.data"
    record = [COFI, "record", "--engine", "qemu", "--config", "cyc,psb_period=0", "--output", data]
    lines = folder / "lines"
    lines.write_text("".join("%d a line, one of many\n" % (number * 7919) for number in range(2500)))
    subprocess.run([*record, "--", "sort", lines], check=True, stdout=subprocess.DEVNULL)
    # Of all functions the one that is seldom called, and of these the first.
    seldom = "SELECT function FROM calls WHERE function IS NOT NULL AND length(function) > 3 GROUP BY function ORDER BY count(*), function LIMIT 1"
    function = json.loads(subprocess.check_output([COFI_SQL, "sql", "--json", data, seldom]))["function"]
    conditions = "WHERE function = '%s'" % function
    statements = [
        "SELECT tid, era, call, parent, depth, function, begin_ns, end_ns, instructions FROM calls " + conditions,
        "SELECT tid, stream_offset, seq, tsc, ip, last_ip FROM blocks() " + conditions,
    ]
    wanted = [rows([COFI_SQL, "sql", "--json", data, statement]) for statement in statements]
    subprocess.run([COFI_SQL, "sql", "--keep-parts", data, statements[0]], check=True, stdout=subprocess.DEVNULL)
    kept = pathlib.Path(str(data) + ".parts").read_bytes()
    server.client.upload_file(str(data), "runs", "today/long.data")
    address = "s3://runs/today/long.data"
    told = []
    # None, one that is damaged, and the one that is of this recording.
    for body in [None, kept[:-1], kept]:
        if body is not None:
            server.put("today/long.data.parts", body)
        for number, statement in enumerate(statements):
            parts, skipped = planned(address, statement, server.environment)
            told.append((parts, skipped))
            assert (skipped > 0) == (body is kept), (statement, parts, skipped)
            found = rows([COFI_CLUSTER, "try", "--json", address, statement], env=server.environment)
            assert wanted[number] and found == wanted[number], statement
    return "parts that are decoded and left out: calls %s, blocks %s" % (told[-2], told[-1])


def main():
    server = Server()
    client, environment = server.client, server.environment
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        data = folder / "gzip.data"
        record = [COFI, "record", "--engine", "qemu", "--output", data, "--", "gzip", "--version"]
        subprocess.run(record, check=True, stdout=subprocess.DEVNULL)
        beside = folder / "gzip.data.code"
        for file in [data, *(beside.iterdir() if beside.is_dir() else [])]:
            client.upload_file(str(file), "runs", "today/" + str(file.relative_to(folder)))
        for statement in STATEMENTS:
            wanted = rows([COFI_SQL, "sql", "--json", data, statement])
            command = [COFI_CLUSTER, "try", "--json", "s3://runs/today/gzip.data", statement]
            told = rows(command, env=environment)
            assert wanted and told == wanted, (statement, told - wanted, wanted - told)
        for wrong, word in [
            ("s3://runs/today/none.data", "cannot fetch"),
            ("s3://runs", "expected s3://BUCKET/KEY"),
        ]:
            command = [COFI_CLUSTER, "try", "--json", wrong, STATEMENTS[0]]
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
            assert done.returncode == 2 and word in done.stderr, done
        kept = what_is_kept(server, folder)
    server.stop()
    print("an object store: %d statements, the same rows; %s" % (len(STATEMENTS), kept))


main()
