"""GymEnvPool: env_type="gym", with the calls of the gym package in use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from envfleet.batch import Batch
from envfleet.compat.envpool.env_spec import EnvPoolSpec
from envfleet.compat.envpool.gym_module import has_new_api
from envfleet.compat.envpool.gymnasium_envpool import GymnasiumEnvPool
from envfleet.seeding import Seed


class GymEnvPool(GymnasiumEnvPool):
    """reset() -> obs, step() -> 4-tuples with info["TimeLimit.truncated"]; beside a real gym >= 0.26 as Gymnasium."""

    _gym_spaces = True

    def __init__(self, spec: EnvPoolSpec) -> None:
        self._has_new_api = has_new_api()
        super().__init__(spec)

    def reset(self, env_id: Any = None, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> Any:
        """The first observations; the info too with gym_reset_return_info or gym >= 0.26."""
        obs, info = super().reset(env_id, seed=seed, options=options)
        return (obs, info) if self._has_new_api or self._spec.options.gym_reset_return_info else obs

    def _first_rows(self, batch: Batch, return_info: bool) -> Any:
        return super()._first_rows(batch, True) if return_info or self._has_new_api else batch.obs

    def _rows(self, batch: Batch) -> Any:
        obs, reward, terminated, truncated, info = super()._rows(batch)
        if self._has_new_api:
            return obs, reward, terminated, truncated, info
        info["TimeLimit.truncated"] = truncated & ~terminated
        return obs, reward, np.asarray(terminated | truncated), info
