"""Starting worker processes, and hearing of their ends.

forkserver and spawn go through this process's fork server, which is started at the first need and
ends with the process; fork forks the process itself. Whoever starts a worker gets a WorkerProcess.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable

from envfleet.errors import EnvfleetError
from envfleet.executors.processes import worker as worker_module
from envfleet.executors.processes.channel import Channel

_UNKNOWN_EXIT = -int(signal.SIGKILL)  # the server died, and with it what it would have told


class WorkerProcess:
    """One worker process: how to talk to it, whether it lives, how it ended."""

    def __init__(self, channel: Channel, kill: Callable[[], None]) -> None:
        self.channel = channel
        self.pid: int | None = None
        self.exit_code: int | None = None
        self._kill = kill
        self._is_over = False
        self._exited = threading.Event()
        self._lock = threading.Lock()
        self._on_exit: Callable[[], None] | None = None

    def on_exit(self, callback: Callable[[], None]) -> None:
        """Has this called, from another thread, when the process has ended; at once when it has already."""
        with self._lock:
            self._on_exit = callback
            if not self._is_over:
                return
        callback()

    def ended(self, exit_code: int) -> None:
        """For those who watch over it."""
        self.exit_code = exit_code
        with self._lock:
            self._is_over = True
            callback, self._on_exit = self._on_exit, None
        if callback is not None:
            callback()
        # Last: whoever waits for the end may start a successor, which a late callback would bury.
        self._exited.set()

    def wait(self, timeout_s: float | None) -> bool:
        """Whether it has ended within the time."""
        return self._exited.wait(timeout_s)

    def kill(self) -> None:
        """Ends it for certain, soon."""
        if not self._exited.is_set():
            self._kill()


def end_of(exit_code: int) -> str:
    """How a process ended, in words."""
    if exit_code >= 0:
        return f"left with exit code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"


def start_worker(start_method: str) -> WorkerProcess:
    """A new worker process that waits for its handshake."""
    if start_method == "fork":
        return _fork()
    return _the_server().start_worker(start_method)


# --- the fork server, seen from the process it serves ------------------------------------------------


class _ServerClient:
    def __init__(self) -> None:
        self.owner = os.getpid()
        self._channel, other = Channel.pair()
        self._tokens = itertools.count()
        self._workers: dict[int, WorkerProcess] = {}
        self._lock = threading.Lock()
        program = f"from envfleet.executors.processes import server; server.main({other.fileno()}, {self.owner})"
        # A Ctrl-C goes to the whole group, and would reach the server while it still imports: it is blocked, which a
        # new process inherits, until main() ignores it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"import sys; sys.path[:] = {[*map(str, sys.path)]!r}; {program}"],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            other.close()
        self.is_alive = True
        threading.Thread(target=self._listen, name="envfleet-workers", daemon=True).start()

    def start_worker(self, start_method: str) -> WorkerProcess:
        mine, theirs = Channel.pair()
        with self._lock:
            token = next(self._tokens)
            worker = WorkerProcess(mine, lambda: self._kill(token))
            self._workers[token] = worker
            try:
                self._channel.send(pickle.dumps(("start", token, start_method)), [theirs.fileno()])
            except OSError as error:
                self._workers.pop(token, None)
                mine.close()
                raise EnvfleetError(f"the fork server is gone ({error}); make the pool again") from error
            finally:
                theirs.close()
        return worker

    def _kill(self, token: int) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._channel.send(pickle.dumps(("kill", token, 0)))

    def _listen(self) -> None:
        while (message := self._channel.recv()) is not None:
            what, token, value = pickle.loads(message[0])
            if what == "pid":
                worker = self._workers.get(token)
                if worker is not None:
                    worker.pid = value
            else:
                worker = self._workers.pop(token, None)
                if worker is not None:
                    worker.ended(value)
        self.is_alive = False
        with self._lock:
            self._channel.close()
        # The system kills a fork server's workers with it.
        for token in list(self._workers):
            self._workers.pop(token).ended(_UNKNOWN_EXIT)
        self._process.wait()


_server: _ServerClient | None = None
_server_lock = threading.Lock()


def _the_server() -> _ServerClient:
    global _server
    with _server_lock:
        # A fork of this process needs one of its own: the old one belongs to the parent.
        if _server is None or not _server.is_alive or _server.owner != os.getpid():
            _server = _ServerClient()
        return _server


def _renew_lock() -> None:
    global _server_lock
    _server_lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


# --- fork ------------------------------------------------------------------------------------------------


def _fork() -> WorkerProcess:
    mine, theirs = Channel.pair()
    parent_pid = os.getpid()
    with warnings.catch_warnings():
        # Asked for by name; that threads do not survive a fork is what the default is for.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            mine.close()
            worker_module.start_forked(theirs.fileno(), parent_pid)
        finally:
            os._exit(1)
    theirs.close()

    def kill() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    worker = WorkerProcess(mine, kill)
    worker.pid = pid
    threading.Thread(target=_reap, args=(worker, pid), name=f"envfleet-reaper-{pid}", daemon=True).start()
    return worker


def _reap(worker: WorkerProcess, pid: int) -> None:
    try:
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
    except ChildProcessError:  # somebody else took it
        code = _UNKNOWN_EXIT
    worker.ended(code)
