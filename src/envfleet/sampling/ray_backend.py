"""RayBackend: each generator in a Ray actor, trajectories through the object store.

Every actor has a queue of calls and works on the first; the caller waits for whichever actor answers its first call
first. A request of an earlier stream that was not started is answered at once, with nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from envfleet.core.batch import Fault
from envfleet.core.errors import ConfigError, PlacementError
from envfleet.core.executor import CLOSE_TIMEOUT_S
from envfleet.core.options import RayConfig
from envfleet.core.tracebacks import message_of
from envfleet.executors.process_context import ProcessContext
from envfleet.executors.ray import cluster as ray_cluster
from envfleet.executors.ray.supervisor import KILLED, ActorLauncher, describe_death
from envfleet.sampling.backend import Event, GeneratorBackend
from envfleet.sampling.generators import (
    START,
    TRAJS,
    GeneratorFactory,
    GeneratorReturned,
    RestartableGenerator,
    start_error,
)
from envfleet.sampling.serialization import pickle_factory
from envfleet.sampling.weights import WeightsStore, set_process_store
from envfleet.sampling.worker import StopWorker

_GRACE_S = 1.0
# Nothing wakes up a thread that waits for Ray: this is how often it checks whether another one has ended its stream.
_CHECK_S = 0.25

_PLACEMENT, _TRAJECTORY = "placement", "trajectory"
_MISSED = {START: "reached no first yield", _TRAJECTORY: "returned no trajectory"}
# The concurrency group of short calls that an actor answers while its generator runs.
_CONTROL = "control"

# An actor's answer: "placed", "ready", "trajectory", "returned", "raised", "failed" or "stale", and its content.
_Answer = tuple[str, Any]
# The version of the weights, and the reference to them, in a list so that Ray does not fetch them by itself.
_WeightsRef = tuple[int, list[Any]]
# A pickle and its out-of-band buffers, which Ray stores unchanged.
_Pickled = tuple[bytes, list[Any]]


# --- the actor -----------------------------------------------------------------------------------


class GeneratorActor:
    """Runs one generator.

    One thread runs the generator. Another one, of the group "control", handles newer streams, newer weights and the
    end while a trajectory is running.
    """

    def __init__(self) -> None:
        self._weights = WeightsStore()
        set_process_store(self._weights)
        self._generator: RestartableGenerator | None = None
        self._stream = 0
        self._is_stopping = False
        self._running_thread: int | None = None  # the thread that runs the generator, while it does

    def ping(self) -> _Answer:
        """Return this process's id."""
        return "placed", os.getpid()

    def start(self, context: ProcessContext, factory: bytes, weights: _WeightsRef | None) -> _Answer:
        """Create the generator and run it up to its first yield."""
        import ray

        if weights is not None:
            self.publish_weights(weights)
        try:
            context.apply()
            self._generator = RestartableGenerator(ray.cloudpickle.loads(factory))
            self._generator.start()
        except BaseException as error:
            return "failed", Fault.of(error, START)
        return "ready", None

    def restart(self, stream: int, weights: _WeightsRef | None) -> _Answer:
        """Start a generator that raised or returned again; a call of its own, so that the caller can time it."""
        if weights is not None:
            self.publish_weights(weights)
        return self._run(stream, _start_if_needed, START)

    def send(self, stream: int, request: Any, weights: _WeightsRef | None) -> _Answer:
        """Return the next trajectory, unless its stream has ended."""
        if weights is not None:
            self.publish_weights(weights)
        return self._run(stream, lambda generator: ("trajectory", _pickle(generator.send(request))), TRAJS)

    def _run(self, stream: int, call: Callable[[RestartableGenerator], _Answer], method: str) -> _Answer:
        if stream < self._stream or self._is_stopping or self._generator is None:
            return "stale", None
        self._running_thread = threading.get_ident()
        try:
            return call(self._generator)
        except GeneratorReturned:
            self.start_stream(stream + 1)  # requests made ahead are not for a generator that is started again
            return "returned", None
        except StopWorker:
            return "stale", None
        except BaseException as error:
            self.start_stream(stream + 1)
            with contextlib.suppress(Exception):
                self._generator.close()  # it is still open if its trajectory could not be pickled
            return "raised", Fault.of(error, method)
        finally:
            self._running_thread = None

    def close(self) -> Fault | None:
        """Close the generator; return what its finally blocks raised."""
        try:
            if self._generator is not None:
                self._generator.close()
        except BaseException as error:
            return Fault.of(error, "close()")
        return None

    # --- control -------------------------------------------------------------------------------------

    def start_stream(self, stream: int) -> None:
        """Drop the requests of earlier streams."""
        self._stream = max(self._stream, stream)

    def publish_weights(self, weights: _WeightsRef) -> None:
        """Store newer weights, fetched when the generator reads them; one copy serves all actors of a machine."""
        import ray

        version, refs = weights
        self._weights.publish(version, lambda: ray.get(refs[0]))

    def stop(self) -> None:
        """Start nothing new."""
        self._is_stopping = True

    def interrupt(self) -> None:
        """Raise in the generator, at its next line of Python, so that its finally blocks run."""
        thread = self._running_thread
        if thread is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(StopWorker))


def _start_if_needed(generator: RestartableGenerator) -> _Answer:
    if not generator.is_started:
        generator.start()
    return "ready", None


def _pickle(content: Any) -> _Pickled:
    """Pickle a trajectory here. When Ray stores the answer, it is too late to stop the generator."""
    import ray

    buffers: list[pickle.PickleBuffer] = []
    # Ray's own cloudpickle, which Ray would use: it knows Ray's references. It has no types.
    data: bytes = ray.cloudpickle.dumps(content, protocol=5, buffer_callback=buffers.append)  # type: ignore[no-untyped-call]
    return data, buffers


def _unpickle(content: _Pickled) -> Any:
    """Return the object; its arrays are in the object store and read-only."""
    data, buffers = content
    return pickle.loads(data, buffers=buffers)


# --- the caller ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Call:
    """A pending call of an actor. kind: _PLACEMENT, START or _TRAJECTORY. timeout_s: how long its answer may take.

    stream: the stream it belongs to; None: it makes the actor ready, for whatever stream. is_dropped: its answer is no
    longer wanted, but the actor may still be working on it.
    """

    kind: str
    ref: Any
    timeout_s: float | None
    stream: int | None = None
    is_dropped: bool = False


@dataclass
class _Worker:
    """An actor and its pending calls, oldest first.

    waited_s: how long the caller has waited for the first of them. Time in which the caller did something else does
    not count: the answer may be on another node, or the object store full of what the caller has not taken.
    stream: as this actor counts them; one that raised or returned begins another when it is restarted.
    """

    generator: int
    factory: bytes
    handle: Any = None
    pid: int = -1
    calls: deque[_Call] = field(default_factory=deque)
    waited_s: float = 0.0
    stream: int = 0
    is_halted: bool = False

    def add(self, call: _Call) -> None:
        """Add a call to the queue."""
        if not self.calls:
            self.waited_s = 0.0
        self.calls.append(call)

    def remove_first(self) -> None:
        """Remove the first call."""
        self.calls.popleft()
        self.waited_s = 0.0

    @property
    def num_ahead(self) -> int:
        """The number of trajectories that are requested and wanted."""
        return sum(call.kind == _TRAJECTORY and not call.is_dropped for call in self.calls)

    def drop_requests(self) -> None:
        """Drop all requests. They stay queued: the next stream's timeout starts when the actor is done with them."""
        # Of those that were dropped before, the last is enough: calls are answered in order.
        older = [call for call in self.calls if call.is_dropped][:-1]
        self.calls = deque(
            call if call.stream is None else replace(call, is_dropped=True) for call in self.calls if call not in older
        )
        self.stream += 1
        self.waited_s = 0.0


class RayBackend(GeneratorBackend):
    """Runs each generator in an actor of a cluster. Arrays of a trajectory are in the object store: read-only.

    Thread safety: one caller at a time, but stop_stream() and close() may come from any thread. They set their flag
    before they take the lock, so that next_event(), which holds it while it waits, returns.
    """

    def __init__(
        self,
        factories: Sequence[GeneratorFactory],
        prefetch: int,
        traj_timeout: float | None,
        config: RayConfig,
    ) -> None:
        ray = ray_cluster.import_ray("Runner(backend='ray')")
        self._prefetch = prefetch
        self._traj_timeout = traj_timeout
        # Ray's own cloudpickle, which brings the trajectories back, so that classes of the main module stay the same.
        self._workers = [
            _Worker(generator, pickle_factory(ray.cloudpickle.dumps, factory, generator, "ray"))
            for generator, factory in enumerate(factories)
        ]
        self._request: Any = None
        self._weights: _WeightsRef | None = None
        self._next_first = 0
        self._is_closed = False
        self._is_streaming = False
        self._lock = threading.RLock()  # reentrant: garbage collection and signal handlers end streams too
        self._session = ray_cluster.acquire_session(config.address, "Runner(backend='ray')")
        self._ray = self._session.ray
        ray_cluster.keep_in_forks(self)
        try:
            actor_class = ray.remote(concurrency_groups={_CONTROL: 1})(GeneratorActor)
            options = {**config.all_actor_options, "max_restarts": 0}
            self._launcher = ActorLauncher(ray, actor_class, options, config.placement_timeout_s)
            for worker in self._workers:
                self._create_actor(worker)
            while any(worker.calls for worker in self._workers):
                if (event := self._next_answer(self._workers)) is not None:
                    assert event.fault is not None
                    if isinstance(event.fault.cause, PlacementError):
                        raise event.fault.cause
                    raise start_error(event.fault) from event.fault.cause
        except BaseException:
            self.close()
            raise

    # --- streams -------------------------------------------------------------------------------------

    def start_stream(self, request: Any) -> list[Fault]:
        """Start a stream; trajectories of the previous one are dropped where they are."""
        self._session.check()
        self._request = None if request is None else self._put(request, "trajs()")
        with self._lock:
            if self._is_closed:
                return []
            self._is_streaming = True
            self._next_stream()
            for worker in self._workers:
                self._restart(worker)
            self._request_more()
        return []

    def next_event(self, generator: int | None) -> Event | None:
        """Wait for the next event."""
        workers = self._workers if generator is None else [self._workers[generator]]
        with self._lock:
            while self._is_streaming and not self._is_closed:
                self._session.check()
                self._request_more()
                try:
                    event = self._next_answer(workers)
                except self._ray.exceptions.RayError:
                    if self._is_closed:  # by another thread
                        return None
                    raise
                if event is not None and not self._is_closed:
                    self._request_more()
                    return event
        return None

    def restart_generator(self, generator: int) -> None:
        """Start a generator again, in a new actor if the old one is gone."""
        with self._lock:
            worker = self._workers[generator]
            worker.drop_requests()
            self._restart(worker)

    def stop_stream(self) -> None:
        """Drop finished trajectories and pending requests."""
        self._is_streaming = False  # first: the thread that holds the lock checks it
        with self._lock:
            if not self._is_closed and self._session.is_alive:
                self._next_stream()
                for worker in self._workers:
                    worker.is_halted = True

    def broadcast(self, weights: Any, version: int) -> None:
        """Put the weights into the object store once."""
        self._session.check()
        self._weights = version, [self._put(weights, "broadcast()")]
        for worker in self._workers:
            self._tell(worker, "publish_weights", self._weights)

    def _put(self, content: Any, call: str) -> Any:
        try:
            return self._ray.put(content)
        except self._ray.exceptions.RayError:  # no memory left: not the fault of the content
            raise
        except Exception as error:
            raise ConfigError(
                f"{call} expected an argument that Ray can pickle, got one that it cannot: {message_of(error)}"
            ) from error

    def _next_stream(self) -> None:
        for worker in self._workers:
            worker.drop_requests()
            self._tell(worker, "start_stream", worker.stream)

    def _tell(self, worker: _Worker, method: str, *arguments: Any) -> None:
        """Call a method of an actor that may be busy; its result is not needed."""
        if worker.handle is not None:
            call = getattr(worker.handle, method).options(concurrency_group=_CONTROL)
            with contextlib.suppress(self._ray.exceptions.RayError):  # it died, which its answers will show
                call.remote(*arguments)

    # --- actors --------------------------------------------------------------------------------------

    def _create_actor(self, worker: _Worker) -> None:
        worker.calls.clear()
        worker.handle = self._launcher.create()
        worker.add(_Call(_PLACEMENT, worker.handle.ping.remote(), self._launcher.placement_timeout_s))
        start = worker.handle.start.remote(ProcessContext.capture(is_same_machine=False), worker.factory, self._weights)
        worker.add(_Call(START, start, self._traj_timeout))

    def _restart(self, worker: _Worker) -> None:
        """Have the actor, or a new one, start its generator again if that raised or returned."""
        worker.is_halted = False
        if worker.handle is None:
            self._create_actor(worker)
        else:
            restart = worker.handle.restart.remote(worker.stream, self._weights)
            worker.add(_Call(START, restart, self._traj_timeout, worker.stream))

    def _request_more(self) -> None:
        for worker in self._workers:
            if worker.is_halted or worker.handle is None:
                continue
            for _ in range(self._prefetch - worker.num_ahead):
                ref = worker.handle.send.remote(worker.stream, self._request, self._weights)
                worker.add(_Call(_TRAJECTORY, ref, self._traj_timeout, worker.stream))

    def _next_answer(self, workers: Sequence[_Worker]) -> Event | None:
        """Wait a while for the first answer of any of them. None if there is nothing to report."""
        # Start after the one that answered last: if several are ready, each gets its turn.
        start = self._next_first if len(workers) == len(self._workers) else 0
        first_calls = {worker.calls[0].ref: worker for worker in [*workers[start:], *workers[:start]] if worker.calls}
        ref = self._wait(first_calls)
        if ref is None:
            return self._lose_overdue(first_calls.values())
        worker = first_calls[ref]
        if worker.calls[0].is_dropped:
            worker.remove_first()  # not fetched: it may be large
            return None
        try:
            kind, content = self._ray.get(ref)
        except self._ray.exceptions.RayActorError as error:
            return self._lose(worker, describe_death(error))
        except self._ray.exceptions.ObjectLostError:
            return self._lose(worker, "was lost with its node, before its trajectory was fetched")
        except Exception as error:
            worker.remove_first()
            return self._halt(worker, Fault.of(error, TRAJS, worker.generator))
        worker.remove_first()
        self._next_first = (worker.generator + 1) % len(self._workers)
        if kind == "placed":
            worker.pid = content
        elif kind == "trajectory":
            return Event(worker.generator, "trajectory", load=partial(_unpickle, content))
        elif kind == "returned":
            worker.is_halted = True
            worker.drop_requests()
            return Event(worker.generator, "returned")
        elif kind in ("raised", "failed"):
            if kind == "failed":
                self._end(worker)
            return self._halt(worker, replace(content, env_id=worker.generator))
        return None

    def _halt(self, worker: _Worker, fault: Fault) -> Event:
        """Send no further requests to a worker; return the event of its fault."""
        worker.is_halted = True
        worker.drop_requests()
        return Event(worker.generator, "raised" if fault.exit_code is None else "died", fault=fault)

    def _wait(self, first_calls: Mapping[Any, _Worker]) -> Any:
        """Return the reference of an answer that exists, on whatever node; None if there is none yet."""
        limits = [
            call.timeout_s - worker.waited_s
            for worker in first_calls.values()
            if (call := worker.calls[0]).timeout_s is not None
        ]
        limit_s = max(0.0, min([_CHECK_S, *limits]))
        begun = time.monotonic()
        # fetch_local=False: otherwise an answer on another node does not count until it is here, and its actor would
        # be blamed for the transfer.
        ready, _ = self._ray.wait(list(first_calls), num_returns=1, timeout=limit_s, fetch_local=False)
        waited_s = min(time.monotonic() - begun, limit_s)  # not more, if this process was stopped meanwhile
        for worker in first_calls.values():
            worker.waited_s += waited_s
        if not ready:
            return None
        if first_calls[ready[0]].calls[0].is_dropped:  # before the others: its actor's newer answers come after it
            return ready[0]
        wanted = [ref for ref, worker in first_calls.items() if not worker.calls[0].is_dropped]
        # Start to fetch all that exist, so that they travel at the same time, and take one that is here.
        here, _ = self._ray.wait(wanted, num_returns=len(wanted), timeout=0)
        return here[0] if here else ready[0]

    def _lose_overdue(self, workers: Iterable[_Worker]) -> Event | None:
        for worker in workers:
            call = worker.calls[0]
            if call.timeout_s is None or worker.waited_s < call.timeout_s:
                continue
            if call.kind != _PLACEMENT:
                return self._lose(
                    worker, f"{_MISSED[call.kind]} within traj_timeout={call.timeout_s:g} s and was killed"
                )
            error = self._launcher.placement_error(1, len(self._workers))
            self._end(worker)
            return self._halt(worker, Fault(worker.generator, START, str(error), cause=error))
        return None

    def _lose(self, worker: _Worker, death: str) -> Event:
        method = TRAJS if worker.calls[0].kind == _TRAJECTORY else START
        self._end(worker)
        return self._halt(worker, Fault(worker.generator, method, f"its Ray actor {death}", exit_code=KILLED))

    def _end(self, worker: _Worker) -> None:
        self._kill(worker)
        worker.calls.clear()

    def _kill(self, worker: _Worker) -> None:
        handle, worker.handle = worker.handle, None
        if handle is not None:
            self._launcher.kill(handle)

    # --- life ----------------------------------------------------------------------------------------

    @property
    def worker_pids(self) -> list[int]:
        """The process id of each actor, on its machine."""
        return [worker.pid for worker in self._workers]

    def close(self) -> list[Fault]:
        """Let the actors close their generators, then kill them."""
        if self._is_closed:
            return []
        self._is_closed = True  # first: the thread that holds the lock checks it
        faults: list[Fault] = []
        # A running next_event() must return before the session may end: without one, ray.wait() would start another.
        has_lock = self._lock.acquire(timeout=CLOSE_TIMEOUT_S)
        try:
            if self._session.is_alive:
                faults = self._close_generators()
        finally:
            for worker in self._workers:
                self._kill(worker)  # its calls stay: a signal handler may have interrupted next_event()
            self._session.release()
            if has_lock:
                self._lock.release()
        return faults

    def _close_generators(self) -> list[Fault]:
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for worker in self._workers:
            self._tell(worker, "stop")
        refs = {worker.handle.close.remote(): worker for worker in self._workers if worker.handle is not None}
        done, late = self._ray.wait(list(refs), num_returns=len(refs), timeout=_GRACE_S) if refs else ([], [])
        if late:
            for worker in self._workers:
                self._tell(worker, "interrupt")
            done, _ = self._ray.wait(list(refs), num_returns=len(refs), timeout=max(0.0, deadline - time.monotonic()))
        faults = []
        for ref in done:
            with contextlib.suppress(self._ray.exceptions.RayError):
                if (report := self._ray.get(ref)) is not None:
                    faults.append(replace(report, env_id=refs[ref].generator))
        return faults
