"""EnvPool's keyword arguments, as make() of envfleet takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from envfleet.errors import ConfigError


@dataclass(frozen=True)
class EnvPoolOptions:
    """What EnvPool's make() was given, sorted.

    options: for envfleet. given: what EnvPool's config shows besides. The others are EnvPool's of that name.
    """

    options: dict[str, Any]
    given: dict[str, Any]
    gym_reset_return_info: bool
    render_env_id: int
    render_width: int
    render_height: int


def parse_envpool_options(options: dict[str, Any], reset_returns_info: bool) -> EnvPoolOptions:
    """Takes EnvPool's own options out. reset_returns_info: what gym_reset_return_info is by default."""
    rest = dict(options)
    given: dict[str, Any] = {}
    players = rest.pop("max_num_players", 1)
    if players != 1:
        raise ConfigError(
            f"max_num_players expected 1 here, got {players!r}; for envs of several agents see envfleet.multiagent"
        )
    if rest.pop("from_pixels", False):
        raise ConfigError("from_pixels is not supported; use wrappers=[gymnasium.wrappers.AddRenderObservation]")
    if "base_path" in rest:  # where EnvPool keeps its assets; envfleet has them in their packages
        given["base_path"] = rest.pop("base_path")
    env_seed = rest.pop("env_seed", None)
    if env_seed is not None and len(env_seed):
        given["env_seed"] = list(env_seed)
        rest["seed"] = [int(own) for own in env_seed]
    returns_info = bool(rest.pop("gym_reset_return_info", reset_returns_info))
    given["gym_reset_return_info"] = returns_info
    # EnvPool takes 0 and below for no limit.
    limit = rest.get("max_episode_steps")
    if isinstance(limit, int) and limit <= 0:
        del rest["max_episode_steps"]
    rest.pop("render_camera_id", None)
    return EnvPoolOptions(
        rest,
        given,
        returns_info,
        int(rest.pop("render_env_id", 0)),
        int(rest.pop("render_width", 0)),
        int(rest.pop("render_height", 0)),
    )
