"""InfoSchema: finds the info keys with numeric values, which are then sent as columns in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from envfleet.executors.python.layout import INFO_BYTES, align_up

_MAX_KEYS = 64  # one bit each in a row's mask
_MAX_KEY_LENGTH = 128  # keeps a pickled schema well below the 64 KiB reserved for it
_PLAIN = {float: np.dtype(np.float64), int: np.dtype(np.int64), bool: np.dtype(np.bool_)}
_ALIASES = {np.float64: float, np.int64: int}


class InfoSchema:
    """The schema of the info columns. It only grows, so rows written with an older version stay readable."""

    def __init__(self, publish: Callable[[list[Any]], None]) -> None:
        """publish: passes a new schema on to the workers."""
        self._publish = publish
        self._entries: list[Any] = []
        self._known: set[str] = set()
        self._num_bytes = 0

    def learn(self, infos: Sequence[Mapping[str, Any] | None]) -> None:
        """Add columns for keys of infos that came through the side channel and could have been columns."""
        before = len(self._entries)
        for info in infos:
            if info:
                for key, value in info.items():
                    # Keys with a leading _ are masks, and final observations are always objects.
                    if isinstance(key, str) and key not in self._known and key[:1] != "_" and key != "final_obs":
                        self._add(key, value)
        if len(self._entries) > before:
            self._publish(list(self._entries))

    def _add(self, key: str, value: Any) -> None:
        # Known from now on, whether it becomes a column or not: each key is examined once.
        self._known.add(key)
        entry = _form_of(value) if len(key) <= _MAX_KEY_LENGTH else None
        if entry is None or len(self._entries) >= _MAX_KEYS:
            return
        kind, dtype, shape = entry
        num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        offset = align_up(self._num_bytes, 8)
        if offset + num_bytes > INFO_BYTES:
            return
        self._num_bytes = offset + num_bytes
        self._entries.append((key, kind, dtype, shape, offset))


def _form_of(value: Any) -> tuple[type, np.dtype[Any], tuple[int, ...]] | None:
    """Return (type, dtype, shape) of a value that fits into a column with Gymnasium's dtype for it, else None."""
    kind = _ALIASES.get(type(value), type(value))
    if kind in _PLAIN:
        if kind is int and not -(2**63) <= int(value) < 2**63:
            return None
        return kind, _PLAIN[kind], ()
    if isinstance(value, np.number) and value.dtype.kind in "iuf" and value.dtype.itemsize <= 8:
        return kind, value.dtype, ()
    if type(value) is np.ndarray and value.dtype.kind in "biuf" and value.dtype.isnative:
        return np.ndarray, value.dtype, value.shape
    return None
