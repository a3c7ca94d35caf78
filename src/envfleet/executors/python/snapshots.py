"""Copies of what an env returned, taken before the env can overwrite it.

Rows of arrays are written into columns at once. What has no column (observations of variable size, infos that are not
plain numbers) would otherwise be the env's own objects: on serial and threads for as long as the caller keeps them, and
in same-step mode, on processes too, while the env is reset.
"""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import numpy as np

_MAX_DEPTH = 100
_IMMUTABLE = frozenset([type(None), bool, int, float, complex, str, bytes])


def snapshot(value: Any, *, copies_objects: bool = False) -> Any:
    """Return a copy of arrays, dicts, lists, tuples and sets, and of what they contain.

    copies_objects: objects of other types are copied too, with copy.deepcopy(), if they can be. Otherwise they are
    returned unchanged, as is what is nested more than 100 levels deep.
    """
    return _copied(value, copies_objects, {}, 0)


def _copied(value: Any, copies_objects: bool, memo: dict[int, Any], depth: int) -> Any:
    kind = type(value)
    if kind in _IMMUTABLE or depth > _MAX_DEPTH:
        return value
    if kind is np.ndarray and not (value.dtype.hasobject and copies_objects):
        return value.copy()
    if id(value) in memo:  # a list may contain itself, a tuple another one twice, and that another one twice ...
        return memo[id(value)]
    if kind is list:
        items: list[Any] = []
        memo[id(value)] = items
        items.extend(_copied(inner, copies_objects, memo, depth + 1) for inner in value)
        return items
    if kind is dict:
        copied: dict[Any, Any] = {}
        memo[id(value)] = copied
        for key, inner in value.items():
            copied[key] = _copied(inner, copies_objects, memo, depth + 1)
        return copied
    if kind is set:
        return value.copy()  # of immutable values
    if kind is tuple or (isinstance(value, tuple) and hasattr(kind, "_make")):  # or a named tuple: GraphInstance
        inner_copies = (_copied(inner, copies_objects, memo, depth + 1) for inner in value)
        memo[id(value)] = made = tuple(inner_copies) if kind is tuple else kind._make(inner_copies)
        return made
    if copies_objects and not isinstance(value, np.generic):
        with contextlib.suppress(Exception):
            return copy.deepcopy(value)
    return value
