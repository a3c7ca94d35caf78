"""What the caller's thread and the clerk thread of a ProcessesBackend hand to each other.

    the caller's thread  <- ready: events of the stream, late: faults of none        the clerk thread
                            orders: what to do, ends: processes that are gone ->

Both wait without polling: the caller for the bell, the clerk for a byte in a pipe, which it polls with its sockets.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from envfleet.batch import Fault
from envfleet.executors.processes.launcher import WorkerProcess
from envfleet.sampling.backend import Event
from envfleet.sampling.members import Member

Order = Callable[[], None]
End = tuple[Member, int, int]  # whose process it was, the how manieth of that member, its exit code


class Ahead(NamedTuple):
    """How much of a stream is finished and not yet taken, by generator."""

    stream: int
    num_ready: Counter[int]
    ready_bytes: Counter[int]


class Exchange:
    """Between the caller's thread, the clerk and the launcher's thread: what is not final is under the lock.

    stream: counts the streams and the gaps between them. The clerk reads it without the lock: what it then posts for
    an old one is turned down here.
    """

    def __init__(self) -> None:
        # Reentrant: garbage collection may end a stream in the middle of anything.
        self._lock = threading.RLock()
        self.stream = 0
        self.ready: list[Event] = []
        self.late: list[Fault] = []
        self._is_streaming = False
        self._orders: list[Order] = []
        self._ends: list[End] = []
        self._is_closed = False
        self._clerks_error: BaseException | None = None
        # Locked while there is nothing new: a C lock, since a Ctrl-C cannot get in between its halves.
        self._bell = threading.Lock()
        self._bell.acquire()
        self.wake_read, self._wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)
        os.set_blocking(self._wake_write, False)

    # --- the caller's thread -------------------------------------------------------------------------

    def open_stream(self) -> tuple[int, list[Fault]]:
        """The number of a new stream, and what befell generators outside of one."""
        with self._lock:
            self.stream += 1
            stream = self.stream
            self._is_streaming = True
            self.ready = []
            late, self.late = self.late, []
        return stream, late

    def end_stream(self) -> None:
        """What is ready is dropped, and what comes for the stream from now on."""
        with self._lock:
            self._is_streaming = False
            self.stream += 1
            self.ready = []
        self.ring()

    def take(self, generator: int | None) -> Event | None:
        """Waits for the next event, of this generator alone if one is named. None: closed, or the stream was ended."""
        while True:
            with self._lock:
                if self._is_closed or not self._is_streaming:
                    return None
                self._check_clerk()
                ready = self.ready
                at = next((i for i, event in enumerate(ready) if generator in (None, event.generator)), None)
                event = None if at is None else ready.pop(at)
            self._wake()  # it was taken, so there is room for more
            if event is not None:
                return event
            self.wait_for_bell()

    def order(self, what: Order) -> None:
        """Has the clerk do this."""
        with self._lock:
            self._orders.append(what)
        self._wake()

    def first_fault(self) -> Fault | None:
        """What befell a generator first, of the stream or of none."""
        with self._lock:
            self._check_clerk()
            faults = [event.fault for event in self.ready if event.fault is not None] + self.late
        return faults[0] if faults else None

    def _check_clerk(self) -> None:
        if self._clerks_error is not None:
            raise RuntimeError("the runner's own thread failed; please report this") from self._clerks_error

    def wait_for_bell(self) -> None:
        """Until there may be something new."""
        self._bell.acquire()

    @property
    def is_held_here(self) -> bool:
        """Whether this thread is in the middle of an exchange, and must not wait for another."""
        return self._lock._is_owned()  # type: ignore[attr-defined,no-any-return]  # as Condition

    def close(self) -> bool:
        """Nothing is taken or posted any more; orders still are. Whether this was the first call."""
        with self._lock:
            if self._is_closed:
                return False
            self._is_closed = True
            self.ready = []
        self.ring()
        return True

    def close_pipe(self) -> None:
        """When the clerk has left."""
        with self._lock:
            os.close(self.wake_read)
            os.close(self._wake_write)
            self._wake_write = -1

    def _wake(self) -> None:
        with self._lock:
            if self._wake_write >= 0:
                with contextlib.suppress(BlockingIOError):  # full of earlier wake-ups
                    os.write(self._wake_write, b"!")

    # --- the launcher's thread -----------------------------------------------------------------------

    def note_end(self, member: Member, process: WorkerProcess, birth: int) -> None:
        """A process has ended."""
        with self._lock:
            assert process.exit_code is not None, "it has ended"
            self._ends.append((member, birth, process.exit_code))
        self._wake()

    # --- the clerk's thread --------------------------------------------------------------------------

    def drain_pipe(self) -> None:
        """Takes the wake-ups, so that the next one shows."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wake_read, 4096):
                pass

    def collect(self) -> tuple[list[Order], list[End]]:
        """What there is to do."""
        with self._lock:
            orders, self._orders = self._orders, []
            ends, self._ends = self._ends, []
        return orders, ends

    def post(self, event: Event, stream: int) -> None:
        """Gives an event of this stream to the caller. Of an old one only the fault is kept."""
        with self._lock:
            if self._is_closed:
                return
            if stream == self.stream and self._is_streaming:
                self.ready.append(event)
            elif event.fault is not None:
                self.late.append(event.fault)
        self.ring()

    def ahead(self) -> Ahead | None:
        """What the caller has not taken yet; None while nothing is wanted."""
        with self._lock:
            if not self._is_streaming or self._is_closed:
                return None
            ahead = Ahead(self.stream, Counter(), Counter())
            for event in self.ready:
                ahead.num_ready[event.generator] += 1
                ahead.ready_bytes[event.generator] += event.num_bytes
        return ahead

    def fail(self, error: BaseException) -> None:
        """The clerk is at its end: take() raises."""
        self._clerks_error = error
        self.ring()

    def ring(self) -> None:
        """Has the caller look again."""
        with contextlib.suppress(RuntimeError):  # it rings already
            self._bell.release()
