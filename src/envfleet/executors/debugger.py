"""pdb in workers: breakpoint() in an env opens its prompt on the caller's terminal, or says why it cannot.

A worker has no standard input of its own. It opens the terminal for the first prompt and keeps it until the env's call
ends: one prompt at a time, whichever pools the workers belong to. Meanwhile Ctrl-C, which the terminal sends to all of
its processes, also ends the prompt: the env raises BdbQuit, and the caller gets its KeyboardInterrupt.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pdb
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from envfleet.core.errors import EnvfleetError

NO_TERMINAL = "a terminal as the standard input of your process, got none (as under pytest, nohup or a notebook)"
ON_RAY = "a terminal, got an actor on Ray, which has none"


def terminal_of_this_process() -> str | None:
    """Return the path of the terminal that this process reads its input from; None if it does not read from one."""
    try:
        return os.ttyname(sys.stdin.fileno())
    except (AttributeError, OSError, ValueError):  # no stream, one without a descriptor, closed, or not a terminal
        return None


def install(terminal: str | None, expected: str = NO_TERMINAL) -> None:
    """Let pdb use this terminal in this process. None: pdb refuses to start; `expected` completes its message."""
    _prompt.path, _prompt.expected = terminal, expected
    pdb.Pdb = WorkerPdb  # type: ignore[misc]  # for pdb.set_trace() and breakpoint(), which look it up there
    hook = os.environ.get("PYTHONBREAKPOINT", "")
    if hook.startswith("ray."):
        # Ray sets it in what joins a cluster, for its own debugger, which knows no workers of ours.
        del os.environ["PYTHONBREAKPOINT"]
        hook = ""
    if terminal is None and not hook:  # a hook of the user's may need no terminal
        sys.breakpointhook = _refuse


def end_prompt(has_more: bool = False) -> None:
    """Hand the terminal back, at the end of an env's call.

    has_more: calls follow that the caller asked for before Ctrl-C. If it ended the prompt, theirs do not open.
    """
    _prompt.end()
    _prompt.is_interrupted = _prompt.is_interrupted and has_more


def call_when_it_opens(callback: Callable[[], int]) -> None:
    """Call this before a prompt opens, and before it waits for its turn; it returns the id of the env."""
    _prompt.callback = callback


class WorkerPdb(pdb.Pdb):
    """pdb.Pdb on the caller's terminal."""

    def __init__(
        self,
        completekey: str = "tab",
        stdin: Any = None,
        stdout: Any = None,
        skip: Any = None,
        nosigint: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        self._has_own_input = stdin is not None  # a debugger over a socket, for example
        if not self._has_own_input:
            stdin = stdout = _prompt.terminal()
            skip = ["envfleet.executors.*", *(skip or ())]
            nosigint = True
        super().__init__(completekey, stdin, stdout, skip, nosigint, *args, **kwargs)

    def interaction(self, *args: Any, **kwargs: Any) -> None:
        """Handle commands, after the prompts of other workers."""
        if not self._has_own_input:
            if _prompt.is_interrupted:
                _prompt.announce()
                self.set_quit()
                return
            _prompt.begin(self)
        super().interaction(*args, **kwargs)


class _Terminal:
    """The terminal as a text file for pdb. After Ctrl-C its input has ended, which ends the prompt."""

    def __init__(self, path: str) -> None:
        # Not as the controlling terminal of this process, should it have none.
        fd = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        self._input = io.TextIOWrapper(io.FileIO(fd), encoding="utf-8", errors="replace")
        output = io.FileIO(fd, "w", closefd=False)
        self._output = io.TextIOWrapper(output, encoding="utf-8", errors="replace", write_through=True)
        self.encoding = "utf-8"

    def readline(self, size: int = -1) -> str:
        if _prompt.is_interrupted:
            return ""
        try:
            return self._input.readline(size)
        except OSError:  # it was hung up
            return ""

    def write(self, text: str) -> int:
        return self._output.write(text)

    def flush(self) -> None:
        self._output.flush()

    def fileno(self) -> int:
        return self._input.fileno()

    def isatty(self) -> bool:
        return True


class _Prompt:
    def __init__(self) -> None:
        self.path: str | None = None
        self.expected = NO_TERMINAL
        self.callback: Callable[[], int] | None = None
        self.is_interrupted = False  # by Ctrl-C
        self._terminal: _Terminal | None = None
        self._is_open = False
        self._debugger: WorkerPdb | None = None
        self._stdin: Any = None
        self._handler: Any = None  # of SIGINT; None: it was not replaced

    def terminal(self) -> _Terminal:
        """Return the terminal. Raises EnvfleetError if there is none."""
        if self.path is None:
            self.refuse()
        if self._terminal is None:
            try:
                self._terminal = _Terminal(self.path)
            except OSError:
                self.refuse()
        return self._terminal

    def refuse(self) -> NoReturn:
        raise EnvfleetError(
            f"breakpoint() in an env expected {self.expected}; debug the env with backend='serial', which runs it in "
            "your own process"
        )

    def announce(self) -> int:
        """Let end_prompt() be called at the end of the env's call; return the env's id, -1 if unknown."""
        return -1 if self.callback is None else self.callback()

    def begin(self, debugger: WorkerPdb) -> None:
        """Take the terminal, until end()."""
        self._debugger = debugger
        if self._is_open:
            return
        terminal = self.terminal()
        env_id = self.announce()
        self._is_open = True
        with contextlib.suppress(ValueError):  # in a thread of the env: Ctrl-C does not end the prompt
            # Before the wait for another worker's prompt, which Ctrl-C ends as well.
            self._handler = signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            with contextlib.suppress(OSError):  # a system without locks on terminals
                fcntl.flock(terminal.fileno(), fcntl.LOCK_EX)
        except BaseException:
            self.end()
            raise
        self._stdin, sys.stdin = sys.stdin, terminal  # for pdb's `interact`
        env = f"env {env_id}, " if env_id >= 0 else ""
        terminal.write(f"\n--- {env}worker process {os.getpid()} ---\n")
        terminal.flush()

    def end(self) -> None:
        """Hand back the terminal."""
        if not self._is_open:
            return
        sys.settrace(None)  # first: a `next` at the end of the env's method would stop in here
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            self._handler = None
        if self._stdin is not None:
            self._stdin, sys.stdin = None, self._stdin
        assert self._terminal is not None, "begin() opened it"
        with contextlib.suppress(OSError):
            fcntl.flock(self._terminal.fileno(), fcntl.LOCK_UN)
        self._is_open = False
        if self._debugger is not None:
            self._debugger.set_continue()
            if self._debugger.breaks:  # of the command `break`, for later calls
                sys.settrace(self._debugger.trace_dispatch)

    def _on_interrupt(self, _number: int, _frame: FrameType | None) -> NoReturn:
        self.is_interrupted = True
        raise KeyboardInterrupt


_prompt = _Prompt()


def _refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
    _prompt.refuse()
