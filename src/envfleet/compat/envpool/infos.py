"""EnvPool's infos: dicts of columns with attribute access, a column for every declared key, and no masks for those."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.spec import ArraySpec


class EnvPoolInfo(dict[str, Any]):
    """A dict with its keys as attributes too: info["env_id"] is info.env_id."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"info has no key {name!r}; it has {', '.join(map(str, self))}") from None

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *map(str, self)]


# What the discount of a TimeStep is made of; EnvPool has no info of it.
_NO_INFO = ("discount", "_discount")


def envpool_info(
    columns: Mapping[str, Any],
    env_id: NDArray[np.int32],
    elapsed_step: NDArray[np.int32],
    declared: Mapping[str, ArraySpec],
) -> EnvPoolInfo:
    """The columns of a batch as EnvPool has them.

    A declared key is always there, with zeros for rows without a value. Of other keys, as Python envs may have
    them, the mask stays where some rows have no value.
    """
    info = EnvPoolInfo(env_id=env_id, players=EnvPoolInfo(env_id=env_id))
    for key, array in declared.items():
        info[key] = declared_column(columns, array, len(env_id))
    for key, column in columns.items():
        if key in info or key in _NO_INFO:
            continue
        owner = key[1:] if isinstance(key, str) and key[:1] == "_" else None
        if owner is not None and owner in columns and (owner in declared or np.all(column)):
            continue
        info[key] = _nested(column) if isinstance(column, dict) else column
    # An Atari game whose lives are episodes: EnvPool counts the steps of the game.
    info["elapsed_step"] = info.pop("game_step", elapsed_step)
    return info


def declared_column(columns: Mapping[str, Any], array: ArraySpec, num_rows: int) -> Any:
    """The column of a declared key in its declared dtype, with zeros where a row has no value."""
    column = columns.get(array.name)
    if column is not None and column.dtype == array.space.dtype:
        return column
    whole = np.zeros((num_rows, *(array.space.shape or ())), array.space.dtype)
    if column is not None:
        has_value = np.broadcast_to(columns.get(f"_{array.name}", True), num_rows)
        for row in np.flatnonzero(has_value):
            whole[row] = column[row]
    return whole


def _nested(columns: Mapping[str, Any]) -> EnvPoolInfo:
    return EnvPoolInfo(
        {
            key: _nested(column) if isinstance(column, dict) else column
            for key, column in columns.items()
            if not (str(key)[:1] == "_" and str(key)[1:] in columns and np.all(column))
        }
    )
