"""The infos of Gymnasium's vector environments: a mask for every key, final_obs and final_info."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from envfleet.core.batch import Batch
from envfleet.core.infos import final_obs_of, masked_rows, spread_rows, value_keys
from envfleet.core.spaces import join, leaves_of, split


class VectorInfos:
    """Makes the infos of batches that hold all envs, row i for env i."""

    def __init__(self, observation_space: gymnasium.Space[Any], num_envs: int) -> None:
        self._num_envs = num_envs
        self._is_discrete = [isinstance(leaf.space, spaces.Discrete) for leaf in leaves_of(observation_space)]
        self._split = split(observation_space)
        self._join = join(observation_space)

    def info(self, batch: Batch) -> dict[str, Any]:
        """Return the info of a step or a reset of all envs."""
        info = _masked(batch.info, self._num_envs) if batch.info else {}
        if final := final_obs_of(batch, self._row_of):
            assert batch.final is not None
            ended = final["_final_obs"]
            info.update(final, final_info=masked_rows(batch.final.info, ended), _final_info=ended.copy())
        return info

    def info_of_some(self, batch: Batch) -> dict[str, Any]:
        """Return the info of a reset of some envs: all rows, with values for these envs only."""
        return spread_rows(_masked(batch.info, len(batch)), batch.env_id, self._num_envs)

    def _row_of(self, obs: Any, row: int) -> Any:
        """Return one env's observation, with ints for Discrete, as Gymnasium's own envs return it."""
        values = [leaf[row] for leaf in self._split(obs)]
        return self._join(
            [
                int(value) if is_discrete else value.copy() if isinstance(value, np.ndarray) else value
                for value, is_discrete in zip(values, self._is_discrete, strict=True)
            ]
        )


def _masked(columns: Mapping[str, Any], num_rows: int) -> dict[str, Any]:
    """Return the columns, each with a mask of the rows that have a value."""
    info: dict[str, Any] = {}
    for key in value_keys(columns):
        mask = columns.get(f"_{key}")
        info[key] = columns[key]
        info[f"_{key}"] = np.ones(num_rows, dtype=np.bool_) if mask is None else mask
    return info
