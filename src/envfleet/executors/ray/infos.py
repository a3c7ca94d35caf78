"""Infos on their way: numbers as columns, everything else as a pickle a row, and the shares of workers as one.

A pickle a row, so that a value that cannot travel is the fault of its own env and of no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.infos import is_mask, merge

# A key's column with the mask of the rows that have it (None: all); a dict of such stands for a dict.
Entry = tuple[Any, "NDArray[np.bool_] | None"]
Tree = dict[Any, Entry]
# Which rows of a share go to which rows of the whole.
Rows = slice | NDArray[np.intp]


def taken_apart(info: Mapping[str, Any], num_rows: int) -> tuple[Tree, dict[int, dict[Any, Any]]]:
    """The columns of numbers, and for each row the values that are none."""
    objects: dict[int, dict[Any, Any]] = {}
    return _apart(info, num_rows, objects, ()), objects


def _apart(info: Mapping[str, Any], num_rows: int, objects: dict[int, dict[Any, Any]], path: tuple[Any, ...]) -> Tree:
    names = {str(key) for key in info}
    tree: Tree = {}
    for key, column in info.items():
        if is_mask(str(key), names):
            continue
        mask = info.get(f"_{key}")
        if isinstance(column, dict):
            tree[key] = (_apart(column, num_rows, objects, (*path, key)), mask)
        elif column.dtype == object:
            for row in range(num_rows) if mask is None else np.flatnonzero(mask):
                place = objects.setdefault(int(row), {})
                for step in path:
                    place = place.setdefault(step, {})
                place[key] = column[row]
        else:
            tree[key] = (column, mask)
    return tree


def joined(
    trees: Sequence[tuple[Tree, Rows, Rows]], objects: Mapping[int, Mapping[Any, Any]], num_rows: int
) -> dict[str, Any]:
    """One info of num_rows rows. trees: (columns, rows of them, where those go); objects: by row of the whole."""
    if not trees and not objects:
        return {}
    loose: list[dict[Any, Any] | None] = [None] * num_rows
    info = _join(trees, num_rows, loose, ()) if trees else {}
    for row, values in objects.items():
        loose[row] = _together(loose[row], values)
    return merge(loose, info)


def _join(
    trees: Sequence[tuple[Tree, Rows, Rows]], num_rows: int, loose: list[dict[Any, Any] | None], path: tuple[Any, ...]
) -> dict[str, Any]:
    info: dict[str, Any] = {}
    for key in dict.fromkeys(key for tree, _, _ in trees for key in tree):
        holders = [(tree[key], take, put) for tree, take, put in trees if key in tree]
        columns = [entry[0] for entry, _, _ in holders]
        masks = [entry[1] for entry, _, _ in holders]
        if all(isinstance(column, dict) for column in columns):
            info[key] = _join([(entry[0], take, put) for entry, take, put in holders], num_rows, loose, (*path, key))
        elif not any(isinstance(column, dict) for column in columns) and (
            len({(column.dtype, column.shape[1:]) for column in columns}) == 1
        ):
            whole = np.zeros((num_rows, *columns[0].shape[1:]), dtype=columns[0].dtype)
            for (column, _), take, put in holders:
                whole[put] = column[take]
            info[key] = whole
        else:
            _loosen(key, holders, loose, path)
            continue
        num_held = sum(_count(put) for _, _, put in holders)
        if num_held < num_rows or any(mask is not None for mask in masks):
            mask = np.zeros(num_rows, dtype=np.bool_)
            for (_, own), take, put in holders:
                mask[put] = True if own is None else own[take]
            info[f"_{key}"] = mask
    return info


def _loosen(
    key: Any, holders: Sequence[tuple[Entry, Rows, Rows]], loose: list[dict[Any, Any] | None], path: tuple[Any, ...]
) -> None:
    """Puts values whose columns do not go together into their rows: merge() knows what becomes of them."""
    for (column, mask), take, put in holders:
        places = _positions(put)
        for place, row in zip(places, _positions(take), strict=True):
            if mask is not None and not mask[row]:
                continue
            value = _row(column, row)
            own: dict[Any, Any] = {}
            inner = own
            for step in path:
                inner = inner.setdefault(step, {})
            inner[key] = value
            loose[place] = _together(loose[place], own)


def _row(column: Any, row: int) -> Any:
    if isinstance(column, dict):
        return {key: _row(inner, row) for key, (inner, mask) in column.items() if mask is None or mask[row]}
    # A bool as the env had it: np.bool_ is an object among infos.
    return bool(column[row]) if column.dtype == np.bool_ and column.ndim == 1 else column[row]


def _together(one: Mapping[Any, Any] | None, other: Mapping[Any, Any]) -> dict[Any, Any]:
    both = dict(one or {})
    for key, value in other.items():
        known = both.get(key)
        both[key] = _together(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return both


def _count(rows: Rows) -> int:
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def _positions(rows: Rows) -> Sequence[int]:
    return range(rows.start, rows.stop) if isinstance(rows, slice) else [int(row) for row in rows]
