"""Trajectories: what runner.trajs() gives. Which event is next, and what becomes of generators that fail."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from envfleet.batch import Fault
from envfleet.errors import CallOrderError, PoolClosedError
from envfleet.executors.python.exception_report import report_exception
from envfleet.sampling.backend import Backend, Event
from envfleet.sampling.errors import TRAJS, GeneratorDied, GeneratorError


@dataclass(frozen=True)
class StreamOptions:
    """What a Runner was made with, as far as its streams care. progress: makes a bar of tqdm's protocol."""

    ordered: bool
    on_error: str
    max_restarts: int
    progress: Callable[..., Any] | None


class Desk:
    """The streams of one runner: one at a time, one caller at a time."""

    def __init__(self, backend: Backend, num_generators: int, options: StreamOptions) -> None:
        self.backend = backend
        self.num_generators = num_generators
        self.options = options
        self.num_restarts = [0] * num_generators
        self.is_busy = threading.Lock()
        self.current: weakref.ref[Trajectories] | None = None  # so that a stream that is dropped ends
        self.owner_pid = os.getpid()


class Trajectories(Iterator[Any]):
    """An iterator over trajectories. The next trajs() of its runner ends it, as close() and `del` do."""

    def __init__(self, desk: Callable[[], Desk], request: Any) -> None:
        """desk: gives the runner's, or raises; the runner itself must not be kept alive by its iterators."""
        self._desk = desk
        self._request = request
        self._begun: Desk | None = None
        self._has_begun = False
        self._is_over = False
        self._superseded = False
        self._silent: set[int] = set()  # generators that give nothing more in this stream
        self._turn = 0
        self._bar: Any = None

    def __iter__(self) -> Trajectories:
        return self

    def __next__(self) -> Any:
        desk = self._desk()
        if self._superseded:
            raise CallOrderError(
                "next() expected the iterator of the newest trajs(), got that of an earlier one, whose requests "
                "were dropped when the newer began; go on with the newer, or call trajs() again"
            )
        if self._is_over:
            raise StopIteration
        if not desk.is_busy.acquire(blocking=False):
            raise CallOrderError(
                "next() expected one caller at a time, got a second thread; use a lock, or two runners"
            )
        try:
            if not self._has_begun:
                self._begin(desk)
                if self._is_over:  # another thread called close(), and its stop() may have come before begin()
                    desk.backend.stop()
                    raise StopIteration
            return self._next(desk)
        finally:
            desk.is_busy.release()

    def close(self) -> None:
        """Ends the stream: what was asked for and not begun is not done. A next() of another thread ends too."""
        desk, was_over = self._begun, self._is_over
        self._finish()  # before stop(): a next() that stop() wakes up looks at it
        # In a fork the requests are the parent's, and so are the backend's locks.
        is_ours = desk is not None and desk.current is not None and desk.current() in (self, None)
        if desk is not None and is_ours and not was_over and desk.owner_pid == os.getpid():
            desk.backend.stop()
            desk.current = None

    def __del__(self) -> None:
        if not getattr(self, "_is_over", True):
            self.close()

    def _begin(self, desk: Desk) -> None:
        before = desk.current() if desk.current is not None else None
        if before is not None and before is not self:
            before._superseded = True
            before._finish()
        if desk.options.progress is not None and self._bar is None:
            self._bar = desk.options.progress(desc="trajectories", unit="traj")
        # Before begin(): if a Ctrl-C comes in between, the stream is stopped when this is dropped.
        self._begun, desk.current = desk, weakref.ref(self)
        late = desk.backend.begin(self._request)
        # After it: if a Ctrl-C comes in between, the next next() begins again.
        self._has_begun = True
        for fault in late:
            _warn(_error_of(fault, "nobody waited for it any more; it is made anew"))

    def _next(self, desk: Desk) -> Any:
        while len(self._silent) < desk.num_generators:
            wanted = None
            if desk.options.ordered:
                while self._turn in self._silent:
                    self._turn = (self._turn + 1) % desk.num_generators
                wanted = self._turn
            event = desk.backend.take(wanted)
            if event is None:
                if self._is_over:  # by close(), in another thread
                    raise StopIteration
                raise closed_error()
            if event.kind == "trajectory":
                self._turn = (event.generator + 1) % desk.num_generators
                return self._opened(event)
            if event.kind == "ended":
                self._silent.add(event.generator)
            else:
                assert event.fault is not None
                self._fail(desk, event.generator, event.fault)
        self._finish()
        raise StopIteration

    def _opened(self, event: Event) -> Any:
        assert event.open is not None
        if self._bar is not None:
            self._bar.update(1)
        try:
            return event.open()
        except Exception as error:
            fault = report_exception(error, TRAJS, pickled=False).fault(event.generator, error)
            remedy = "its trajectory came, but could not be unpickled here; yield what this process can import"
            raise GeneratorError(fault, remedy) from error

    def _fail(self, desk: Desk, generator: int, fault: Fault) -> None:
        options = desk.options
        if options.on_error == "restart" and desk.num_restarts[generator] < options.max_restarts:
            desk.num_restarts[generator] += 1
            count = f"restart {desk.num_restarts[generator]} of at most {options.max_restarts}"
            desk.backend.renew(generator)
            _warn(_error_of(fault, f"it is made anew ({count})"))
            return
        self._silent.add(generator)
        how = "pass on_error='restart' to have it made anew at once"
        if options.on_error == "restart":
            how = f"it was restarted {options.max_restarts} times (max_restarts)"
        raise _error_of(fault, f"the others go on, this one at the next trajs(); {how}") from fault.cause

    def _finish(self) -> None:
        self._is_over = True
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def closed_error() -> PoolClosedError:
    """For whoever uses a runner that is closed or gone."""
    return PoolClosedError(
        "the runner was closed, or dropped while its iterator lived; make a new one and keep it in a variable"
    )


def _error_of(fault: Fault, remedy: str) -> GeneratorError:
    return (GeneratorError if fault.exit_code is None else GeneratorDied)(fault, remedy)


def _warn(error: GeneratorError) -> None:
    warnings.warn(str(error), RuntimeWarning, stacklevel=5)
