"""EnvPool's keyword arguments, as make() of envfleet takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from envfleet.errors import ConfigError

# The last EnvPool whose env_type="gym" follows the gym package, as ours does.
__version__ = "0.8.4+envfleet"


@dataclass(frozen=True)
class EnvPoolOptions:
    """What EnvPool's make() was given.

    options: those of envfleet.make(). given: what EnvPool's config shows besides. The others are EnvPool's of that
    name.
    """

    options: dict[str, Any]
    given: dict[str, Any]
    gym_reset_return_info: bool | None
    render_env_id: int
    render_width: int
    render_height: int


def parse_envpool_options(options: dict[str, Any]) -> EnvPoolOptions:
    """Separate EnvPool's own options from those of envfleet.make()."""
    rest = dict(options)
    given: dict[str, Any] = {}
    players = rest.pop("max_num_players", 1)
    if players != 1:
        raise ConfigError(
            f"max_num_players expected 1 in the dm dialect and in make_spec(), got {players!r}; use env_type='gym' or "
            "'gymnasium'"
        )
    if "base_path" in rest:  # where EnvPool keeps its assets; envfleet has them in their packages
        given["base_path"] = rest.pop("base_path")
    env_seed = rest.pop("env_seed", None)
    if env_seed is not None and len(env_seed):
        given["env_seed"] = list(env_seed)
        rest["seed"] = [int(own) for own in env_seed]
    returns_info = rest.pop("gym_reset_return_info", None)
    # EnvPool takes 0 and below for no limit.
    limit = rest.get("max_episode_steps")
    if isinstance(limit, int) and limit <= 0:
        del rest["max_episode_steps"]
    if rest.get("from_pixels"):  # the sizes of the observation, and with it of render()
        return EnvPoolOptions(rest, given, returns_info, int(rest.pop("render_env_id", 0)), 0, 0)
    for name in ("render_camera_id", "from_pixels"):
        rest.pop(name, None)
    return EnvPoolOptions(
        rest,
        given,
        None if returns_info is None else bool(returns_info),
        int(rest.pop("render_env_id", 0)),
        int(rest.pop("render_width", 0)),
        int(rest.pop("render_height", 0)),
    )
