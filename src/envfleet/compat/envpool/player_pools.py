"""ViZDoom games of several players in EnvPool's layout: envpool.make(..., max_num_players=2).

Observations, rewards and the players' infos have one row per player, env by env; done, truncated, env_id and
elapsed_step one per env. info["players"]["env_id"] tells which env a player's row belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.apis.pettingzoo.making import make_pettingzoo
from envfleet.apis.pettingzoo.pools import PlayerRowsPool
from envfleet.compat.envpool.env_spec import DEFAULT_SEED
from envfleet.compat.envpool.gym_module import has_new_api
from envfleet.compat.envpool.pool_mixin import EnvPoolInfo
from envfleet.core.errors import ActionError, ConfigError
from envfleet.core.option_checks import integer_option
from envfleet.core.seeding import Seed
from envfleet.families.vizdoom.ids import ENVPOOL_SCENARIOS
from envfleet.families.vizdoom.multiplayer import MULTIPLAYER_SCENARIOS, MultiplayerEnv

# EnvPool's ids whose maps have a start for several players; VizdoomCustom-v1 has the map that it is given.
_ENVPOOL_IDS = ("Cig-v1", "MultiDuel-v1", "VizdoomCustom-v1")
_MAX_PLAYERS = 8


def wants_players(options: Mapping[str, Any]) -> bool:
    """Return whether EnvPool's max_num_players is above 1."""
    return integer_option("max_num_players", options.get("max_num_players", 1), 1, _MAX_PLAYERS) > 1


def make_player_pool(task_id: Any, env_type: str, options: Mapping[str, Any]) -> PlayersEnvPool:
    """Return a pool of games with max_num_players each. options: EnvPool's, and those of envfleet.make_pettingzoo()."""
    known = sorted({*_ENVPOOL_IDS, *MULTIPLAYER_SCENARIOS})
    if task_id not in known:
        raise ConfigError(
            f"max_num_players expected 1 for {task_id!r}, got {options['max_num_players']!r}; "
            f"these have several players: {', '.join(known)}; use envfleet.make_pettingzoo() for other multi-agent envs"
        )
    rest = dict(options)
    rest["num_players"] = rest.pop("max_num_players")
    rest.setdefault("seed", DEFAULT_SEED)
    if rest.get("max_episode_steps") is not None:
        rest["time_limit"] = rest.pop("max_episode_steps")
    has_five_results = env_type != "gym" or has_new_api()
    returns_info = bool(rest.pop("gym_reset_return_info", has_five_results))
    for name in ("base_path", "render_env_id", "render_width", "render_height", "render_camera_id", "from_pixels"):
        rest.pop(name, None)
    if task_id in _ENVPOOL_IDS:
        scenario = ENVPOOL_SCENARIOS[task_id.removesuffix("-v1")]
        own = next((name for name, cfg in MULTIPLAYER_SCENARIOS.items() if cfg == scenario), None)
        rows = make_pettingzoo(MultiplayerEnv if own is None else own, layout="rows", **rest)
    else:
        rows = make_pettingzoo(task_id, layout="rows", **rest)
    if env_type == "dm":
        from envfleet.compat.envpool.dm_player_pools import DMPlayersEnvPool  # needs dm_env

        return DMPlayersEnvPool(rows)
    return PlayersEnvPool(rows, has_five_results, returns_info)


class PlayersEnvPool:
    """num_envs games in EnvPool's calls: (obs, info) and 5-tuples, or those of gym before 0.26."""

    def __init__(self, rows: PlayerRowsPool, has_five_results: bool, returns_info: bool) -> None:
        self._rows = rows
        self._has_five_results = has_five_results
        self._returns_info = returns_info
        self.spec = rows.spec
        self.num_envs = rows.num_envs
        self.max_num_players = rows.max_num_players
        self.observation_space = self.single_observation_space = rows.single_observation_space
        self.action_space = self.single_action_space = rows.single_action_space

    @property
    def config(self) -> dict[str, Any]:
        """The pool's options and the env's parameters, flat."""
        return self._rows.config

    @property
    def all_env_ids(self) -> NDArray[np.int32]:
        """The ids of all games."""
        return np.arange(self.num_envs, dtype=np.int32)

    @property
    def is_async(self) -> bool:
        """Whether batches hold fewer games than there are."""
        return self._rows.pool.config.is_async

    def __len__(self) -> int:
        return self.num_envs

    def reset(self, env_id: Any = None, *, seed: Seed = None) -> Any:
        """Reset all games, or those of env_id, and return their rows."""
        obs, info = self._rows.reset(env_id, seed=seed)
        return (obs, _envpool_info(info)) if self._returns_info else obs

    def step(self, action: Any, env_id: Any = None, *, timeout: float | None = None) -> Any:
        """Step games. action: one row per player row of their last batch, or EnvPool's dict of arrays."""
        return self._shown(self._rows.step(*self._ordered(action, env_id), timeout=timeout))

    def async_reset(self) -> None:
        """Start a reset of all games; recv() returns their rows."""
        self._rows.async_reset()

    def send(self, action: Any, env_id: Any = None) -> None:
        """Start a step of these games without waiting for it."""
        self._rows.send(*self._ordered(action, env_id))

    def recv(self, timeout: float | None = None) -> Any:
        """Receive the games that are ready; info["env_id"] tells which they are."""
        return self._shown(self._rows.recv(timeout))

    def render(self, env_ids: Any = None) -> Any:
        """Render these games (default: the first), the players' screens side by side."""
        frames = self._rows.render()
        return np.stack([frames[env_id] for env_id in np.atleast_1d(0 if env_ids is None else env_ids)])

    def close(self) -> None:
        """Close the games."""
        self._rows.close()

    def __enter__(self) -> PlayersEnvPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ordered(self, action: Any, env_id: Any) -> tuple[Any, Any]:
        """Unpack EnvPool's dict of arrays and sort its rows by game."""
        if not isinstance(action, Mapping):
            return action, env_id
        if "action" not in action:
            raise ActionError(
                f"a dict of actions expected the key 'action', got the keys {sorted(map(str, action))}; add it"
            )
        ids = action.get("env_id") if env_id is None else env_id
        rows, owners = np.asarray(action["action"]), action.get("players.env_id")
        if owners is not None:
            owners = np.asarray(owners)
            games = self.all_env_ids if ids is None else np.asarray(ids)
            if owners.shape != rows.shape[:1] or not np.isin(owners, games).all():
                raise ActionError(
                    f"players.env_id expected the game of each of {len(rows)} rows, of games {games.tolist()}, got "
                    f"{owners.tolist()}; pass info['players']['env_id'] with the actions"
                )
            place = {int(game): position for position, game in enumerate(games)}
            rows = rows[np.argsort([place[int(game)] for game in owners], kind="stable")]
        return rows, ids

    def _shown(self, step: tuple[Any, ...]) -> Any:
        obs, reward, _, _, info = step
        terminated, truncated = info["env.terminated"], info["env.truncated"]
        shown = _envpool_info(info)
        if self._has_five_results:
            return obs, reward.astype(np.float32), terminated, truncated, shown
        shown["TimeLimit.truncated"] = truncated & ~terminated
        return obs, reward.astype(np.float32), terminated | truncated, shown


def _envpool_info(info: Mapping[str, Any]) -> EnvPoolInfo:
    """Return the info in EnvPool's layout: the players' columns nested, without masks."""
    shown = EnvPoolInfo({key: value for key, value in info.items() if not key.startswith(("_", "players.", "env."))})
    shown["players"] = EnvPoolInfo({"env_id": info["players.env_id"], "id": info["players.id"]})
    return shown
