"""What the Stable-Baselines3 drop-ins do with an env where it lives (Pool.apply).

Outside the package sb3: a worker that unpickles these functions must not import Stable-Baselines3, and torch with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium

from envfleet.apis.common.env_builders import inner_env


def call_method(env: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a method of the env or of an env that it wraps."""
    return inner_env(env).get_wrapper_attr(name)(*args, **kwargs)


def has_attribute(env: Any, name: str) -> bool:
    """Return whether the env or an env that it wraps has this attribute."""
    return bool(inner_env(env).has_wrapper_attr(name))


def set_attribute(env: Any, name: str, value: Any) -> None:
    """Set an attribute of the outermost wrapper, as SB3 does."""
    setattr(inner_env(env), name, value)


def is_wrapped(env: Any, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]]) -> bool:
    """Return whether one of the env's wrappers is of this class."""
    env = inner_env(env)
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, wrapper_class):
            return True
        env = env.env
    return False
