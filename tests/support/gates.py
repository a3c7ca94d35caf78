"""Gate: holds an env inside its step until the test opens it, on any backend and in any process.

Sleepy-v0 and SleepyEnv wait at the gate whose number is the negative of their action; SlowReset-v0 and
SlowResetEnv wait there in their next reset. Two files stand for a gate: one says that an env has come to it, one
that it is open. So no test has to guess how long something takes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import threading
from types import TracebackType
from typing import Any

from support.python_probes import MAX_GATE, gate_files
from support.traces import wait_until


class Gate:
    """A closed gate. Leaving the with block lets every env go on that waits there, and removes the files.

    An env that comes to it later waits in vain: leave the block when no more will come.
    """

    def __init__(self) -> None:
        self.number = secrets.randbelow(MAX_GATE) + 1
        self.action = float(-self.number)
        self._reached, self._opened = gate_files(self.number)

    def wait_until_reached(self) -> None:
        """Wait until an env is inside its step."""
        assert wait_until(lambda: os.path.exists(self._reached)), "no env came to the gate"

    def interrupt_when_reached(self, pid: int | None = None) -> threading.Thread:
        """Send Ctrl-C as soon as an env is inside its step. pid: default this process; 0: its whole group."""

        def interrupt() -> None:
            self.wait_until_reached()
            os.kill(os.getpid() if pid is None else pid, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        return thread

    def open(self) -> None:
        """Let every env go on."""
        with open(self._opened, "w"):
            pass

    def __enter__(self) -> Gate:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for path in (self._reached, self._opened):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def close_when_reached(pool: Any, gate: Gate) -> list[threading.Thread]:
    """Close a pool while a call is inside, and let the call go on once close() has begun."""

    def close() -> None:
        gate.wait_until_reached()
        pool.close()

    def let_go_on() -> None:
        assert wait_until(lambda: pool.closed)
        gate.open()

    threads = [threading.Thread(target=close), threading.Thread(target=let_go_on)]
    for thread in threads:
        thread.start()
    return threads
