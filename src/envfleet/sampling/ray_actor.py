"""A Ray actor that runs one generator.

One thread runs the generator; another one, of the group "control", hears of newer streams, newer weights and the end
while a trajectory is under way.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

from envfleet.executors.ray.plans import Luggage
from envfleet.executors.rows.faults import Trouble, trouble_of
from envfleet.sampling.errors import START, TRAJS
from envfleet.sampling.generators import Ended, Seat
from envfleet.sampling.weights import WeightsBox, serve_process
from envfleet.sampling.worker import Leave

CONTROL = "control"
# What an actor answers: "ready", "trajectory", "ended", "raised", "failed" or "stale", and what belongs to it.
Answer = tuple[str, Any]
# The version of the weights, and the reference to them, in a list so that Ray does not fetch them by itself.
Offer = tuple[int, list[Any]]


class GeneratorActor:
    """Hosts a generator."""

    def __init__(self) -> None:
        self._box = WeightsBox()
        serve_process(self._box)
        self._seat: Seat | None = None
        self._stream = 0
        self._is_leaving = False
        self._running: int | None = None  # the thread that runs the generator, while it does

    def ping(self) -> Answer:
        """That there is an actor at all."""
        return "placed", os.getpid()

    def start(self, luggage: Luggage, maker: bytes) -> Answer:
        """Makes the generator and has it get ready."""
        import ray

        try:
            luggage.unpack()
            self._seat = Seat(ray.cloudpickle.loads(maker))
            self._seat.start()
        except BaseException as error:
            return "failed", trouble_of(error, START, is_leaving=True)
        return "ready", None

    def ask(self, stream: int, request: Any, offer: Offer | None) -> Answer:
        """The next trajectory, unless its stream is over."""
        if offer is not None:
            self.offer(offer)
        if stream < self._stream or self._is_leaving or self._seat is None:
            return "stale", None
        self._running = threading.get_ident()
        try:
            return "trajectory", self._seat.ask(request)
        except Ended:
            self.turn(stream + 1)  # what was asked ahead is not for a generator that is made anew
            return "ended", None
        except Leave:
            return "stale", None
        except BaseException as error:
            self.turn(stream + 1)
            return "raised", trouble_of(error, TRAJS, is_leaving=True)
        finally:
            self._running = None

    def close(self) -> Trouble | None:
        """Has the generator's finally blocks run; what they raised."""
        try:
            if self._seat is not None:
                self._seat.close()
        except BaseException as error:
            return trouble_of(error, "close()", is_leaving=True)
        return None

    # --- control -------------------------------------------------------------------------------------

    def turn(self, stream: int) -> None:
        """Requests of earlier streams are not done."""
        self._stream = max(self._stream, stream)

    def offer(self, offer: Offer) -> None:
        """Newer weights, fetched when the generator asks for them; one copy serves all actors of a machine."""
        import ray

        version, refs = offer
        self._box.offer(version, lambda: ray.get(refs[0]))

    def leave(self) -> None:
        """Nothing new is begun."""
        self._is_leaving = True

    def interrupt(self) -> None:
        """Raises in the generator, at its next line of Python, so that its finally blocks run."""
        running = self._running
        if running is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(running), ctypes.py_object(Leave))
