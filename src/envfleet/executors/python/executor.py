"""PythonExecutor: the caller's side of an executor of Python envs. Its subclasses decide what runs the envs."""

from __future__ import annotations

import pickle
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from envfleet import _native
from envfleet.core.autoreset import NATIVE_CODES, Phase
from envfleet.core.batch import Batch, Fault, FinalRows
from envfleet.core.errors import EnvError
from envfleet.core.executor import NO_TIMEOUT, REFUSED, PoolBackedExecutor, Refused, all_env_ids
from envfleet.core.infos import merge
from envfleet.core.options import PoolConfig
from envfleet.core.seeding import Words
from envfleet.core.spaces import Leaf, batched_leaf, join, leaf_columns, plain_array_leaf
from envfleet.core.spec import EnvSpec
from envfleet.core.statistics import EnvStats, PoolStats, WorkerStats
from envfleet.core.tracebacks import message_of
from envfleet.core.validation import LeafColumns
from envfleet.executors.env_reports import (
    BUILD_REMEDY,
    EnvCloseWarning,
    EnvStateError,
    NoSuchAttributeError,
    call_remedy,
)
from envfleet.executors.python.info_schema import InfoSchema
from envfleet.executors.python.layout import Layout, native_action_space, read_text
from envfleet.executors.python.runner import ObjectAction, ResetArguments
from envfleet.executors.python.side_channel import SideChannel
from envfleet.executors.python.snapshots import snapshot

# The message of an exception of an env that could not be reported.
_NO_REPORT = "it raised, and its report raised too"


class PythonExecutor(PoolBackedExecutor[_native.PythonPool]):
    """Runs Python envs that write their rows into shared memory."""

    takes_leaves = True

    def __init__(
        self,
        spec: EnvSpec,
        config: PoolConfig,
        params: Sequence[Mapping[str, Any]],
        layout: Layout,
        buffer: NDArray[np.uint8],
        side_channel: SideChannel,
        *,
        may_spin: bool,
        run_inline: Callable[[int], None] | None = None,
        on_overdue: Callable[[int], None] | None = None,
    ) -> None:
        self.spec = spec
        self.num_envs = config.num_envs
        self._layout = layout
        self._columns = layout.columns(buffer)
        self._side_channel = side_channel
        self._params = params
        self._all_ids = all_env_ids(config.num_envs)
        self._is_single = plain_array_leaf(layout.obs_leaves) is not None
        self._is_plain = self._is_single and not layout.has_finals
        self._native = _native.PythonPool(
            buffer=buffer,
            num_envs=config.num_envs,
            num_workers=layout.num_workers,
            batch_size=config.batch_size,
            autoreset=NATIVE_CODES[config.autoreset_mode],
            may_spin=may_spin,
            step_timeout_s=NO_TIMEOUT if config.step_timeout is None else config.step_timeout,
            obs=[column for column in self._columns.obs if column is not None],
            final_obs=[column for column in self._columns.final if column is not None],
            kept=self._columns.kept,
            action=self._columns.action[0] if len(self._columns.action) == 1 else None,
            action_space=native_action_space(layout.action_leaves) if config.check_actions else None,
            info=self._columns.info,
            all_ids=self._all_ids,
            copy=config.copy,
            is_single=self._is_single,
            batch_type=Batch,
            run_inline=run_inline,
            on_overdue=on_overdue,
        )
        # Without a reference to this executor: if Ctrl-C keeps it from reaching a pool, it ends when it is dropped.
        self._info_schema = InfoSchema(partial(_publish, self._native, side_channel))
        self._join_obs = join(layout.observation_space)
        # The leaves without a column of each env's last observation, for observe() and for rows of envs that fail.
        self._keeps_last_obs = config.restarts_envs
        self._last_objects: list[Sequence[Any] | None] = [None] * config.num_envs
        # Envs that died with their worker and that the restarted worker has not built yet.
        self._lost: set[int] = set()
        # Of the faults that the native pool keeps, those that were read, by env id.
        self._faults: dict[int, Fault] = {}
        self.call_guard = self._native.call_guard

    # --- stepping ------------------------------------------------------------------------

    def step(self, actions: Any, env_ids: Any, timeout_s: float) -> Batch | Refused | None:
        if type(actions) is LeafColumns:
            return REFUSED if self.call_guard.needs_attention else self.step_checked(actions, env_ids, timeout_s)
        return self._finished(self._native.step(actions, env_ids, timeout_s))

    def step_checked(self, actions: LeafColumns, env_ids: Any, timeout_s: float) -> Batch | Refused | None:
        if not self._store_actions(actions, env_ids):
            return REFUSED
        return self._finished(self._native.step_stored(env_ids, timeout_s))

    def send(self, actions: Any, env_ids: Any) -> bool:
        if type(actions) is LeafColumns:
            return not self.call_guard.needs_attention and self.send_checked(actions, env_ids)
        return self._native.send(actions, env_ids)

    def send_checked(self, actions: LeafColumns, env_ids: Any) -> bool:
        return self._store_actions(actions, env_ids) and self._native.send_stored(env_ids)

    def recv(self, timeout_s: float) -> Batch | Refused | None:
        return self._finished(self._native.recv(timeout_s))

    def _finished(self, batch: Batch | Literal[False] | None) -> Batch | Refused | None:
        """Return what a native call returned, with a batch in its final form."""
        if type(batch) is not Batch:
            return batch
        if self._is_plain and not batch.faults:
            return batch
        # The native call has kept other threads out until now, if it is not part of a method that does.
        return self._finish(batch) if self.call_guard.is_mine else self.call_guard.run(self._finish, batch)

    def _store_actions(self, leaves: LeafColumns, env_ids: NDArray[np.int32] | None) -> bool:
        """Write checked actions where their envs find them. Returns False if one of these envs is in flight."""
        if not self._native.clear_requests(env_ids):
            return False
        rows = slice(None) if env_ids is None else env_ids
        objects = []
        for column, values in zip(self._columns.action, leaves, strict=True):
            if column is None or isinstance(values, list):
                objects.append(values)
            else:
                column[rows] = values
        if objects:
            for row, env_id in enumerate(self._all_ids if env_ids is None else env_ids):
                self._put_request(int(env_id), [values[row] for values in objects])
        return True

    def step_objects(
        self, actions: Sequence[Any], env_ids: NDArray[np.int32] | None, timeout_s: float
    ) -> Batch | Refused | None:
        self._put_requests(env_ids, [ObjectAction(action) for action in actions])
        return self._finished(self._native.step_stored(env_ids, timeout_s))

    def send_objects(self, actions: Sequence[Any], env_ids: NDArray[np.int32] | None) -> bool:
        self._put_requests(env_ids, [ObjectAction(action) for action in actions])
        return self._native.send_stored(env_ids)

    def reset(self, env_ids: NDArray[np.int32] | None, options: Mapping[str, Any], timeout_s: float) -> Batch | None:
        self._put_options(env_ids, options)
        return self._run_reset(env_ids, timeout_s)

    def send_reset(self, env_ids: NDArray[np.int32] | None, options: Mapping[str, Any]) -> None:
        self._put_options(env_ids, options)
        self._forget_faults(env_ids)
        self._native.send_reset(env_ids)

    def reset_each(
        self, env_ids: NDArray[np.int32] | None, arguments: Sequence[Mapping[str, Any]], timeout_s: float
    ) -> Batch | None:
        self._put_requests(env_ids, [ResetArguments(dict(own)) for own in arguments])
        return self._run_reset(env_ids, timeout_s)

    def send_reset_each(self, env_ids: NDArray[np.int32] | None, arguments: Sequence[Mapping[str, Any]]) -> None:
        self._put_requests(env_ids, [ResetArguments(dict(own)) for own in arguments])
        self._forget_faults(env_ids)
        self._native.send_reset(env_ids)

    def _run_reset(self, env_ids: NDArray[np.int32] | None, timeout_s: float) -> Batch | None:
        self._forget_faults(env_ids)
        batch = self._finished(self._native.reset(env_ids, timeout_s))
        assert batch is not REFUSED, "a reset is accepted or raises"
        return batch

    def _put_options(self, env_ids: NDArray[np.int32] | None, options: Mapping[str, Any]) -> None:
        num_envs = self.num_envs if env_ids is None else len(env_ids)
        self._put_requests(env_ids, [dict(options) if options else None for _ in range(num_envs)])

    def _put_requests(self, env_ids: NDArray[np.int32] | None, requests: Sequence[Any]) -> None:
        """Write one request per env into the side channel; None stands for no request."""
        self._native.clear_requests(env_ids)
        for env_id, request in zip(self._all_ids if env_ids is None else env_ids, requests, strict=True):
            if request is not None:
                self._put_request(int(env_id), request)

    def _put_request(self, env_id: int, request: Any) -> None:
        self._native.set_request_bytes(env_id, self._side_channel.put_request(env_id, request))

    def drop_pending(self, timeout_s: float) -> bool:
        return self._native.drop_pending(timeout_s)

    # --- batches -------------------------------------------------------------------------

    def _finish(self, batch: Any) -> Batch:
        """Complete a batch that has messages or whose observation is not one array; see PythonPool::make_batch()."""
        messages = _Messages(self, batch.faults, len(batch.reward))
        for row, objects in enumerate(messages.obs_objects):
            if objects is not None:
                self._last_objects[batch.env_id[row]] = self._own(objects)
        if self._keeps_last_obs and messages.faults:
            self._restore_last_obs(batch, messages)
        batch.obs = self._obs(batch.obs, messages.obs_objects)
        batch.info = merge(messages.infos, batch.info)
        self._info_schema.learn(messages.infos)
        if batch.final is not None:
            obs, elapsed_step, info = batch.final
            info = merge(messages.final_infos, info)
            self._info_schema.learn(messages.final_infos)
            batch.final = FinalRows(self._obs(obs, messages.final_objects), elapsed_step, info)
        batch.faults = tuple(messages.faults)
        finished: Batch = batch
        return finished

    def _obs(self, stored: Any, objects: Sequence[Sequence[Any] | None]) -> Any:
        """Return the observation of a batch from its columns and the objects in its rows' messages."""
        if self._is_single:
            return stored
        remaining = iter(stored)
        columns = [None if leaf.kind == "object" else _read(leaf, next(remaining)) for leaf in self._layout.obs_leaves]
        return self._join_obs(leaf_columns(self._layout.obs_leaves, columns, objects))

    def _restore_last_obs(self, batch: Any, messages: _Messages) -> None:
        """Complete the rows of envs that failed with their last observations; most have the columns already."""
        for fault in messages.faults:
            row = int(np.flatnonzero(batch.env_id == fault.env_id)[0])
            messages.obs_objects[row] = self._own(self._last_objects[fault.env_id])
            if row in messages.unreadable:
                stored = [column for column in self._columns.obs if column is not None]
                for column, own in zip([batch.obs] if self._is_single else batch.obs, stored, strict=True):
                    column[row] = own[fault.env_id]

    def _own(self, objects: Sequence[Any] | None) -> Sequence[Any] | None:
        """Return the objects of an observation, or copies if they may not change when the caller changes its own."""
        if objects is None or not self._keeps_last_obs:
            return objects
        return [snapshot(value, copies_objects=True) for value in objects]

    def read_row(self, reply: _native.Reply) -> dict[str, Any]:
        """Return the message of a row. If it cannot be read, the row counts as that of an env that raised."""
        method = "reset" if reply.was_reset else "step"
        if reply.is_lost:
            message: dict[str, Any] = {"fault": self.worker_death(reply.env_id, method)}
        else:
            message = self._take_reply(reply, method)
        if "fault" in message:
            if not reply.is_fault:
                self._native.reject_row(reply.env_id)
            self._faults[reply.env_id] = message["fault"]
        return message

    def _take_reply(self, reply: _native.Reply, method: str) -> dict[str, Any]:
        """Return the message that an env sent; if there is none or it cannot be unpickled, one with a fault."""
        if not reply.num_bytes:
            return {"fault": Fault(reply.env_id, method, _NO_REPORT)}
        try:
            message: dict[str, Any] | None = self._side_channel.take_reply(reply.env_id, reply.num_bytes)
        except (Exception, SystemExit) as error:  # what unpickling calls may exit
            self._native.set_phase(reply.env_id, int(Phase.BROKEN))
            what = f"its infos or results cannot be unpickled here: {message_of(error)}; return plain values"
            return {"fault": Fault(reply.env_id, method, what, cause=error)}
        # None: it was taken by a call that was interrupted.
        return message or {"fault": Fault(reply.env_id, method, _NO_REPORT)}

    def unreported_faults(self) -> tuple[Fault, ...]:
        replies = self._native.faults()
        return tuple(self._faults.get(reply.env_id) or self.read_row(reply)["fault"] for reply in replies)

    def _forget_faults(self, env_ids: NDArray[np.int32] | None) -> None:
        """Forget what was read of faults that the native pool forgets in a reset."""
        for env_id in list(self._faults) if env_ids is None else env_ids:
            self._faults.pop(int(env_id), None)

    def clear_faults(self) -> None:
        self._native.clear_faults()
        self._faults.clear()

    @abstractmethod
    def worker_death(self, env_id: int, method: str) -> Fault:
        """Return the fault of an env whose worker died."""

    # --- between batches -----------------------------------------------------------------

    def seed(self, env_ids: NDArray[np.int32], words: Words) -> None:
        self._native.seed(env_ids, words)

    def rebuild(self, env_id: int, phase: int, words: Words | None = None) -> None:
        self._restart_worker(env_id)
        if words is not None:
            self.seed(np.array([env_id], dtype=np.int32), words)  # kept until the next reset
        self._ask([env_id], ("rebuild",), "__init__", BUILD_REMEDY)
        self._lost.discard(env_id)
        self._faults.pop(env_id, None)
        self._native.finish_rebuild(env_id, phase)

    def set_phase(self, env_id: int, phase: int) -> None:
        self._native.set_phase(env_id, phase)

    @abstractmethod
    def _restart_worker(self, env_id: int) -> None:
        """Restart the worker of this env if it died."""

    def broken(self) -> NDArray[np.bool_]:
        """Include idle envs whose worker died."""
        is_dead = [self._native.is_dead(worker) for worker in range(self._layout.num_workers)]
        broken: NDArray[np.bool_] = self.phases() == Phase.BROKEN
        if any(is_dead):
            broken |= np.array([is_dead[self._native.worker_of(i)] for i in range(self.num_envs)])
        broken[list(self._lost)] = True
        return broken

    def observe(self) -> tuple[Any, NDArray[np.int32]]:
        stored = self._native.observe()
        objects = [self._own(own) for own in self._last_objects]
        return self._obs(stored[0] if self._is_single else stored, objects), self._native.elapsed_steps()

    def get_state(self, env_id: int) -> bytes:
        try:
            (state,) = self._ask([env_id], ("save",), "get_state", "fix the env")
        except EnvError as error:
            problem = f"cannot be saved: {error.faults[0].message}"
            raise EnvStateError(env_id, self.spec.id, problem) from error.__cause__
        rows = [None if column is None else column[env_id].copy() for column in self._columns.obs]
        return pickle.dumps((self._native.get_episode(env_id), rows, self._last_objects[env_id], state))

    def set_state(self, env_id: int, state: bytes) -> None:
        try:
            episode, rows, objects, env = pickle.loads(state)
            for column, row in zip(self._columns.obs, rows, strict=True):
                if column is None:
                    continue
                # In native byte order: a pickle does not keep another one.
                expected, got = ((own.shape, own.dtype.newbyteorder("=")) for own in (column[env_id, ...], row))
                if got != expected:
                    raise ValueError(f"expected an observation of shape and dtype {expected}, got {got}")
        except Exception as error:
            problem = f"cannot take this state: it is not the state of such a Python env ({message_of(error)})"
            raise EnvStateError(env_id, self.spec.id, problem) from error
        before = self._native.get_episode(env_id)
        # Until the state is complete: an env that Ctrl-C leaves with half a state must be reset before it is stepped.
        self._native.set_phase(env_id, int(Phase.BROKEN))
        try:
            self._ask([env_id], ("load", env), "set_state", "fix the env")
        except EnvError as error:
            self._native.set_episode(env_id, **before)
            problem = f"cannot take this state: {error.faults[0].message}"
            raise EnvStateError(env_id, self.spec.id, problem) from error.__cause__
        for column, row in zip(self._columns.obs, rows, strict=True):
            if column is not None:
                column[env_id] = row
        self._native.keep_obs(env_id)
        self._last_objects[env_id] = objects
        self._native.set_episode(env_id, **episode)

    def render(self, env_ids: Sequence[int]) -> list[Any]:
        return self._ask(env_ids, ("call", "render", (), {}), "render", "fix its render()")

    def call(self, env_ids: Sequence[int], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        return self._ask(env_ids, ("call", name, args, dict(kwargs)), name, "fix the method or its arguments")

    def get_attr(self, env_ids: Sequence[int], name: str) -> list[Any]:
        return self._ask(env_ids, ("get", name), f"get_attr({name!r})", "fix the attribute")

    def get_attrs(self, env_id: int) -> dict[str, Any]:
        return {}

    def set_attrs(self, env_ids: Sequence[int], name: str, values: Sequence[Any]) -> None:
        requests = [("set", name, value) for value in values]
        self._ask_each(env_ids, requests, f"set_attr({name!r})", "fix the attribute")

    def apply(
        self, env_ids: Sequence[int], function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> list[Any]:
        name = getattr(function, "__name__", type(function).__name__)
        remedy = "fix the function or its arguments"
        return self._ask(env_ids, ("apply", function, args, dict(kwargs)), f"apply({name})", remedy)

    def _ask(self, env_ids: Sequence[int], request: tuple[Any, ...], method: str, remedy: str) -> list[Any]:
        return self._ask_each(env_ids, [request] * len(env_ids), method, remedy)

    def _ask_each(
        self, env_ids: Sequence[int], requests: Sequence[tuple[Any, ...]], method: str, remedy: str
    ) -> list[Any]:
        """Send each env its request and return the results. Raises EnvError if an env raised."""
        if not len(env_ids):
            return []
        ids = np.asarray(env_ids, dtype=np.int32)
        self._put_requests(ids, requests)
        results, faults = [], []
        for reply in self._native.call(ids):
            env_id = reply.env_id
            self._native.set_request_bytes(env_id, 0)
            # A restarted worker has built none of its lost envs, except by the rebuild itself.
            if reply.is_lost or (env_id in self._lost and reply.num_bytes and method != "__init__"):
                faults.append(self.worker_death(env_id, method))
                continue
            message = self._take_reply(reply, method)
            if "fault" not in message:
                results.append(message["value"])
                continue
            fault: Fault = message["fault"]
            if isinstance(fault.cause, NoSuchAttributeError):
                raise AttributeError(*fault.cause.args) from None
            faults.append(replace(fault, method=method))
        if faults:
            raise EnvError.of(tuple(faults), None, call_remedy(faults[0], remedy)) from faults[0].cause
        return results

    # --- status ----------------------------------------------------------------------------

    def stats(self) -> PoolStats:
        envs = tuple(EnvStats(**own) for own in self._native.env_statistics())
        workers = tuple(WorkerStats(*own) for own in self._native.worker_statistics())
        return PoolStats(envs, workers)

    # --- life cycle ------------------------------------------------------------------------

    def _interrupt(self) -> None:
        self._native.interrupt()

    def _end(self) -> list[Warning]:
        self._native.interrupt()
        return [EnvCloseWarning(env_id, message) for env_id, message in self._end_workers()]

    @abstractmethod
    def _end_workers(self) -> list[tuple[int, str]]:
        """Wait for the workers to end, kill those that do not, and return what envs raised in close()."""


def _publish(pool: _native.PythonPool, side_channel: SideChannel, entries: list[Any]) -> None:
    pool.publish_schema(entries, side_channel.put_schema(pool.next_schema_version, entries))


def _read(leaf: Leaf, column: NDArray[Any]) -> Any:
    return column if leaf.kind == "array" else batched_leaf(leaf, [read_text(row) for row in column])


class _Messages:
    """The messages of a batch's rows: faults, infos that fit no column, observations of variable size."""

    def __init__(self, executor: PythonExecutor, replies: Sequence[_native.Reply], num_rows: int) -> None:
        self.infos: list[Mapping[str, Any] | None] = [None] * num_rows
        self.final_infos: list[Mapping[str, Any] | None] = [None] * num_rows
        self.obs_objects: list[Sequence[Any] | None] = [None] * num_rows
        self.final_objects: list[Sequence[Any] | None] = [None] * num_rows
        self.faults: list[Fault] = []
        self.unreadable: list[int] = []  # rows that the worker finished and that are faults all the same
        for reply in replies:
            row, message = reply.row, executor.read_row(reply)
            self.infos[row] = message.get("info")
            self.final_infos[row] = message.get("final_info")
            self.obs_objects[row] = message.get("obs")
            self.final_objects[row] = message.get("final_obs")
            if "fault" in message:
                self.faults.append(message["fault"])
                if not reply.is_fault:
                    self.unreadable.append(row)
