"""Scripts on a terminal of their own, on which a test types."""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from support.script_runs import command_of

# The first to open a terminal, in a new session, gets it as its controlling terminal: Ctrl-C then reaches its group.
PRELUDE = "import os\nos.close(os.open(os.ttyname(0), os.O_RDWR))\n"
CTRL_C, CTRL_D = "\x03", "\x04"


class TerminalRun:
    """A script that runs on a terminal. process: the script."""

    def __init__(self, process: subprocess.Popen[str], fd: int) -> None:
        self.process = process
        self._fd = fd
        self._unread = ""

    def expect(self, pattern: str, timeout_s: float = 60.0) -> str:
        """Wait for this output and return what came before it, and it."""
        deadline = time.monotonic() + timeout_s
        while (found := re.search(pattern, self._unread)) is None:
            ready = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))[0]
            assert ready, f"expected {pattern!r}, got {self._unread!r}"
            try:
                data = os.read(self._fd, 65536)
            except OSError:  # all other ends are closed
                data = b""
            assert data, f"expected {pattern!r}, got {self._unread!r} and the end"
            self._unread += data.decode(errors="replace").replace("\r\n", "\n")
        output, self._unread = self._unread[: found.end()], self._unread[found.end() :]
        return output

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())


@contextlib.contextmanager
def on_a_terminal(tmp_path: Path, code: str, *arguments: str) -> Iterator[TerminalRun]:
    """Run a script on a terminal."""
    script = tmp_path / "script.py"
    script.write_text(PRELUDE + code)
    ours, theirs = os.openpty()
    try:
        command = command_of(tmp_path, str(script), *arguments)
        process = subprocess.Popen(**command, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        try:
            yield TerminalRun(process, ours)
        finally:
            process.kill()
            process.wait()
    finally:
        os.close(ours)
