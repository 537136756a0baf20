"""DuckDB and Polars read what `cofi-sql export` writes, and agree with `cofi-sql sql`.

COFI names the command, COFI_SQL the program; both must be built.
"""

import json
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

import duckdb
import polars

COFI = os.environ.get("COFI", "cofi")
COFI_SQL = os.environ.get("COFI_SQL", "cofi-sql")

# What is asked of each. (`{calls}` and the like are the tables.)
STATEMENTS = [
    "SELECT recording, function, count(*) AS n, sum(self_instructions) AS own, min(ip) AS ip FROM {calls} GROUP BY recording, function",
    "SELECT f.recording, f.function, f.instructions, f.address, count(*) AS n FROM {functions} f JOIN {calls} c"
    " ON f.recording = c.recording AND f.function = c.function AND f.file = c.file"
    " GROUP BY f.recording, f.function, f.instructions, f.address",
    "SELECT recording, event, count(*) AS n, max(stream_offset) AS last FROM {events} GROUP BY recording, event",
    "SELECT recording, sum(instructions) AS n, count(*) AS c FROM {seals} WHERE is_verified GROUP BY recording",
    "SELECT recording, kind, sum(lost_bytes) AS n FROM {gaps} GROUP BY recording, kind",
]


def run(*words):
    return subprocess.run(list(map(str, words)), check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout


def tables():
    text = run(COFI_SQL, "tables").decode()
    titles = [line.strip("# `") for line in text.splitlines() if line.startswith("### ")]
    # (Functions have arguments.)
    return [title for title in titles if "(" not in title]


def plain(value):
    """A value as all of them have it: addresses are texts in JSON, DuckDB's sums are decimals or integers of 128 bits."""
    if isinstance(value, str) and re.fullmatch("0x[0-9a-f]+", value):
        return int(value, 16)
    return int(value) if value is not None and not isinstance(value, (str, bool)) else value


class Recorded(unittest.TestCase):
    """Two recordings, one of them damaged, and their tables as files."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        folder = Path(cls.folder.name)
        cls.files = [folder / "first.data", folder / "second.data"]
        for file, word in zip(cls.files, ["--version", "--help"]):
            run(COFI, "record", "--engine", "qemu", "-o", file, "--", "gzip", word)
        # The middle of the second one is missing.
        bytes_of = bytearray(cls.files[1].read_bytes())
        middle = len(bytes_of) // 2
        bytes_of[middle : middle + 64] = b"\xff" * 64
        cls.files[1].write_bytes(bytes_of)
        cls.out = folder / "tables"
        subprocess.run(
            [COFI_SQL, "export", "-o", cls.out, *cls.files], check=False, stderr=subprocess.DEVNULL
        )

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def asked(self, statement):
        """What `cofi-sql sql` says, as a list of tuples."""
        done = subprocess.run(
            [COFI_SQL, "sql", "--json", *map(str, self.files), statement],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.assertIn(done.returncode, (0, 1))
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        return [tuple(row.values()) for row in rows]

    def agree(self, statement, *answers):
        """That others have answered a statement as `cofi-sql` does, whatever the order of rows."""
        wanted = self.asked(statement.format(**{name: name for name in tables()}))
        self.assertTrue(wanted)
        wanted, *told = [sorted((tuple(map(plain, row)) for row in rows), key=repr) for rows in (wanted, *answers)]
        for rows in told:
            self.assertEqual(rows, wanted, statement)


class Read(Recorded):
    def test_all_tables_are_there(self):
        names = tables()
        self.assertGreaterEqual(len(names), 10)
        self.assertEqual(sorted(path.name for path in self.out.iterdir()), sorted(names))
        for name in names:
            count = self.asked(f"SELECT count(*) FROM {name}")[0][0]
            path = f"{self.out}/{name}/*.parquet"
            self.assertEqual(duckdb.sql(f"SELECT count(*) FROM '{path}'").fetchall()[0][0], count, name)
            read = polars.read_parquet(path)
            self.assertEqual(read.height, count, name)
            # Columns and types are those that the statement has.
            told = self.asked(
                f"SELECT column_name, data_type FROM information_schema.columns WHERE table_name = '{name}' ORDER BY ordinal_position"
            )
            kinds = {"Utf8": polars.String, "Int64": polars.Int64, "UInt64": polars.UInt64, "Boolean": polars.Boolean}
            self.assertEqual(list(read.schema.items()), [(name, kinds[kind]) for name, kind in told])

    def test_they_agree(self):
        for statement in STATEMENTS:
            names = {name: name for name in tables()}
            files = {name: f"'{self.out}/{name}/*.parquet'" for name in names}
            frames = {name: polars.scan_parquet(f"{self.out}/{name}/*.parquet") for name in names}
            by_polars = polars.SQLContext(frames).execute(statement.format(**names), eager=True)
            self.agree(statement, duckdb.sql(statement.format(**files)).fetchall(), by_polars.rows())

    def test_how_it_is_written(self):
        path = f"{self.out}/calls/*.parquet"
        columns = duckdb.sql(
            "SELECT path_in_schema, compression, encodings, stats_null_count, stats_min_value, stats_max_value"
            f" FROM parquet_metadata('{path}')"
        ).fetchall()
        for name, compression, encodings, nulls, least, most in columns:
            self.assertEqual(compression, "ZSTD", name)
            self.assertIsNotNone(nulls, name)
            if name == "recording":
                # A file is of one recording: readers skip the others.
                self.assertEqual(least, most)
            if name in ("function", "file", "kind"):
                self.assertIn("DICTIONARY", encodings, name)


if __name__ == "__main__":
    unittest.main()
