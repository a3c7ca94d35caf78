"""Policy weights in the workers: pushed once by Runner.broadcast(), read by the generators."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from envfleet.core.errors import CallOrderError


class Weights(NamedTuple):
    """The object of the last broadcast, and its version: 1 for the first. Before that, None and 0."""

    value: Any
    version: int


class WeightsStore:
    """The newest weights of one process, between the thread that receives them and the generators that read them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._version = 0
        self._load: Callable[[], Any] | None = None
        self._loaded = Weights(None, 0)

    def publish(self, version: int, load: Callable[[], Any]) -> None:
        """Store newer weights. They are loaded when they are first read: versions that are never read cost nothing."""
        with self._lock:
            if version > self._version:
                self._version, self._load = version, load

    def newest(self) -> Weights:
        """Return the newest weights, which are loaded once."""
        if self._loaded.version != self._version:
            with self._lock:
                if self._load is not None:
                    self._loaded, self._load = Weights(self._load(), self._version), None
        return self._loaded


# The store that weights() reads: a worker process has one, the serial backend has one per runner.
_process_store: WeightsStore | None = None
_generator_store: ContextVar[WeightsStore | None] = ContextVar("envfleet_weights", default=None)


def weights() -> Weights:
    """Return the newest weights of runner.broadcast() and their version. For generators; sends no message.

    A request that is made after a broadcast sees that broadcast or a later one.
    """
    store = _generator_store.get() or _process_store
    if store is None:
        raise CallOrderError("weights() expected to be called by a generator that a Runner runs, got called elsewhere")
    return store.newest()


def set_process_store(store: WeightsStore) -> None:
    """Make weights() read this store in the whole process."""
    global _process_store
    _process_store = store


@contextmanager
def use_store(store: WeightsStore) -> Iterator[None]:
    """Make weights() read this store within the context."""
    token = _generator_store.set(store)
    try:
        yield
    finally:
        _generator_store.reset(token)
