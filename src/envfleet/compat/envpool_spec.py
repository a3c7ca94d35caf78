"""EnvPool's spec and config, over envfleet's."""

from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from envfleet.errors import ConfigError
from envfleet.spec import EnvSpec

# EnvPool's options that mean nothing here, with the values it has for them.
_OF_ENVPOOL: dict[str, Any] = {"base_path": "", "env_seed": []}


class EnvPoolSpec:
    """What is known of a pool, in EnvPool's words. What is not here (id, kwargs ...) is envfleet's spec's."""

    def __init__(self, spec: EnvSpec, given: Mapping[str, Any], old_gym_spaces: bool) -> None:
        self._spec = spec
        self._old_gym_spaces = old_gym_spaces
        self._config = {**_OF_ENVPOOL, **spec.config, **given}

    @property
    def config(self) -> Any:
        """The options as attributes."""
        return namedtuple("Config", list(self._config), rename=True)(*self._config.values())

    def config_dict(self) -> dict[str, Any]:
        """The options as EnvPool's flat dict."""
        return dict(self._config)

    @property
    def observation_space(self) -> Any:
        """That of one env; as gym's, for env_type="gym" where gym is in use."""
        return self._shown(self._spec.observation_space)

    @property
    def action_space(self) -> Any:
        """That of one env; as gym's, for env_type="gym" where gym is in use."""
        return self._shown(self._spec.action_space)

    @property
    def gymnasium_observation_space(self) -> gymnasium.Space[Any]:
        """That of one env, as Gymnasium's."""
        return self._spec.observation_space

    @property
    def gymnasium_action_space(self) -> gymnasium.Space[Any]:
        """That of one env, as Gymnasium's."""
        return self._spec.action_space

    def _shown(self, space: gymnasium.Space[Any]) -> Any:
        return to_gym_space(space) if self._old_gym_spaces else space

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_spec":
            raise AttributeError(name)
        return getattr(self._spec, name)

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self._config.items())
        return f"{self._spec.id}EnvSpec({options})"


def to_gym_space(space: gymnasium.Space[Any]) -> Any:
    """A space as one of the gym package, if that is what this program uses.

    gym is never imported for it: who tests for gym's types has imported it. In envfleet's stand-in they are
    Gymnasium's own.
    """
    gym = sys.modules.get("gym.spaces")
    return space if gym is None or gym.Box is spaces.Box else _converted(space, gym)


def _converted(space: gymnasium.Space[Any], gym: Any) -> Any:
    if isinstance(space, spaces.Box):
        return gym.Box(space.low, space.high, space.shape, np.dtype(space.dtype).type)
    if isinstance(space, spaces.Discrete):
        # gym had no start before 0.22.
        return gym.Discrete(int(space.n), start=int(space.start)) if space.start else gym.Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return gym.MultiDiscrete(space.nvec)
    if isinstance(space, spaces.MultiBinary):
        return gym.MultiBinary(space.n)
    if isinstance(space, spaces.Dict):
        return gym.Dict({key: _converted(part, gym) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return gym.Tuple([_converted(part, gym) for part in space.spaces])
    raise ConfigError(
        f"env_type='gym' expected a Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple space, got {space}; "
        "use env_type='gymnasium'"
    )
