"""ProcessesBackend: each generator in a worker process, trajectories through shared memory.

the caller's thread: begin, take, broadcast ...  <- exchange.py ->  the clerk thread (clerk.py)
the clerk thread: all sockets, all books, who is asked next  <->  the worker processes (worker.py)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import cloudpickle

from envfleet.batch import Fault
from envfleet.sampling.backend import Backend, Event, Maker
from envfleet.sampling.clerk import KILL_TIMEOUT_S, Clerk
from envfleet.sampling.errors import START, GeneratorDied, GeneratorError
from envfleet.sampling.exchange import Exchange
from envfleet.sampling.members import Member
from envfleet.sampling.travel import message_of_content, pickled_maker
from envfleet.sampling.worker import GeneratorJob

_CLOSE_TIMEOUT_S = 5.0


class ProcessesBackend(Backend):
    """Runs each generator in a process of its own."""

    def __init__(
        self,
        makers: Sequence[Maker],
        start_method: str,
        prefetch: int,
        max_ahead_bytes: int,
        traj_timeout: float | None,
    ) -> None:
        own_ahead_bytes = max(1, max_ahead_bytes // len(makers))
        # Pickled before anything is started.
        jobs = [
            GeneratorJob(pickled_maker(cloudpickle.dumps, make, generator, "processes"), own_ahead_bytes)
            for generator, make in enumerate(makers)
        ]
        self._exchange = Exchange()
        self._members: list[Member] = []
        self._clerk = Clerk(self._members, self._exchange, prefetch, own_ahead_bytes, traj_timeout)
        try:
            for generator, job in enumerate(jobs):
                self._members.append(Member(generator, job, start_method))
            self._clerk.start()
            self._await_start()
        except BaseException:
            self.close()
            raise

    def begin(self, request: Any) -> list[Fault]:
        """Starts a stream; the old one's trajectories are dropped where they are."""
        label, fd = message_of_content(request, "trajs()")
        stream, late = self._exchange.open_stream()
        self._exchange.order(partial(self._clerk.begin, stream, label, fd))
        return late

    def take(self, generator: int | None) -> Event | None:
        """Waits for the next event."""
        return self._exchange.take(generator)

    def renew(self, generator: int) -> None:
        """Has it made anew, in a new process if the old one is gone."""
        self._exchange.order(partial(self._clerk.renew, self._members[generator]))

    def stop(self) -> None:
        """Drops what is ready and what was asked."""
        self._exchange.end_stream()
        self._exchange.order(self._clerk.stop)

    def broadcast(self, weights: Any, version: int) -> None:
        """Writes them into shared memory, once; the workers map them."""
        self._exchange.order(partial(self._clerk.broadcast, version, *message_of_content(weights, "broadcast()")))

    @property
    def worker_pids(self) -> list[int]:
        """The process of each generator."""
        pids = []
        for member in self._members:
            while member.process.pid is None and not member.process.wait(0.001):
                pass
            pids.append(member.process.pid or -1)
        return pids

    def close(self) -> list[Fault]:
        """Lets the workers close their generators, then ends those that do not."""
        # Garbage collection may run in the clerk's thread, or where the lock is held, and there nobody may wait.
        if self._clerk.is_this_thread or self._exchange.is_held_here:
            threading.Thread(target=self.close, name="envfleet-closing").start()
            return []
        if not self._exchange.close():
            return []
        has_clerk = self._clerk.is_alive
        try:
            if has_clerk:
                self._exchange.order(self._clerk.close)
                deadline = time.monotonic() + _CLOSE_TIMEOUT_S
                for member in self._members:
                    member.process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            for member in self._members:
                member.process.kill()
            for member in self._members:
                member.process.wait(KILL_TIMEOUT_S)
            if has_clerk:
                self._exchange.order(self._clerk.leave)
                self._clerk.join()
            for member in self._members:
                member.end(KILL_TIMEOUT_S)
            self._clerk.close_parcels()
            self._exchange.close_pipe()
        return [member.farewell.fault(member.generator) for member in self._members if member.farewell is not None]

    def _await_start(self) -> None:
        while True:
            fault = self._exchange.first_fault()
            if fault is not None:
                kind = GeneratorError if fault.exit_code is None else GeneratorDied
                raise kind(Fault(**{**vars(fault), "method": START}), "it must reach its first yield") from fault.cause
            if all(member.is_started for member in self._members):
                return
            self._exchange.wait_for_bell()
