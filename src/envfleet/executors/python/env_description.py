"""Portrait: what a built env says of itself, fit to travel from a worker to the caller."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from envfleet.errors import ConfigError


@dataclass(frozen=True)
class Portrait:
    """The spaces and public attributes of one env."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    metadata: dict[str, Any] = field(default_factory=dict)
    render_mode: str | None = None
    class_name: str = ""
    info_space: gymnasium.Space[Any] | str | None = None
    max_steps: int | None = None


def portrait_of(env: Any) -> Portrait:
    """What an env says of itself; without what cannot travel."""
    metadata = getattr(env, "metadata", None)
    try:
        metadata = pickle.loads(pickle.dumps(dict(metadata or {})))
    except Exception:
        metadata = {}
    return Portrait(
        env.observation_space,
        env.action_space,
        metadata,
        getattr(env, "render_mode", None),
        type(getattr(env, "unwrapped", env)).__name__,
        _info_space_of(env),
        _max_steps_of(env),
    )


def _info_space_of(env: Any) -> gymnasium.Space[Any] | str | None:
    """What an env declares of its infos: a space, or the text of what is none, for the caller to refuse."""
    declared = getattr(env, "info_space", None) or getattr(getattr(env, "unwrapped", env), "info_space", None)
    return declared if declared is None or isinstance(declared, gymnasium.Space) else repr(declared)


def _max_steps_of(env: Any) -> int | None:
    """The steps after which an env ends an episode by itself, under MiniGrid's name for it."""
    limit = getattr(getattr(env, "unwrapped", env), "max_steps", None)
    return limit if type(limit) is int and limit > 0 else None


def one_portrait(portraits: list[Portrait]) -> Portrait:
    """The first, when all envs have its spaces."""
    first = portraits[0]
    for env_id, other in enumerate(portraits):
        for name in ("observation_space", "action_space"):
            # Comparing large spaces takes long, and most envs share theirs.
            if getattr(other, name) is not getattr(first, name) and getattr(other, name) != getattr(first, name):
                raise ConfigError(
                    f"make() expected the same spaces for all envs, the {name} of env 0 is {getattr(first, name)} "
                    f"and that of env {env_id} is {getattr(other, name)}; pad or wrap them to one space, "
                    "or make a pool for each"
                )
    return first
