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


def snapshot(value: Any, *, copies_objects: bool = False, depth: int = 0) -> Any:
    """Return a copy of arrays, dicts, lists, tuples and sets, and of what they contain.

    copies_objects: objects of other types are copied too, with copy.deepcopy(), if they can be. Otherwise they are
    returned unchanged.
    """
    kind = type(value)
    if kind in _IMMUTABLE or depth > _MAX_DEPTH:  # deeper: a list that contains itself
        return value
    if kind is np.ndarray and not (value.dtype.hasobject and copies_objects):
        return value.copy()

    def copied(inner: Any) -> Any:
        return snapshot(inner, copies_objects=copies_objects, depth=depth + 1)

    if kind is dict:
        return {key: copied(inner) for key, inner in value.items()}
    if kind is list or kind is tuple or kind is set:
        return kind(copied(inner) for inner in value)
    if isinstance(value, tuple) and hasattr(kind, "_make"):  # a named tuple: GraphInstance
        return kind._make(copied(inner) for inner in value)
    if copies_objects and not isinstance(value, np.generic):
        with contextlib.suppress(Exception):
            return copy.deepcopy(value)
    return value
