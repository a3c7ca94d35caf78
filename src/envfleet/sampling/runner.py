"""Runner: generators that yield whole trajectories, in worker processes, on a cluster, or in this process."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import threading
import uuid
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.managers import SyncManager
from types import TracebackType
from typing import Any

from envfleet.core.backends import Backend, find_backend
from envfleet.core.batch import Fault
from envfleet.core.errors import (
    CallOrderError,
    ConfigError,
    EnvfleetError,
    ForkedPoolError,
    MissingExtraError,
    PoolClosedError,
)
from envfleet.core.option_checks import choice_option, flag_option, integer_option, seconds_option
from envfleet.core.options import START_METHODS, RayConfig, checked_ray_config
from envfleet.executors.processes.worker import exit_with_parent
from envfleet.sampling.backend import Event, GeneratorBackend, SerialBackend
from envfleet.sampling.generators import TRAJS, GeneratorError, GeneratorFactory, generator_error

BACKENDS = ("processes", "serial", "ray")
_RAY_OPTIONS_OF_POOLS = ("envs_per_worker", "inner_backend", "inner_num_workers", "direct")
_open_runners: weakref.WeakSet[Runner] = weakref.WeakSet()


@atexit.register
def _close_all_runners() -> None:
    for runner in list(_open_runners):
        runner.close()


class Runner:
    """Runs one generator for each of gen_fns and returns their trajectories.

    Each gen_fn(*args, **kwargs) is a generator that first yields "ready" and then one trajectory per request; its
    yield returns the request, which is the arguments of trajs(). A generator that returns has no more trajectories:
    the others go on, and when all have returned the iterator ends. One that raised or returned is started again by the
    next trajs().

    Args:
        gen_fns: The generator functions.
        *args: Arguments of every gen_fn.
        backend: What runs the generators: "processes", "serial" (this process; a trajectory is the object that the
            generator yielded, not a copy) or "ray".
        ordered: Return trajectories in turn, generator 0 first. Otherwise as they are finished.
        prefetch: How many requests each generator is ahead of you (serial: none).
        progress: True for tqdm, or a class with its interface.
        on_error: "raise", or "restart" to start failed generators again at once.
        max_restarts: Per generator, with on_error="restart".
        max_ahead_bytes: With about this much finished and not yet taken, nothing new is started (ray: the object
            store's own limit).
        traj_timeout: Seconds that a generator may take for its start, and for each trajectory, before its process is
            killed (processes, ray). None for no limit.
        start_method: "forkserver" (the default), "spawn" or "fork" (processes).
        context_fn: context_fn(manager) returns keyword arguments for all generators, shared through a multiprocessing
            manager.
        ray: The cluster to join, the options of the actors and the seconds that one may wait for a machine (ray).
        **kwargs: Keyword arguments of every gen_fn. Pass one that has the name of an option with functools.partial.
    """

    def __init__(
        self,
        gen_fns: Iterable[Callable[..., Any]],
        *args: Any,
        backend: str = "processes",
        ordered: bool = False,
        prefetch: int = 1,
        progress: Any = None,
        on_error: str = "raise",
        max_restarts: int = 100,
        max_ahead_bytes: int = 1 << 30,
        traj_timeout: float | None = None,
        start_method: str | None = None,
        context_fn: Callable[..., Any] | None = None,
        ray: RayConfig | None = None,
        **kwargs: Any,
    ) -> None:
        self._owner_pid = os.getpid()
        self._is_closed = True  # until there is something to close
        self._version = 0
        choice_option("backend", backend, BACKENDS)
        functions = _check_gen_fns(gen_fns)
        prefetch = integer_option("prefetch", prefetch, 1, 1 << 16)
        max_ahead_bytes = integer_option("max_ahead_bytes", max_ahead_bytes, 1, 1 << 62)
        timeout_s = seconds_option("traj_timeout", traj_timeout)
        method = choice_option("start_method", start_method or "forkserver", START_METHODS)
        options = _StreamOptions(
            flag_option("ordered", ordered),
            choice_option("on_error", on_error, ("raise", "restart")),
            integer_option("max_restarts", max_restarts, 0, 1 << 31),
            _progress_class(progress),
        )
        kind = find_backend(backend)
        on_ray = checked_ray_config(ray, backend, is_local=kind.is_local)
        for name in _RAY_OPTIONS_OF_POOLS:
            if getattr(on_ray, name) != getattr(RayConfig(), name):
                raise ConfigError(f"ray expected no {name} in the RayConfig of a Runner, it is for pools; leave it out")
        if start_method is not None and not (kind.has_processes and kind.is_local):
            raise ConfigError(f"start_method is for backend='processes', got it with {backend!r}; leave it out")
        self._context = None
        if context_fn is not None:
            if not kind.is_local:
                raise ConfigError(
                    "context_fn shares the memory of one machine, got it with backend='ray'; use a Ray actor instead"
                )
            self._context = _SharedContext(context_fn)
            kwargs = {**self._context.kwargs, **kwargs}
        factories: list[GeneratorFactory] = [partial(function, *args, **kwargs) for function in functions]
        try:
            self._backend = self._make_backend(kind, factories, method, prefetch, max_ahead_bytes, timeout_s, on_ray)
        except BaseException:
            if self._context is not None:
                self._context.close()
            raise
        self._streams = _StreamState(self._backend, len(factories), options)
        self._is_closed = False
        _open_runners.add(self)

    @staticmethod
    def _make_backend(
        kind: Backend,
        factories: list[GeneratorFactory],
        start_method: str,
        prefetch: int,
        max_ahead_bytes: int,
        timeout_s: float | None,
        on_ray: RayConfig,
    ) -> GeneratorBackend:
        if not kind.is_parallel:
            return SerialBackend(factories)
        if kind.is_local:
            from envfleet.sampling.processes import ProcessesBackend

            return ProcessesBackend(factories, start_method, prefetch, max_ahead_bytes, timeout_s)
        from envfleet.sampling.ray_backend import RayBackend

        return RayBackend(factories, prefetch, timeout_s, on_ray)

    def trajs(self, *args: Any, **kwargs: Any) -> Trajectories:
        """Return an endless iterator over trajectories. The generators' yield returns the arguments as:

        trajs() -> None, trajs("A") -> ("A",), trajs(limit=7) -> {"limit": 7}, trajs("B", limit=7) ->
        ["B", {"limit": 7}]. Nothing is requested before the first next(). A new iterator ends the previous one, and
        never returns a trajectory that was requested by it. So does an exception of a signal handler, such as Ctrl-C,
        that ends a next(): the generators keep their state, and another trajs() requests new trajectories.
        """
        self._check("trajs()")
        runner = weakref.ref(self)

        def streams() -> _StreamState:
            alive = runner()
            if alive is None:
                raise _closed_error()
            alive._check("next()")
            return alive._streams

        return Trajectories(streams, self._request(args, kwargs))

    def _request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the request that the generators' yield returns for these arguments of trajs()."""
        if args and kwargs:
            return [*args, dict(kwargs)]
        if kwargs:
            return dict(kwargs)
        return args or None

    def broadcast(self, weights: Any) -> int:
        """Send new weights to the generators, which read them with envfleet.sampling.weights(); return their version.

        A running trajectory sees the new weights as soon as it asks for them.

        Args:
            weights: Any object. Its arrays are written once into memory that all workers share (ray: one copy per
                node); later changes to it are not seen.
        """
        self._check("broadcast()")
        self._backend.broadcast(weights, self._version + 1)
        self._version += 1
        return self._version

    @property
    def num_generators(self) -> int:
        """The number of generators."""
        return self._streams.num_generators

    @property
    def worker_pids(self) -> list[int]:
        """The process id of each generator; empty if they have no processes of their own."""
        return self._backend.worker_pids

    # --- life ------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._is_closed

    def close(self) -> None:
        """Close the generators, which runs their finally blocks, and end the workers. Idempotent.

        Also called by `with`, garbage collection and at exit. A running trajectory has one second to finish, and is
        then interrupted by an exception; a worker that has not exited after 5 s is killed.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if os.getpid() != self._owner_pid:  # the workers belong to the parent
            return
        _open_runners.discard(self)
        try:
            faults = self._backend.close()
        finally:
            if self._context is not None:
                self._context.close()
        for fault in faults:
            warnings.warn(
                f"generator {fault.env_id} raised while it was closed: {fault.message}", RuntimeWarning, stacklevel=2
            )

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True):
            self.close()

    def __reduce__(self) -> Any:  # also for copy.copy(), whose result would close the workers of this one
        raise TypeError(
            f"{type(self).__name__} expected to stay in its process, got copied or pickled: its workers belong to it; "
            "make a runner where it is needed"
        )

    def __len__(self) -> int:
        return self.num_generators

    def _check(self, call: str) -> None:
        if os.getpid() != self._owner_pid:
            raise ForkedPoolError(
                f"{call} was called in process {os.getpid()}, a fork of process {self._owner_pid}, which owns the "
                "runner and its workers; make a runner in each process"
            )
        if self._is_closed:
            raise PoolClosedError(f"{call} was called after close(); make a new runner")


# --- streams -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _StreamOptions:
    """The options of a Runner that concern its streams. progress: a class with tqdm's interface."""

    ordered: bool
    on_error: str
    max_restarts: int
    progress: Callable[..., Any] | None


class _StreamState:
    """The streams of one runner: one at a time, one caller at a time."""

    def __init__(self, backend: GeneratorBackend, num_generators: int, options: _StreamOptions) -> None:
        self.backend = backend
        self.num_generators = num_generators
        self.options = options
        self.num_restarts = [0] * num_generators
        self.is_busy = threading.Lock()
        self.current: weakref.ref[Trajectories] | None = None  # weak: a stream that is dropped ends
        self.owner_pid = os.getpid()


class Trajectories(Iterator[Any]):
    """An iterator over trajectories. The next trajs() of its runner ends it, as close() and `del` do."""

    def __init__(self, streams: Callable[[], _StreamState], request: Any) -> None:
        """streams: returns the runner's, or raises; an iterator must not keep its runner alive."""
        self._streams = streams
        self._request = request
        self._state: _StreamState | None = None  # once it has begun
        self._is_finished = False
        self._ended_by = ""  # how it was ended from outside
        self._halted: set[int] = set()  # generators that return nothing more in this stream
        self._next_generator = 0
        self._progress: Any = None

    def __iter__(self) -> Trajectories:
        return self

    def __next__(self) -> Any:
        state = self._streams()
        if self._ended_by:
            raise CallOrderError(f"next() expected the iterator of the newest trajs(), got {self._ended_by}")
        if self._is_finished:
            raise StopIteration
        if not state.is_busy.acquire(blocking=False):
            raise CallOrderError(
                "next() expected one caller at a time, got a second thread; use a lock, or two runners"
            )
        try:
            if self._state is None:
                self._begin(state)
                if self._is_finished:  # another thread called close(), perhaps before start_stream()
                    state.backend.stop_stream()
                    raise StopIteration
            return self._next(state)
        except (EnvfleetError, StopIteration, Warning):
            raise
        except BaseException:
            self._ended_by = "one that was interrupted, which dropped what it had requested; call trajs() again"
            self._finish()
            state.backend.stop_stream()
            raise
        finally:
            state.is_busy.release()

    def close(self) -> None:
        """End the stream: requests that were not started are dropped. A next() in another thread ends too."""
        state, was_finished = self._state, self._is_finished
        self._finish()  # before stop_stream(): a next() that it wakes up checks this
        # In a fork the requests belong to the parent, and so do the backend's locks.
        is_current = state is not None and state.current is not None and state.current() in (self, None)
        if state is not None and is_current and not was_finished and state.owner_pid == os.getpid():
            state.backend.stop_stream()
            state.current = None

    def __del__(self) -> None:
        if not getattr(self, "_is_finished", True):
            self.close()

    def _begin(self, state: _StreamState) -> None:
        previous = state.current() if state.current is not None else None
        if previous is not None and previous is not self:
            previous._ended_by = (
                "that of an earlier one, whose requests were dropped when the newer one began; use the newer one, or "
                "call trajs() again"
            )
            previous._finish()
        if state.options.progress is not None and self._progress is None:
            self._progress = state.options.progress(desc="trajectories", unit="traj")
        late_faults = state.backend.start_stream(self._request)
        self._state, state.current = state, weakref.ref(self)
        for fault in late_faults:
            _warn(generator_error(fault, "no iterator was waiting for it; it is started again"))

    def _next(self, state: _StreamState) -> Any:
        while len(self._halted) < state.num_generators:
            wanted = None
            if state.options.ordered:
                while self._next_generator in self._halted:
                    self._next_generator = (self._next_generator + 1) % state.num_generators
                wanted = self._next_generator
            event = state.backend.next_event(wanted)
            if event is None:
                if self._is_finished:  # by close(), in another thread
                    raise StopIteration
                raise _closed_error()
            if event.kind == "trajectory":
                self._next_generator = (event.generator + 1) % state.num_generators
                return self._load(event)
            if event.kind == "returned":
                self._halted.add(event.generator)
            else:
                assert event.fault is not None
                self._handle_fault(state, event.generator, event.fault)
        self._finish()
        raise StopIteration

    def _load(self, event: Event) -> Any:
        assert event.load is not None
        if self._progress is not None:
            self._progress.update(1)
        try:
            return event.load()
        except Exception as error:
            fault = Fault.of(error, TRAJS, event.generator)
            remedy = (
                "its trajectory arrived, but could not be unpickled here; yield objects that this process can import"
            )
            raise GeneratorError(fault, remedy) from error

    def _handle_fault(self, state: _StreamState, generator: int, fault: Fault) -> None:
        options = state.options
        if options.on_error == "restart" and state.num_restarts[generator] < options.max_restarts:
            state.num_restarts[generator] += 1
            count = f"restart {state.num_restarts[generator]} of at most {options.max_restarts}"
            state.backend.restart_generator(generator)
            _warn(generator_error(fault, f"it is started again ({count})"))
            return
        self._halted.add(generator)
        remedy = "pass on_error='restart' to start it again at once"
        if options.on_error == "restart":
            remedy = f"it was restarted {options.max_restarts} times (max_restarts)"
        raise generator_error(
            fault, f"the other generators go on, this one with the next trajs(); {remedy}"
        ) from fault.cause

    def _finish(self) -> None:
        self._is_finished = True
        if self._progress is not None:
            self._progress.close()
            self._progress = None


def _closed_error() -> PoolClosedError:
    return PoolClosedError(
        "the runner was closed, or dropped while its iterator was in use; make a new one and keep it in a variable"
    )


def _warn(error: GeneratorError) -> None:
    text = str(error)
    if error.env_traceback:  # a warning prints no cause
        text += f"\n\nThe generator's own traceback:\n{error.env_traceback.rstrip()}"
    warnings.warn(text, RuntimeWarning, stacklevel=5)


# --- options -------------------------------------------------------------------------------------


class _SharedContext:
    """The keyword arguments of context_fn(manager), and the manager's process, which lives as long as the runner."""

    def __init__(self, context_fn: Callable[[SyncManager], Mapping[str, Any]]) -> None:
        if not callable(context_fn):
            raise ConfigError(f"context_fn expected a function of a multiprocessing manager, got {context_fn!r}")
        # Forked: the other start methods import the user's main module, and a script without a guard would run twice.
        # Without a file for its socket if possible: after a kill -9 the file would stay.
        address = f"\0envfleet-{uuid.uuid4()}" if sys.platform == "linux" else None
        self._manager = SyncManager(address=address, ctx=multiprocessing.get_context("fork"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads, none of which the manager needs
            self._manager.start(exit_with_parent, (os.getpid(),))
        self.kwargs: dict[str, Any] = {}
        try:
            kwargs = context_fn(self._manager)
            if not isinstance(kwargs, Mapping):
                raise ConfigError(f"context_fn(manager) expected to return a dict of keyword arguments, got {kwargs!r}")
        except BaseException:
            self.close()
            raise
        self.kwargs = dict(kwargs)

    def close(self) -> None:
        """End the manager. Idempotent."""
        self._manager.shutdown()
        self.kwargs = {}  # each object left here would keep a connection


def _check_gen_fns(gen_fns: Any) -> list[Callable[..., Any]]:
    if callable(gen_fns) or not isinstance(gen_fns, Iterable):
        remedy = f"; pass [{gen_fns!r}]" if callable(gen_fns) else ""
        raise ConfigError(f"Runner() expected a list of generator functions, got {gen_fns!r}{remedy}")
    functions = list(gen_fns)
    if not functions:
        raise ConfigError("Runner() expected at least one generator function, got none")
    for position, function in enumerate(functions):
        if not callable(function):
            raise ConfigError(
                f"Runner() expected generator functions, got {type(function).__name__} at position {position}: "
                f"{function!r}; pass the function itself, with functools.partial for its arguments"
            )
    return functions


def _progress_class(progress: Any) -> Callable[..., Any] | None:
    if progress is None or progress is False:
        return None
    if progress is True:
        try:
            from tqdm.auto import tqdm
        except ImportError:
            raise MissingExtraError("tqdm", "progress", "progress=True") from None
        default: Callable[..., Any] = tqdm
        return default
    if not callable(progress):
        raise ConfigError(f"progress expected True, None or a class with tqdm's interface, got {progress!r}")
    custom: Callable[..., Any] = progress
    return custom
