"""Starts worker processes and reports when they exit.

The start methods forkserver and spawn use this process's fork server, which is started when first needed and ends with
the process; fork forks the process itself. start_worker() returns a WorkerProcess.

Signal handlers run in the main thread, where they may raise (Ctrl-C) between any two bytecodes. So the launcher has
its own thread, and only that thread uses the server, the sockets that it opens and the pids that it kills. Other
threads send it requests through a SimpleQueue, whose put() is a single atomic call: an interrupted caller leaves at
most a request without a waiter. For the same reason, nothing here that is shared with callers waits for a lock that a
caller holds: an exception from a signal handler can leave threading.Event and Condition locked.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import pickle
import queue
import signal
import subprocess
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from envfleet.core.descriptors import is_inherited
from envfleet.core.errors import UNKNOWN_EXIT, EnvfleetError
from envfleet.executors.processes import worker as worker_module
from envfleet.executors.processes.channel import Channel

_EXIT_TIMEOUT_S = 1.0
_KILLED = -int(signal.SIGKILL)  # the kernel kills a fork server's workers with it


def describe_exit(exit_code: int) -> str:
    """Return how a process ended, as text."""
    if exit_code == UNKNOWN_EXIT:
        return (
            "ended with an unknown exit code (SIGCHLD is ignored, or other code in this process waits for its children)"
        )
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"


def start_worker(start_method: str) -> WorkerProcess:
    """Start a worker process, which waits for its first message."""
    return _launcher.start(start_method)


def is_launcher_thread() -> bool:
    """Return whether this thread reports exits of workers and so must not wait for one.

    Garbage collection may run a finalizer in any thread.
    """
    return getattr(_thread_state, "is_launcher_thread", False)


def _start_error(error: Exception) -> EnvfleetError:
    return EnvfleetError(
        f"a worker process could not be started: {error}; close other pools, or raise the limit "
        "(ulimit -n for open files, ulimit -u for processes)"
    )


class WorkerProcess:
    """One worker process: its channel, whether it is alive, and how it ended.

    When this object is garbage-collected, the process is killed and the channel closed.
    """

    def __init__(self, launcher: _Launcher, state: _WorkerState) -> None:
        self._launcher = launcher
        self._state = state

    def __del__(self) -> None:
        if hasattr(self, "_state"):  # not if Ctrl-C came in its constructor
            self.drop()

    @property
    def channel(self) -> Channel:
        """The channel to the process."""
        assert self._state.channel is not None, "start() returned"
        return self._state.channel

    @property
    def pid(self) -> int | None:
        """The pid; None until it is known, soon after the start."""
        return self._state.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code; None until the process has ended."""
        return self._state.exit_code

    @property
    def exit_reason(self) -> str:
        """How the process ended, as text."""
        if self._state.start_error is not None:
            return f"could not be started: {self._state.start_error}"
        return describe_exit(_KILLED if self.exit_code is None else self.exit_code)

    def on_exit(self, callback: Callable[[], None]) -> None:
        """Call this, from another thread, when the process has ended; at once if it already has."""
        self._state.callbacks.append(callback)
        if self._state.has_exited:
            self._state.run_callbacks()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for the process and return whether it has ended within the time."""
        return self._state.wait(timeout_s)

    def kill(self) -> None:
        """Kill the process; it ends soon afterwards."""
        if not self._state.is_notified:
            self._launcher.requests.put((self._launcher.kill, self._state))

    def drop(self) -> None:
        """Kill the process, and close the channel when it has ended."""
        self._launcher.requests.put((self._launcher.drop, self._state))


class _WorkerState:
    """The state of a worker. Written by the launcher thread, read by all threads.

    has_exited: the process has ended; is_notified: its callbacks have run as well, so that waiters may continue.
    """

    def __init__(self) -> None:
        self.channel: Channel | None = None
        self.worker_end: Channel | None = None  # until the worker is forked
        self.server: _ForkServerConnection | None = None
        self.token = -1
        self.pid: int | None = None
        self.exit_code: int | None = None
        self.start_error: str | None = None
        self.has_exited = False
        self.is_notified = False
        self.is_dropped = False
        self.started: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self.callbacks: collections.deque[Callable[[], None]] = collections.deque()
        self._waiters: collections.deque[threading.Lock] = collections.deque()

    def wait(self, timeout_s: float | None) -> bool:
        if not self.is_notified:
            waiter = threading.Lock()
            waiter.acquire()
            self._waiters.append(waiter)
            # Checked again: if it ended meanwhile, the waiter may not have been seen.
            if not self.is_notified:
                waiter.acquire(timeout=-1 if timeout_s is None else timeout_s)
                with contextlib.suppress(ValueError, IndexError):  # it was woken, or is being woken
                    self._waiters.remove(waiter)
        return self.is_notified

    def run_callbacks(self) -> None:
        """Run each callback once, in whichever thread comes first."""
        while True:
            try:
                callback = self.callbacks.popleft()
            except IndexError:
                return
            callback()

    def on_exit_reported(self, exit_code: int) -> None:
        """Record the end of the process. Called once, in the launcher thread."""
        self.exit_code = exit_code
        self.has_exited = True
        if self.channel is not None:
            # A process forked by an env may hold the other end, and a reader would wait for it.
            self.channel.shutdown_read()
            if self.is_dropped:
                self.channel.close()
        try:
            self.run_callbacks()
        finally:
            # Last: a waiter may start a new worker, which a late callback would mark as dead.
            self.is_notified = True
            while self._waiters:
                self._waiters.popleft().release()


class _Launcher:
    """Starts and kills workers. One per process.

    requests: the work of its thread, as (function, *arguments).
    """

    def __init__(self) -> None:
        self.requests: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._is_running = threading.Lock()  # held by the thread
        # Held by callers, never by the launcher thread. Packages register hooks that refuse a fork while another thread
        # is inside one (filelock, a dependency of torch). Reentrant: a signal handler may make a pool.
        self._fork_lock = threading.RLock()
        # Below: used by the launcher thread only.
        self._tokens = itertools.count()
        self._server: _ForkServerConnection | None = None
        self._open_channels: set[Channel] = set()

    # --- any thread ----------------------------------------------------------------------------------

    def start(self, start_method: str) -> WorkerProcess:
        self._ensure_thread()
        state = _WorkerState()
        worker = WorkerProcess(self, state)
        try:
            if start_method == "fork":
                self.requests.put((self._prepare_fork, state))
                self._await_start(state)
                self._fork(state)
            else:
                self.requests.put((self._start, state, start_method))
                self._await_start(state)
        except BaseException:
            worker.drop()
            raise
        return worker

    def _await_start(self, state: _WorkerState) -> None:
        error = state.started.get()
        if error is not None:
            raise _start_error(error) from error

    def _ensure_thread(self) -> None:
        # The thread that acquires the lock serves; a second one returns.
        if not self._is_running.locked():
            try:
                threading.Thread(target=self._serve, name="envfleet-launcher", daemon=True).start()
            except RuntimeError as error:  # no more threads
                raise _start_error(error) from error

    def _fork(self, state: _WorkerState) -> None:
        # In the caller's thread: start_method="fork" is chosen for its thread-local state and the locks that it holds.
        assert state.worker_end is not None, "_prepare_fork() opened it"
        caller_pid = os.getpid()
        # The user chose fork by name; the default avoids the problem with threads. Filtered for this module only, so
        # that there is nothing to restore.
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=__name__.replace(".", r"\."))
        worker_module.flush_standard_streams()  # otherwise the worker would write what is buffered a second time
        try:
            with self._fork_lock:
                pid = os.fork()
            if pid:
                # A child that an exception of a signal handler has lost before this line ends with its channel, which
                # start() then closes.
                self.requests.put((self._adopt, state, pid))
            else:
                worker_module.start_forked(state.worker_end.fileno(), caller_pid)
        except (OSError, RuntimeError) as error:  # RuntimeError: an audit hook refused the fork
            if os.getpid() == caller_pid:
                raise _start_error(error) from error
        finally:
            # The child must never return into the caller's code.
            if os.getpid() != caller_pid:
                os._exit(1)

    # --- the launcher thread -------------------------------------------------------------------------

    def _serve(self) -> None:
        if not self._is_running.acquire(blocking=False):
            return
        _thread_state.is_launcher_thread = True
        # Ctrl-C goes to the whole process group and would reach the server during its imports: blocked here, which a
        # new process inherits, until main() ignores it.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        while True:
            function, *arguments = self.requests.get()
            try:
                function(*arguments)
            except BaseException:  # of a callback, for example; the next request must still run
                traceback.print_exc()
            del function, arguments

    def _start(self, state: _WorkerState, start_method: str) -> None:
        try:
            state.channel, worker_end = self._channel_pair()
            try:
                self._ask_server(state, start_method, worker_end)
            finally:
                worker_end.close()
        except Exception as error:
            state.started.put(error)
        else:
            state.started.put(None)

    def _ask_server(self, state: _WorkerState, start_method: str, worker_end: Channel) -> None:
        state.token = next(self._tokens)
        while True:
            is_new = self._server is None
            if self._server is None:
                self._server = _ForkServerConnection(self)
                self._open_channels.add(self._server.channel)
            state.server = self._server
            state.server.workers[state.token] = state
            try:
                state.server.send("start", state.token, start_method, [worker_end.fileno()])
                return
            except OSError:
                # It died, and its listener is about to report that; this worker did not die with it.
                del state.server.workers[state.token]
                state.server = self._server = None
                if is_new:
                    raise

    def on_server_exit(self, server: _ForkServerConnection) -> None:
        """Handle the end of a server: its end of the control channel is closed."""
        if self._server is server:
            self._server = None
        self._open_channels.discard(server.channel)
        exit_code = server.reap()
        while server.workers:
            state = server.workers.popitem()[1]
            if state.pid is None:
                state.start_error = f"the fork server {describe_exit(exit_code)}"
            self._record_exit(state, _KILLED)

    def on_server_message(self, server: _ForkServerConnection, what: str, token: int, detail: Any) -> None:
        """Handle a server's message about a worker."""
        if what == "pid":
            server.workers[token].pid = detail
            return
        state = server.workers.pop(token)
        if what == "failed":
            state.start_error = detail
        self._record_exit(state, 1 if what == "failed" else detail)

    def _prepare_fork(self, state: _WorkerState) -> None:
        try:
            state.channel, state.worker_end = self._channel_pair()
        except Exception as error:
            state.started.put(error)
        else:
            state.started.put(None)

    def _adopt(self, state: _WorkerState, pid: int) -> None:
        """Take over a child that was just forked."""
        assert state.worker_end is not None
        state.pid = pid
        state.worker_end.close()
        reaper = threading.Thread(target=self._await_end, args=(state, pid), name=f"envfleet-reaper-{pid}", daemon=True)
        try:
            reaper.start()
        except RuntimeError as error:  # no more threads
            state.start_error = str(error)
            os.kill(pid, signal.SIGKILL)
            self._reap(state, pid)

    def _await_end(self, state: _WorkerState, pid: int) -> None:
        _thread_state.is_launcher_thread = True
        with contextlib.suppress(ChildProcessError):  # it was reaped elsewhere
            # Reaped by the launcher thread: until then the pid stays the child's, so that kill() is safe.
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        self.requests.put((self._reap, state, pid))

    def _reap(self, state: _WorkerState, pid: int) -> None:
        try:
            _, status = os.waitpid(pid, 0)
            code = os.waitstatus_to_exitcode(status)
        except ChildProcessError:  # it was reaped elsewhere
            code = UNKNOWN_EXIT
        self._record_exit(state, code)

    def _record_exit(self, state: _WorkerState, exit_code: int) -> None:
        if state.channel is not None:
            self._open_channels.discard(state.channel)
        state.on_exit_reported(exit_code)

    def kill(self, state: _WorkerState) -> None:
        """Kill a worker, if it was started and is alive."""
        with contextlib.suppress(OSError):  # the server is gone, and the worker with it
            if state.has_exited:
                return
            if state.server is not None:
                state.server.send("kill", state.token, None)
            elif state.pid is not None:
                os.kill(state.pid, signal.SIGKILL)

    def drop(self, state: _WorkerState) -> None:
        """Kill a worker that is no longer needed."""
        if state.is_dropped:
            return
        state.is_dropped = True
        was_started = state.server is not None or state.pid is not None
        if state.worker_end is not None:
            state.worker_end.close()
        if state.channel is not None and (state.has_exited or not was_started):
            self._open_channels.discard(state.channel)
            state.channel.close()
        self.kill(state)

    def _channel_pair(self) -> tuple[Channel, Channel]:
        mine, theirs = Channel.pair()
        self._open_channels.add(mine)
        return mine, theirs

    # --- a forked child ------------------------------------------------------------------------------

    def close_inherited(self) -> None:
        """Close the parent's channels, in a forked child, where the launcher has no thread."""
        for channel in self._open_channels:
            channel.close()


class _ForkServerConnection:
    """The connection to the fork server. workers: the live ones, by token."""

    def __init__(self, launcher: _Launcher) -> None:
        self.workers: dict[int, _WorkerState] = {}
        self.channel, other = Channel.pair()
        program = (
            f"from envfleet.executors.processes import fork_server; fork_server.main({other.fileno()}, {os.getpid()})"
        )
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                worker_module.python_command(program),
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                # Never closed: the server's own descriptors, and its workers', would take their numbers.
                stdout=None if is_inherited(1) else subprocess.DEVNULL,
                stderr=None if is_inherited(2) else subprocess.DEVNULL,
            )
            threading.Thread(target=self._listen, args=(launcher,), name="envfleet-workers", daemon=True).start()
        except BaseException:
            self.reap()
            raise
        finally:
            other.close()

    def send(self, what: str, token: int, detail: Any, fds: list[int] | None = None) -> None:
        self.channel.send(pickle.dumps((what, token, detail)), fds or [])

    def reap(self) -> int:
        """Kill the server if need be and return its exit code."""
        self.channel.close()
        if self._process is None:
            return UNKNOWN_EXIT
        with contextlib.suppress(subprocess.TimeoutExpired):
            # It has closed its end of the channel and is about to exit.
            return self._process.wait(_EXIT_TIMEOUT_S)
        self._process.kill()
        return self._process.wait()

    def _listen(self, launcher: _Launcher) -> None:
        _thread_state.is_launcher_thread = True
        try:
            while (message := self.channel.recv()) is not None:
                launcher.requests.put((launcher.on_server_message, self, *pickle.loads(message[0])))
        finally:
            launcher.requests.put((launcher.on_server_exit, self))


_thread_state = threading.local()
_launcher = _Launcher()


def _renew_launcher() -> None:
    # The fork server, its thread and its workers are the parent's.
    global _launcher
    _launcher.close_inherited()
    _launcher = _Launcher()


os.register_at_fork(after_in_child=_renew_launcher)
