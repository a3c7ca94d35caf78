"""Runner: generators that yield whole trajectories, in worker processes, on a cluster, or right here."""

from __future__ import annotations

import atexit
import os
import warnings
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any

from envfleet.errors import ConfigError, ForkedPoolError, MissingExtraError, PoolClosedError
from envfleet.making.options import START_METHODS, choice_option, integer_option, parse_ray_options, seconds_option
from envfleet.sampling.backend import Backend, Maker
from envfleet.sampling.context import SharedContext
from envfleet.sampling.requests import request_of
from envfleet.sampling.serial import SerialBackend
from envfleet.sampling.stream import Desk, StreamOptions, Trajectories, closed_error
from envfleet.spec import RayConfig

BACKENDS = ("processes", "serial", "ray")
_open_runners: weakref.WeakSet[Runner] = weakref.WeakSet()


@atexit.register
def _close_all_runners() -> None:
    for runner in list(_open_runners):
        runner.close()


class Runner:
    """Runs one generator for each of gen_fns and gives their trajectories.

    Each gen_fn(*args, **kwargs) is a generator that first yields "ready" and then one trajectory for each request;
    what its yield gives back is the request: the arguments of trajs(). A generator that returns has no more
    trajectories: the others go on, and when all have returned the iterator ends. One that raised or returned is made
    anew by the next trajs().

    ordered: trajectories in turn, generator 0 first; else as they are finished. prefetch: so many requests each
    generator is ahead of you (serial: none). max_ahead_bytes: with about so much finished and not yet taken, nothing
    new is begun (ray: the object store's own limit). traj_timeout: seconds that a generator may take for its start, and
    for each trajectory, before it is lost and its process killed (processes, ray). on_error: "raise", or "restart" for
    generators that are made anew at once, up to max_restarts times each. progress: True for tqdm, or a class of its
    protocol.
    start_method: "forkserver", "spawn" or "fork" (processes). context_fn(manager): gives keyword arguments for all
    generators, shared through a manager of multiprocessing's. ray_address, ray_options, placement_timeout: the cluster
    to join, options of its actors, and the seconds that one may wait for a machine.
    A keyword argument of gen_fn that has one of these names goes there by functools.partial.
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
        ray_address: str | None = None,
        ray_options: dict[str, Any] | None = None,
        placement_timeout: float = 60.0,
        **kwargs: Any,
    ) -> None:
        self._owner_pid = os.getpid()
        self._is_closed = True  # until there is something to close
        self._version = 0
        choice_option("backend", backend, BACKENDS)
        functions = _checked(gen_fns)
        prefetch = integer_option("prefetch", prefetch, 1, 1 << 16)
        max_ahead_bytes = integer_option("max_ahead_bytes", max_ahead_bytes, 1, 1 << 62)
        timeout_s = seconds_option("traj_timeout", traj_timeout)
        method = choice_option("start_method", start_method or "forkserver", START_METHODS)
        options = StreamOptions(
            bool(ordered),
            choice_option("on_error", on_error, ("raise", "restart")),
            integer_option("max_restarts", max_restarts, 0, 1 << 31),
            _bar_maker(progress),
        )
        on_ray = parse_ray_options(backend, {"ray_address": ray_address, "ray_options": ray_options})
        patience_s = seconds_option("placement_timeout", placement_timeout) or 60.0
        if backend != "processes" and start_method is not None:
            raise ConfigError(f"start_method is for backend='processes', got it with {backend!r}; leave it out")
        self._context = None
        if context_fn is not None:
            if backend == "ray":
                raise ConfigError("context_fn shares memory of one machine, got it with backend='ray'; use an actor")
            self._context = SharedContext(context_fn)
            kwargs = {**self._context.kwargs, **kwargs}
        makers: list[Maker] = [partial(function, *args, **kwargs) for function in functions]
        try:
            self._backend = self._make_backend(
                backend, makers, method, prefetch, max_ahead_bytes, timeout_s, on_ray, patience_s
            )
        except BaseException:
            if self._context is not None:
                self._context.close()
            raise
        self._desk = Desk(self._backend, len(makers), options)
        self._is_closed = False
        _open_runners.add(self)

    @staticmethod
    def _make_backend(
        backend: str,
        makers: list[Maker],
        start_method: str,
        prefetch: int,
        max_ahead_bytes: int,
        timeout_s: float | None,
        on_ray: RayConfig,
        placement_timeout_s: float,
    ) -> Backend:
        if backend == "serial":
            return SerialBackend(makers)
        if backend == "processes":
            from envfleet.sampling.processes import ProcessesBackend

            return ProcessesBackend(makers, start_method, prefetch, max_ahead_bytes, timeout_s)
        from envfleet.sampling.on_ray import RayBackend

        address, actor_options = on_ray.address, on_ray.actor_options or {}
        return RayBackend(makers, prefetch, timeout_s, address, actor_options, placement_timeout_s)

    def trajs(self, *args: Any, **kwargs: Any) -> Trajectories:
        """An endless iterator over trajectories. Its arguments are what the generators' yield gives back:

        trajs() -> None, trajs("A") -> ("A",), trajs(limit=7) -> {"limit": 7}, trajs("B", limit=7) ->
        ["B", {"limit": 7}]. It asks for nothing before its first next(). A new one ends the one before, and never
        gives what was asked for by that: nothing is stale.
        """
        self._check("trajs()")
        runner = weakref.ref(self)

        def desk() -> Desk:
            own = runner()
            if own is None:
                raise closed_error()
            own._check("next()")
            return own._desk

        return Trajectories(desk, self._request(args, kwargs))

    def _request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return request_of(args, kwargs)

    def broadcast(self, weights: Any) -> int:
        """Gives the generators new weights, which they read with envfleet.sampling.weights(); the version they have.

        Any object; its arrays are written once into memory that all workers share (ray: one copy for each node).
        Changes to it afterwards are not seen. A trajectory that is under way sees them as soon as it asks.
        """
        self._check("broadcast()")
        self._backend.broadcast(weights, self._version + 1)
        self._version += 1
        return self._version

    @property
    def num_generators(self) -> int:
        """How many generators there are."""
        return self._desk.num_generators

    @property
    def worker_pids(self) -> list[int]:
        """The process of each generator; empty where they have none of their own."""
        return self._backend.worker_pids

    # --- life ------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._is_closed

    def close(self) -> None:
        """Has the generators' finally blocks run and ends the workers. Idempotent; also run by `with`, garbage
        collection and at exit. Who is in the middle of a trajectory has a second to end it, and is then interrupted
        by an exception; who has not left after 5 s is killed."""
        if self._is_closed:
            return
        self._is_closed = True
        if os.getpid() != self._owner_pid:  # they are the parent's, and this is a copy of their books
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

    def __reduce__(self) -> Any:  # also for copy.copy(), whose copy would close what is this one's
        raise TypeError(
            f"{type(self).__name__} expected to stay in its process, got copied or pickled: its workers belong to it; "
            "make a runner where it is needed"
        )

    def __len__(self) -> int:
        return self.num_generators

    def _check(self, call: str) -> None:
        if os.getpid() != self._owner_pid:
            raise ForkedPoolError(
                f"{call} came in process {os.getpid()}, a fork of process {self._owner_pid}, which made the runner "
                "and has its workers; make a runner in each process"
            )
        if self._is_closed:
            raise PoolClosedError(f"{call} came after close(); make a new runner")


def _checked(gen_fns: Any) -> list[Callable[..., Any]]:
    if callable(gen_fns) or not isinstance(gen_fns, Iterable):
        raise ConfigError(f"Runner() expected a list of generator functions, got {gen_fns!r}; pass [{gen_fns!r}]")
    functions = list(gen_fns)
    if not functions:
        raise ConfigError("Runner() expected at least one generator function, got none")
    for position, function in enumerate(functions):
        if not callable(function):
            raise ConfigError(
                f"Runner() expected generator functions, got {type(function).__name__} at position {position}: "
                f"{function!r}; pass the function, with functools.partial for its arguments, not what it returns"
            )
    return functions


def _bar_maker(progress: Any) -> Callable[..., Any] | None:
    if progress is None or progress is False:
        return None
    if progress is True:
        try:
            from tqdm.auto import tqdm
        except ImportError:
            raise MissingExtraError("tqdm", "progress", "progress=True") from None
        made: Callable[..., Any] = tqdm
        return made
    if not callable(progress):
        raise ConfigError(f"progress expected True, None or a class of tqdm's protocol, got {progress!r}")
    own: Callable[..., Any] = progress
    return own
