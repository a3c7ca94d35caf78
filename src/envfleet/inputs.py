"""The slow look at a call's input: convert what can be taken, explain what cannot.

An executor takes plainly right input without asking. Whatever it does not take comes here,
is checked in full against what the pool is doing, and leaves as arrays in canonical form,
or as an exception that says what was expected, what came, which env, and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.autoreset import Deed, Phase, decide
from envfleet.errors import ActionError, CallOrderError, EnvIdError

if TYPE_CHECKING:
    from envfleet.executors.base import Executor
    from envfleet.spec import PoolConfig


def check_env_ids(call: str, env_ids: Any, executor: Executor) -> NDArray[np.int32]:
    """Env ids as a contiguous int32 array: integers, in range, distinct, idle."""
    num_envs = executor.num_envs
    try:
        given = np.asarray(env_ids)
    except Exception as error:
        raise EnvIdError(f"{call} expected env_id as an array of integers, got {type(env_ids).__name__}") from error
    if given.ndim != 1 or given.size == 0:
        raise EnvIdError(f"{call} expected env_id of shape (rows,) with at least one row, got shape {given.shape}")
    if given.dtype.kind not in "iu":
        raise EnvIdError(f"{call} expected integer env_id, got dtype {given.dtype}; pass info['env_id'] as it came")
    outside = np.flatnonzero((given < 0) | (given >= num_envs))
    if outside.size:
        row = int(outside[0])
        raise EnvIdError(f"{call} expected env_id from 0 to {num_envs - 1}, got {given[row]} in row {row}")
    ids = np.require(given, np.int32, ["C", "A"])
    values, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        repeated = int(values[counts > 1][0])
        raise EnvIdError(f"{call} expected each env once, got env {repeated} {counts.max()} times; drop the repeats")
    busy = np.flatnonzero(executor.in_flight()[ids])
    if busy.size:
        raise EnvIdError(
            f"{call} expected idle envs, got env {ids[int(busy[0])]}, which is in flight; recv() its row first"
        )
    return ids


def check_step(
    call: str, actions: Any, env_ids: Any, executor: Executor, config: PoolConfig
) -> tuple[Any, NDArray[np.int32] | None]:
    """Canonical (actions, env_ids) of a step or send; env_ids None stands for all envs."""
    if executor.num_in_flight and not config.is_async:
        raise CallOrderError(f"{call} came while a batch is in flight; recv() it first")
    ids = None if env_ids is None else check_env_ids(call, env_ids, executor)
    if ids is None and executor.num_in_flight:
        raise EnvIdError(
            f"{call} on an asynchronous pool expected env_id, got none while {executor.num_in_flight} envs are in "
            "flight; pass env_id=info['env_id'] of the batch that the actions answer"
        )
    rows = executor.num_envs if ids is None else len(ids)
    if ids is None and config.is_async and np.ndim(actions) > 0 and len(actions) == config.batch_size:
        raise EnvIdError(
            f"{call} on an asynchronous pool got {config.batch_size} actions and no env_id; "
            "pass env_id=info['env_id'] of the batch that they answer"
        )
    canonical = check_actions(call, actions, executor.spec.action_space, rows, ids)
    _check_phases(call, ids, executor, config)
    return canonical, ids


def _check_phases(call: str, ids: NDArray[np.int32] | None, executor: Executor, config: PoolConfig) -> None:
    phases = executor.phases()
    asked = phases if ids is None else phases[ids]
    for phase in Phase:
        if decide(config.autoreset_mode, phase) is not Deed.REFUSE:
            continue
        where = np.flatnonzero(asked == phase)
        if not where.size:
            continue
        env_id = int(where[0] if ids is None else ids[where[0]])
        if phase is Phase.UNSTARTED:
            raise CallOrderError(f"{call} expected envs that were reset, env {env_id} was not; call reset() first")
        if phase is Phase.BROKEN:
            raise CallOrderError(
                f"{call} expected working envs, env {env_id} raised earlier and awaits its reset; "
                f"call reset(env_id=[{env_id}]), which rebuilds it"
            )
        raise CallOrderError(
            f"{call} expected running episodes, that of env {env_id} has ended and autoreset_mode is disabled; "
            f"reset it first: reset(options={{'reset_mask': terminated | truncated}})"
        )


def check_actions(
    call: str, actions: Any, space: gymnasium.Space[Any], rows: int, ids: NDArray[np.int32] | None
) -> NDArray[Any]:
    """A contiguous array of shape (rows, *space.shape) within the space, in its dtype."""
    try:
        given = np.asarray(actions)
    except Exception as error:
        raise ActionError(f"{call} expected actions as an array, got {type(actions).__name__}: {error}") from error
    want = (rows, *(space.shape or ()))
    if given.shape != want:
        hint = "pass one row for each env" if ids is None else "pass one row for each env_id"
        raise ActionError(f"{call} expected actions of shape {want}, got {given.shape}; {hint}")
    if isinstance(space, spaces.Box):
        if given.dtype.kind not in ("iuf" if np.issubdtype(space.dtype, np.floating) else "iu"):
            raise ActionError(f"{call} expected actions of dtype {space.dtype}, got {given.dtype}; convert them")
    elif given.dtype.kind not in "iu":
        raise ActionError(
            f"{call} expected integer actions for {space}, got dtype {given.dtype}; convert them, "
            "for example with actions.astype(int)"
        )
    bad = _first_outside(given, space)
    if bad is not None:
        env_id = bad[0] if ids is None else int(ids[bad[0]])
        raise ActionError(
            f"{call} expected actions of {_range_of(space, bad[1:])}, got {given[bad]} for env {env_id} "
            f"(index {tuple(bad)}); {'clip it with np.clip' if isinstance(space, spaces.Box) else 'mind the range'}"
        )
    return np.require(given, space.dtype, ["C", "A"])


def _first_outside(given: NDArray[Any], space: gymnasium.Space[Any]) -> tuple[int, ...] | None:
    """The index of the first element outside the space, NaN included."""
    if isinstance(space, spaces.Discrete):
        inside = (given >= space.start) & (given < space.start + space.n)
    elif isinstance(space, spaces.MultiDiscrete):
        inside = (given >= space.start) & (given < space.start + space.nvec)
    elif isinstance(space, spaces.MultiBinary):
        inside = (given == 0) | (given == 1)
    elif isinstance(space, spaces.Box):
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = given.astype(space.dtype)
        inside = (rounded >= space.low) & (rounded <= space.high)
        if given.dtype.kind in "iu":
            inside &= rounded == given
    else:
        raise ActionError(f"expected a Box, Discrete, MultiDiscrete or MultiBinary action space, got {space}")
    if inside.all():
        return None
    return tuple(int(index) for index in np.argwhere(~inside)[0])


def _range_of(space: gymnasium.Space[Any], element: tuple[int, ...]) -> str:
    if isinstance(space, spaces.Discrete):
        return f"{space} (from {space.start} to {space.start + space.n - 1})"
    if isinstance(space, spaces.MultiDiscrete):
        return f"{space} (here from {space.start[element]} to {space.start[element] + space.nvec[element] - 1})"
    if isinstance(space, spaces.Box):
        return f"a Box (here from {space.low[element]} to {space.high[element]}, no NaN)"
    return str(space)
