"""The fork server: a separate program that forks workers for one process.

It has numpy and gymnasium loaded but no user code: a fork of it is a worker that is ready in milliseconds, has no
threads and never imports the user's main module. It ends with the process it serves, however that ends, and its
workers end with it.

    caller -> server: (start, token, start method) with the worker's socket, (kill, token, None)
    server -> caller: (pid, token, pid), (exit, token, exit code), (failed, token, the reason why it was not started)
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import random
import select
import signal
import sys
import traceback
import warnings
from typing import Any

import numpy as np

from envfleet import _native
from envfleet.executors.processes import worker
from envfleet.executors.processes.channel import Channel

_PR_SET_PDEATHSIG = 1


def main(control_fd: int, parent_pid: int) -> None:
    """Serve until the other end of the control channel closes, or the process that holds it ends."""
    # Ctrl-C goes to the whole process group; only the caller reacts to it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The signal mask is inherited from the caller; with SIGCHLD blocked no exit would be noticed.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    ForkServer(Channel.adopt(control_fd), parent_pid).run()


class ForkServer:
    """Forks workers, reaps them, and reports how they ended.

    One thread. Children are reaped in _reap() and nowhere else, so a pid in _tokens always belongs to a child.
    """

    def __init__(self, control: Channel, parent_pid: int) -> None:
        self._control = control
        self._tokens: dict[int, int] = {}  # pid -> token
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._parent_pid = parent_pid
        self._parent = worker.open_pidfd(parent_pid)

    def run(self) -> None:
        """Handle requests until the caller is gone."""
        poll = select.poll()
        poll.register(self._control.fileno(), select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        # The control channel is not enough: a fork of the parent may hold its other end.
        interval_ms = None
        if self._parent is not None:
            poll.register(self._parent, select.POLLIN)
        else:
            interval_ms = 1000 * worker.PARENT_POLL_S
        try:
            while True:
                ready = {fd for fd, _ in poll.poll(interval_ms)}
                if self._parent in ready or (self._parent is None and os.getppid() != self._parent_pid):
                    break
                if self._wake_read in ready:
                    self._drain_wake_ups()
                    self._reap()
                if self._control.fileno() in ready:
                    message = self._control.recv()
                    if message is None:
                        break
                    self._handle(*message)
        except ConnectionError:  # the caller is gone
            pass
        except BaseException:
            traceback.print_exc()
        finally:
            # Which ends the workers too: see die_with_parent().
            os._exit(0)

    def _drain_wake_ups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 4096):
                pass

    def _handle(self, data: bytes, fds: list[int]) -> None:
        what, token, detail = pickle.loads(data)
        if what == "kill":
            for pid in [pid for pid, own in self._tokens.items() if own == token]:
                with contextlib.suppress(OSError):  # a worker that has changed its user
                    os.kill(pid, signal.SIGKILL)
            return
        try:
            pid = self._start(detail, fds)
        except Exception as error:  # the other workers must not be affected
            if not isinstance(error, OSError):
                traceback.print_exc()
            self._report("failed", token, str(error))
            return
        finally:
            for fd in fds:
                os.close(fd)
        self._tokens[pid] = token
        self._report("pid", token, pid)

    def _start(self, start_method: str, fds: list[int]) -> int:
        if not fds:
            raise OSError("the fork server has too many open files; raise the limit (ulimit -n) before the first pool")
        return self._fork(fds[0]) if start_method == "forkserver" else self._spawn(fds[0])

    def _fork(self, fd: int) -> int:
        server_pid = os.getpid()
        with warnings.catch_warnings():
            # About the threads of numpy's BLAS, which restarts them in the child by itself.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            worker.forget_exit_handlers()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            for own in (self._wake_read, self._wake_write, self._parent):
                if own is not None:
                    os.close(own)
            die_with_parent(server_pid)
            # Otherwise all workers would start with the same state.
            random.seed()
            np.random.seed()
            code = worker.main(fd)
        finally:
            os._exit(code)

    def _spawn(self, fd: int) -> int:
        # Not subprocess.Popen, which may reap other children, whose exits would then not be reported.
        command = worker.python_command(
            f"from envfleet.executors.processes import worker; worker.start({fd}, {os.getpid()})"
        )
        os.set_inheritable(fd, True)  # no other descriptor is inheritable
        return os.posix_spawn(sys.executable, command, os.environ)

    def _reap(self) -> None:
        """Report workers that ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            token = self._tokens.pop(pid, None)
            if token is not None:
                self._report("exit", token, os.waitstatus_to_exitcode(status))

    def _report(self, what: str, token: int, detail: Any) -> None:
        self._control.send(pickle.dumps((what, token, detail)))


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends; a thread ends it where the kernel cannot."""
    if "pdeathsig" not in _native.features:
        worker.exit_with_parent(parent_pid)
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it ended before the call
        os._exit(1)
