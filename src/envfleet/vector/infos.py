"""The infos of Gymnasium's vector environments: a mask for every key, final_obs and final_info."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.batch import Batch
from envfleet.infos import spread_rows, value_keys
from envfleet.spaces import join, leaves_of, split


class VectorInfos:
    """Makes the infos of batches that hold all envs, row i for env i."""

    def __init__(self, observation_space: gymnasium.Space[Any], num_envs: int) -> None:
        self._num_envs = num_envs
        self._is_discrete = [isinstance(leaf.space, spaces.Discrete) for leaf in leaves_of(observation_space)]
        self._split = split(observation_space)
        self._join = join(observation_space)

    def info(self, batch: Batch) -> dict[str, Any]:
        """Return the info of a step or a reset of all envs."""
        info = self._masked(batch.info, None) if batch.info else {}
        if batch.final is not None:
            ended = batch.terminated | batch.truncated
            if ended.any():
                info.update(self._final(batch, ended))
        return info

    def info_of_some(self, batch: Batch) -> dict[str, Any]:
        """Return the info of a reset of some envs: all rows, with values for these envs only."""
        return spread_rows(self._masked(batch.info, None, len(batch)), batch.env_id, self._num_envs)

    def _masked(
        self, columns: Mapping[str, Any], rows: NDArray[np.bool_] | None, num_rows: int | None = None
    ) -> dict[str, Any]:
        """Return the columns, each with a mask of the rows that have a value; rows: those that may have one."""
        count = self._num_envs if num_rows is None else num_rows
        info: dict[str, Any] = {}
        for key in value_keys(columns):
            column, mask = columns[key], columns.get(f"_{key}")
            if mask is None:
                mask = np.ones(count, dtype=np.bool_) if rows is None else rows.copy()
            elif rows is not None:
                mask = mask & rows
                if not mask.any():
                    continue
            info[key] = column if rows is None or isinstance(column, dict) else _only(column, mask)
            info[f"_{key}"] = mask
        return info

    def _final(self, batch: Batch, ended: NDArray[np.bool_]) -> dict[str, Any]:
        final = batch.final
        assert final is not None
        leaves = self._split(final.obs)
        last = np.full(len(batch), None, dtype=object)
        for row in np.flatnonzero(ended):
            last[row] = self._join([self._single(position, leaf[row]) for position, leaf in enumerate(leaves)])
        return {
            "final_obs": last,
            "_final_obs": ended,
            "final_info": self._masked(final.info, ended),
            "_final_info": ended.copy(),
        }

    def _single(self, position: int, value: Any) -> Any:
        """Return a leaf of one env's observation, an int for Discrete, as Gymnasium's own envs return it."""
        if self._is_discrete[position]:
            return int(value)
        return value.copy() if isinstance(value, np.ndarray) else value


def _only(column: NDArray[Any], mask: NDArray[np.bool_]) -> NDArray[Any]:
    """Return the column with the other rows empty."""
    if mask.all():
        return column
    empty = np.full(column.shape, None, dtype=object) if column.dtype == object else np.zeros_like(column)
    empty[mask] = column[mask]
    return empty
