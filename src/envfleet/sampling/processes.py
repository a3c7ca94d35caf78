"""ProcessesBackend: each generator in a worker process, trajectories through shared memory.

    the caller's thread: begin, take, broadcast ...  <- ready: events, orders: what to do ->  the clerk thread
    the clerk thread: all sockets, all books, who is asked next  <->  the worker processes

The clerk does what must not be torn by a Ctrl-C, which only ever reaches the main thread: the caller's side takes
events from a list, and the clerk works out from that list who is to be asked for more. Both wait without polling.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import cloudpickle

from envfleet.batch import Fault
from envfleet.executors.rows.faults import trouble_of
from envfleet.sampling.backend import Backend, Event, Kind, Maker
from envfleet.sampling.errors import START, TRAJS, GeneratorDied, GeneratorError
from envfleet.sampling.members import Member
from envfleet.sampling.parcels import Arrived, Label
from envfleet.sampling.travel import message_of_content, pickled_maker
from envfleet.sampling.worker import GeneratorJob

_GRACE_S = 1.0  # for the trajectory that is under way when the runner is closed
_CLOSE_TIMEOUT_S = 5.0
_KILL_TIMEOUT_S = 5.0


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
        self._prefetch = prefetch
        self._own_ahead_bytes = max(1, max_ahead_bytes // len(makers))
        self._traj_timeout = traj_timeout
        # Pickled before anything is started.
        jobs = [
            GeneratorJob(pickled_maker(cloudpickle.dumps, make, generator, "processes"), self._own_ahead_bytes)
            for generator, make in enumerate(makers)
        ]
        # Reentrant: garbage collection may end a stream in the middle of anything.
        self._lock = threading.RLock()
        # Below: between the caller's thread and the clerk, under the lock.
        self._stream = 0
        self._is_streaming = False
        self._ready: list[Event] = []
        self._late: list[Fault] = []
        self._orders: list[Callable[[], None]] = []
        self._ends: list[tuple[Member, int, int]] = []
        self._is_closed = False
        self._clerks_error: BaseException | None = None
        # Locked while there is nothing new: a C lock, since a Ctrl-C cannot get in between its halves.
        self._bell = threading.Lock()
        self._bell.acquire()
        # Below: the clerk's own.
        self._is_over = False
        self._request: tuple[Label, int | None] = ((), ()), None
        self._weights: tuple[int, Label, int | None] | None = None
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._members: list[Member] = []
        self._clerk = threading.Thread(target=self._serve, name="envfleet-runner", daemon=True)
        try:
            for generator, job in enumerate(jobs):
                self._members.append(Member(generator, job, start_method))
            # All are started before the first is written to: who has large arguments waits for them to be read.
            for member in self._members:
                member.send_job()
                self._watch(member)
            self._clerk.start()
            self._await_start()
        except BaseException:
            self.close()
            raise

    # --- the caller's thread -------------------------------------------------------------------------

    def begin(self, request: Any) -> list[Fault]:
        """Starts a stream; the old one's trajectories are dropped where they are."""
        label, fd = message_of_content(request, "trajs()")
        with self._lock:
            self._stream += 1
            stream = self._stream
            self._is_streaming = True
            self._ready = []
            late, self._late = self._late, []
        self._order(partial(self._do_begin, stream, label, fd))
        return late

    def take(self, generator: int | None) -> Event | None:
        """Waits for the next event."""
        while True:
            with self._lock:
                if self._is_closed:
                    return None
                if self._clerks_error is not None:
                    raise RuntimeError("the runner's own thread failed; please report this") from self._clerks_error
                ready = self._ready
                at = next((i for i, event in enumerate(ready) if generator in (None, event.generator)), None)
                event = None if at is None else ready.pop(at)
            self._wake()  # it was taken, so there is room for more
            if event is not None:
                return event
            self._bell.acquire()

    def renew(self, generator: int) -> None:
        """Has it made anew, in a new process if the old one is gone."""
        self._order(partial(self._do_renew, self._members[generator]))

    def stop(self) -> None:
        """Drops what is ready and what was asked."""
        with self._lock:
            self._is_streaming = False
            self._stream += 1
            self._ready = []
        self._order(self._do_stop)

    def broadcast(self, weights: Any, version: int) -> None:
        """Writes them into shared memory, once; the workers map them."""
        self._order(partial(self._do_broadcast, version, *message_of_content(weights, "broadcast()")))

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
        if threading.current_thread() is self._clerk or self._lock._is_owned():  # type: ignore[attr-defined]  # as Condition
            threading.Thread(target=self.close, name="envfleet-closing").start()
            return []
        with self._lock:
            if self._is_closed:
                return []
            self._is_closed = True
            self._ready = []
        self._ring()
        has_clerk = self._clerk.is_alive()
        try:
            if has_clerk:
                self._order(self._do_close)
                deadline = time.monotonic() + _CLOSE_TIMEOUT_S
                for member in self._members:
                    member.process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            for member in self._members:
                member.process.kill()
            for member in self._members:
                member.process.wait(_KILL_TIMEOUT_S)
            if has_clerk:
                self._order(self._do_leave)
                self._clerk.join()
            for member in self._members:
                member.end(_KILL_TIMEOUT_S)
            for fd in (self._request[1], self._weights[2] if self._weights else None):
                if fd is not None:
                    os.close(fd)
            with self._lock:
                os.close(self._wake_read)
                os.close(self._wake_write)
                self._wake_write = -1
        return [member.farewell.fault(member.generator) for member in self._members if member.farewell is not None]

    def _await_start(self) -> None:
        while True:
            with self._lock:
                faults = [event.fault for event in self._ready if event.fault is not None] + self._late
                if faults:
                    fault = faults[0]
                elif all(member.is_started for member in self._members):
                    return
            if faults:
                kind = GeneratorError if fault.exit_code is None else GeneratorDied
                raise kind(Fault(**{**vars(fault), "method": START}), "it must reach its first yield") from fault.cause
            self._bell.acquire()

    def _order(self, what: Callable[[], None]) -> None:
        with self._lock:
            self._orders.append(what)
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            if self._wake_write >= 0:
                with contextlib.suppress(BlockingIOError):  # full of earlier wake-ups
                    os.write(self._wake_write, b"!")

    def _watch(self, member: Member) -> None:
        member.process.on_exit(partial(self._note_end, member, member.process, member.birth))

    def _note_end(self, member: Member, process: Any, birth: int) -> None:
        """From the launcher's thread."""
        with self._lock:
            self._ends.append((member, birth, process.exit_code))
        self._wake()

    def _ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # it rings already
            self._bell.release()

    # --- the clerk's thread --------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._is_over:
                self._wait()
                with self._lock:
                    orders, self._orders = self._orders, []
                    ends, self._ends = self._ends, []
                for member, birth, exit_code in ends:
                    if birth == member.birth:
                        self._bury(member, exit_code)
                for order in orders:
                    order()
                self._ask_for_more()
        except BaseException as error:
            self._clerks_error = error
            self._ring()

    def _wait(self) -> None:
        """Until there is something to read, to do, or overdue."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        readers = {member.process.channel.fileno(): member for member in self._members if member.is_readable}
        for fd in readers:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(self._overdue_in_ms()):
            if fd == self._wake_read:
                with contextlib.suppress(BlockingIOError):
                    while os.read(fd, 4096):
                        pass
            else:
                self._read(readers[fd])

    def _overdue_in_ms(self) -> float | None:
        """When the next worker will have been silent for too long; those that have been are given up."""
        if self._traj_timeout is None:
            return None
        now, left = time.monotonic(), []
        for member in self._members:
            is_full = member.arrived_bytes - member.told_bytes >= self._own_ahead_bytes
            if member.is_busy and not is_full and member.silence is None:
                left.append(member.since + self._traj_timeout - now)
                if left[-1] <= 0:
                    member.give_up(f"gave no trajectory within traj_timeout={self._traj_timeout:g} s")
        return max(0.0, min(left)) * 1000 + 1 if left else None

    def _read(self, member: Member) -> None:
        message = member.process.channel.recv()
        if message is None:
            member.is_readable = False
            return
        data, fds = message
        what, stream, detail = pickle.loads(data)
        if what == "ready":
            member.is_started, member.since = True, time.monotonic()
            self._ring()
        elif what == "closed":
            member.farewell = detail
        elif what == "trajectory":
            self._arrive(member, stream, detail, fds[0] if fds else None)
        elif what == "ended":
            member.is_halted = member.is_halted or stream == self._stream
            self._post(Event(member.generator, "ended"), stream)
        else:  # raised, failed
            member.has_failed = what == "failed"
            self._fail(member, detail.fault(member.generator), stream or self._stream)

    def _arrive(self, member: Member, stream: int, label: Label, fd: int | None) -> None:
        if stream != self._stream:
            if fd is not None:
                os.close(fd)
            return
        member.num_done += 1
        member.since = time.monotonic()
        try:
            arrived = Arrived(label, fd)
        except Exception as error:
            self._fail(member, trouble_of(error, TRAJS, is_leaving=False).fault(member.generator, error), stream)
            return
        member.arrived_bytes += arrived.num_bytes
        self._post(Event(member.generator, "trajectory", arrived.open, num_bytes=arrived.num_bytes), stream)

    def _fail(self, member: Member, fault: Fault, stream: int, kind: Kind = "raised") -> None:
        member.is_halted = member.is_halted or stream == self._stream
        self._post(Event(member.generator, kind, fault=fault), stream)

    def _post(self, event: Event, stream: int) -> None:
        with self._lock:
            if self._is_closed:
                return
            if stream == self._stream and self._is_streaming:
                self._ready.append(event)
            elif event.fault is not None:
                self._late.append(event.fault)
        self._ring()

    def _bury(self, member: Member, exit_code: int) -> None:
        """A process has ended. What it said before counts first."""
        poll = select.poll()
        poll.register(member.process.channel.fileno(), select.POLLIN)
        while member.is_readable and poll.poll(0):
            self._read(member)
        member.is_readable = False
        member.is_lost = True
        if not member.has_failed:
            self._fail(member, member.death(exit_code), self._stream, "died")

    def _ask_for_more(self) -> None:
        with self._lock:
            if not self._is_streaming or self._is_closed:
                return
            stream = self._stream
            num_ready = Counter(event.generator for event in self._ready)
            ready_bytes: Counter[int] = Counter()
            for event in self._ready:
                ready_bytes[event.generator] += event.num_bytes
        if stream != self._books_of:
            return  # its begin() is still among the orders
        for member in self._members:
            missing = self._prefetch - num_ready[member.generator] - (member.num_asked - member.num_done)
            if missing > 0 and not member.is_halted:
                taken_bytes = member.arrived_bytes - ready_bytes[member.generator] - member.told_bytes
                if member.num_asked == member.num_done or taken_bytes:
                    member.since = time.monotonic()
                member.num_asked += missing
                member.told_bytes += taken_bytes
                member.tell("more", stream, (missing, taken_bytes))

    # --- orders --------------------------------------------------------------------------------------

    _books_of = 0  # the stream that num_asked and num_done of the members are about

    def _do_begin(self, stream: int, label: Label, fd: int | None) -> None:
        if self._request[1] is not None:
            os.close(self._request[1])
        self._request = label, fd
        self._books_of = stream
        for member in self._members:
            if member.is_lost:
                self._restart(member)
            self._begin(member)

    def _begin(self, member: Member) -> None:
        label, fd = self._request
        member.begin(self._prefetch)
        member.tell("begin", self._books_of, (self._prefetch, label), fd)

    def _do_renew(self, member: Member) -> None:
        if member.is_lost:
            self._restart(member)
            self._begin(member)
        else:
            member.begin(self._prefetch)
            member.tell("renew", self._books_of, self._prefetch)

    def _restart(self, member: Member) -> None:
        member.process.wait(_KILL_TIMEOUT_S)
        member.start()
        member.send_job()
        self._watch(member)
        if self._weights is not None:
            version, label, fd = self._weights
            member.tell("weights", 0, (version, label), fd)

    def _do_stop(self) -> None:
        for member in self._members:
            member.tell("stop", self._books_of)

    def _do_broadcast(self, version: int, label: Label, fd: int | None) -> None:
        if self._weights is not None and self._weights[2] is not None:
            os.close(self._weights[2])
        self._weights = version, label, fd
        for member in self._members:
            member.tell("weights", 0, (version, label), fd)

    def _do_close(self) -> None:
        for member in self._members:
            member.tell("close", 0, _GRACE_S)

    def _do_leave(self) -> None:
        self._is_over = True
