"""Which API a Python env speaks, by what it has."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium
from gymnasium import spaces

_PROTOCOL = ("_step_envpool", "_reset_envpool", "_make_obs_envpool", "_reward_envpool", "_done_envpool")
_RESET_KEYWORDS = frozenset({"seed", "options", "return_info"})


def takes_env_id(cls: Any) -> bool:
    """Whether this is a class of envpool_wrapper's protocol whose constructor wants the env's id first."""
    if not inspect.isclass(cls) or not _has_protocol(cls):
        return False
    try:
        params = list(inspect.signature(cls).parameters.values())
    except (TypeError, ValueError):
        return False
    if not params or params[0].kind not in (params[0].POSITIONAL_ONLY, params[0].POSITIONAL_OR_KEYWORD):
        return False
    return params[0].name in ("envid", "env_id") or params[0].default is params[0].empty


def is_envpool_protocol(env: Any) -> bool:
    """Whether an env is to be stepped through the five methods of envpool_wrapper's protocol."""
    if not _has_protocol(env):
        return False
    # One that has Gymnasium's methods in full beside the five is a Gymnasium env like any other.
    own_step = isinstance(env, gymnasium.Env) and type(env).step is not gymnasium.Env.step
    own_reset = isinstance(env, gymnasium.Env) and type(env).reset is not gymnasium.Env.reset
    return not (own_step and own_reset and {"seed", "options"} <= (reset_keywords(env) or frozenset()))


def speaks_gymnasium(env: Any) -> bool:
    """Whether an env of another class has Gymnasium's reset and spaces; step() shows itself when called."""
    takes = reset_keywords(env)
    return (
        takes == frozenset({"seed", "options"})
        and not callable(getattr(env, "seed", None))
        and isinstance(getattr(env, "observation_space", None), spaces.Space)
        and isinstance(getattr(env, "action_space", None), spaces.Space)
    )


def reset_keywords(env: Any) -> frozenset[str] | None:
    """Which of seed, options and return_info env.reset() takes; None where the signature cannot tell.

    A wrapper's reset(**kwargs) says nothing, so the first env inside that names its parameters is asked.
    """
    seen: set[int] = set()
    while id(env) not in seen:
        seen.add(id(env))
        try:
            params = inspect.signature(env.reset).parameters.values()
        except (AttributeError, TypeError, ValueError):
            return None
        named = frozenset(p.name for p in params if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
        if not any(p.kind is p.VAR_KEYWORD for p in params):
            return named & _RESET_KEYWORDS
        if {"seed", "options"} <= named:
            return named & _RESET_KEYWORDS
        inner = getattr(env, "env", None)
        if inner is None:
            return None
        env = inner
    return None


def _has_protocol(env: Any) -> bool:
    return all(callable(getattr(env, name, None)) for name in _PROTOCOL)
