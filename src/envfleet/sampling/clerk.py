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
from envfleet.errors import EnvfleetError
from envfleet.executors.python.exception_report import message_of, report_exception
from envfleet.sampling.backend import Event, Kind
from envfleet.sampling.errors import START, TRAJS
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
        now = time.monotonic()
        deadlines = {member: due for member in self._members if (due := self._deadline_of(member)) is not None}
        timeout_ms = max(0.0, min(deadlines.values()) - now) * 1000 + 1 if deadlines else None
        heard = set()
        for fd, _ in poll.poll(timeout_ms):
            if fd == wake_read:
                self._exchange.drain_pipe()
            else:
                heard.add(readers[fd])
                self._read(readers[fd])
        # Only now, and only by a deadline that had passed before: this thread may itself have been held up, and what
        # a worker said meanwhile lies in its socket.
        for member, deadline in deadlines.items():
            if deadline <= now and member not in heard:
                what = "reached no first yield" if member.is_starting else "gave no trajectory"
                member.give_up(f"{what} within traj_timeout={self._traj_timeout:g} s")

    def _deadline_of(self, member: Member) -> float | None:
        """When the worker will have been silent for too long; None while it owes nothing."""
        if self._traj_timeout is None or member.is_lost or member.silence is not None:
            return None
        is_full = member.arrived_bytes - member.told_bytes >= self._own_ahead_bytes
        is_wanted = self._exchange.stream == self._books_of
        if member.is_starting or (member.owes_trajectory and is_wanted and not is_full):
            return member.since + self._traj_timeout
        return None

    def _read(self, member: Member) -> None:
        message = member.process.channel.recv()
        if message is None:
            member.is_readable = False
            return
        data, fds = message
        what, stream, detail = pickle.loads(data)
        if what in ("starting", "ready", "begun"):
            # Each of these has the whole timeout: the start, the rest of an earlier stream's trajectory, the first.
            member.since = time.monotonic()
            member.is_starting = what == "starting"
            member.is_started = member.is_started or what == "ready"
            self._exchange.ring()
        elif what == "closed":
            member.farewell = detail
        elif what == "trajectory":
            self._arrive(member, stream, detail, fds[0] if fds else None)
        elif what == "ended":
            member.is_halted = member.is_halted or stream == self._exchange.stream
            self._exchange.post(Event(member.generator, "ended"), stream)
        else:  # raised, failed
            member.is_starting = False
            if what == "failed":  # it leaves, so whoever wants the generator again needs another process
                member.has_failed = member.is_lost = True
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
            self._fail(member, report_exception(error, TRAJS, pickled=False).fault(member.generator, error), stream)
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
            if not member.is_lost or self._restart(member):
                self._begin(member)

    def renew(self, member: Member) -> None:
        """Has the generator made anew, in a new process if the old one is gone."""
        if member.is_lost:
            if self._restart(member):
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

    def _restart(self, member: Member) -> bool:
        """Starts a new process. Whether it could: for want of one, this generator alone has failed."""
        if not member.process.wait(KILL_TIMEOUT_S):
            member.process.kill()  # it was to leave by itself
        try:
            member.start()
            self._send_job(member)
        except (OSError, EnvfleetError) as error:  # no descriptors, processes or memory left, or no fork server
            member.process.kill()
            member.is_lost, member.is_readable = True, False
            text = f"its worker process could not be started: {message_of(error)}"
            self._fail(member, Fault(member.generator, START, text, cause=error), self._books_of)
            return False
        if self._weights is not None:
            version, label, fd = self._weights
            member.tell("weights", 0, (version, label), fd)
        return True

    def _send_job(self, member: Member) -> None:
        member.send_job()
        member.process.on_exit(partial(self._exchange.note_end, member, member.process, member.birth))
