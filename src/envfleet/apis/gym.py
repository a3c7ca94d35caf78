"""A pool with gym's API before 0.26, as EnvPool's env_type="gym".

obs = reset(); obs, reward, done, info = step(action). Rewards are float32, and info["TimeLimit.truncated"] marks
episodes that only the time limit ended.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet._native import gym_columns
from envfleet.apis.gymnasium import GymnasiumPool, Step
from envfleet.core.batch import Batch
from envfleet.core.seeding import Seed

OldStep = tuple[Any, NDArray[np.float32], NDArray[np.bool_], dict[str, Any]]


class GymPool:
    """num_envs envs with gym's API before 0.26. Made by envfleet.make_gym().

    The spaces are those of a single env, as in EnvPool. Other attributes (config, close(), get_state() ...) are the
    Gymnasium pool's.
    """

    def __init__(self, envs: GymnasiumPool, reset_returns_info: bool) -> None:
        self.envs = envs
        self.observation_space = envs.single_observation_space
        self.action_space = envs.single_action_space
        self._reset_returns_info = reset_returns_info

    def reset(self, env_id: Any = None, *, seed: Seed = None, options: Any = None) -> Any:
        """Reset and return the observations, and the info too with gym_reset_return_info."""
        obs, info = self.envs.reset(env_id, seed=seed, options=options)
        return (obs, info) if self._reset_returns_info else obs

    def step(self, action: Any, env_id: Any = None, *, timeout: float | None = None) -> OldStep:
        """Step all envs, or those of env_id."""
        return _as_old(self.envs.step(action, env_id, timeout=timeout))

    def recv(self, timeout: float | None = None) -> OldStep:
        """Receive the rows that are ready."""
        return _as_old(self.envs.recv(timeout))

    def xla(self) -> Any:
        """Return (handle, recv, send, step) for use inside jax.jit, as EnvPool's xla() does; see docs/jax.md."""
        from envfleet.apis.common.xla import gymnasium_rows, xla_functions

        def rows_of(batch: Batch) -> Any:
            obs, reward, terminated, truncated, info = gymnasium_rows(batch)
            info["TimeLimit.truncated"] = truncated & ~terminated
            return obs, reward.astype(np.float32), terminated | truncated, info

        return xla_functions(self.envs.pool, rows_of)

    def __getattr__(self, name: str) -> Any:
        # Only for names that are not set: code such as CleanRL's assigns num_envs and the spaces.
        if name.startswith("__") or name == "envs":
            raise AttributeError(name)
        return getattr(self.envs, name)

    def __len__(self) -> int:
        return len(self.envs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.envs})"

    def __enter__(self) -> GymPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.envs.close()


def _as_old(step: Step) -> OldStep:
    obs, reward, terminated, truncated, info = step
    small, done, info["TimeLimit.truncated"] = gym_columns(reward, terminated, truncated)
    return obs, small, done, info
