"""EnvPool's pools: the gymnasium, the old gym and the dm dialect, as thin views of envfleet's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envfleet.apis.gymnasium import GymnasiumPool
from envfleet.batch import Batch
from envfleet.compat.envpool_mixin import EnvPoolMixin, envpool_info
from envfleet.compat.envpool_options import EnvPoolOptions
from envfleet.envs.family import Family
from envfleet.pool import Pool
from envfleet.seeding import Seed


# VectorEnv and Env have attributes of the same names and other types; VectorEnv's come first.
class GymnasiumEnvPool(EnvPoolMixin, GymnasiumPool, gymnasium.Env[Any, Any]):  # type: ignore[misc]
    """env_type="gymnasium": (obs, info) and 5-tuples, rewards float32, the spaces of one env.

    A gymnasium.Env too, as EnvPool's is, so that Gymnasium's wrappers of single envs take it.
    """

    def __init__(
        self,
        make_pool: Callable[[], Pool],
        family: Family,
        asked: EnvPoolOptions,
        *,
        old_gym_spaces: bool = False,
    ) -> None:
        GymnasiumPool.__init__(self, make_pool(), family)
        self._start(asked, make_pool, old_gym_spaces)
        self.spec = self._spec  # type: ignore[assignment]  # EnvPool's own, which knows envfleet's
        self.observation_space = self.single_observation_space = self._spec.observation_space
        self.action_space = self.single_action_space = self._spec.action_space

    def reset(
        self, env_id: Any = None, *, seed: Seed = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets all envs, or those of env_id: only their rows come back."""
        self._reopen()
        obs, info = GymnasiumPool.reset(self, env_id, seed=seed, options=options)
        self._was_reset(env_id if options is None or "reset_mask" not in options else options["reset_mask"])
        return obs, envpool_info(info, info["env_id"], self.pool.spec)

    def step(self, action: Any, env_id: Any = None, *, timeout: float | None = None) -> Any:
        """Steps all envs, or those of env_id. On an asynchronous pool: send() and recv()."""
        return self._rows(self._stepped(action, env_id, timeout))

    def recv(self, timeout: float | None = None) -> Any:
        """The rows that are ready; info["env_id"] says whose they are."""
        return self._rows(self.pool.recv(timeout))

    def get_attr(self, name: str, indices: Any = None) -> Any:
        """An attribute of each env; with indices, as Stable-Baselines3's wrappers ask."""
        values = GymnasiumPool.get_attr(self, name)
        return values if indices is None else [values[env_id] for env_id in np.atleast_1d(indices)]

    @property
    def unwrapped(self) -> Any:
        """The pool itself."""
        return self

    def _rows(self, batch: Batch) -> Any:
        info = envpool_info(self._info(batch), batch.env_id, self.pool.spec)
        return batch.obs, batch.reward.astype(np.float32), batch.terminated, batch.truncated, info

    def _draw(self, env_id: int) -> Any:
        return self.render_env(env_id)


class GymEnvPool(GymnasiumEnvPool):
    """env_type="gym": the old gym's calls; reset() -> obs, step() -> 4-tuples, info["TimeLimit.truncated"]."""

    def __init__(self, make_pool: Callable[[], Pool], family: Family, asked: EnvPoolOptions) -> None:
        super().__init__(make_pool, family, asked, old_gym_spaces=True)

    def reset(self, env_id: Any = None, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> Any:
        """The first observations; with gym_reset_return_info also the info."""
        obs, info = super().reset(env_id, seed=seed, options=options)
        return (obs, info) if self._asked.gym_reset_return_info else obs

    def _rows(self, batch: Batch) -> Any:
        obs, reward, terminated, truncated, info = super()._rows(batch)
        info["TimeLimit.truncated"] = truncated & ~terminated
        done: NDArray[np.bool_] = terminated | truncated
        return obs, reward, done, info
