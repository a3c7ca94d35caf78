"""Reward clipping."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from envfleet.core.errors import ConfigError
from envfleet.wrappers.base import BatchRows, PoolWrapper, check_number


class ClipReward(PoolWrapper):
    """Clips rewards to the range from min_reward to max_reward.

    Args:
        env: The pool, or another wrapper of it.
        min_reward: The lower bound, a number or an array without dimensions; None for none.
        max_reward: The upper bound, likewise.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        min_reward: float | NDArray[Any] | None = None,
        max_reward: float | NDArray[Any] | None = None,
    ) -> None:
        super().__init__(env)
        if min_reward is None and max_reward is None:
            raise ConfigError("ClipReward expected min_reward, max_reward or both, got neither")
        for name, bound in (("min_reward", min_reward), ("max_reward", max_reward)):
            if bound is not None:
                check_number(self, name, bound)
        if min_reward is not None and max_reward is not None and not min_reward <= max_reward:
            raise ConfigError(f"ClipReward expected min_reward <= max_reward, got {min_reward} and {max_reward}")
        self.min_reward, self.max_reward = min_reward, max_reward

    def process(
        self, rows: BatchRows, obs: Any, reward: NDArray[np.float64], info: dict[str, Any]
    ) -> tuple[Any, NDArray[np.float64]]:
        """Clip the rewards of the rows that are steps."""
        # The reward of a reset stays 0, even if the bounds exclude it.
        return obs, np.where(rows.stepped, np.clip(reward, self.min_reward, self.max_reward), reward)
