"""The complete check of a call's input: converts what can be accepted and explains what cannot.

Executors accept input in canonical form directly. Everything else is checked here against the state of the pool and
becomes columns in canonical form, or an exception that says what was expected, what was passed, for which env, and
what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.core.autoreset import Phase, StepRule, step_rule
from envfleet.core.errors import ActionError, CallOrderError, EnvIdError, short_repr
from envfleet.core.spaces import Leaf, leaves_of, path_text, plain_array_leaf, split

if TYPE_CHECKING:
    from envfleet.core.executor import Executor
    from envfleet.core.options import PoolConfig


# What numpy, another library's __array__() and a space's contains() raise for a wrong value. Not every Exception: one
# that a signal handler raises in the middle of a check, such as a timeout, says nothing about the caller's values.
_WRONG_VALUE_ERRORS = (
    *(TypeError, ValueError, ArithmeticError, LookupError),
    *(AttributeError, AssertionError, BufferError, RuntimeError),
)


class LeafColumns(list[Any]):
    """Checked actions: one column per leaf of the action space."""


def check_env_ids(call: str, env_ids: Any, executor: Executor) -> NDArray[np.int32]:
    """Return env ids as a contiguous int32 array. Raises EnvIdError unless they are in range, distinct and idle."""
    ids = _known_ids(call, env_ids, executor.num_envs)
    busy = np.flatnonzero(executor.in_flight()[ids])
    if busy.size:
        raise EnvIdError(
            f"{call} expected idle envs, got env {ids[int(busy[0])]}, which is in flight; recv() its row first"
        )
    return ids


def check_env_id(call: str, env_id: Any, num_envs: int) -> int:
    """Return one env id as an int. Raises EnvIdError unless it is in range; the env need not be idle."""
    return int(_known_ids(call, [env_id], num_envs)[0])


def _known_ids(call: str, env_ids: Any, num_envs: int) -> NDArray[np.int32]:
    try:
        given = np.asarray(env_ids)
    except _WRONG_VALUE_ERRORS as error:
        raise EnvIdError(f"{call} expected env ids as an array of integers, got {type(env_ids).__name__}") from error
    if given.ndim != 1:
        hint = "; to seed the envs, write reset(seed=...)" if call == "reset()" and given.ndim == 0 else ""
        raise EnvIdError(f"{call} expected env ids of shape (rows,), got shape {given.shape}{hint}")
    if given.size == 0:  # of any dtype: np.asarray([]) is float64
        return np.zeros(0, dtype=np.int32)
    if given.dtype.kind not in "iu":
        raise EnvIdError(f"{call} expected integer env ids, got dtype {given.dtype}; pass those of a batch unchanged")
    outside = np.flatnonzero((given < 0) | (given >= num_envs))
    if outside.size:
        row = int(outside[0])
        raise EnvIdError(f"{call} expected env ids from 0 to {num_envs - 1}, got {given[row]} in row {row}")
    ids = np.require(given, np.int32, ["C", "A"])
    counts = np.bincount(ids)
    if counts.max() > 1:
        repeated = int(np.argmax(counts > 1))
        raise EnvIdError(f"{call} expected each env once, got env {repeated} {counts.max()} times; drop duplicates")
    return ids


def check_step(
    call: str, actions: Any, env_ids: Any, executor: Executor, config: PoolConfig
) -> tuple[Any, NDArray[np.int32] | None]:
    """Return (actions, env_ids) of a step or send in canonical form; env_ids None stands for all envs."""
    ids = _check_not_in_flight(call, env_ids, executor, config)
    rows = executor.num_envs if ids is None else len(ids)
    space = executor.spec.action_space
    if ids is None and config.is_async and _rows_in(actions, space) == config.batch_size:
        raise EnvIdError(
            f"{call} on an asynchronous pool got {config.batch_size} actions and no env ids; "
            "pass the env ids of the batch that they belong to, such as info['env_id']"
        )
    canonical = check_actions(call, actions, space, rows, ids)
    if executor.takes_leaves:
        canonical = LeafColumns(canonical if isinstance(canonical, list) else [canonical])
    _check_phases(call, ids, executor, config)
    return canonical, ids


def check_can_step(call: str, env_ids: Any, executor: Executor, config: PoolConfig) -> NDArray[np.int32] | None:
    """Return the env ids of a step, None for all. Raises unless these envs are idle and may be stepped."""
    ids = _check_not_in_flight(call, env_ids, executor, config)
    _check_phases(call, ids, executor, config)
    return ids


def _check_not_in_flight(call: str, env_ids: Any, executor: Executor, config: PoolConfig) -> NDArray[np.int32] | None:
    if executor.num_in_flight and not config.is_async:
        raise CallOrderError(f"{call} expected no batch in flight; recv() it first, or reset() all envs")
    ids = None if env_ids is None else check_env_ids(call, env_ids, executor)
    if ids is None and executor.num_in_flight:
        raise EnvIdError(
            f"{call} on an asynchronous pool expected env ids, got none while {executor.num_in_flight} envs are in "
            "flight; pass those of the batch that the actions belong to, such as info['env_id']"
        )
    return ids


def _check_phases(call: str, ids: NDArray[np.int32] | None, executor: Executor, config: PoolConfig) -> None:
    phases = executor.phases()
    asked = phases if ids is None else phases[ids]
    for phase in Phase:
        if step_rule(config.autoreset_mode, phase) is not StepRule.REFUSE:
            continue
        # As an int: for an enum, numpy runs Python code, and drops what a signal handler raises there.
        where = np.flatnonzero(asked == int(phase))
        if not where.size:
            continue
        env_id = int(where[0] if ids is None else ids[where[0]])
        if phase is Phase.UNSTARTED:
            raise CallOrderError(f"{call} expected envs that were reset, env {env_id} was not; call reset() first")
        if phase is Phase.BROKEN:
            raise CallOrderError(
                f"{call} expected working envs, env {env_id} raised earlier and must be reset; "
                f"call reset([{env_id}]) or reset(), which rebuilds it"
            )
        raise CallOrderError(
            f"{call} expected running episodes, the one of env {env_id} has ended and autoreset_mode is disabled; "
            "reset it first; reset() of a VectorEnv takes options={'reset_mask': terminated | truncated}"
        )


def check_actions(
    call: str, actions: Any, space: gymnasium.Space[Any], rows: int, ids: NDArray[np.int32] | None
) -> NDArray[Any] | list[Any]:
    """Return actions in canonical form. Raises ActionError unless all are elements of the space.

    For Box, Discrete, MultiDiscrete and MultiBinary: a contiguous array of shape (rows, *space.shape) and the space's
    dtype. For every other space: a list of columns, one per leaf in the order of leaves_of; such an array for an
    array leaf, a list of `rows` values for a text or object leaf.

    Nested actions have the batched structure, dicts and tuples of columns. Otherwise a list of `rows` single actions
    is accepted too. Only structure and shapes decide which of the two it is, never the values, so that the same
    program is never interpreted in two ways.
    """
    form = _form_of(_Identity(space))
    if form.plain_leaf is not None:
        return _check_array(call, "actions", actions, form.plain_leaf, rows, ids)
    columns, name = _columns_of(call, actions, form, rows)
    return [
        (_check_array if leaf.kind == "array" else _check_values)(
            call, name + path_text(leaf.path), column, leaf, rows, ids
        )
        for leaf, column in zip(form.leaves, columns, strict=True)
    ]


@dataclass(frozen=True)
class _ActionForm:
    """What is computed once per action space."""

    leaves: tuple[Leaf, ...]
    split: Callable[[Any], list[Any]]
    plain_leaf: Leaf | None  # of a space that is a single array


class _Identity:
    """A space as a key, compared by identity. Spaces have no hash."""

    __slots__ = ("space",)

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        self.space = space

    def __hash__(self) -> int:
        return id(self.space)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.space is self.space


@lru_cache(maxsize=64)
def _form_of(key: _Identity) -> _ActionForm:
    leaves = leaves_of(key.space)
    return _ActionForm(leaves, split(key.space, "actions"), plain_array_leaf(leaves))


def _columns_of(call: str, actions: Any, form: _ActionForm, rows: int) -> tuple[list[Any], str]:
    """Return the unchecked columns of the leaves, and the name of the actions for messages."""
    try:
        columns = form.split(actions)
    except ValueError as error:
        transposed = _transposed(actions, form, rows)
        if isinstance(transposed, list):
            return transposed, "actions[row]"
        remedy = f"pass the actions of all rows in that structure, or a list of {rows} single actions"
        raise ActionError(f"{call} {error}{transposed}; {remedy}") from None
    if not all(_is_column(column, leaf, rows) for leaf, column in zip(form.leaves, columns, strict=True)):
        transposed = _transposed(actions, form, rows)
        if isinstance(transposed, list):
            return transposed, "actions[row]"
    return columns, "actions"


def _transposed(actions: Any, form: _ActionForm, rows: int) -> list[list[Any]] | str:
    """Return columns from a list of single actions, or the reason why one of them is wrong; "" for no such list."""
    if not isinstance(actions, (list, tuple)) or len(actions) != rows:
        return ""
    singles = []
    for row, action in enumerate(actions):
        try:
            singles.append(form.split(action))
        except ValueError as error:
            return f"; as single actions, {str(error).replace('actions', f'actions[{row}]', 1)}"
    return [list(column) for column in zip(*singles, strict=True)] or [[] for _ in form.leaves]


def _is_column(given: Any, leaf: Leaf, rows: int) -> bool:
    """Return whether it looks like the rows of this leaf. Numbers of a wrong dtype do; they are refused later."""
    if leaf.kind != "array":
        return _is_list(given) and len(given) == rows
    try:
        array = np.asarray(given)
    except _WRONG_VALUE_ERRORS:
        return False
    return array.shape == (rows, *leaf.shape) and array.dtype.kind in "biufc"


def _is_list(given: Any) -> bool:
    # A str is a sequence of str too, but not a list of texts.
    if isinstance(given, np.ndarray):
        return given.ndim > 0
    return isinstance(given, Sequence) and not isinstance(given, (str, bytes))


def _rows_in(actions: Any, space: gymnasium.Space[Any]) -> int | None:
    """Return the number of rows that these actions seem to have; None if they have none."""
    form = _form_of(_Identity(space))
    try:
        column = form.split(actions)[0]
    except (ValueError, IndexError):
        column = actions
    if isinstance(column, Sequence):
        return None if isinstance(column, (str, bytes)) else len(column)
    shape = getattr(column, "shape", ())
    return int(shape[0]) if isinstance(shape, tuple) and shape else None


def _check_array(
    call: str, name: str, actions: Any, leaf: Leaf, rows: int, ids: NDArray[np.int32] | None
) -> NDArray[Any]:
    """Return a contiguous array of shape (rows, *leaf.shape) with elements of the leaf's space, in its dtype."""
    space = leaf.space
    hint = "pass one row per env" if ids is None else "pass one row per env id"
    try:
        given = np.asarray(actions)
    except _WRONG_VALUE_ERRORS as error:
        wrong = _first_wrong_shape(actions, leaf, ids)
        raise ActionError(
            f"{call} expected {name} as an array, got {type(actions).__name__}: {wrong or error}; {hint}"
        ) from error
    want = (rows, *leaf.shape)
    if rows == 0 and given.shape in ((0,), want):  # of any dtype, as empty ids are
        return np.zeros(want, leaf.dtype)
    if given.shape != want:
        wrong = _first_wrong_shape(actions, leaf, ids) if len(want) != given.ndim else ""
        raise ActionError(f"{call} expected {name} of shape {want}, got {given.shape}{wrong and f' ({wrong})'}; {hint}")
    if isinstance(space, spaces.Box):
        kinds = {"f": "iuf", "b": "biu"}.get(leaf.dtype.kind, "iu")
        if given.dtype.kind not in kinds:
            raise ActionError(f"{call} expected {name} of dtype {space.dtype}, got {given.dtype}; convert them")
    elif given.dtype.kind not in "iu":
        raise ActionError(
            f"{call} expected integer {name} for {space}, got dtype {given.dtype}; convert them to an integer dtype"
        )
    bad = _first_outside(given, space)
    if bad is not None:
        value = given[bad]
        if value != value:  # np.clip keeps it
            remedy = "pass a number"
        else:
            remedy = "clip it with np.clip" if isinstance(space, spaces.Box) else "pass one in range"
        raise ActionError(
            f"{call} expected {name} of {_range_of(space, bad[1:])}, got {value} for env {_env_of(bad[0], ids)} "
            f"(index {tuple(bad)}); {remedy}"
        )
    return np.require(given, leaf.dtype, ["C", "A"])


def _check_values(
    call: str, name: str, actions: Any, leaf: Leaf, rows: int, ids: NDArray[np.int32] | None
) -> list[Any]:
    """Return a list of `rows` values, each an element of the leaf's space."""
    space = leaf.space
    if not _is_list(actions) or len(actions) != rows:
        got = f"{len(actions)}" if _is_list(actions) else short_repr(actions)
        hint = "pass one per env" if ids is None else "pass one per env id"
        raise ActionError(f"{call} expected {name} as a list of {rows} values of {space}, got {got}; {hint}")
    values = list(actions)
    for row, value in enumerate(values):
        reason = ""
        try:
            inside = bool(space.contains(value))
        except _WRONG_VALUE_ERRORS as error:  # a custom space may not expect every type
            inside, reason = False, f"; its contains() raised {error!r}"
        if inside:
            continue
        if leaf.kind == "text":
            remedy = "check its length and characters" if isinstance(value, str) else "pass a str"
        else:
            remedy = "pass an element of the space, such as space.sample()"
        raise ActionError(
            f"{call} expected {name} in {space}, got {short_repr(value)} for env {_env_of(row, ids)} "
            f"(row {row}){reason}; {remedy}"
        )
    # np.str_ is a str that pickles as an array's element.
    return [str(value) for value in values] if leaf.kind == "text" else values


def _env_of(row: int, ids: NDArray[np.int32] | None) -> int:
    return row if ids is None else int(ids[row])


def _first_wrong_shape(actions: Any, leaf: Leaf, ids: NDArray[np.int32] | None) -> str:
    """Return which row of a list has another shape than the leaf; "" if that is unknown."""
    if not isinstance(actions, (list, tuple)) or (ids is not None and len(actions) != len(ids)):
        return ""
    for row, action in enumerate(actions):
        try:
            shape = np.shape(action)
        except ValueError:
            return f"env {_env_of(row, ids)} has rows of different lengths"
        if shape != leaf.shape:
            return f"env {_env_of(row, ids)} has shape {shape}, not {leaf.shape}"
    return ""


def _first_outside(given: NDArray[Any], space: gymnasium.Space[Any]) -> tuple[int, ...] | None:
    """Return the index of the first element outside the space, NaN included, or None."""
    if isinstance(space, spaces.Discrete):
        # As Python integers: start + n may exceed the dtype by one.
        inside = (given >= int(space.start)) & (given < int(space.start) + int(space.n))
    elif isinstance(space, spaces.MultiDiscrete):
        inside = (given >= space.start) & (given <= space.start + (space.nvec - 1))
    elif isinstance(space, spaces.Box):
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = given.astype(space.dtype)
        inside = (rounded >= space.low) & (rounded <= space.high)
        if given.dtype.kind in "iu":
            inside &= rounded == given
    else:  # MultiBinary
        inside = (given == 0) | (given == 1)
    if inside.all():
        return None
    return tuple(int(index) for index in np.argwhere(~inside)[0])


def _range_of(space: gymnasium.Space[Any], element: tuple[int, ...]) -> str:
    if isinstance(space, spaces.Discrete):
        return f"{space} (from {space.start} to {int(space.start) + int(space.n) - 1})"
    if isinstance(space, spaces.MultiDiscrete):
        return f"{space} (here from {space.start[element]} to {space.start[element] + (space.nvec[element] - 1)})"
    if isinstance(space, spaces.Box):
        return f"a Box (here from {space.low[element]} to {space.high[element]}, no NaN)"
    return str(space)
