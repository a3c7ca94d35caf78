"""GymnasiumEnvPool and GymEnvPool: env_type="gymnasium" and "gym"."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from envfleet.apis.gymnasium import GymnasiumPool
from envfleet.building import pools
from envfleet.building.registry import family_of
from envfleet.compat.envpool.env_spec import EnvPoolSpec
from envfleet.compat.envpool.gym_module import has_new_api
from envfleet.compat.envpool.pool_mixin import EnvPoolInfo, EnvPoolMixin, envpool_info
from envfleet.core.batch import Batch
from envfleet.core.infos import final_info_of, final_obs_of
from envfleet.core.seeding import Seed


# VectorEnv and Env have attributes of the same names and other types; VectorEnv's come first.
class GymnasiumEnvPool(EnvPoolMixin, GymnasiumPool, gymnasium.Env[Any, Any]):  # type: ignore[misc]
    """(obs, info) and 5-tuples, rewards float32, the spaces of one env.

    Also a gymnasium.Env, as in EnvPool, so that Gymnasium's wrappers for single envs accept it.
    """

    _gym_spaces = False

    def __init__(self, spec: EnvPoolSpec) -> None:
        make_pool = partial(pools.make_pool, spec.task_id, **spec.options.options)
        GymnasiumPool.__init__(self, make_pool(), family_of(spec.task_id))
        self._start(spec.of_pool(self.pool.spec, gym_spaces=self._gym_spaces), make_pool)
        self.spec = self._spec  # type: ignore[assignment]  # EnvPool's own, which knows envfleet's
        self.observation_space = self.single_observation_space = self._spec.observation_space
        self.action_space = self.single_action_space = self._spec.action_space

    def reset(
        self, env_id: Any = None, *, seed: Seed = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or those of env_id: only their rows come back.

        An asynchronous pool returns the batch_size rows that are ready first; the others follow with recv().
        """
        if isinstance(options, Mapping) and "reset_mask" in options:
            self._reopen()
            obs, info = GymnasiumPool.reset(self, env_id, seed=seed, options=options)
            self._was_reset(options["reset_mask"])
            return self._spec.obs_of(obs), envpool_info(info, info["env_id"], info["elapsed_step"], self._info_arrays)
        batch = self._reset_rows(env_id, seed, options)
        return self._spec.obs_of(batch.obs), self._envpool_info(batch)

    def step(self, action: Any, env_id: Any = None, *, timeout: float | None = None) -> Any:
        """Step all envs, or those of env_id. On an asynchronous pool: send() and recv()."""
        return self._rows(self._stepped(action, env_id, timeout))

    def recv(  # type: ignore[override]  # EnvPool's arguments
        self, reset: bool = False, return_info: bool = True, *, timeout: float | None = None
    ) -> Any:
        """Receive the rows that are ready; info["env_id"] tells which envs they belong to.

        reset: return the results in the form of reset(). return_info: whether that includes an optional info.
        """
        batch = self.pool.recv(timeout)
        return self._first_rows(batch, return_info) if reset else self._rows(batch)

    def get_attr(self, name: str, indices: Any = None) -> Any:
        """Return an attribute of each env; with indices, as Stable-Baselines3's wrappers ask."""
        values = GymnasiumPool.get_attr(self, name)
        return values if indices is None else [values[env_id] for env_id in np.atleast_1d(indices)]

    @property
    def unwrapped(self) -> Any:
        """The pool itself."""
        return self

    def _rows(self, batch: Batch) -> Any:
        obs, reward = self._spec.obs_of(batch.obs), batch.reward.astype(np.float32)
        return obs, reward, batch.terminated, batch.truncated, self._envpool_info(batch)

    def _traced_rows(self, batch: Batch) -> Any:
        made = envpool_info(batch.info, batch.env_id, batch.elapsed_step, self._info_arrays)
        # Plain dicts: jax takes any other class for a single array.
        info = {**made, "players": dict(made["players"])}
        if batch.final is not None:
            info.update(final_obs=batch.final.obs, _final_obs=batch.terminated | batch.truncated)
        return batch.obs, batch.reward.astype(np.float32), batch.terminated, batch.truncated, info

    def _first_rows(self, batch: Batch, return_info: bool) -> Any:
        return self._spec.obs_of(batch.obs), self._envpool_info(batch)

    def _envpool_info(self, batch: Batch) -> EnvPoolInfo:
        info = envpool_info(batch.info, batch.env_id, batch.elapsed_step, self._info_arrays)
        if batch.final is not None:
            info.update(final_obs_of(batch, self._row_of), **final_info_of(batch))
        return info

    def _show(self, env_id: int) -> bool:
        if self._is_shown_here:
            self.show_env(env_id)
        return self._is_shown_here

    def _draw(self, env_id: int) -> Any:
        return self.render_env(env_id)


class GymEnvPool(GymnasiumEnvPool):
    """obs and 4-tuples with info["TimeLimit.truncated"]; with a real gym >= 0.26, the same as GymnasiumEnvPool."""

    _gym_spaces = True

    def __init__(self, spec: EnvPoolSpec) -> None:
        self._has_new_api = has_new_api()
        super().__init__(spec)

    def reset(self, env_id: Any = None, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> Any:
        """Reset and return the observations, and the info too with gym_reset_return_info or gym >= 0.26."""
        obs, info = super().reset(env_id, seed=seed, options=options)
        return (obs, info) if self._has_new_api or self._spec.options.gym_reset_return_info else obs

    def _first_rows(self, batch: Batch, return_info: bool) -> Any:
        obs, info = super()._first_rows(batch, True)
        return (obs, info) if return_info or self._has_new_api else obs

    def _rows(self, batch: Batch) -> Any:
        obs, reward, terminated, truncated, info = super()._rows(batch)
        if self._has_new_api:
            return obs, reward, terminated, truncated, info
        info["TimeLimit.truncated"] = truncated & ~terminated
        return obs, reward, np.asarray(terminated | truncated), info

    def _traced_rows(self, batch: Batch) -> Any:
        obs, reward, terminated, truncated, info = super()._traced_rows(batch)
        if self._has_new_api:
            return obs, reward, terminated, truncated, info
        info["TimeLimit.truncated"] = truncated & ~terminated
        return obs, reward, terminated | truncated, info
