"""The clerk thread of a ProcessesBackend: all sockets, all books, who is asked next.

It does what must not be torn by a Ctrl-C, which only ever reaches the main thread: the caller's side takes events from
a list, and the clerk works out from that list who is to be asked for more.
"""

from __future__ import annotations

import os
import pickle
import select
import threading
import time
from functools import partial

from envfleet.batch import Fault
from envfleet.executors.rows.faults import trouble_of
from envfleet.sampling.backend import Event, Kind
from envfleet.sampling.errors import TRAJS
from envfleet.sampling.exchange import Exchange
from envfleet.sampling.members import Member
from envfleet.sampling.parcels import Arrived, Label

KILL_TIMEOUT_S = 5.0
_GRACE_S = 1.0  # for the trajectory that is under way when the runner is closed


class Clerk:
    """Serves the members. The methods under "orders" are for Exchange.order(); all state is the clerk thread's.

    members: the list may grow until start(). own_ahead_bytes: what one worker may have finished ahead.
    """

    def __init__(
        self, members: list[Member], exchange: Exchange, prefetch: int, own_ahead_bytes: int, traj_timeout: float | None
    ) -> None:
        self._members = members
        self._exchange = exchange
        self._prefetch = prefetch
        self._own_ahead_bytes = own_ahead_bytes
        self._traj_timeout = traj_timeout
        self._is_over = False
        self._books_of = 0  # the stream that num_asked and num_done of the members are about
        self._request: tuple[Label, int | None] = ((), ()), None
        self._weights: tuple[int, Label, int | None] | None = None
        self._thread = threading.Thread(target=self._serve, name="envfleet-runner", daemon=True)

    # --- the caller's thread -------------------------------------------------------------------------

    def start(self) -> None:
        """Tells the workers what to run, then serves them in a thread."""
        # All are started before the first is written to: who has large arguments waits for them to be read.
        for member in self._members:
            self._send_job(member)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def is_this_thread(self) -> bool:
        """Whether the caller is the clerk."""
        return threading.current_thread() is self._thread

    def join(self) -> None:
        """Waits until the thread has left."""
        self._thread.join()

    def close_parcels(self) -> None:
        """Closes what was kept for workers that begin later. After the thread has left."""
        for fd in (self._request[1], self._weights[2] if self._weights else None):
            if fd is not None:
                os.close(fd)

    # --- the clerk's thread --------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._is_over:
                self._wait()
                orders, ends = self._exchange.collect()
                for member, birth, exit_code in ends:
                    if birth == member.birth:
                        self._bury(member, exit_code)
                for order in orders:
                    order()
                self._ask_for_more()
        except BaseException as error:
            self._exchange.fail(error)

    def _wait(self) -> None:
        """Until there is something to read, to do, or overdue."""
        wake_read = self._exchange.wake_read
        poll = select.poll()
        poll.register(wake_read, select.POLLIN)
        readers = {member.process.channel.fileno(): member for member in self._members if member.is_readable}
        for fd in readers:
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(self._overdue_in_ms()):
            if fd == wake_read:
                self._exchange.drain_pipe()
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
            self._exchange.ring()
        elif what == "closed":
            member.farewell = detail
        elif what == "trajectory":
            self._arrive(member, stream, detail, fds[0] if fds else None)
        elif what == "ended":
            member.is_halted = member.is_halted or stream == self._exchange.stream
            self._exchange.post(Event(member.generator, "ended"), stream)
        else:  # raised, failed
            member.has_failed = what == "failed"
            self._fail(member, detail.fault(member.generator), stream or self._exchange.stream)

    def _arrive(self, member: Member, stream: int, label: Label, fd: int | None) -> None:
        if stream != self._exchange.stream:
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
        event = Event(member.generator, "trajectory", arrived.open, num_bytes=arrived.num_bytes)
        self._exchange.post(event, stream)

    def _fail(self, member: Member, fault: Fault, stream: int, kind: Kind = "raised") -> None:
        member.is_halted = member.is_halted or stream == self._exchange.stream
        self._exchange.post(Event(member.generator, kind, fault=fault), stream)

    def _bury(self, member: Member, exit_code: int) -> None:
        """A process has ended. What it said before counts first."""
        poll = select.poll()
        poll.register(member.process.channel.fileno(), select.POLLIN)
        while member.is_readable and poll.poll(0):
            self._read(member)
        member.is_readable = False
        member.is_lost = True
        if not member.has_failed:
            self._fail(member, member.death(exit_code), self._exchange.stream, "died")

    def _ask_for_more(self) -> None:
        ahead = self._exchange.ahead()
        if ahead is None or ahead.stream != self._books_of:
            return  # in the latter case its begin() is still among the orders
        for member in self._members:
            missing = self._prefetch - ahead.num_ready[member.generator] - (member.num_asked - member.num_done)
            if missing > 0 and not member.is_halted:
                taken_bytes = member.arrived_bytes - ahead.ready_bytes[member.generator] - member.told_bytes
                if member.num_asked == member.num_done or taken_bytes:
                    member.since = time.monotonic()
                member.num_asked += missing
                member.told_bytes += taken_bytes
                member.tell("more", ahead.stream, (missing, taken_bytes))

    # --- orders --------------------------------------------------------------------------------------

    def begin(self, stream: int, label: Label, fd: int | None) -> None:
        """Asks everybody this; who is lost is started anew."""
        if self._request[1] is not None:
            os.close(self._request[1])
        self._request = label, fd
        self._books_of = stream
        for member in self._members:
            if member.is_lost:
                self._restart(member)
            self._begin(member)

    def renew(self, member: Member) -> None:
        """Has the generator made anew, in a new process if the old one is gone."""
        if member.is_lost:
            self._restart(member)
            self._begin(member)
        else:
            member.begin(self._prefetch)
            member.tell("renew", self._books_of, self._prefetch)

    def stop(self) -> None:
        """What was asked and not begun is not done."""
        for member in self._members:
            member.tell("stop", self._books_of)

    def broadcast(self, version: int, label: Label, fd: int | None) -> None:
        """Gives everybody these weights, and those who are started later."""
        if self._weights is not None and self._weights[2] is not None:
            os.close(self._weights[2])
        self._weights = version, label, fd
        for member in self._members:
            member.tell("weights", 0, (version, label), fd)

    def close(self) -> None:
        """Has the workers leave."""
        for member in self._members:
            member.tell("close", 0, _GRACE_S)

    def leave(self) -> None:
        """Ends the thread."""
        self._is_over = True

    def _begin(self, member: Member) -> None:
        label, fd = self._request
        member.begin(self._prefetch)
        member.tell("begin", self._books_of, (self._prefetch, label), fd)

    def _restart(self, member: Member) -> None:
        member.process.wait(KILL_TIMEOUT_S)
        member.start()
        self._send_job(member)
        if self._weights is not None:
            version, label, fd = self._weights
            member.tell("weights", 0, (version, label), fd)

    def _send_job(self, member: Member) -> None:
        member.send_job()
        member.process.on_exit(partial(self._exchange.note_end, member, member.process, member.birth))
