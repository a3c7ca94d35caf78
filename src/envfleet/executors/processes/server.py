"""The fork server: a program of its own that forks workers for one process.

It has numpy and gymnasium loaded and nothing of the user's: a fork of it is a worker that is ready in
milliseconds, has no threads and never imports the user's main module. It ends with the process it
serves, however that ends, and its workers end with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import random
import select
import signal
import socket
import subprocess
import sys
import warnings

import numpy as np

from envfleet.executors.processes import worker
from envfleet.executors.processes.channel import Channel

_PR_SET_PDEATHSIG = 1


def main(control_fd: int, parent_pid: int) -> None:
    """Serves until the other end of the control channel, or the process that holds it, is gone."""
    # Ctrl-C goes to the whole group; it is the caller who says what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The mask comes from the caller too, and without SIGCHLD no death would be noticed.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    control = Channel(socket.socket(fileno=control_fd))
    Server(control, parent_pid).run()


class Server:
    """Forks workers, reaps them, and tells how they ended."""

    def __init__(self, control: Channel, parent_pid: int) -> None:
        self._control = control
        self._tokens: dict[int, int] = {}  # pid -> token
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._parent = _pidfd_of(parent_pid)

    def run(self) -> None:
        """Works until nobody is left to work for."""
        poll = select.poll()
        poll.register(self._control.fileno(), select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        if self._parent is not None:
            # The control channel alone does not tell: a fork of the parent may hold its other end.
            poll.register(self._parent, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._parent in ready:
                break
            if self._wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    while os.read(self._wake_read, 4096):
                        pass
                if not self._reap():
                    break
            if self._control.fileno() in ready:
                message = self._control.recv()
                if message is None:
                    break
                self._do(*message)
        # Workers are killed by the system when this process ends.
        os._exit(0)

    def _do(self, data: bytes, fds: list[int]) -> None:
        what, token, detail = pickle.loads(data)
        if what == "kill":
            # Its pid is ours until it is reaped, which happens in this thread only.
            for pid in [pid for pid, own in self._tokens.items() if own == token]:
                os.kill(pid, signal.SIGKILL)
            return
        try:
            pid = self._fork(fds[0]) if detail == "forkserver" else self._spawn(fds[0])
        except OSError as error:  # no more processes or memory: this worker's trouble, not that of all others
            print(f"envfleet: a worker could not be started: {error}", file=sys.stderr)
            self._tell(("exit", token, 1))
            return
        finally:
            os.close(fds[0])
        self._tokens[pid] = token
        self._tell(("pid", token, pid))

    def _fork(self, fd: int) -> int:
        server_pid = os.getpid()
        with warnings.catch_warnings():
            # Of threads that numpy's BLAS keeps: it restarts them in the child by itself.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for own in (self._wake_read, self._wake_write, self._control.fileno()):
                os.close(own)
            die_with_parent(server_pid)
            # All workers come from one state of these.
            random.seed()
            np.random.seed()
            code = worker.main(fd)
        finally:
            os._exit(code)

    def _spawn(self, fd: int) -> int:
        program = f"from envfleet.executors.processes import worker; worker.start({fd}, {os.getpid()})"
        return subprocess.Popen(
            [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {program}"], pass_fds=[fd]
        ).pid

    def _reap(self) -> bool:
        """Tells of workers that ended. False: nobody listens any more."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return True
            token = self._tokens.pop(pid, None)
            if token is not None and not self._tell(("exit", token, os.waitstatus_to_exitcode(status))):
                return False

    def _tell(self, message: tuple[str, int, int]) -> bool:
        try:
            self._control.send(pickle.dumps(message))
        except OSError:
            return False
        return True


def die_with_parent(parent_pid: int) -> None:
    """Has the system kill this process when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent_pid:  # it ended before the call
            os._exit(1)


def _pidfd_of(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # another system, or gone already: the control channel tells
        return None
