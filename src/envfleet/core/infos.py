"""The infos of many envs as one dict of columns, in Gymnasium's vector form, and back.

{"key": column, "_key": mask}: the mask says which rows have a value. A dict inside an info becomes such a dict of
columns itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from envfleet.core.batch import Batch
    from envfleet.core.spec import ArraySpec

# The shape and dtype of one row. None: the rows are Python objects.
_Form = tuple[tuple[int, ...], "np.dtype[Any]"] | None

_BOOL: _Form = ((), np.dtype(bool))
_PLAIN: dict[type, _Form] = {
    float: ((), np.dtype(float)),
    int: ((), np.dtype(int)),
    bool: _BOOL,
    str: None,
    type(None): None,
}
_EXACT_IN_FLOAT64 = 2**53


class RestartMessage(str):
    """The "error" in the info of an env that raised and was restarted. An env's own "error" is of another type."""

    __slots__ = ()


# Raised by numpy for a value that does not fit into an array, such as an int of more than 64 bits.
_DOES_NOT_FIT = (OverflowError, ValueError, TypeError)


def merge(infos: Sequence[Mapping[str, Any] | None], into: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the columns of the infos of len(infos) rows; None or an empty info adds nothing for its row.

    The columns are those of gymnasium.vector.VectorEnv._add_info: an array of the value's dtype
    for int, float, bool and numpy numbers, a stacked array for arrays, an array of objects with
    None in the gaps for anything else and for every final_obs; `_key` is always there.

    Where Gymnasium raises or corrupts values because the envs' values of a key differ in type, this does neither.
    Numbers, and arrays of one shape, with different dtypes get the common dtype of np.result_type (int and float:
    float64; Gymnasium would truncate the floats to ints). The types decide, not the values, so the dtype of a column
    does not depend on chance. Everything else (other shapes, a number next to a str or a dict, integers too large for
    the dtype) becomes a column of objects with the values unchanged. The mask replaces an env's own "_key" next to a
    "key".

    into: columns with the same number of rows; the values are added to them in place.
    """
    num_rows = len(infos)
    columns = {} if into is None else into
    rows = [row for row, info in enumerate(infos) if info]
    if rows:
        _add(columns, rows, [infos[row] for row in rows], num_rows)
    return columns


def split_rows(info: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Return the info of one row: the keys that it has a value for.

    A column without a mask has a value for every row. Numbers are numpy scalars.
    """
    own: dict[str, Any] = {}
    for key in value_keys(info):
        mask = info.get(f"_{key}")
        if mask is None or mask[row]:
            own[key] = _value_of(info[key], row)
    return own


def row_as_given(info: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Return the info of one row as split_rows() does, with the values as the env gave them."""
    own: dict[str, Any] = {}
    for key in value_keys(info):
        mask = info.get(f"_{key}")
        if mask is None or mask[row]:
            column = info[key]
            own[key] = row_as_given(column, row) if isinstance(column, dict) else value_as_given(column, row)
    return own


def restarted_rows(info: Mapping[str, Any]) -> NDArray[np.bool_] | None:
    """Return the rows of envs that raised and were restarted; None if there are none."""
    errors, mask = info.get("error"), info.get("_error")
    if mask is None or not isinstance(errors, np.ndarray) or errors.dtype != object:
        return None
    return np.array([isinstance(error, RestartMessage) for error in errors], dtype=np.bool_)


def spread_rows(info: Mapping[str, Any], rows: NDArray[np.int32], num_rows: int) -> dict[str, Any]:
    """Return the columns of some rows as columns of all num_rows; the other rows are empty."""
    whole: dict[str, Any] = {}
    for key, column in info.items():
        if isinstance(column, dict):
            whole[key] = spread_rows(column, rows, num_rows)
            continue
        whole[key] = _blank((num_rows, *column.shape[1:]), column.dtype)
        whole[key][rows] = column
    return whole


def masked_rows(info: Mapping[str, Any], rows: NDArray[np.bool_]) -> dict[str, Any]:
    """Return the columns with the values of these rows only, each with its mask; keys without values are left out."""
    masked: dict[str, Any] = {}
    for key in value_keys(info):
        column, own = info[key], info.get(f"_{key}")
        mask = rows.copy() if own is None else own & rows
        if not mask.any():
            continue
        if isinstance(column, dict):
            masked[key] = masked_rows(column, mask)
        else:
            masked[key] = _blank(column.shape, column.dtype)
            masked[key][mask] = column[mask]
        masked[f"_{key}"] = mask
    return masked


def _blank(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an empty column: zeros, empty texts, or None for objects; zeros in arrays of objects, as in Gymnasium."""
    if dtype.hasobject and len(shape) == 1:
        return np.full(shape, None, dtype=dtype)
    return np.zeros(shape, dtype=dtype)


def is_mask(name: str, names: set[str]) -> bool:
    """Return whether a key among these names is the mask of another."""
    # "_x" next to "x" is its mask, unless "x" is itself a mask.
    return name[:1] == "_" and name[1:] in names and not is_mask(name[1:], names)


def value_keys(info: Mapping[Any, Any]) -> list[Any]:
    """Return the keys of an info that are not masks. The mask of a key that is not a str is f"_{key}" too."""
    names = {str(key) for key in info}
    return [key for key in info if not is_mask(str(key), names)]


def vector_info(batch: Batch, everywhere: NDArray[np.bool_]) -> dict[str, Any]:
    """Return Gymnasium's vector info: arrays by key, and under _key a mask of the rows that have a value.

    everywhere: all_true(len(batch)).
    """
    info: dict[str, Any] = {
        "env_id": batch.env_id,
        "_env_id": everywhere,
        "elapsed_step": batch.elapsed_step,
        "_elapsed_step": everywhere,
    }
    for key, column in batch.info.items():
        if key in info:  # the pool's own ids take precedence
            continue
        info[key] = column
        if not str(key).startswith("_") and f"_{key}" not in batch.info:
            info[f"_{key}"] = everywhere
    return info


def final_info_of(batch: Batch) -> dict[str, Any]:
    """Return the "final_info" of a same_step batch, with its mask; an empty dict if no episode has ended in it."""
    final = batch.final
    if final is None:
        return {}
    ended = batch.terminated | batch.truncated
    if not ended.any():
        return {}
    # The row of a restarted env has ended too, but has no final info.
    own: dict[str, Any] = {"elapsed_step": final.elapsed_step * ended, "_elapsed_step": ended.copy()}
    if final.info:
        columns = {key: column for key, column in final.info.items() if key not in own}
        own.update(masked_rows(columns, ended))
    return {"final_info": own, "_final_info": ended}


def final_obs_of(batch: Batch, row_of: Callable[[Any, int], Any]) -> dict[str, Any]:
    """Return the "final_obs" of a same_step batch, with its mask; an empty dict if no episode has ended in it.

    row_of: takes observations and a row, and returns the observation of that row.
    """
    ended = batch.terminated | batch.truncated
    if batch.final is None or not ended.any():
        return {}
    last = np.full(len(batch), None, dtype=object)
    for row in np.flatnonzero(ended).tolist():
        last[row] = row_of(batch.final.obs, row)
    return {"final_obs": last, "_final_obs": ended}


def all_true(count: int) -> NDArray[np.bool_]:
    """Return a mask of all rows, which batches may share."""
    mask = np.ones(count, dtype=np.bool_)
    mask.flags.writeable = False
    return mask


def with_env_info(own: Mapping[str, Any], env_info: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the pool's own keys and those of the envs.

    Own keys take precedence: an env that reports an "env_id" must not redirect the rows of its batch to other envs.
    The env's masks of such keys are dropped with its values.
    """
    return {**own, **{key: column for key, column in env_info.items() if str(key).lstrip("_") not in own}}


def _value_of(column: Any, row: int) -> Any:
    return split_rows(column, row) if isinstance(column, dict) else column[row]


def _gather_by_key(rows: list[int], infos: list[Any]) -> list[tuple[Any, list[int], list[Any]]]:
    """Return each key of these infos with the rows that have it and their values."""
    by_key: dict[Any, tuple[list[int], list[Any]]] = {}
    for row, info in zip(rows, infos, strict=True):
        for key, value in info.items():
            if key in by_key:
                of_key = by_key[key]
                of_key[0].append(row)
                of_key[1].append(value)
            else:
                by_key[key] = ([row], [value])
    return [(key, *of_key) for key, of_key in by_key.items()]


def _add(columns: dict[str, Any], rows: list[int], infos: list[Any], num_rows: int) -> None:
    """Add the infos of these rows to the columns."""
    first = infos[0].keys()
    if len(infos) == 1:
        gathered = [(key, rows, [value]) for key, value in infos[0].items()]
    elif all(info.keys() == first for info in infos):
        gathered = [(key, rows, [info[key] for info in infos]) for key in first]
    else:
        gathered = _gather_by_key(rows, infos)
    masks = {f"_{key}" for key, _, _ in gathered}
    if columns:
        names = {str(key) for key in columns}
        masks.update(f"_{name}" for name in names if not is_mask(name, names))
    for key, its_rows, values in gathered:
        if key in masks:
            continue
        column = columns.get(key)
        if column is None:
            if f"_{key}" in columns:  # an env's own, which the mask replaces: its mask goes with it
                columns.pop(f"__{key}", None)
            columns[key] = _new_column(key, its_rows, values, num_rows)
            mask: Any = np.zeros(num_rows, dtype=np.bool_)
        else:
            mask = columns.get(f"_{key}")
            if mask is None:  # every row has a value
                mask = np.ones(num_rows, dtype=np.bool_)
            elif not mask.flags.writeable:
                mask = mask.copy()
            columns[key] = _extended(column, mask, its_rows, values, num_rows)
        mask[its_rows if len(its_rows) > 1 else its_rows[0]] = True
        columns[f"_{key}"] = mask


def _new_column(key: Any, rows: list[int], values: list[Any], num_rows: int) -> Any:
    if key == "final_obs":
        return _objects(rows, values, num_rows)
    if isinstance(values[0], dict) and all(isinstance(value, dict) for value in values):
        inner: dict[str, Any] = {}
        _add(inner, rows, values, num_rows)
        return inner
    form = _form_of(values[0])
    # A fast path: most keys at the end of an episode belong to a single env.
    return _filled(form if len(values) == 1 else _joint(form, values), rows, values, num_rows)


def _extended(column: Any, mask: NDArray[np.bool_], rows: list[int], values: list[Any], num_rows: int) -> Any:
    """Return the column with these values added, or a new column if they do not fit into it."""
    if isinstance(column, dict):
        if all(isinstance(value, dict) for value in values):
            _add(column, rows, values, num_rows)
            return column
        form: _Form = None
    else:
        form = None if column.dtype == object and column.ndim == 1 else (column.shape[1:], column.dtype)
        if column.flags.writeable and _joint(form, values) == form:
            try:
                for row, value in zip(rows, values, strict=True):
                    column[row] = value
                return column
            except _DOES_NOT_FIT:
                form = None
    # New values replace old ones of the same rows; dicts are merged, as they are where every value is a dict.
    take = row_as_given if isinstance(column, dict) else value_as_given
    gathered = {int(row): take(column, int(row)) for row in np.flatnonzero(mask)}
    for row, value in zip(rows, values, strict=True):
        is_nested = isinstance(column, dict) and isinstance(value, dict) and row in gathered
        gathered[row] = merge_nested(gathered[row], value) if is_nested else value
    every_row = sorted(gathered)
    every_value = [gathered[row] for row in every_row]
    return _filled(_joint(form, every_value), every_row, every_value, num_rows)


def merge_nested(first: Mapping[Any, Any] | None, second: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the info of one row from two parts of it. Nested dicts are merged; of other values the second wins."""
    merged = dict(first or {})
    for key, value in second.items():
        known = merged.get(key)
        merged[key] = merge_nested(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged


def value_as_given(column: NDArray[Any], row: int) -> Any:
    """Return a value as the env most likely gave it, so that merging it again treats it as it did the first time.

    numpy's scalars are not that: a worker's int64 column may hold 2**61, and 2**65 of another worker makes objects of
    both; a text came as an array without dimensions, since a str makes a column of objects.
    """
    value = column[row]
    if column.ndim > 1 or column.dtype == object:
        return value
    if column.dtype == np.bool_ or isinstance(value, (np.int64, np.float64)):
        return value.item()
    return value if column.dtype.kind in "iufc" else np.asarray(value)


def _filled(form: _Form, rows: list[int], values: list[Any], num_rows: int) -> NDArray[Any]:
    """Return an array of this form with the values in their rows, which are in ascending order."""
    if form is None:
        return _objects(rows, values, num_rows)
    shape, dtype = form
    try:
        if len(rows) == num_rows and not shape:
            return np.array(values, dtype=dtype)
        column = np.zeros((num_rows, *shape) if shape else num_rows, dtype=dtype)
        for row, value in zip(rows, values, strict=True):
            column[row] = value
    except _DOES_NOT_FIT:
        return _objects(rows, values, num_rows)
    return column


def _objects(rows: list[int], values: list[Any], num_rows: int) -> NDArray[Any]:
    column = np.full(num_rows, None, dtype=object)
    for row, value in zip(rows, values, strict=True):
        column[row] = value
    return column


def _form_of(value: Any) -> _Form:
    """Return the form of a single value, as in Gymnasium, where np.bool_ is an object."""
    kind = type(value)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if isinstance(value, np.number) and value.dtype.kind in "iufc":  # not timedelta64, whose unit would be lost
        return (), value.dtype
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype
    return None


def _joint(form: _Form, values: list[Any]) -> _Form:
    """Return the form that holds all the values and a first one of this form; None if there is none."""
    if form is None:
        return None
    kinds = set(map(type, values))
    # Scalars of one type have one form; each array has its own.
    samples = values if len(kinds) > 1 or isinstance(values[0], np.ndarray) else values[:1]
    shape, dtype = form
    whole_numbers = dtype.kind in "iu"
    for value in samples:
        other = _BOOL if isinstance(value, np.bool_) else _form_of(value)
        if other is None or other[0] != shape:
            return None
        if other[1] != dtype:
            if not _mixable(dtype, other[1]):
                return None
            dtype = np.result_type(dtype, other[1])
        whole_numbers |= other[1].kind in "iu"
    if whole_numbers and dtype.kind in "fc" and any(_inexact_in_float64(value) for value in values):
        return None
    return shape, dtype


def _inexact_in_float64(value: Any) -> bool:
    """Return whether these are integers that float64 cannot represent."""
    given = np.asarray(value)
    if given.dtype.kind not in "iuO" or not given.size:
        return False
    return max(-int(given.min()), int(given.max())) > _EXACT_IN_FLOAT64


def _mixable(one: np.dtype[Any], other: np.dtype[Any]) -> bool:
    return (one.kind in "biufc" and other.kind in "biufc") or (one.kind == other.kind and one.kind in "US")


def declared_column(columns: Mapping[str, Any], array: ArraySpec, num_rows: int) -> Any:
    """Return the column of a declared key in its declared dtype, with zeros where a row has no value."""
    column = columns.get(array.name)
    # Columns of a traced batch are complete, in the dtype that jax has for theirs.
    if column is not None and (column.dtype == array.space.dtype or not isinstance(column, np.ndarray)):
        return column
    whole = np.zeros((num_rows, *(array.space.shape or ())), array.space.dtype)
    if column is not None:
        has_value = np.broadcast_to(columns.get(f"_{array.name}", True), num_rows)
        if column.dtype.kind in "biuf" and column.shape == whole.shape:
            whole[has_value] = column[has_value]
            return whole
        for row in np.flatnonzero(has_value):
            whole[row] = column[row]
    return whole
