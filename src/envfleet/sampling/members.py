"""A worker process of a Runner, as the process that runs the Runner keeps it in its books."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import struct
import time
from typing import Any

from envfleet.batch import Fault
from envfleet.executors.processes.launcher import WorkerProcess, describe_exit, start_worker
from envfleet.executors.processes.worker import ProcessContext
from envfleet.executors.python.exception_report import ExceptionReport
from envfleet.sampling.errors import START, TRAJS
from envfleet.sampling.worker import GeneratorJob

_SEND_TIMEOUT_S = 10


class Member:
    """One generator and the process that runs it. All of it is the clerk thread's, once that runs.

    num_asked, num_done: requests of the present stream. told_bytes: how much of what arrived the worker knows to be
    taken. since: when it began what it owes. is_starting: it makes its generator. is_started: it has done so once.
    is_halted: it is asked nothing more in this stream. is_lost: its process is gone or of no use.
    """

    def __init__(self, generator: int, job: GeneratorJob, start_method: str) -> None:
        self.generator = generator
        self._job = job
        self._start_method = start_method
        self.birth = 0
        self.farewell: ExceptionReport | None = None
        self.start()

    def start(self) -> None:
        """A process of its own; the old one, if there was one, is gone."""
        process = start_worker(self._start_method)  # first: where there can be none, the old one's books stay
        if self.birth:
            self.process.channel.close()
        self.birth += 1
        self.process: WorkerProcess = process
        self.is_starting = self.is_started = self.is_lost = self.is_halted = self.has_failed = False
        self.is_readable = True
        self.silence: str | None = None
        self.begin(0)

    def send_job(self) -> None:
        """Tells the process what to run."""
        self._send(pickle.dumps((ProcessContext.capture(), self._job)), None)
        # What comes after is short, and the worker's listening thread takes it at once: who does not is stuck.
        with socket.socket(fileno=os.dup(self.process.channel.fileno())) as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_TIMEOUT_S, 0))

    def begin(self, num_asked: int) -> None:
        """Books for a new stream."""
        self.num_asked, self.num_done = num_asked, 0
        self.arrived_bytes = self.told_bytes = 0
        self.since = time.monotonic()
        self.is_halted = self.is_lost

    def tell(self, what: str, stream: int, detail: Any = None, fd: int | None = None) -> None:
        """Sends an order. A worker that is gone is heard of otherwise."""
        if not self.is_lost:
            self._send(pickle.dumps((what, stream, detail)), fd)

    def _send(self, data: bytes, fd: int | None) -> None:
        try:
            self.process.channel.send(data, [] if fd is None else [fd])
        except BlockingIOError:
            self.give_up(f"did not read its orders for {_SEND_TIMEOUT_S} s")
        except OSError:
            pass

    def give_up(self, silence: str) -> None:
        """Kills a worker that does not answer."""
        if self.silence is None:
            self.silence = silence
            self.process.kill()

    @property
    def owes_trajectory(self) -> bool:
        """Whether it was asked for a trajectory that it has not given yet."""
        return self.is_started and not self.is_halted and self.num_asked > self.num_done

    def death(self, exit_code: int) -> Fault:
        """How it ended."""
        what = f"{self.silence} and was killed" if self.silence is not None else describe_exit(exit_code)
        method = TRAJS if self.is_started and not self.is_starting else START
        return Fault(self.generator, method, f"its worker process {what}", exit_code=exit_code)

    def end(self, timeout_s: float) -> None:
        """Kills it if it lives, and closes this end."""
        self.process.kill()
        self.process.wait(timeout_s)
        with contextlib.suppress(OSError):
            self.process.channel.close()
