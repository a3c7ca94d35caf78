"""A Ray actor that runs one generator.

One thread runs the generator; another one, of the group "control", hears of newer streams, newer weights and the end
while a trajectory is under way.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

from envfleet.executors.python.exception_report import ExceptionReport, report_exception
from envfleet.executors.ray.plans import Luggage
from envfleet.sampling.errors import START, TRAJS
from envfleet.sampling.generators import Ended, Seat
from envfleet.sampling.weights import WeightsBox, serve_process
from envfleet.sampling.worker import Leave

CONTROL = "control"
# What an actor answers: "placed", "ready", "trajectory", "ended", "raised", "failed" or "stale", and its content.
Answer = tuple[str, Any]
# The version of the weights, and the reference to them, in a list so that Ray does not fetch them by itself.
Offer = tuple[int, list[Any]]
# A pickle, and the buffers beside it, which Ray stores as they are.
Pickled = tuple[bytes, list[Any]]


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
            return "failed", report_exception(error, START, pickled=True)
        return "ready", None

    def restart(self, stream: int) -> Answer:
        """Makes a generator that raised or returned again, so that the caller can time its start by itself."""
        return self._run(stream, self._restarted, START)

    def ask(self, stream: int, request: Any, offer: Offer | None) -> Answer:
        """The next trajectory, unless its stream is over."""
        if offer is not None:
            self.offer(offer)
        return self._run(stream, lambda seat: ("trajectory", pickled(seat.ask(request))), TRAJS)

    @staticmethod
    def _restarted(seat: Seat) -> Answer:
        if not seat.is_started:
            seat.start()
        return "ready", None

    def _run(self, stream: int, call: Callable[[Seat], Answer], method: str) -> Answer:
        if stream < self._stream or self._is_leaving or self._seat is None:
            return "stale", None
        self._running = threading.get_ident()
        try:
            return call(self._seat)
        except Ended:
            self.turn(stream + 1)  # what was asked ahead is not for a generator that is made anew
            return "ended", None
        except Leave:
            return "stale", None
        except BaseException as error:
            self.turn(stream + 1)
            with contextlib.suppress(Exception):
                self._seat.close()  # a trajectory that cannot be pickled leaves it open
            return "raised", report_exception(error, method, pickled=True)
        finally:
            self._running = None

    def close(self) -> ExceptionReport | None:
        """Has the generator's finally blocks run; what they raised."""
        try:
            if self._seat is not None:
                self._seat.close()
        except BaseException as error:
            return report_exception(error, "close()", pickled=True)
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


def pickled(content: Any) -> Pickled:
    """Pickles here, and not when Ray stores the answer: that would be too late to stop the generator."""
    import ray

    buffers: list[pickle.PickleBuffer] = []
    # Ray's own cloudpickle, by which Ray would pickle it: it knows Ray's references. It has no types.
    data: bytes = ray.cloudpickle.dumps(content, protocol=5, buffer_callback=buffers.append)  # type: ignore[no-untyped-call]
    return data, buffers


def unpickled(content: Pickled) -> Any:
    """The object; its arrays lie in the object store and are read-only."""
    data, buffers = content
    return pickle.loads(data, buffers=buffers)
