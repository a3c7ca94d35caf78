"""RayExecutor: a contiguous share of the envs in each of num_workers actors of a Ray cluster.

Synchronous: a batch is one message to each worker, all under way at once. Asynchronous: each send() is one
message to each worker concerned, and a batch is the rows of the messages that came back first.
"""

from __future__ import annotations

import atexit
import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.autoreset import Deed, Phase, decide
from envfleet.batch import Batch
from envfleet.executors.base import REFUSED, Executor, Refused
from envfleet.executors.python.building import SpecMaker, common_description
from envfleet.executors.ray.actors import BUILD_REMEDY, Making, Worker, end_all, revive, start
from envfleet.executors.ray.asking import Asking
from envfleet.executors.ray.books import Books
from envfleet.executors.ray.cluster import Lease, default_scheduling_strategy, keep_in_forks
from envfleet.executors.ray.entrance import Entrance
from envfleet.executors.ray.flights import BatchMaker
from envfleet.executors.ray.lines import Lines
from envfleet.executors.ray.messages import RESET, STEP, ActionForm, RowForm
from envfleet.executors.ray.shares import Shares
from envfleet.executors.ray.tower import Tower
from envfleet.executors.ray.traffic import Traffic
from envfleet.seeding import Words
from envfleet.spec import PoolConfig
from envfleet.statistics import PoolStats
from envfleet.validation import LeafColumns

_CLOSE_TIMEOUT_S = 5.0
_open_executors: weakref.WeakSet[RayExecutor] = weakref.WeakSet()


class RayExecutor(Executor):
    """Runs envs on Ray actors, an inner executor in each."""

    takes_leaves = True

    def __init__(
        self,
        lease: Lease,
        make_spec: SpecMaker,
        config: PoolConfig,
        params: Sequence[Mapping[str, Any]],
        plans: Sequence[bytes],
        shares: Sequence[range],
        check_options: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        """check_options: raises when an env could not take these options of a reset."""
        self._lease = lease
        self._ray = lease.ray
        self._params = params
        self._config = config
        self.num_envs = config.num_envs
        self._check_options = check_options
        self._entrance = Entrance(lease)
        making = Making(
            lease.ray,
            {
                "scheduling_strategy": default_scheduling_strategy(lease.ray),
                **_runtime_env(config),
                **(config.ray_options or {}),
            },
            config.placement_timeout,
            config.autoreset_mode,
            config.step_timeout,
        )
        keep_in_forks(self)
        self._workers = [Worker(making, share, plan) for share, plan in zip(shares, plans, strict=True)]
        portraits = start(self._workers)
        try:
            # As many times as there are envs, so that an error names the right one.
            portrait = common_description([own for own, share in zip(portraits, shares, strict=True) for _ in share])
            self.spec = make_spec(portrait)
        except BaseException:
            self._end_actors()
            raise
        rows = RowForm(portrait.observation_space, config.autoreset_mode is AutoresetMode.SAME_STEP)
        actions = ActionForm(portrait.action_space)
        self._actions = actions
        self._lines = Lines(lease.ray, config.ray_direct)
        self._books = Books(config.num_envs, self._lines, actions, rows)
        self._tower = Tower(lease.ray, self._books, rows, self._lines, config.step_timeout, self._entrance.guard)
        self._shares = Shares(self._workers)
        self._asking = Asking(self._tower, self.spec, self._workers, self._shares, self._books, rows)
        batches = BatchMaker(portrait.observation_space, rows)
        self._traffic = Traffic(
            self._tower, self._books, self._shares, batches, actions.leaves, config.batch_size, config.is_async
        )
        self._lines.connect(self._workers)
        self.call_guard = self._entrance.guard
        _close_at_exit()
        _open_executors.add(self)

    # --- stepping ------------------------------------------------------------------------

    def step(self, actions: Any, env_ids: Any, timeout_s: float) -> Batch | Refused | None:
        with self._entrance.opened():
            if self._takes_unchecked(actions, env_ids):
                actions = LeafColumns([actions])
            if type(actions) is not LeafColumns or self._traffic.num_in_flight:
                return REFUSED
            self._traffic.depart_in_order(STEP, env_ids, actions, None)
            return self._traffic.ordered_batch(timeout_s)

    def send(self, actions: Any, env_ids: Any) -> bool:
        with self._entrance.opened():
            if type(actions) is not LeafColumns or (self._traffic.num_in_flight and not self._config.is_async):
                return False
            self._traffic.depart(STEP, env_ids, actions, None)
            return True

    def _takes_unchecked(self, actions: Any, env_ids: Any) -> bool:
        """With check_actions=False: whether these are of the right form, whatever their values. Else all are checked:
        that costs microseconds, a message hundreds of them."""
        leaf = self._actions.leaves[0]
        return (
            not self._config.check_actions
            and not self.spec.native_id
            and env_ids is None
            and len(self._actions.leaves) == 1
            and leaf.kind == "array"
            and isinstance(actions, np.ndarray)
            and actions.dtype == leaf.dtype
            and actions.shape == (self.num_envs, *leaf.shape)
            and all(
                decide(self._config.autoreset_mode, Phase(own)) is not Deed.REFUSE for own in set(self._books.phases)
            )
        )

    def recv(self, timeout_s: float) -> Batch | Refused | None:
        with self._entrance.opened():
            if self._traffic.has_ordered:
                return self._traffic.ordered_batch(timeout_s)
            if self._traffic.num_in_flight < self._config.batch_size or not self._config.is_async:
                return REFUSED
            return self._traffic.first_batch(timeout_s)

    def check_reset_options(self, options: Mapping[str, Any]) -> None:
        if self._check_options is not None:
            self._check_options(options)

    def reset(self, env_ids: NDArray[np.int32] | None, options: Mapping[str, Any], timeout_s: float) -> Batch | None:
        with self._entrance.opened():
            if not self._traffic.num_in_flight:
                self._lines.connect(self._workers)  # to whom one was lost since
            self._traffic.depart_in_order(RESET, env_ids, None, options)
            return self._traffic.ordered_batch(timeout_s)

    def send_reset(self, env_ids: NDArray[np.int32] | None, options: Mapping[str, Any]) -> None:
        with self._entrance.opened():
            self._traffic.depart(RESET, env_ids, None, options)

    def abandon(self, timeout_s: float) -> bool:
        with self._entrance.opened():
            return self._traffic.abandon(timeout_s)

    # --- between batches -----------------------------------------------------------------

    def seed(self, env_ids: NDArray[np.int32], words: Words) -> None:
        with self._entrance.opened():
            for worker, own, _, rows in self._shares.by_worker(env_ids):
                local_ids = own - np.int32(worker.share.start)
                worker.order("seed", local_ids, np.ascontiguousarray(words[rows]))

    def rebuild(self, env_id: int, phase: int) -> None:
        with self._entrance.opened():
            worker = self._shares.worker_of(env_id)
            if worker.is_dead:
                self._asking.counts.keep(self._workers.index(worker))
                revive(worker)
                self._lines.connect([worker])
            local_id = env_id - worker.share.start
            if self._books.is_lost[env_id]:
                # Its worker's successor has built it: nothing is left to do but to say where it stands.
                self._books.is_lost[env_id] = False
                if phase != Phase.UNSTARTED:
                    worker.order("phase", local_id, int(phase))
            else:
                self._asking.one(env_id, "rebuild", (phase,), "__init__", BUILD_REMEDY)
            self._books.phases[env_id] = phase

    def observe(self) -> Any:
        with self._entrance.opened():
            return self._asking.observe()

    def get_state(self, env_id: int) -> bytes:
        with self._entrance.opened():
            state: bytes = self._asking.state(env_id, "get_state", (), "be saved")
            return state

    def set_state(self, env_id: int, state: bytes) -> None:
        with self._entrance.opened():
            self._asking.state(env_id, "set_state", (state,), "take this state")

    def render(self, env_ids: Sequence[int]) -> list[Any]:
        with self._entrance.opened():
            return self._asking.each(env_ids, "render", (), "render", "mend its render()")

    def call(self, env_ids: Sequence[int], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        with self._entrance.opened():
            details = (name, args, dict(kwargs))
            return self._asking.each(env_ids, "call", details, name, "mend the method, or its arguments")

    def get_attr(self, env_ids: Sequence[int], name: str) -> list[Any]:
        with self._entrance.opened():
            return self._asking.each(env_ids, "get_attr", (name,), f"get_attr({name!r})", "mend the attribute")

    def get_attrs(self, env_id: int) -> dict[str, Any]:
        with self._entrance.opened():
            attributes: dict[str, Any] = self._asking.one(env_id, "get_attrs", (), "get_attrs", "mend the env")
            return attributes

    def set_attrs(self, env_ids: Sequence[int], name: str, values: Sequence[Any]) -> None:
        with self._entrance.opened():
            self._asking.set_attrs(env_ids, name, values)

    # --- what is known ---------------------------------------------------------------------

    def params_of(self, env_id: int) -> Mapping[str, Any]:
        return self._params[env_id if len(self._params) > 1 else 0]

    @property
    def num_in_flight(self) -> int:
        return self._traffic.num_in_flight

    @property
    def has_late_batch(self) -> bool:
        return self._traffic.has_ordered

    def in_flight(self) -> NDArray[np.bool_]:
        return self._traffic.in_flight()

    def phases(self) -> NDArray[np.uint8]:
        phases: NDArray[np.uint8] = self._books.phases.copy()
        return phases

    def broken(self) -> NDArray[np.bool_]:
        """Also those whose worker died while they were idle."""
        with self._entrance.opened():
            self._tower.find_dead(worker for worker in self._workers if not worker.outstanding)
            broken: NDArray[np.bool_] = (self._books.phases == Phase.BROKEN) | self._books.is_lost
            return broken

    def stats(self) -> PoolStats:
        with self._entrance.opened():
            return self._asking.stats()

    @property
    def worker_pids(self) -> list[int]:
        """The process of each actor, in their order; each on its own machine."""
        return [worker.pid for worker in self._workers]

    @property
    def actors(self) -> list[Any]:
        """The handles of the actors, in their order; None for one that died."""
        return [worker.handle for worker in self._workers]

    # --- life ------------------------------------------------------------------------------

    def _end(self) -> list[Warning]:
        texts = self._end_actors()
        _open_executors.discard(self)
        return [RuntimeWarning(text) for text in texts]

    def _end_actors(self) -> list[str]:
        for worker in self._workers:
            worker.hang_up()
        try:
            return end_all(self._workers, _CLOSE_TIMEOUT_S) if self._lease.is_alive else []
        finally:
            self._lease.leave()


@functools.cache
def _close_at_exit() -> None:
    """Registered after Ray's own, so that it runs before: envs are closed while there are actors."""
    atexit.register(_close_all)


def _close_all() -> None:
    for executor in list(_open_executors):
        executor.close()


def _runtime_env(config: PoolConfig) -> dict[str, Any]:
    return {"runtime_env": dict(config.runtime_env)} if config.runtime_env else {}
