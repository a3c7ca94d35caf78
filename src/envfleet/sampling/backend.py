"""GeneratorBackend: the contract of what runs the generators of a Runner, and the serial backend, its reference."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from envfleet.core.batch import Fault
from envfleet.sampling.generators import (
    START,
    TRAJS,
    GeneratorFactory,
    GeneratorReturned,
    RestartableGenerator,
    start_error,
)
from envfleet.sampling.serialization import ReceivedObject, pickle_argument, pickle_request
from envfleet.sampling.weights import WeightsStore, use_store

EventKind = Literal["trajectory", "returned", "raised", "died"]


@dataclass(frozen=True)
class Event:
    """What happened to a generator.

    load: returns the trajectory. fault: what the generator raised, or how its process died.
    """

    generator: int
    kind: EventKind
    load: Callable[[], Any] | None = None
    fault: Fault | None = None
    num_bytes: int = 0


class GeneratorBackend(ABC):
    """Runs generators and returns their events.

    There is one stream of requests at a time: start_stream() ends the previous one, whose events are never returned
    again. Each generator is kept `prefetch` requests ahead. A generator that raised, returned or was lost receives no
    requests until restart_generator() or the next start_stream() starts it again.
    """

    @abstractmethod
    def start_stream(self, request: Any) -> list[Fault]:
        """Start a stream; return the faults that occurred between streams and were not reported yet."""

    @abstractmethod
    def next_event(self, generator: int | None) -> Event | None:
        """Wait for the next event, of this generator only if one is given.

        Returns None if another thread has ended the stream with stop_stream(), or closed the backend.
        """

    @abstractmethod
    def restart_generator(self, generator: int) -> None:
        """Start a generator again and go on sending it requests."""

    @abstractmethod
    def stop_stream(self) -> None:
        """End the stream: requests that were not started are dropped."""

    @abstractmethod
    def broadcast(self, weights: Any, version: int) -> None:
        """Make weights available to all generators, including those that start later."""

    @abstractmethod
    def close(self) -> list[Fault]:
        """Close the generators and end their workers, in bounded time; return what the finally blocks raised."""

    @property
    def worker_pids(self) -> list[int]:
        """The process id of each generator, if each has a process of its own."""
        return []


class SerialBackend(GeneratorBackend):
    """Runs a generator in this process when its trajectory is requested: nothing runs ahead.

    Each generator receives its own copy of a request, as from other backends. Trajectories are not copied.
    """

    def __init__(self, factories: Sequence[GeneratorFactory]) -> None:
        self._weights = WeightsStore()
        self._generators = [RestartableGenerator(factory) for factory in factories]
        self._queue: deque[int] = deque()  # whose turn it is
        self._request = b""  # pickled
        self._is_closed = False
        for generator, own in enumerate(self._generators):
            try:
                with use_store(self._weights):
                    own.start()
            except BaseException as error:
                self.close()
                if not isinstance(error, Exception):
                    raise
                raise start_error(_fault(generator, error, START)) from error

    def start_stream(self, request: Any) -> list[Fault]:
        """Queue every generator."""
        self._request = pickle_request(request)
        self._queue = deque(range(len(self._generators)))
        return []

    def next_event(self, generator: int | None) -> Event | None:
        """Run the first generator of the queue, or the given one."""
        if self._is_closed:
            return None
        try:
            current = self._queue[0] if generator is None else generator
            self._queue.remove(current)
        except (IndexError, ValueError):  # another thread called stop_stream()
            return None
        try:
            with use_store(self._weights):
                trajectory = self._generators[current].send(pickle.loads(self._request))
        except GeneratorReturned:
            return Event(current, "returned")
        except Exception as error:
            return Event(current, "raised", fault=_fault(current, error, TRAJS))
        self._queue.append(current)
        return Event(current, "trajectory", load=lambda: trajectory)

    def restart_generator(self, generator: int) -> None:
        """Queue it; its next turn starts it again."""
        self._queue.append(generator)

    def stop_stream(self) -> None:
        """Empty the queue."""
        self._queue.clear()

    def broadcast(self, weights: Any, version: int) -> None:
        """Store a copy, as workers have one: training goes on changing the original."""
        self._weights.publish(version, ReceivedObject(*pickle_argument(weights, "broadcast()")).load)

    def close(self) -> list[Fault]:
        """Close the generators."""
        self._is_closed = True
        faults = []
        for generator, own in enumerate(self._generators):
            try:
                with use_store(self._weights):
                    own.close()
            except Exception as error:
                faults.append(_fault(generator, error, "close()"))
        return faults


def _fault(generator: int, error: BaseException, method: str) -> Fault:
    return Fault.of(error, method, generator)
