"""InfoColumns: learns which info keys are numbers, so that they travel as columns from then on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from envfleet.executors.python.layout import INFO_BYTES

_MAX_KEYS = 64  # a bit each in a row's mask
_MAX_KEY_LENGTH = 128  # with which a pickled schema stays well below 64 KiB, its place in shared memory
_PLAIN = {float: np.dtype(np.float64), int: np.dtype(np.int64), bool: np.dtype(np.bool_)}
_ALIASES = {np.float64: float, np.int64: int}


class InfoColumns:
    """The schema of the info columns. It only grows: rows of an older one stay readable."""

    def __init__(self, publish: Callable[[list[Any]], None]) -> None:
        """publish: tells the board and the workers of a new schema."""
        self._publish = publish
        self._entries: list[Any] = []
        self._known: set[str] = set()
        self._num_bytes = 0

    def learn(self, infos: Sequence[Mapping[str, Any] | None]) -> None:
        """Looks at infos that came by mail for keys that could have been columns."""
        before = len(self._entries)
        for info in infos:
            if info:
                for key, value in info.items():
                    # What begins with _ would pass for a mask, and last observations are objects by agreement.
                    if isinstance(key, str) and key not in self._known and key[:1] != "_" and key != "final_obs":
                        self._add(key, value)
        if len(self._entries) > before:
            self._publish(list(self._entries))

    def _add(self, key: str, value: Any) -> None:
        # Known from now on, column or not: what has no fixed form is not looked at again.
        self._known.add(key)
        entry = _form_of(value) if len(key) <= _MAX_KEY_LENGTH else None
        if entry is None or len(self._entries) >= _MAX_KEYS:
            return
        kind, dtype, shape = entry
        num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        offset = -(-self._num_bytes // 8) * 8
        if offset + num_bytes > INFO_BYTES:
            return
        self._num_bytes = offset + num_bytes
        self._entries.append((key, kind, dtype, shape, offset))


def _form_of(value: Any) -> tuple[type, np.dtype[Any], tuple[int, ...]] | None:
    """(type, dtype, shape) of a value that a column can hold, as Gymnasium's infos would have it."""
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
