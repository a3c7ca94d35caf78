"""SerialBackend: the generators in this process, one after another. The reference for the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from envfleet.batch import Fault
from envfleet.executors.python.exception_report import report_exception
from envfleet.sampling.backend import Backend, Event, Maker
from envfleet.sampling.errors import START, TRAJS, GeneratorError
from envfleet.sampling.generators import Ended, Seat
from envfleet.sampling.parcels import Arrived
from envfleet.sampling.travel import message_of_content
from envfleet.sampling.weights import WeightsBox, serving


class SerialBackend(Backend):
    """Runs a generator when its trajectory is wanted, so nothing is ever ahead and nothing is copied."""

    def __init__(self, makers: Sequence[Maker]) -> None:
        self._box = WeightsBox()
        self._seats = [Seat(make) for make in makers]
        self._turns: deque[int] = deque()
        self._request: Any = None
        self._is_closed = False
        for generator, seat in enumerate(self._seats):
            try:
                with serving(self._box):
                    seat.start()
            except BaseException as error:
                self.close()
                if not isinstance(error, Exception):
                    raise
                fault = _fault(generator, error, START)
                raise GeneratorError(fault, "it must reach its first yield") from error

    def begin(self, request: Any) -> list[Fault]:
        """Every generator in its turn."""
        self._request = request
        self._turns = deque(range(len(self._seats)))
        return []

    def take(self, generator: int | None) -> Event | None:
        """Runs the generator whose turn it is."""
        if self._is_closed:
            return None
        try:
            current = self._turns[0] if generator is None else generator
            self._turns.remove(current)
        except (IndexError, ValueError):  # another thread called stop()
            return None
        try:
            with serving(self._box):
                trajectory = self._seats[current].ask(self._request)
        except Ended:
            return Event(current, "ended")
        except Exception as error:
            return Event(current, "raised", fault=_fault(current, error, TRAJS))
        except BaseException:  # Ctrl-C ended the generator; it is made anew in its next turn
            self._turns.append(current)
            raise
        self._turns.append(current)
        return Event(current, "trajectory", open=lambda: trajectory)

    def renew(self, generator: int) -> None:
        """Its next turn makes it anew."""
        self._turns.append(generator)

    def stop(self) -> None:
        """Nothing is ahead."""
        self._turns.clear()

    def broadcast(self, weights: Any, version: int) -> None:
        """A copy, as workers would have: training goes on changing the original."""
        self._box.offer(version, Arrived(*message_of_content(weights, "broadcast()")).open)

    def close(self) -> list[Fault]:
        """Closes the generators."""
        self._is_closed = True
        faults = []
        for generator, seat in enumerate(self._seats):
            try:
                with serving(self._box):
                    seat.close()
            except Exception as error:
                faults.append(_fault(generator, error, "close()"))
        return faults


def _fault(generator: int, error: BaseException, method: str) -> Fault:
    return report_exception(error, method, pickled=False).fault(generator, cause=error)
