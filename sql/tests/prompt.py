"""The prompt of `cofi-sql sql` at a terminal: statements, completion, history.

COFI names the command, COFI_SQL the program; both must be built.
"""

import os
import pty
import select
import subprocess
import tempfile
import unittest
from pathlib import Path

COFI = os.environ.get("COFI", "cofi")
COFI_SQL = os.environ.get("COFI_SQL", "cofi-sql")
# What the prompt says to the terminal behind each line ("bracketed paste" off).
LINE_READ = "\x1b[?2004l"
# Nothing here takes longer than so many seconds, however loaded the machine is: what says nothing for so long hangs.
AT_MOST = 300


class Terminal:
    """A terminal with the program in it."""

    def __init__(self, file, state):
        pid, self.side = pty.fork()
        if pid == 0:
            os.environ.update(XDG_STATE_HOME=str(state), TERM="xterm")
            os.execv(COFI_SQL, [COFI_SQL, "sql", "--json", str(file)])
        self.pid = pid
        self.seen = ""

    def wait_for(self, text):
        """Reads until a text has come; what came up to it."""
        while text not in self.seen:
            more = b""
            try:
                if select.select([self.side], [], [], AT_MOST)[0]:
                    more = os.read(self.side, 4096)
            except OSError:
                pass
            if not more:
                raise AssertionError(f"{text!r} did not come: {self.seen!r}")
            self.seen += more.decode(errors="replace")
        before, self.seen = self.seen.split(text, 1)
        return before

    def interrupt(self, *texts):
        """Types Ctrl-C once a statement is being answered and these texts have come: until the line has been read, what the terminal does with it is the program's."""
        for text in (LINE_READ, *texts):
            self.wait_for(text)
        self.type("\x03")
        self.wait_for("cofi: interrupted")
        self.wait_for("cofi> ")

    def type(self, keys):
        os.write(self.side, keys.encode())

    def end(self):
        _, status = os.waitpid(self.pid, 0)
        os.close(self.side)
        return os.waitstatus_to_exitcode(status)


class Prompt(unittest.TestCase):
    def test_a_session(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            file, state = folder / "x.data", folder / "state"
            record = [COFI, "record", "--engine", "qemu", "-o", file, "--", "gzip", "--version"]
            subprocess.run(record, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            terminal = Terminal(file, state)
            terminal.wait_for("cofi> ")
            # A statement may have several lines, and ends with its semicolon.
            terminal.type("SELECT 40 + 2 AS answer\r")
            terminal.type(";\r")
            terminal.wait_for('{"answer":42}')
            terminal.wait_for("cofi> ")
            # What is wrong ends nothing.
            terminal.type("SELECT nothing FROM calls;\r")
            terminal.wait_for("cofi: ")
            terminal.wait_for("nothing")
            terminal.wait_for("cofi> ")
            # Nor does Ctrl-C, but the answer to a statement.
            rows = "instructions() AS a, instructions() AS b, instructions() AS c"
            terminal.type(f"SELECT sum(a.ip + b.ip + c.ip) FROM {rows};\r")
            terminal.interrupt()
            # Nor where rows come all the time.
            terminal.type("SELECT a.ip AS row FROM instructions() AS a, instructions() AS b;\r")
            terminal.interrupt('{"row":')
            terminal.type("SELECT 50 + 5 AS answer;\r")
            terminal.wait_for('{"answer":55}')
            terminal.wait_for("cofi> ")
            terminal.type("SELECT count(*) > 0 AS has FROM mapp\t;\r")
            terminal.wait_for('{"has":true}')
            terminal.wait_for("cofi> ")
            terminal.type("\\q\r")
            self.assertEqual(terminal.end(), 0)
            # The next one knows what was typed.
            self.assertIn("FROM mappings;", (state / "cofi/sql-history").read_text())
            terminal = Terminal(file, state)
            terminal.wait_for("cofi> ")
            terminal.type("\x1b[A\x1b[A\r")
            terminal.wait_for('{"has":true}')
            terminal.wait_for("cofi> ")
            terminal.type("\x04")
            self.assertEqual(terminal.end(), 0)


if __name__ == "__main__":
    unittest.main()
