"""A worker process that runs one generator.

The main thread runs the generator; a second one reads what the caller says, so that new weights and the word to
leave arrive while a trajectory is under way. Nobody polls: the one waits on a condition, the other on its socket.

    caller -> worker: begin, more, renew, stop, weights, close
    worker -> caller: starting, ready, failed, begun, trajectory, ended, raised, closed
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

from envfleet.executors.processes.channel import Channel
from envfleet.executors.python.exception_report import ExceptionReport, report_exception
from envfleet.executors.python.side_channel import dump
from envfleet.sampling.errors import START, TRAJS
from envfleet.sampling.generators import Ended, Seat
from envfleet.sampling.parcels import Arrived, Packer
from envfleet.sampling.weights import WeightsBox, serve_process

_GRACE_S = 1.0  # for the trajectory that is under way when the listening thread has failed


class Leave(BaseException):
    """Raised wherever the main thread is, by SIGTERM: so that finally blocks run on the way out."""


@dataclass(frozen=True)
class GeneratorJob:
    """What a worker is to run.

    maker: pickled, since it may need the caller's sys.path. max_ahead_bytes: with so much finished and not yet
    taken, the worker begins nothing new.
    """

    maker: bytes
    max_ahead_bytes: int

    def run(self, channel: Channel) -> None:
        """Serves the generator from its start to its end."""
        _Worker(channel, self.max_ahead_bytes).run(self.maker)


class _Worker:
    def __init__(self, channel: Channel, max_ahead_bytes: int) -> None:
        self._channel = channel
        self._max_ahead_bytes = max_ahead_bytes
        self._packer = Packer()
        self._box = WeightsBox()
        # Below: between the two threads, under the condition.
        self._changed = threading.Condition()
        self._stream = 0
        self._request: Arrived | None = None
        self._num_asked = 0
        self._ahead_bytes = 0
        self._is_halted = False
        self._is_leaving = False
        self._listener_error: BaseException | None = None
        self._has_left = threading.Event()

    def run(self, maker: bytes) -> None:
        serve_process(self._box)
        signal.signal(signal.SIGTERM, partial(_leave, os.getpid()))
        threading.Thread(target=self._listen, name="envfleet-orders", daemon=True).start()
        seat: Seat | None = None
        was_told = True
        trouble: ExceptionReport | None = None
        try:
            self._tell("starting", 0)
            try:
                seat = Seat(pickle.loads(maker))
                seat.start()
            except Leave:
                raise
            except BaseException as error:
                self._tell("failed", 0, report_exception(error, START, pickled=True))
                return
            self._tell("ready", 0)
            self._work(seat)
        except Leave:
            was_told = self._is_leaving
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if seat is not None:
                try:
                    seat.close()
                except BaseException as error:
                    trouble = report_exception(error, "close()", pickled=True)
            self._has_left.set()
            if self._listener_error is not None:
                # Without that thread no request would arrive again: the caller hears of it, and starts another worker.
                self._tell("failed", 0, report_exception(self._listener_error, TRAJS, pickled=True))
            self._tell("closed", 0, trouble)
        if not was_told:  # the signal came from elsewhere: it ends the process as it always does
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    # --- the main thread -----------------------------------------------------------------------------

    def _work(self, seat: Seat) -> None:
        begun_stream = 0
        while (order := self._next_order()) is not None:
            stream, request = order
            if stream != begun_stream:
                # The caller's timeout begins here: before, a trajectory of an earlier stream may have been under way.
                self._tell("begun", stream)
                begun_stream = stream
            method = START
            try:
                if not seat.is_started:
                    self._tell("starting", stream)
                    seat.start()
                    self._tell("ready", stream)
                method = TRAJS
                trajectory = seat.ask(request.open())
                self._deliver(stream, trajectory)
            except Ended:
                self._halt("ended", stream, None)
            except Leave:
                raise
            except BaseException as error:  # SystemExit too: it is the generator's, not ours
                with contextlib.suppress(Exception):
                    seat.close()  # an unpicklable trajectory leaves it open
                self._halt("raised", stream, report_exception(error, method, pickled=True))

    def _next_order(self) -> tuple[int, Arrived] | None:
        with self._changed:
            while not self._is_leaving:
                has_room = self._ahead_bytes == 0 or self._ahead_bytes < self._max_ahead_bytes
                if self._num_asked > 0 and has_room and not self._is_halted and self._request is not None:
                    self._num_asked -= 1
                    return self._stream, self._request
                self._changed.wait()
        return None

    def _deliver(self, stream: int, trajectory: Any) -> None:
        if stream != self._stream:
            return  # nobody wants it any more
        parcel = self._packer.pack(trajectory)
        label, fd = parcel.to_message()
        try:
            with self._changed:
                if stream != self._stream:
                    return
                self._ahead_bytes += parcel.num_bytes
            self._tell("trajectory", stream, label, fd)
        finally:
            if fd is not None:
                os.close(fd)

    def _halt(self, what: str, stream: int, trouble: ExceptionReport | None) -> None:
        with self._changed:
            # A stream that began meanwhile finds the generator made anew.
            if stream == self._stream:
                self._is_halted, self._num_asked = True, 0
        self._tell(what, stream, trouble)

    def _tell(self, what: str, stream: int, detail: Any = None, fd: int | None = None) -> None:
        with contextlib.suppress(OSError):  # the caller is gone, and the listener knows
            self._channel.send(dump((what, stream, detail)), [] if fd is None else [fd])

    # --- the listening thread ------------------------------------------------------------------------

    def _listen(self) -> None:
        grace_s = 0.0
        try:
            grace_s = self._read_orders()
        except BaseException as error:  # a parcel without its memory, where the generator has used up the descriptors
            self._listener_error, grace_s = error, _GRACE_S
        with self._changed:
            self._is_leaving = True
            self._changed.notify()
        # In the middle of a trajectory: it may end by itself, and else its finally blocks run by an exception.
        if not self._has_left.wait(grace_s):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def _read_orders(self) -> float:
        """Reads what the caller says until it has the worker leave; how long a trajectory may go on then."""
        while (message := self._channel.recv()) is not None:
            data, fds = message
            what, stream, detail = pickle.loads(data)
            fd = fds[0] if fds else None
            if what == "close":
                grace_s: float = detail
                return grace_s
            if what == "weights":
                version, label = detail
                self._box.offer(version, Arrived(label, fd, is_private=True).open)
                continue
            with self._changed:
                self._obey(what, stream, detail, fd)
                self._changed.notify()
        return 0.0

    def _obey(self, what: str, stream: int, detail: Any, fd: int | None) -> None:
        if what == "begin":
            num_asked, label = detail
            self._stream, self._request, self._num_asked = stream, Arrived(label, fd), num_asked
            self._ahead_bytes, self._is_halted = 0, False
        elif stream != self._stream:
            return
        elif what == "more":
            num_asked, taken_bytes = detail
            self._num_asked += num_asked
            self._ahead_bytes -= taken_bytes
        elif what == "renew":
            self._num_asked, self._is_halted = detail, False
        elif what == "stop":
            self._stream, self._request, self._num_asked = 0, None, 0


def _leave(owner_pid: int, _signal: int, _frame: FrameType | None) -> None:
    if os.getpid() != owner_pid:  # a process that the generator forked: it ends as it would anywhere
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once: a second one must not cut the finally blocks short
    raise Leave
