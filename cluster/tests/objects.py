"""Recordings in an object store give the rows that they give as files.

Starts a server with the interface of S3 on 127.0.0.1, and clusters that read from it. COFI, COFI_SQL and COFI_CLUSTER name the programs.
"""

import collections
import os
import pathlib
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
    server.stop()
    print("an object store: %d statements, the same rows" % len(STATEMENTS))


main()
