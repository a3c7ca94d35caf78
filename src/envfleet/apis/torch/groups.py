"""The groups of a TorchPool as one: their pools, the step that is pending, and their rows and errors, joined."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import operator
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet import _native
from envfleet.apis.common.torch_transfer import Tensors
from envfleet.apis.torch.group import StaticTensors, Step, TorchGroup
from envfleet.building.pools import make_pool
from envfleet.core.batch import Batch, Fault, FinalRows
from envfleet.core.errors import (
    CallOrderError,
    ConfigError,
    EnvError,
    EnvfleetError,
    InputError,
    PoolClosedError,
    RecvTimeout,
)
from envfleet.core.infos import merge, spread_rows, value_as_given, value_keys
from envfleet.core.pool import Pool, timeout_seconds
from envfleet.core.seeding import Seed, seeds_for
from envfleet.core.spaces import join, split

_NO_ROWS: NDArray[np.int32] = np.zeros(0, np.int32)
_GRACE_S = 1.0  # how long an interrupted step may take to finish


class JoinedGroups:
    """Groups that are reset and stepped together. One caller at a time.

    A step() that times out stays pending: recv() returns the rows. One that is interrupted leaves all groups done, or
    all of them interrupted, as that of a single pool.
    """

    def __init__(self, groups: Sequence[TorchGroup], static: StaticTensors | None) -> None:
        """static: what the rows of every call are copied into, if the caller wants the same tensors each time."""
        self._groups = groups
        self._static = static
        *firsts, _ = itertools.accumulate((group.num_envs for group in groups), initial=0)
        self._rows = [slice(first, first + group.num_envs) for first, group in zip(firsts, groups, strict=True)]
        self._num_envs = sum(group.num_envs for group in groups)
        pool = groups[0].pool
        self._split_obs = split(pool.spec.observation_space, "obs")
        self._join_obs = join(pool.spec.observation_space)
        self._has_finals = pool.config.autoreset_mode is AutoresetMode.SAME_STEP
        self._guard = _native.CallGuard()
        self._pending: _PendingStep | None = None

    def reset(self, seed: Seed, options: Mapping[str, Any] | None) -> tuple[Tensors, dict[str, Any]]:
        """Reset all envs and return their observations and infos; a pending step is dropped."""
        return self._guard.run(self._reset, seed, options)

    def _reset(self, seed: Seed, options: Mapping[str, Any] | None) -> tuple[Tensors, dict[str, Any]]:
        seeds = split_seeds(seed, [group.num_envs for group in self._groups])
        # Dropped before the first group is reset: recv() must not take first rows for those of the step.
        pending, self._pending = self._pending, None
        results: list[Batch | EnvError] = []
        steps: list[Step] = []
        self._guard.begin_parts()
        for group, own in zip(self._groups, seeds, strict=True):
            try:
                batch = group.reset_batch(seed=own, options=options)
            except EnvError as error:  # the other groups still have their rows
                results.append(error)
                continue
            except (InputError, CallOrderError):
                if not results:  # no env has moved
                    self._pending = pending
                raise
            results.append(batch)
            steps.append(group.tensors(batch))
        self._guard.is_interrupted = False
        self._guard.end_parts()
        obs, _, _, _, info = self._joined(results, steps)
        return obs, info

    def step(self, actions: Tensors, timeout: float | None) -> Step:
        """Step all envs."""
        return self._guard.run(self._step, actions, timeout)

    def _step(self, actions: Tensors, timeout: float | None) -> Step:
        # Everything is checked before the envs of the first group move.
        timeout_seconds(timeout)
        self._check_can_go_on()
        if self._pending is not None:
            raise CallOrderError("step() expected no batch in flight; recv() it first, or reset() all envs")
        columns = self._groups[0].checked_columns(actions, self._num_envs)
        for position, group in enumerate(self._groups):
            try:
                group.pool.check_can_step("step()")
            except CallOrderError as error:
                raise self._refusal(position, error) from None
        self._guard.begin_parts()
        for group, rows in zip(self._groups, self._rows, strict=True):
            group.send_columns([column[rows] for column in columns])
        self._pending = _PendingStep(len(self._groups))
        late = "step() did not finish within {} s; recv() returns it when it does"
        try:
            return self._finish(self._pending, late, timeout)
        except EnvfleetError:
            raise
        except BaseException:
            self._drop_step()
            raise

    def _drop_step(self) -> None:
        """Let the groups finish an interrupted step, for at most a second, and drop its rows.

        If they do not, or if an env raised, the end of the call leaves them interrupted.
        """
        assert self._pending is not None
        with contextlib.suppress(EnvfleetError):
            self._finish(self._pending, "", _GRACE_S)
            self._guard.end_parts()

    def recv(self, timeout: float | None) -> Step:
        """Return the rows of the pending step."""
        return self._guard.run(self._recv, timeout)

    def _recv(self, timeout: float | None) -> Step:
        timeout_seconds(timeout)
        self._check_can_go_on()
        pending = self._pending
        if pending is None:
            raise CallOrderError(
                "recv() expected a step() that timed out, got none; to receive what one group was sent, call recv() on "
                "that one of envs.groups"
            )
        return self._finish(pending, "recv() got no batch within {} s; the next recv() returns the late rows", timeout)

    def _check_can_go_on(self) -> None:
        if self._groups[0].pool.closed:
            raise PoolClosedError("this pool is closed; make a new one")
        if self._guard.is_interrupted:
            raise CallOrderError(
                "expected groups whose last call ended, got some that were interrupted; reset() all envs first"
            )

    def _refusal(self, position: int, error: CallOrderError) -> CallOrderError:
        """Return what step() raises if this group refuses a step, with ids of the whole pool."""
        pool, rows = self._groups[position].pool, self._rows[position]
        try:
            pool.check_can_step("step()", [])
        except CallOrderError as general:  # this concerns no single env
            if not pool.num_in_flight:
                return general
            return CallOrderError(
                f"step() expected no batch in flight, got envs {rows.start} to {rows.stop - 1} in flight; call "
                f"envs.groups[{position}].recv(), or reset() all envs"
            )
        for env_id in range(pool.num_envs):
            try:
                pool.check_can_step("step()", [env_id])
            except CallOrderError:
                return CallOrderError(
                    f"step() expected envs that can be stepped, env {rows.start + env_id} must be reset first: it was "
                    "never reset, it raised, or its episode has ended and autoreset_mode is disabled; call reset(), or "
                    f"envs.groups[{position}].reset([{env_id}])"
                )
        return error

    # --- a step, from its actions to its rows ----------------------------------------------------

    def _finish(self, pending: _PendingStep, late: str, timeout: float | None) -> Step:
        """Receive what is left of a step, and return the rows of all groups. late: says that time is up."""
        end = time.monotonic() + timeout_seconds(timeout)
        for position, group in enumerate(self._groups):
            if pending.results[position] is None:
                left = None if timeout is None else max(end - time.monotonic(), 0.0)
                try:
                    pending.results[position] = group.pool.recv(left)
                except EnvError as error:  # the other groups still have their rows
                    pending.results[position] = error
                except RecvTimeout:
                    raise RecvTimeout(late.format(timeout)) from None
                except CallOrderError as error:
                    if type(error) is not CallOrderError or group.pool.num_in_flight:
                        raise
                    pending.results[position] = error
            result = pending.results[position]
            if pending.steps[position] is None and isinstance(result, Batch):
                pending.steps[position] = group.tensors(result)
        for result, rows in zip(pending.results, self._rows, strict=True):
            if isinstance(result, CallOrderError):
                self._pending = None
                raise CallOrderError(
                    f"recv() expected the rows of all groups, got none of envs {rows.start} to {rows.stop - 1}: "
                    "their group has returned them; call step() or reset()"
                )
        try:
            step = self._joined(pending.results, [own for own in pending.steps if own is not None])
        except EnvError:
            self._pending = None
            raise
        self._pending = None
        return step

    # --- the rows of all groups ------------------------------------------------------------------

    def _joined(self, results: Sequence[Batch | EnvError], steps: Sequence[Step]) -> Step:
        """Return the steps of all groups as one. Raises EnvError with all their rows if an env raised."""
        failed = [result for result in results if isinstance(result, EnvError)]
        if failed:
            raise self._joined_error(results, failed[0]) from failed[0].__cause__
        infos = [
            {**info, "env_id": info["env_id"] + own.start} for (*_, info), own in zip(steps, self._rows, strict=True)
        ]
        finals = [info.pop("final_obs") for info in infos] if self._has_finals else []
        info = _join_infos(infos, [group.num_envs for group in self._groups])
        if finals:
            info["final_obs"] = self._joined_obs(finals)
        reward, terminated, truncated = (torch.cat([step[column] for step in steps]) for column in (1, 2, 3))
        obs = self._joined_obs([step[0] for step in steps])
        step = obs, reward, terminated, truncated, self._groups[0].with_info_tensors(info)
        return step if self._static is None else self._static.store(step, self._num_envs)

    def _joined_error(self, results: Sequence[Batch | EnvError], first: EnvError) -> EnvError:
        """Return the errors of all groups as one, with the rows that any group has, on the host."""
        found: list[Fault] = []
        batches, env_ids = [], []
        for result, rows in zip(results, self._rows, strict=True):
            batch = result.batch if isinstance(result, EnvError) else result
            if isinstance(result, EnvError):  # the faults of the others were handled by a restart
                found += [dataclasses.replace(fault, env_id=fault.env_id + rows.start) for fault in result.faults]
            if batch is not None:
                batches.append(batch)
                env_ids.append(batch.env_id + rows.start)
        faults = tuple(found)
        # A message tells the faults first; the rest is the remedy.
        remedy = str(first).removeprefix(str(EnvError.of(first.faults, None, "")))
        if not batches:
            return EnvError.of(faults, None, remedy)
        sizes = [len(batch) for batch in batches]
        finals = [batch.final for batch in batches if batch.final is not None]
        joined = Batch(
            self._joined_obs([batch.obs for batch in batches]),
            np.concatenate([batch.reward for batch in batches]),
            np.concatenate([batch.terminated for batch in batches]),
            np.concatenate([batch.truncated for batch in batches]),
            np.concatenate(env_ids),
            np.concatenate([batch.elapsed_step for batch in batches]),
            _join_infos([batch.info for batch in batches], sizes),
            FinalRows(
                self._joined_obs([final.obs for final in finals]),
                np.concatenate([final.elapsed_step for final in finals]),
                _join_infos([final.info for final in finals], sizes),
            )
            if self._has_finals
            else None,
            faults,
        )
        return EnvError.of(faults, joined, remedy)

    def _joined_obs(self, observations: Sequence[Any]) -> Any:
        leaves = zip(*map(self._split_obs, observations), strict=True)
        return self._join_obs([_concatenate(parts) for parts in leaves])


class _PendingStep:
    """A step of all groups: what was received of each.

    results: a batch, the error of envs that raised, or a CallOrderError if the group had no rows to receive.
    """

    def __init__(self, num_groups: int) -> None:
        self.results: list[Any] = [None] * num_groups
        self.steps: list[Step | None] = [None] * num_groups


def _join_infos(infos: Sequence[Mapping[str, Any]], sizes: Sequence[int]) -> dict[str, Any]:
    """Join infos row by row, into what one pool would return for these rows."""
    joined: dict[str, Any] = {}
    keys = dict.fromkeys(key for info in infos for key in value_keys(info))
    for key in value_keys(keys):  # the mask of one group's column replaces another group's own "_key"
        columns = [info.get(key) for info in infos]
        masks = [key in info and info.get(f"_{key}", True) for info in infos]
        if all(column is None or isinstance(column, dict) for column in columns):
            joined[key] = _join_infos([column or {} for column in columns], sizes)
        else:
            joined[key] = _join_columns(key, columns, masks, sizes)
        if any(mask is not True for mask in masks):
            joined[f"_{key}"] = _join_masks(masks, sizes)
    return joined


def _join_columns(key: Any, columns: Sequence[Any], masks: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Join the columns of a key; None stands for no values."""
    present = [column for column in columns if column is not None]
    if not any(isinstance(column, dict) for column in present):
        forms = {(type(column), column.dtype, column.shape[1:]) for column in present}
        if len(forms) == 1:
            own = zip(columns, sizes, strict=True)
            return _concatenate([_blank(present[0], size) if column is None else column for column, size in own])
    # What does not fit together is merged as if one pool had received it.
    rows: list[dict[Any, Any] | None] = []
    for column, mask, size in zip(columns, masks, sizes, strict=True):
        column, has_value = _on_host(column), np.broadcast_to(_on_host(mask), size)
        rows += [{key: _as_given(column, row)} if has_value[row] else None for row in range(size)]
    return merge(rows).get(key, np.full(len(rows), None, dtype=object))


def _as_given(column: Any, row: int) -> Any:
    """Return a value of a column, which may be a dict of columns, as the env gave it."""
    if isinstance(column, dict):
        keys = [key for key in value_keys(column) if f"_{key}" not in column or column[f"_{key}"][row]]
        return {key: _as_given(column[key], row) for key in keys}
    value = value_as_given(column, row)
    # A view of rows that the next step may overwrite.
    return value.copy() if column.ndim > 1 else value


def _join_masks(masks: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Join masks, of which True and False stand for whole groups."""
    like = next((mask for mask in masks if isinstance(mask, torch.Tensor)), None)
    own = zip(masks, sizes, strict=True)
    if like is None:
        return np.concatenate([np.broadcast_to(mask, size) for mask, size in own])
    return torch.cat([like.new_full((size,), mask) if isinstance(mask, bool) else mask for mask, size in own])


def _blank(like: Any, size: int) -> Any:
    """Return rows without values for a column like this one."""
    if isinstance(like, torch.Tensor):
        return like.new_zeros((size, *like.shape[1:]))
    return spread_rows({"": like[:0]}, _NO_ROWS, size)[""]


def _on_host(column: Any) -> Any:
    if isinstance(column, dict):
        return {key: _on_host(own) for key, own in column.items()}
    return column.cpu().numpy() if isinstance(column, torch.Tensor) else column


def _concatenate(parts: Sequence[Any]) -> Any:
    """Concatenate tensors, arrays, or the tuples of leaves that are neither."""
    if isinstance(parts[0], torch.Tensor):
        return torch.cat(tuple(parts))
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else sum(parts, ())


# --- the pools of the groups ----------------------------------------------------------------------


def make_pools(env: Any, num_groups: int, on_gpu: bool, options: Mapping[str, Any]) -> list[Pool]:
    """Return one pool per group, or the pool that was given."""
    if isinstance(env, Pool):
        if options or num_groups != 1:
            raise ConfigError(
                "TorchPool expected a pool without further options and num_groups=1, got "
                f"{sorted(options) or num_groups}; pass the env's id or class to have the pool made"
            )
        return [env]
    # On a GPU the rows are copied from where the workers wrote them, and the workers wait for that.
    defaults = {"copy": False} if on_gpu else {}
    num_envs: Any = options.get("num_envs")
    if num_envs is None:
        num_envs = len(env) if isinstance(env, (list, tuple)) else 1
    # 0: a wrong num_envs, and make_pool() says what it expects.
    total, count = max(_integer(num_envs) or 0, 0), _integer(num_groups)
    if count is None or count < 1 or 0 < total < count:
        raise ConfigError(f"num_groups expected an integer from 1 to num_envs={num_envs}, got {num_groups!r}")
    if count == 1 or not total:
        return [make_pool(env, **{**defaults, **options})]
    for name in ("batch_size", "env_kwargs"):
        if isinstance(options.get(name), (int, np.integer, list, tuple)) and options.get(name):
            raise ConfigError(f"num_groups={count} expected no {name}, got {options[name]!r}; leave one of them out")
    firsts = [total * group // count for group in range(count + 1)]
    seeds = split_seeds(options.get("seed"), np.diff(firsts).tolist())
    pools: list[Pool] = []
    try:
        for first, end, seed in zip(firsts[:-1], firsts[1:], seeds, strict=True):
            own = list(env[first:end]) if isinstance(env, (list, tuple)) else env
            pools.append(make_pool(own, **{**defaults, **options, "num_envs": end - first, "seed": seed}))
    except BaseException:
        for pool in pools:
            pool.close()
        raise
    return pools


def _integer(value: Any) -> int | None:
    """Return an integer of any type as an int, None for anything else."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def split_seeds(seed: Seed, sizes: Sequence[int]) -> list[Any]:
    """Return the seeds of each group: env i of the whole has the seed that it has in one pool."""
    if seed is None or len(sizes) == 1:
        return [seed] * len(sizes)
    num_envs = sum(sizes)
    seeds = seeds_for(seed, np.arange(num_envs, dtype=np.int32), num_envs)
    ends = np.cumsum(sizes).tolist()
    return [seeds[end - size : end] for size, end in zip(sizes, ends, strict=True)]
