"""Policy weights in the workers: pushed once by Runner.broadcast(), read by the generators."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from envfleet.errors import CallOrderError


class Weights(NamedTuple):
    """What was broadcast, and the how manieth it was: 1 for the first. Before that, None and 0."""

    value: Any
    version: int


class WeightsBox:
    """The newest weights of one process. Between the thread that receives and those that read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._version = 0
        self._open: Callable[[], Any] | None = None
        self._opened = Weights(None, 0)

    def offer(self, version: int, open_: Callable[[], Any]) -> None:
        """Newer weights. They are opened when somebody asks for them: versions that nobody asks for cost nothing."""
        with self._lock:
            if version > self._version:
                self._version, self._open = version, open_

    def newest(self) -> Weights:
        """The newest weights, opened once."""
        if self._opened.version != self._version:
            with self._lock:
                if self._open is not None:
                    self._opened, self._open = Weights(self._open(), self._version), None
        return self._opened


# A box for the generators that run in this process: a worker has one, the serial backend one for each runner.
_of_process: WeightsBox | None = None
_of_generator: ContextVar[WeightsBox | None] = ContextVar("envfleet_weights", default=None)


def weights() -> Weights:
    """For generators: the newest weights of runner.broadcast(), and their version. No message is sent for it.

    A request that was made after a broadcast sees that one or a later one.
    """
    box = _of_generator.get() or _of_process
    if box is None:
        raise CallOrderError("weights() expected to be called by a generator that a Runner runs, got called elsewhere")
    return box.newest()


def serve_process(box: WeightsBox) -> None:
    """Makes it the box of this whole process."""
    global _of_process
    _of_process = box


@contextmanager
def serving(box: WeightsBox) -> Iterator[None]:
    """Makes it the box of what runs within."""
    token = _of_generator.set(box)
    try:
        yield
    finally:
        _of_generator.reset(token)
