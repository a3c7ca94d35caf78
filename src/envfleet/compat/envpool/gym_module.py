"""The gym package that is in use, and its API for env_type="gym".

With a real gym >= 0.26, EnvPool 0.6.6 to 0.8.4 return (obs, info) and 5-tuples. With an older one, and with envfleet's
stand-in, reset() returns obs and step() 4-tuples.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from envfleet.compat.modules import AliasModule, is_available
from envfleet.core.errors import ConfigError


def gym_module() -> Any:
    """Return the package `gym`, real or envfleet's stand-in, or None. Like EnvPool, import gym if it is installed."""
    module = sys.modules.get("gym")
    if module is None and is_available("gym"):
        module = import_module("gym")
    return module if isinstance(getattr(module, "Env", None), type) else None


def has_new_api() -> bool:
    """Return whether reset() returns (obs, info) and step() 5-tuples: a real gym >= 0.26 is in use."""
    module = gym_module()
    if module is None or isinstance(module, AliasModule):
        return False
    numbers = re.match(r"(\d+)\.(\d+)", str(getattr(module, "__version__", "")))
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= (0, 26)


def as_gym_env(cls: type) -> type:
    """Return the class as a subclass of the gym.Env in use, which gym's wrappers expect; without gym, unchanged."""
    module = gym_module()
    return cls if module is None or issubclass(cls, module.Env) else _derived(cls, module.Env)


@cache
def _derived(cls: type, env: type) -> type:
    kinds = (type(cls), type(env))
    # gym 0.22 to 0.25 have a metaclass of their own.
    metaclass = kinds[0] if issubclass(*kinds) else kinds[1] if issubclass(kinds[1], kinds[0]) else None
    if metaclass is None:
        metaclass = type("_EnvPoolMeta", kinds, {})
    members = {"__module__": cls.__module__, "__doc__": cls.__doc__}
    derived: type = metaclass(cls.__name__, (cls, env), members)
    return derived


def to_gym_space(space: gymnasium.Space[Any]) -> Any:
    """Convert a space to gym's, if gym is in use. The spaces of envfleet's stand-in are Gymnasium's own."""
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
