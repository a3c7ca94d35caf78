"""EnvPoolSpec: what is known of a pool before it runs, in EnvPool's terms."""

from __future__ import annotations

import copy
from collections import namedtuple
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import gymnasium
import numpy as np

from envfleet.building import pools
from envfleet.building.registry import family_of
from envfleet.compat.envpool.array_spec import (
    ArraySpec,
    array_spec_of,
    as_int32,
    dm_spec_transform,
    flat_spaces,
    unbounded,
    with_int32,
)
from envfleet.compat.envpool.gym_module import has_new_api, to_gym_space
from envfleet.compat.envpool.task_options import info_arrays, task_config, to_envfleet
from envfleet.core.errors import ConfigError
from envfleet.core.option_checks import NO_LIMIT
from envfleet.core.spec import ArraySpec as InfoArray
from envfleet.core.spec import EnvSpec

_Spec = TypeVar("_Spec", bound="EnvPoolSpec")
# Options of EnvPool that have no effect here, with its values for them.
_OF_ENVPOOL: dict[str, Any] = {"base_path": "", "env_seed": []}
# EnvPool's options that are flags; it takes 0 and 1 for them too.
_FLAGS = {
    *("episodic_life", "reward_clip", "use_fire_reset", "zero_discount_on_life_loss", "full_action_space"),
    *("use_inter_area_resize", "gray_scale", "from_pixels", "depth", "labels", "automap", "use_combined_action"),
}
# EnvPool's default: two pools made without a seed run the same episodes. seed=None draws one.
DEFAULT_SEED = 42
_BLACKJACK = "Blackjack-v1"
_BLACKJACK_SPACE = gymnasium.spaces.Box(0, 31, (3,), np.int32)
# EnvPool's families with Discrete observations, which are int32 there. Users' Python envs keep their dtype.
_INT32_FAMILIES = ("toy text", "minigrid")
# Info columns that EnvPool has under another name: in TimeSteps, or as elapsed_step.
_NO_INFO = frozenset({"discount", "game_step", "env_id", "elapsed_step", "players"})


class EnvPoolSpec:
    """A task and its options. Other attributes (id, kwargs ...) are those of envfleet's spec.

    The classes of EnvPool's families (CartPoleEnvSpec ...) derive from it and are made of a config:
    CartPoleEnvSpec(CartPoleEnvSpec.gen_config(num_envs=4)).
    """

    task_id: Any
    options: EnvPoolOptions

    def __init__(self, config: Any) -> None:
        raise ConfigError(
            f"{type(self).__name__} expected to be made by make_spec() or by the class of a family, such as "
            "envpool.classic_control.CartPoleEnvSpec; use one of those"
        )

    @classmethod
    def of_task(cls: type[_Spec], task_id: Any, options: dict[str, Any]) -> _Spec:
        """Return the spec of a task with these options of EnvPool's or envfleet's make(). Nothing is built yet."""
        spec = object.__new__(cls)
        spec._start(task_id, options)
        return spec

    def _start(self, task_id: Any, options: dict[str, Any]) -> None:
        self.task_id = task_id
        self.options = parse_envpool_options(to_envfleet(task_id, options))
        family = family_of(task_id).name
        self._has_int32 = family in _INT32_FAMILIES
        if family == "atari":
            # EnvPool always has the memory of an Atari game as info["ram"]; envfleet on request.
            self.options.options.setdefault("ram_in_info", True)
        if isinstance(task_id, str) and task_id.startswith("FrozenLake") and "size" in self.options.options:
            size = self.options.options.pop("size")
            self.options.options.setdefault("map_name", f"{size}x{size}")
            self.options.given["size"] = size
        self._shows_gym_spaces = True
        self._resolved: EnvSpec | None = None

    def of_pool(self: _Spec, spec: EnvSpec, *, gym_spaces: bool) -> _Spec:
        """Return this spec for a pool that was made with it."""
        own = copy.copy(self)
        own._resolved = spec
        own._shows_gym_spaces = gym_spaces
        return own

    @property
    def env_spec(self) -> EnvSpec:
        """envfleet's spec of the task. For Python envs, the first call builds one."""
        if self._resolved is None:
            self._resolved = pools.make_spec(self.task_id, **self.options.options)
        return self._resolved

    @property
    def obs_space(self) -> gymnasium.Space[Any]:
        """The space of one env's observation as EnvPool has it: int32, and Blackjack's three numbers as one array."""
        if self.task_id == _BLACKJACK:
            return _BLACKJACK_SPACE
        space = self.env_spec.observation_space
        return with_int32(space) if self._has_int32 else space

    def obs_of(self, obs: Any) -> Any:
        """Return the observations of a batch in obs_space."""
        if not self._has_int32:
            return obs
        if self.task_id == _BLACKJACK:
            return np.stack(obs, axis=-1, dtype=np.int32)
        return as_int32(self.env_spec.observation_space, obs)

    # --- config ------------------------------------------------------------------------------

    @property
    def config(self) -> Any:
        """The options as a named tuple."""
        values = self.config_dict()
        return namedtuple("Config", list(values), rename=True)(*values.values())

    def config_dict(self) -> dict[str, Any]:
        """Return the options as EnvPool's flat dict."""
        spec = self.env_spec
        config = {**_OF_ENVPOOL, **spec.config, **task_config(self.task_id, spec.config), **self.options.given}
        returns_info = self.options.gym_reset_return_info
        if returns_info is None:
            returns_info = not self._shows_gym_spaces or has_new_api()
        config["gym_reset_return_info"] = returns_info
        if config.get("max_episode_steps") in (None, NO_LIMIT):
            config["max_episode_steps"] = spec.own_step_limit
        return config

    @property
    def reward_threshold(self) -> float | None:
        """The return from which the task counts as solved, or None."""
        return self.env_spec.reward_threshold

    # --- arrays ------------------------------------------------------------------------------

    @property
    def info_arrays(self) -> dict[str, InfoArray]:
        """The declared infos that EnvPool's infos have, by name."""
        declared = {array.name: array for array in self.env_spec.info_arrays if array.name not in _NO_INFO}
        return {**declared, **info_arrays(self.env_spec)}

    @property
    def state_array_spec(self) -> dict[str, ArraySpec]:
        """Every array of a state by EnvPool's names: "obs" or "obs:key", "info:lives", "reward" ..."""
        arrays = {
            "info:env_id": ArraySpec(np.int32, [], (0, self.env_spec.config["num_envs"] - 1)),
            "info:players.env_id": ArraySpec(np.int32, [-1], (0, self.env_spec.config["num_envs"] - 1)),
            "elapsed_step": unbounded(np.int32, []),
            "done": unbounded(np.bool_, []),
            "reward": unbounded(np.float32, [-1]),
            "discount": ArraySpec(np.float32, [-1], (0.0, 1.0)),
            "step_type": ArraySpec(np.int32, [], (0, 2)),
            "trunc": unbounded(np.bool_, []),
        }
        for name, space in flat_spaces(self.obs_space, "obs").items():
            is_discrete = isinstance(space, gymnasium.spaces.Discrete)
            arrays[name] = array_spec_of(space, per_player=is_discrete)
        for name, array in self.info_arrays.items():
            for path, space in flat_spaces(array.space, f"info:{name}", ".").items():
                arrays[path] = array_spec_of(space, per_player=not space.shape)
        return arrays

    @property
    def action_array_spec(self) -> dict[str, ArraySpec]:
        """Every array of an action: env_id, players.env_id, and "action" or the keys of a Dict space."""
        arrays = {"env_id": unbounded(np.int32, []), "players.env_id": unbounded(np.int32, [-1])}
        for name, space in flat_spaces(self.env_spec.action_space, "action").items():
            is_discrete = isinstance(space, gymnasium.spaces.Discrete)
            arrays[name.removeprefix("action:")] = array_spec_of(
                space, per_player=True, dtype=np.int32 if is_discrete else None
            )
        return arrays

    # --- dm_env ------------------------------------------------------------------------------

    def observation_spec(self) -> Any:
        """Return the dm_env specs of a TimeStep's observation: obs, or the keys of a Dict space, and the infos."""
        from envfleet.compat.envpool.dm_envpool import StateType

        return StateType(self).observation_spec()

    def action_spec(self) -> Any:
        """Return the dm_env spec of one env's action, nested as the space is."""
        from envfleet.apis.dm import spec_of_space

        space = self.env_spec.action_space
        if isinstance(space, (gymnasium.spaces.Dict, gymnasium.spaces.Tuple)):
            return spec_of_space(space, "action")
        return dm_spec_transform("action", self.action_array_spec["action"], "act")

    # --- gym and Gymnasium -------------------------------------------------------------------

    @property
    def observation_space(self) -> Any:
        """The space of a single env; a gym space if gym is in use, except for env_type="gymnasium"."""
        return self._shown(self.obs_space)

    @property
    def action_space(self) -> Any:
        """The space of a single env; a gym space if gym is in use, except for env_type="gymnasium"."""
        return self._shown(self.env_spec.action_space)

    @property
    def gymnasium_observation_space(self) -> gymnasium.Space[Any]:
        """The space of a single env, as a Gymnasium space."""
        return self.obs_space

    @property
    def gymnasium_action_space(self) -> gymnasium.Space[Any]:
        """The space of a single env, as a Gymnasium space."""
        return self.env_spec.action_space

    def _shown(self, space: gymnasium.Space[Any]) -> Any:
        return to_gym_space(space) if self._shows_gym_spaces else space

    def __getattr__(self, name: str) -> Any:
        # Not during copying, when the copy has no attributes yet.
        if name.startswith("_") or name in ("env_spec", "options", "task_id"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.env_spec, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shown_options(self.config_dict())})"


def shown_options(config: Mapping[str, Any]) -> str:
    """Format a config as call arguments."""
    return ", ".join(f"{name}={value!r}" for name, value in config.items())


# The last EnvPool whose env_type="gym" follows the gym package, as ours does.
__version__ = "0.8.4+envfleet"


@dataclass(frozen=True)
class EnvPoolOptions:
    """Options that only EnvPool's make() has.

    options: those of envfleet.make(). given: other options that EnvPool's config shows. The other fields are
    EnvPool's options of that name.
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
            f"max_num_players expected 1 in make_spec() and in a family's EnvSpec, got {players!r}; pass it to make(), "
            "and read the spec of the pool"
        )
    if "base_path" in rest:  # where EnvPool keeps its assets; envfleet has them in their packages
        given["base_path"] = rest.pop("base_path")
    env_seed = rest.pop("env_seed", None)
    if env_seed is not None and len(env_seed):
        given["env_seed"] = list(env_seed)
        rest["seed"] = [int(own) for own in env_seed]
    rest.setdefault("seed", DEFAULT_SEED)
    for name in _FLAGS & rest.keys():
        if type(rest[name]) is int and rest[name] in (0, 1):
            rest[name] = bool(rest[name])
    returns_info = rest.pop("gym_reset_return_info", None)
    # EnvPool takes 0 and negative numbers as no limit.
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
