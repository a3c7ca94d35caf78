"""ViZDoom games of several players as TimeSteps: envpool.make_dm(..., max_num_players=2).

One step_type per game; one reward, discount and observation per player; the infos are fields of the observation.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import dm_env
import numpy as np
from dm_env import specs
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet._native import dm_columns
from envfleet.apis.dm import spec_of_space
from envfleet.apis.pettingzoo.pools import PlayerRowsPool
from envfleet.compat.envpool.player_pools import PlayersEnvPool
from envfleet.compat.envpool.pool_mixin import EnvPoolInfo
from envfleet.core.seeding import Seed


class _Players(NamedTuple):
    """The game of each player's row, and the player's number in it."""

    env_id: Any
    id: Any


class DMPlayersEnvPool(PlayersEnvPool):
    """num_envs games in the calls of EnvPool's env_type="dm"."""

    def __init__(self, rows: PlayerRowsPool) -> None:
        super().__init__(rows, has_five_results=True, returns_info=True)
        infos: spaces.Dict = rows.pool.get_attr("player_info_space", [0])[0]
        self._infos = infos.spaces
        fields = ["env_id", "players", "elapsed_step", *self._infos, "obs"]
        self._state: Any = namedtuple("State", fields)  # type: ignore[misc]  # the fields are the game's

    def observation_spec(self) -> Any:
        """Return the specs of one row's observation, in the fields of the TimeSteps'."""
        number = specs.Array((), np.int32)
        infos = [spec_of_space(space, name) for name, space in self._infos.items()]
        obs = spec_of_space(self.observation_space, "obs")
        return self._state(number, _Players(number, number), number, *infos, obs)

    def action_spec(self) -> Any:
        """Return the spec of one player's action."""
        return spec_of_space(self.action_space, "action")

    def reward_spec(self) -> specs.Array:
        """Return the spec of one player's reward."""
        return specs.Array((), np.float32, "reward")

    def discount_spec(self) -> specs.BoundedArray:
        """Return the spec of one player's discount."""
        return specs.BoundedArray((), np.float32, 0.0, 1.0, "discount")

    def reset(self, env_id: Any = None, *, seed: Seed = None) -> dm_env.TimeStep:
        """Reset all games, or those of env_id, and return their FIRST TimeSteps."""
        obs, info = super().reset(env_id, seed=seed)
        goes_on = np.zeros(len(info.env_id), dtype=np.bool_)
        return self._time_step(obs, np.zeros(len(obs), np.float32), goes_on, goes_on, info)

    def _shown(self, step: tuple[Any, ...]) -> dm_env.TimeStep:
        return self._time_step(*super()._shown(step))

    def _time_step(
        self,
        obs: Any,
        reward: NDArray[np.float32],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        info: EnvPoolInfo,
    ) -> dm_env.TimeStep:
        step_type, discount = dm_columns(info.elapsed_step, terminated, truncated)
        owners = info.players.env_id
        games = np.argmax(owners[:, None] == info.env_id, axis=1)  # the place of each row's game in the batch
        infos = [info[name] for name in self._infos]
        players = _Players(owners, info.players.id)
        state = self._state(info.env_id, players, info.elapsed_step, *infos, obs)
        return dm_env.TimeStep(step_type, reward, discount[games], state)
