"""RayExecutor: a contiguous share of the envs in each of num_workers actors of a Ray cluster.

Synchronous: a batch is one message to each worker, all under way at once. Asynchronous: each send() is one
message to each worker concerned, and a batch is the rows of the messages that came back first.
"""

from __future__ import annotations

import atexit
import functools
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.autoreset import Deed, Phase, decide
from envfleet.batch import Batch
from envfleet.executors.base import REFUSED, Executor, Refused
from envfleet.executors.ray.actors import BUILD_REMEDY, Making, Worker, end_all, revive, start
from envfleet.executors.ray.asking import Asking
from envfleet.executors.ray.entrance import Entrance
from envfleet.executors.ray.flights import Arrival, BatchMaker, Flight
from envfleet.executors.ray.infos import Rows
from envfleet.executors.ray.messages import RESET, STEP, ActionForm, RowForm
from envfleet.executors.ray.shares import Shares
from envfleet.executors.ray.tower import Tower
from envfleet.executors.rows.portrait import one_portrait
from envfleet.executors.rows.spec_of import SpecMaker
from envfleet.inputs import LeafColumns
from envfleet.ray_cluster import Lease, keep_in_forks
from envfleet.seeding import Words
from envfleet.spec import PoolConfig
from envfleet.statistics import PoolStats

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
            {"scheduling_strategy": "SPREAD", **_runtime_env(config), **(config.ray_options or {})},
            config.placement_timeout,
            config.autoreset_mode,
        )
        keep_in_forks(self)
        self._workers = [Worker(making, share, plan) for share, plan in zip(shares, plans, strict=True)]
        portraits = start(self._workers)
        try:
            # As many times as there are envs, so that an error names the right one.
            portrait = one_portrait([own for own, share in zip(portraits, shares, strict=True) for _ in share])
            self.spec = make_spec(portrait)
        except BaseException:
            self._end()
            raise
        rows = RowForm(portrait.observation_space, config.autoreset_mode is AutoresetMode.SAME_STEP)
        actions = ActionForm(portrait.action_space)
        self._actions = actions
        self._tower = Tower(lease.ray, self._workers, actions, rows, config.step_timeout, config.ray_direct)
        self._batches = BatchMaker(portrait.observation_space, rows)
        self._shares = Shares(self._workers)
        self._asking = Asking(lease.ray, self.spec, self._workers, self._shares, self._tower, rows)
        self._is_in_flight = np.zeros(config.num_envs, dtype=np.bool_)
        self._num_in_flight = 0
        # A batch in order, with the rows where each flight's go; and asynchronous flights, then their rows.
        self._ordered: tuple[NDArray[np.int32], list[tuple[Flight, Rows]]] | None = None
        self._loose: list[Flight] = []
        self._landed: deque[tuple[Arrival, slice]] = deque()
        _close_at_exit()
        _open_executors.add(self)

    # --- stepping ------------------------------------------------------------------------

    def step(self, actions: Any, env_ids: Any, timeout_s: float) -> Batch | Refused | None:
        with self._entrance:
            if self._takes_unchecked(actions, env_ids):
                actions = LeafColumns([actions])
            if type(actions) is not LeafColumns or self._num_in_flight:
                return REFUSED
            self._depart_in_order(STEP, env_ids, actions, None)
            return self._ordered_batch(timeout_s)

    def send(self, actions: Any, env_ids: Any) -> bool:
        with self._entrance:
            if type(actions) is not LeafColumns or (self._num_in_flight and not self._config.is_async):
                return False
            self._depart(STEP, env_ids, actions, None)
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
                decide(self._config.autoreset_mode, Phase(own)) is not Deed.REFUSE for own in set(self._tower.phases)
            )
        )

    def recv(self, timeout_s: float) -> Batch | Refused | None:
        with self._entrance:
            if self._ordered is not None:
                return self._ordered_batch(timeout_s)
            if self._num_in_flight < self._config.batch_size or not self._config.is_async:
                return REFUSED
            return self._first_batch(timeout_s)

    def check_reset_options(self, options: Mapping[str, Any]) -> None:
        if self._check_options is not None:
            self._check_options(options)

    def reset(self, env_ids: NDArray[np.int32] | None, options: Mapping[str, Any], timeout_s: float) -> Batch | None:
        with self._entrance:
            self._depart_in_order(RESET, env_ids, None, options)
            return self._ordered_batch(timeout_s)

    def send_reset(self, env_ids: NDArray[np.int32] | None, options: Mapping[str, Any]) -> None:
        with self._entrance:
            self._depart(RESET, env_ids, None, options)

    def abandon(self, timeout_s: float) -> bool:
        with self._entrance:
            flights = [flight for flight, _ in self._ordered[1]] if self._ordered is not None else []
            if not self._tower.await_all([*flights, *self._loose], _deadline(timeout_s)):
                return False
            self._ordered = None
            self._loose.clear()
            self._landed.clear()
            self._is_in_flight[:] = False
            self._num_in_flight = 0
            return True

    # --- departures ------------------------------------------------------------------------

    def _depart(self, kind: int, env_ids: Any, actions: LeafColumns | None, options: Mapping[str, Any] | None) -> None:
        if not self._config.is_async:
            self._depart_in_order(kind, env_ids, actions, options)
            return
        flights = [flight for flight, _ in self._flights(kind, env_ids, actions, options)]
        self._loose += flights
        self._mark(self._shares.all_ids if env_ids is None else env_ids)
        self._tower.send(flights)

    def _depart_in_order(
        self, kind: int, env_ids: Any, actions: LeafColumns | None, options: Mapping[str, Any] | None
    ) -> None:
        flights = self._flights(kind, env_ids, actions, options)
        ids = self._shares.all_ids if env_ids is None else env_ids
        # Noted before it is sent: after Ctrl-C in between, recv() sends the rest.
        self._ordered = (ids, flights)
        self._mark(ids)
        self._tower.send(flight for flight, _ in flights)

    def _mark(self, env_ids: NDArray[np.int32]) -> None:
        self._is_in_flight[env_ids] = True
        self._num_in_flight += len(env_ids)

    def _flights(
        self, kind: int, env_ids: Any, actions: LeafColumns | None, options: Mapping[str, Any] | None
    ) -> list[tuple[Flight, Rows]]:
        """A message for each worker concerned, and which rows of the batch its rows are."""
        extras = {"options": dict(options)} if options else {}
        made: list[tuple[Flight, Rows]] = []
        for worker, own, is_whole, rows in self._shares.by_worker(env_ids):
            is_lost = self._tower.is_lost[own]
            if is_lost.any():
                # The rows of envs that are no more come back at once, as faults.
                positions = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
                gone = np.ascontiguousarray(own[is_lost])
                made.append((self._tower.lost_flight(worker, gone, kind), positions[is_lost]))
                own, is_whole, rows = np.ascontiguousarray(own[~is_lost]), False, positions[~is_lost]
                if not len(own):
                    continue
            local_ids = None if is_whole else own - np.int32(worker.share.start)
            columns, loose = self._columns(actions, rows)
            mine = {**extras, "actions": loose} if loose else dict(extras)
            made.append((self._tower.prepare(worker, own, local_ids, kind, columns, mine), rows))
        return made

    def _columns(self, actions: LeafColumns | None, rows: Rows) -> tuple[list[NDArray[Any]], list[Any]]:
        if actions is None:
            return [], []
        arrays, loose = [], []
        for leaf, column in zip(self._actions.leaves, actions, strict=True):
            if leaf.kind == "array":
                arrays.append(column[rows])
            else:
                picked = range(rows.start, rows.stop) if isinstance(rows, slice) else rows
                loose.append([column[row] for row in picked])
        return arrays, loose

    # --- arrivals --------------------------------------------------------------------------

    def _ordered_batch(self, timeout_s: float) -> Batch | None:
        assert self._ordered is not None
        env_ids, flights = self._ordered
        if not self._tower.await_all([flight for flight, _ in flights], _deadline(timeout_s)):
            return None
        pieces = [
            (flight.arrival, slice(0, len(flight.env_ids)), rows)
            for flight, rows in flights
            if flight.arrival is not None
        ]
        batch = self._batches.batch(pieces, env_ids)
        self._ordered = None
        self._hand_out(env_ids)
        return batch

    def _first_batch(self, timeout_s: float) -> Batch | None:
        wanted = self._config.batch_size
        deadline = _deadline(timeout_s)
        self._note_landed()
        while (have := sum(rows.stop - rows.start for _, rows in self._landed)) < wanted:
            # As many as it takes at least: after each, the next may already be there.
            largest = max(len(flight.env_ids) for flight in self._loose)
            if not self._tower.await_some(self._loose, -(-(wanted - have) // largest), deadline):
                self._note_landed()
                return None
            self._note_landed()
        pieces, env_ids, filled = [], [], 0
        while filled < wanted:
            arrival, rows = self._landed[0]
            count = min(rows.stop - rows.start, wanted - filled)
            taken = slice(rows.start, rows.start + count)
            pieces.append((arrival, taken, slice(filled, filled + count)))
            env_ids.append(arrival.env_ids[taken])
            filled += count
            if taken.stop == rows.stop:
                self._landed.popleft()
            else:
                self._landed[0] = (arrival, slice(taken.stop, rows.stop))
        ids = np.concatenate(env_ids)
        batch = self._batches.batch(pieces, ids)
        self._hand_out(ids)
        return batch

    def _note_landed(self) -> None:
        for flight in [flight for flight in self._loose if flight.arrival is not None]:
            self._loose.remove(flight)
            assert flight.arrival is not None
            self._landed.append((flight.arrival, slice(0, len(flight.env_ids))))

    def _hand_out(self, env_ids: NDArray[np.int32]) -> None:
        self._is_in_flight[env_ids] = False
        self._num_in_flight -= len(env_ids)

    # --- between batches -----------------------------------------------------------------

    def seed(self, env_ids: NDArray[np.int32], words: Words) -> None:
        with self._entrance:
            for worker, own, _, rows in self._shares.by_worker(env_ids):
                local_ids = own - np.int32(worker.share.start)
                worker.orders.append(("seed", local_ids, np.ascontiguousarray(words[rows])))

    def rebuild(self, env_id: int, phase: int) -> None:
        with self._entrance:
            worker = self._shares.worker_of(env_id)
            if worker.is_dead:
                self._asking.counts.keep(self._workers.index(worker))
                revive(worker)
                self._tower.connect([worker])
            local_id = env_id - worker.share.start
            if self._tower.is_lost[env_id]:
                # Its worker's successor has built it: nothing is left to do but to say where it stands.
                self._tower.is_lost[env_id] = False
                if phase != Phase.UNSTARTED:
                    worker.orders.append(("phase", local_id, int(phase)))
            else:
                self._asking.one(env_id, "rebuild", (phase,), "__init__", BUILD_REMEDY)
            self._tower.phases[env_id] = phase

    def observe(self) -> Any:
        with self._entrance:
            return self._asking.observe()

    def get_state(self, env_id: int) -> bytes:
        with self._entrance:
            state: bytes = self._asking.state(env_id, "get_state", (), "be saved")
            return state

    def set_state(self, env_id: int, state: bytes) -> None:
        with self._entrance:
            self._asking.state(env_id, "set_state", (state,), "take this state")

    def render(self, env_ids: Sequence[int]) -> list[Any]:
        with self._entrance:
            return self._asking.each(env_ids, "render", (), "render", "mend its render()")

    def call(self, env_ids: Sequence[int], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        with self._entrance:
            details = (name, args, dict(kwargs))
            return self._asking.each(env_ids, "call", details, name, "mend the method, or its arguments")

    def get_attr(self, env_ids: Sequence[int], name: str) -> list[Any]:
        with self._entrance:
            return self._asking.each(env_ids, "get_attr", (name,), f"get_attr({name!r})", "mend the attribute")

    def get_attrs(self, env_id: int) -> dict[str, Any]:
        with self._entrance:
            attributes: dict[str, Any] = self._asking.one(env_id, "get_attrs", (), "get_attrs", "mend the env")
            return attributes

    def set_attrs(self, env_ids: Sequence[int], name: str, values: Sequence[Any]) -> None:
        with self._entrance:
            self._asking.set_attrs(env_ids, name, values)

    # --- what is known ---------------------------------------------------------------------

    def params_of(self, env_id: int) -> Mapping[str, Any]:
        return self._params[env_id if len(self._params) > 1 else 0]

    @property
    def num_in_flight(self) -> int:
        return self._num_in_flight

    @property
    def has_late_batch(self) -> bool:
        return self._ordered is not None

    def in_flight(self) -> NDArray[np.bool_]:
        in_flight: NDArray[np.bool_] = self._is_in_flight.copy()
        return in_flight

    def phases(self) -> NDArray[np.uint8]:
        phases: NDArray[np.uint8] = self._tower.phases.copy()
        return phases

    def broken(self) -> NDArray[np.bool_]:
        """Also those whose worker died while they were idle."""
        with self._entrance:
            self._tower.find_dead(worker for worker in self._workers if not worker.outstanding)
            broken: NDArray[np.bool_] = (self._tower.phases == Phase.BROKEN) | self._tower.is_lost
            return broken

    def stats(self) -> PoolStats:
        with self._entrance:
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

    def close(self) -> None:
        if not self._entrance.close(_CLOSE_TIMEOUT_S):
            return
        _open_executors.discard(self)
        for text in self._end():
            warnings.warn(text, RuntimeWarning, stacklevel=3)

    def _end(self) -> list[str]:
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


def _deadline(timeout_s: float) -> float | None:
    return None if timeout_s < 0 else time.monotonic() + timeout_s
