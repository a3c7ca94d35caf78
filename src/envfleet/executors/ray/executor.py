"""RayExecutor: envs on the actors of a Ray cluster, a contiguous range of them in each of num_workers actors.

Synchronous: a batch is one message to each worker, all in flight at once. Asynchronous: each send() is one message to
each worker concerned, and a batch holds the rows of the responses that arrived first.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import cloudpickle
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet import _native
from envfleet.core.autoreset import Phase, StepRule, step_rule
from envfleet.core.batch import Batch, Fault
from envfleet.core.errors import CallOrderError, EnvError, PoolClosedError
from envfleet.core.executor import CLOSE_TIMEOUT_S, REFUSED, Executor, Refused, split_envs
from envfleet.core.options import PoolConfig
from envfleet.core.seeding import Words
from envfleet.core.spaces import join, plain_array_leaf, split
from envfleet.core.statistics import PoolStats, StatsHistory
from envfleet.core.tracebacks import message_of
from envfleet.core.validation import LeafColumns
from envfleet.executors.env_reports import BUILD_REMEDY, RESET_REMEDY, EnvStateError, call_remedy
from envfleet.executors.python.building import SpecMaker, common_description
from envfleet.executors.ray import cluster as ray_cluster
from envfleet.executors.ray.cluster import RaySession
from envfleet.executors.ray.dispatcher import Dispatcher
from envfleet.executors.ray.messages import (
    RESET,
    STEP,
    RemoteCallError,
    RequestCodec,
    ResponseCodec,
    decode_result,
)
from envfleet.executors.ray.supervisor import (
    Connections,
    Worker,
    WorkerConfig,
    WorkerTable,
    restart_worker,
    start_workers,
    stop_workers,
)

_open_executors: weakref.WeakSet[RayExecutor] = weakref.WeakSet()


class RayExecutor(Executor):
    """Runs envs on Ray actors, with an inner executor in each."""

    takes_leaves = True

    def __init__(
        self,
        session: RaySession,
        make_spec: SpecMaker,
        config: PoolConfig,
        params: Sequence[Mapping[str, Any]],
        builders: Sequence[bytes],
        worker_envs: Sequence[range],
        check_options: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        """builders: pickled, one for each of worker_envs. check_options: raises if envs cannot take reset options."""
        self._session = session
        self._params = params
        self._config = config
        self.num_envs = config.num_envs
        self._check_options = check_options
        guard = _native.CallGuard()
        worker_config = WorkerConfig.create(
            session.ray,
            config.ray.all_actor_options,
            config.ray.placement_timeout_s,
            config.autoreset_mode,
            config.step_timeout,
        )
        ray_cluster.keep_in_forks(self)
        self._workers = [
            Worker(worker_config, envs, builder) for envs, builder in zip(worker_envs, builders, strict=True)
        ]
        descriptions = start_workers(self._workers)
        try:
            # One per env, so that an error names the right env.
            per_env = [own for own, envs in zip(descriptions, worker_envs, strict=True) for _ in envs]
            description = common_description(per_env)
            self.spec = make_spec(description)
        except BaseException:
            self._stop_actors()
            raise
        self._responses = ResponseCodec(description.observation_space, config.autoreset_mode is AutoresetMode.SAME_STEP)
        self._requests = RequestCodec(description.action_space)
        self._connections = Connections(session.ray, config.ray.direct)
        self._table = WorkerTable(self._workers)
        self._stats = StatsHistory(worker_envs)
        self._last_caller = threading.get_ident()
        self._dispatcher = Dispatcher(
            session.ray,
            self._table,
            self._connections,
            description.observation_space,
            self._requests,
            self._responses,
            config,
            guard,
            lambda worker, stats, age_ns: self._stats.update(self._workers.index(worker), stats, age_ns),
        )
        self._connections.connect(self._workers)
        self.call_guard = guard
        _register_close_at_exit()
        _open_executors.add(self)

    def _enter(self) -> _native.PartOfCall:
        """Return the context of a call. Raises, here or on entry, if the call is not allowed now."""
        self._last_caller = threading.get_ident()
        # A forked child must not touch Ray's connections, which belong to its parent.
        if not self.call_guard.is_forked and not self.call_guard.is_closing:
            self._session.check()
        return self.call_guard.part()

    # --- stepping ------------------------------------------------------------------------

    def step(self, actions: Any, env_ids: Any, timeout_s: float) -> Batch | Refused | None:
        with self._enter():
            if self.call_guard.needs_attention:
                return REFUSED
            if not self._dispatcher.num_in_flight and self._takes_unchecked(actions, env_ids):
                actions = LeafColumns([actions])
            return self._step(actions, env_ids, timeout_s)

    def step_checked(self, actions: Any, env_ids: Any, timeout_s: float) -> Batch | Refused | None:
        with self._enter():
            return self._step(actions, env_ids, timeout_s)

    def _step(self, actions: Any, env_ids: Any, timeout_s: float) -> Batch | Refused | None:
        if type(actions) is not LeafColumns or not self._can_send:
            return REFUSED
        is_async = self._config.is_async
        num_rows = self.num_envs if env_ids is None else len(env_ids)
        if is_async and self._dispatcher.num_in_flight + num_rows < self._config.batch_size:
            return REFUSED
        return self._dispatcher.send_and_recv(STEP, env_ids, actions, None, timeout_s, is_ordered=not is_async)

    def send(self, actions: Any, env_ids: Any) -> bool:
        with self._enter():
            return not self.call_guard.needs_attention and self._send(actions, env_ids)

    def send_checked(self, actions: Any, env_ids: Any) -> bool:
        with self._enter():
            return self._send(actions, env_ids)

    def _send(self, actions: Any, env_ids: Any) -> bool:
        if type(actions) is not LeafColumns or not self._can_send:
            return False
        self._dispatcher.send(STEP, env_ids, actions, None)
        return True

    @property
    def _can_send(self) -> bool:
        """Whether no batch is in the way. Which envs are idle was checked with the actions."""
        if self._config.is_async:
            return not self._dispatcher.has_ordered_batch
        return not self._dispatcher.num_in_flight

    def _takes_unchecked(self, actions: Any, env_ids: Any) -> bool:
        """Return whether check_actions=False allows these actions: the right form, whatever their values.

        Otherwise they are checked, which costs microseconds where a message costs hundreds of them.
        """
        leaf = plain_array_leaf(self._requests.leaves)
        return (
            not self._config.check_actions
            and not self.spec.native_id
            and env_ids is None
            and leaf is not None
            and isinstance(actions, np.ndarray)
            and actions.dtype == leaf.dtype
            and actions.shape == (self.num_envs, *leaf.shape)
            and all(
                step_rule(self._config.autoreset_mode, Phase(phase)) is not StepRule.REFUSE
                for phase in set(self._dispatcher.phases)
            )
        )

    def recv(self, timeout_s: float) -> Batch | Refused | None:
        with self._enter():
            if self.call_guard.needs_attention:
                return REFUSED
            is_complete = self._config.is_async and self._dispatcher.num_in_flight >= self._config.batch_size
            if not is_complete and not self._dispatcher.has_ordered_batch:
                return REFUSED
            return self._dispatcher.recv(timeout_s)

    def check_reset_options(self, options: Mapping[str, Any]) -> None:
        if self._check_options is not None:
            self._check_options(options)

    def reset(self, env_ids: NDArray[np.int32] | None, options: Mapping[str, Any], timeout_s: float) -> Batch | None:
        with self._enter():
            if not self._dispatcher.num_in_flight:
                with self._dispatcher.interruptible():
                    self._connections.connect(self._workers)  # those that have lost their connection
            return self._dispatcher.send_and_recv(RESET, env_ids, None, options, timeout_s, is_ordered=True)

    def send_reset(self, env_ids: NDArray[np.int32] | None, options: Mapping[str, Any]) -> None:
        with self._enter():
            self._dispatcher.send(RESET, env_ids, None, options)

    def drop_pending(self, timeout_s: float) -> bool:
        with self._enter():
            return self._dispatcher.drop_pending(timeout_s)

    def unreported_faults(self) -> tuple[Fault, ...]:
        return self._dispatcher.unreported_faults()

    def clear_faults(self) -> None:
        self._dispatcher.forget_faults(range(self.num_envs))

    # --- between batches -----------------------------------------------------------------

    def seed(self, env_ids: NDArray[np.int32], words: Words) -> None:
        with self._enter():
            self._defer_seeds(env_ids, words)

    def _defer_seeds(self, env_ids: NDArray[np.int32], words: Words) -> None:
        for worker, ids, _, rows in self._table.split(env_ids):
            worker.defer("seed", ids - np.int32(worker.envs.start), np.ascontiguousarray(words[rows]))

    def rebuild(self, env_id: int, phase: int, words: Words | None = None) -> None:
        with self._enter():
            worker = self._table.worker_of(env_id)
            if worker.is_dead:
                self._stats.keep(self._workers.index(worker))
                with self._dispatcher.interruptible():
                    restart_worker(worker)
                    self._connections.connect([worker])
            self._dispatcher.forget_faults([env_id])
            if words is not None:
                self._defer_seeds(np.array([env_id], dtype=np.int32), words)
            if self._dispatcher.is_lost[env_id]:
                # The worker's new actor has built it already, and only needs to know its phase.
                self._dispatcher.is_lost[env_id] = False
                if phase != Phase.UNSTARTED:
                    worker.defer("phase", env_id - worker.envs.start, int(phase))
            else:
                self._call_one(env_id, "rebuild", (phase,), "__init__", BUILD_REMEDY)
            self._dispatcher.phases[env_id] = phase

    def observe(self) -> tuple[Any, NDArray[np.int32]]:
        with self._enter():
            return self._observe()

    def get_state(self, env_id: int) -> bytes:
        with self._enter():
            state: bytes = self._call_state(env_id, "get_state", (), "cannot be saved")
            return state

    def set_state(self, env_id: int, state: bytes) -> None:
        with self._enter():
            observed = self._call_state(env_id, "set_state", (state,), "cannot take this state")
            if self._dispatcher.last_obs is not None:
                is_started = self._dispatcher.phases[env_id] in (Phase.RUNNING, Phase.ENDED)
                self._dispatcher.last_obs.keep_observed(env_id, observed if is_started else None)

    def render(self, env_ids: Sequence[int]) -> list[Any]:
        with self._enter():
            return self._call_each(env_ids, "render", (), "render", "fix its render()")

    def call(self, env_ids: Sequence[int], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        with self._enter():
            return self._call_each(
                env_ids, "call", (name, args, dict(kwargs)), name, "fix the method, or its arguments"
            )

    def get_attr(self, env_ids: Sequence[int], name: str) -> list[Any]:
        with self._enter():
            return self._call_each(env_ids, "get_attr", (name,), f"get_attr({name!r})", "fix the attribute")

    def get_attrs(self, env_id: int) -> dict[str, Any]:
        with self._enter():
            attributes: dict[str, Any] = self._call_one(env_id, "get_attrs", (), "get_attrs", "fix the env")
            return attributes

    def set_attrs(self, env_ids: Sequence[int], name: str, values: Sequence[Any]) -> None:
        with self._enter():
            groups = self._table.group(env_ids)
            value_of = dict(zip(map(int, env_ids), values, strict=True))
            arguments = {
                worker: (_local_ids(worker, ids), name, [value_of[env_id] for env_id in ids])
                for worker, ids in groups.items()
            }
            self._call_workers(groups, "set_attrs", arguments, f"set_attr({name!r})", "fix the attribute")

    # --- calls of the inner executors: one message per worker, all in flight at once ---------------

    def _call_each(
        self, env_ids: Sequence[int], method: str, arguments: tuple[Any, ...], name: str, remedy: str
    ) -> list[Any]:
        """Call a method for each of these envs; return the results in their order. name: the call in errors."""
        groups = self._table.group(env_ids)
        by_worker = {worker: (_local_ids(worker, ids), *arguments) for worker, ids in groups.items()}
        results = self._call_workers(groups, method, by_worker, name, remedy)
        by_env = {
            env_id: value for worker, ids in groups.items() for env_id, value in zip(ids, results[worker], strict=True)
        }
        return [by_env[int(env_id)] for env_id in env_ids]

    def _call_one(self, env_id: int, method: str, arguments: tuple[Any, ...], name: str, remedy: str) -> Any:
        """Call a method for one env."""
        worker = self._table.worker_of(env_id)
        local_id = env_id - worker.envs.start
        return self._call_workers({worker: [env_id]}, method, {worker: (local_id, *arguments)}, name, remedy)[worker]

    def _call_state(self, env_id: int, method: str, arguments: tuple[Any, ...], problem: str) -> Any:
        """Call get_state or set_state for one env. Raises StateError."""
        try:
            return self._call_one(env_id, method, arguments, method, "fix the env")
        except EnvError as error:
            text = f"{problem}: {error.faults[0].message}"
            raise EnvStateError(env_id, self.spec.id, text) from error.__cause__

    def _call_workers(
        self,
        env_ids: Mapping[Worker, Sequence[int]],
        method: str,
        arguments: Mapping[Worker, tuple[Any, ...]],
        name: str,
        remedy: str,
    ) -> dict[Worker, Any]:
        """Call a method of the workers' executors; return the results. Raises EnvError if any call failed."""
        faults: list[Fault] = []
        pickled: dict[Worker, bytes] = {}  # all of them before any call is sent
        for worker, ids in env_ids.items():
            lost = [env_id for env_id in ids if self._dispatcher.is_lost[env_id]]
            faults += [worker.fault(env_id, name) for env_id in lost]
            if not lost:
                pickled[worker] = cloudpickle.dumps(arguments[worker])
        answers = self._dispatcher.call_all(
            {worker: (method, data, _local_ids(worker, env_ids[worker])) for worker, data in pickled.items()}
        )
        results: dict[Worker, Any] = {}
        for worker, answer in answers.items():
            ids = env_ids[worker]
            try:
                if isinstance(answer, Exception):
                    raise answer
                results[worker], phases = decode_result(answer, remedy)
                self._dispatcher.phases[list(ids)] = phases
            except EnvError as error:
                faults += [replace(fault, method=name) for fault in error.faults]
            except RemoteCallError as error:
                faults.append(Fault(int(ids[0]), name, str(error), error.traceback, error.cause))
            except self._session.ray.exceptions.RayError as error:
                if self._dispatcher.check_alive(worker, error):
                    message = f"the call may have run, but Ray lost its response: {message_of(error)}"
                    faults += [Fault(int(env_id), name, message, cause=error) for env_id in ids]
                else:
                    faults += [worker.fault(int(env_id), name) for env_id in ids]
        if faults:
            raise EnvError.of(tuple(faults), None, call_remedy(faults[0], remedy)) from faults[0].cause
        return results

    def _observe(self) -> tuple[Any, NDArray[np.int32]]:
        """Return the present observations and elapsed steps; zeros for envs that died with their worker."""
        is_lost = self._dispatcher.is_lost
        # The new actor of a worker that died may hold envs that were reset beside envs that are still lost.
        asked: dict[Worker, list[int]] = {}
        for worker in self._workers:
            env_ids = [env_id for env_id in worker.envs if not is_lost[env_id]]
            if env_ids and not worker.is_dead:
                asked[worker] = env_ids
        results = self._call_workers(asked, "observe", dict.fromkeys(asked, ()), "observe", RESET_REMEDY)
        leaves = self._responses.leaves
        split_obs = split(self.spec.observation_space)

        def columns_of(worker: Worker) -> Sequence[Any]:
            if worker in results:
                return split_obs(results[worker][0])
            count = len(worker.envs)
            return [
                np.zeros((count, *leaf.shape), leaf.dtype) if leaf.kind == "array" else (None,) * count
                for leaf in leaves
            ]

        parts_of_leaves = zip(*map(columns_of, self._workers), strict=True)
        joined: list[Any] = []
        for leaf, parts in zip(leaves, parts_of_leaves, strict=True):
            if leaf.kind == "array":
                column = np.concatenate(parts)
                column[is_lost] = 0
                joined.append(column)
            else:
                values = (value for part in parts for value in part)
                joined.append(tuple(None if lost else value for value, lost in zip(values, is_lost, strict=True)))
        elapsed_step = np.zeros(self.num_envs, np.int32)
        for worker, (_, own_steps) in results.items():
            elapsed_step[list(worker.envs)] = own_steps
        elapsed_step[is_lost] = 0
        return join(self.spec.observation_space)(joined), elapsed_step

    # --- status ----------------------------------------------------------------------------

    def params_of(self, env_id: int) -> Mapping[str, Any]:
        return self._params[env_id if len(self._params) > 1 else 0]

    @property
    def num_in_flight(self) -> int:
        return self._dispatcher.num_in_flight

    @property
    def has_ordered_batch(self) -> bool:
        return self._dispatcher.has_ordered_batch

    def in_flight(self) -> NDArray[np.bool_]:
        return self._dispatcher.in_flight()

    def phases(self) -> NDArray[np.uint8]:
        phases: NDArray[np.uint8] = self._dispatcher.phases.copy()
        return phases

    def broken(self) -> NDArray[np.bool_]:
        """Return which envs must be rebuilt, including those whose worker died while idle."""
        with self._enter():
            with self._dispatcher.interruptible():
                self._dispatcher.find_dead(worker for worker in self._workers if not worker.pending)
            broken: NDArray[np.bool_] = (self._dispatcher.phases == Phase.BROKEN) | self._dispatcher.is_lost
            return broken

    def stats(self) -> PoolStats:
        """Return the statistics of all envs. Of an actor that died, those it had when it was last asked.

        Asking the actors is a call like any other. So only the thread that calls the pool asks them, between its calls;
        others get what the actors sent along with their responses, and so does an interrupted pool, whose actors may
        not answer.
        """
        caller = self._last_caller
        is_callers = caller == threading.get_ident() or all(own.ident != caller for own in threading.enumerate())
        if is_callers and not self.call_guard.is_closing and not self.call_guard.is_interrupted:
            with contextlib.suppress(CallOrderError, PoolClosedError):  # from a signal handler during a call
                self.call_guard.run(self._ask_for_stats)
        elif self.call_guard.is_forked:
            self.call_guard.run(lambda: None)  # raises
        return self._stats.total()

    def _ask_for_stats(self) -> None:
        with self._enter(), self._dispatcher.interruptible():
            refs = {worker: worker.call("call", [], "stats", b"", []) for worker in self._workers if not worker.is_dead}
            for worker, ref in refs.items():
                try:
                    (stats, age_ns), _ = decode_result(self._dispatcher.result_of(worker, ref), "")
                    self._stats.update(self._workers.index(worker), stats, age_ns)
                except self._session.ray.exceptions.RayError as error:
                    self._dispatcher.check_alive(worker, error)

    @property
    def worker_pids(self) -> list[int]:
        """The process id of each actor, on its own machine."""
        return [worker.pid for worker in self._workers]

    @property
    def actors(self) -> list[Any]:
        """The handles of the actors; None for one that died."""
        return [worker.handle for worker in self._workers]

    # --- life cycle ------------------------------------------------------------------------------

    def _end(self) -> list[Warning]:
        texts = self._stop_actors()
        _open_executors.discard(self)
        return [RuntimeWarning(text) for text in texts]

    def _stop_actors(self) -> list[str]:
        for worker in self._workers:
            worker.disconnect()
        try:
            return stop_workers(self._workers, CLOSE_TIMEOUT_S) if self._session.is_alive else []
        finally:
            self._session.release()


def _local_ids(worker: Worker, env_ids: Sequence[int]) -> list[int]:
    return [int(env_id) - worker.envs.start for env_id in env_ids]


@functools.cache
def _register_close_at_exit() -> None:
    """Close the envs before Ray's own exit handler ends the actors: handlers run in reverse order."""
    atexit.register(_close_all)


def _close_all() -> None:
    for executor in list(_open_executors):
        executor.close()


# --- construction --------------------------------------------------------------------------------


def create_executor(
    make_builders: Callable[[PoolConfig, Sequence[range]], list[bytes]],
    make_spec: SpecMaker,
    config: PoolConfig,
    params: Sequence[Mapping[str, Any]],
    check_options: Callable[[Mapping[str, Any]], None] | None,
) -> tuple[RayExecutor, PoolConfig]:
    """Join the cluster and run envs on it. num_workers 0: one per core of the cluster.

    make_builders: returns a pickled builder for the envs of each worker, which has a build() that returns an inner
    executor and the description of its envs.
    """
    num_cpus = int((config.ray.actor_options or {}).get("num_cpus") or 0)
    config = replace(config, ray=replace(config.ray, inner_num_workers=config.ray.inner_num_workers or num_cpus))
    has_num_workers = config.num_workers > 0
    if has_num_workers:
        # Pickled before anything is started, so that what cannot be pickled is reported at once.
        worker_envs = split_envs(config.num_envs, config.num_workers)
        builders = make_builders(config, worker_envs)
    session = ray_cluster.acquire_session(config.ray.address)
    try:
        if not has_num_workers:
            config = replace(config, num_workers=min(config.num_envs, ray_cluster.num_cpus(session.ray)))
            worker_envs = split_envs(config.num_envs, config.num_workers)
            builders = make_builders(config, worker_envs)
        return RayExecutor(session, make_spec, config, params, builders, worker_envs, check_options), config
    except BaseException:
        session.release()
        raise
