"""envfleet's ids in Gymnasium's registry, in a namespace of their own, for gymnasium.make() and gymnasium.make_vec().

gymnasium.make("envfleet/CartPole-v1") makes one env, gymnasium.make_vec("envfleet/CartPole-v1", num_envs=8) a pool.

Gymnasium's own ids do not change. An id that already has a namespace ("ALE/Pong-v5") cannot have a second one and is
left out. Gymnasium before 1.0 calls register_ids() through the plug-in entry point; later versions have no plug-ins,
and "envfleet:envfleet/CartPole-v1" imports envfleet first.

The namespace is needed behind "envfleet:" too: that prefix only tells Gymnasium to import envfleet, and it then makes
its own CartPole-v1 of "envfleet:CartPole-v1". It has no hook by which envfleet could refuse that.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import gymnasium
from gymnasium.envs import registration
from gymnasium.envs.registration import EnvSpec

from envfleet.core.errors import ConfigError, EnvfleetError
from envfleet.core.spec import NAMESPACE


class PublishedSpec(EnvSpec):
    """The spec of an id, with its time limit and reward threshold.

    They are looked up when they are first read: to do that for all ids would load every simulator at import.
    """

    def __post_init__(self) -> None:
        """Leave the two to be looked up unless they were passed."""
        super().__post_init__()
        for name in ("max_episode_steps", "reward_threshold"):
            if vars(self)[name] is None:
                del vars(self)[name]

    @functools.cached_property  # which can be assigned
    def max_episode_steps(self) -> int | None:  # type: ignore[override]
        """The time limit; None if there is none, or if the env's package is not installed."""
        return limits_of(self.id.removeprefix(f"{NAMESPACE}/"))[0]

    @functools.cached_property
    def reward_threshold(self) -> float | None:  # type: ignore[override]
        """The return from which the task counts as solved, or None."""
        return limits_of(self.id.removeprefix(f"{NAMESPACE}/"))[1]


def limits_of(env_id: str, **params: Any) -> tuple[int | None, float | None]:
    """Return the time limit and the reward threshold of an env with these parameters; None for what it has not."""
    from envfleet.building.builders import gymnasium_spec
    from envfleet.building.native_envs import find_entry, resolve_defaults

    entry = find_entry(env_id)
    try:
        spec: EnvSpec = gymnasium_spec(env_id) if entry is None else resolve_defaults(env_id, entry, **params).spec
    except (EnvfleetError, ImportError):
        return None, None
    return spec.max_episode_steps, spec.reward_threshold


def make_env(task_id: str, render_mode: str | None = None, **params: Any) -> gymnasium.Env[Any, Any]:
    """Make one env, the native one if there is one, for gymnasium.make(), which applies the time limit of the spec."""
    from envfleet.building.builders import build_env
    from envfleet.building.native_env import SingleNativeEnv
    from envfleet.building.native_envs import find_entry, supports_params
    from envfleet.core.option_checks import NO_LIMIT

    if "num_envs" in params:
        raise ConfigError(
            f"gymnasium.make() expected no num_envs, since it makes one env, got num_envs={params['num_envs']!r}; use "
            f"gymnasium.make_vec('{NAMESPACE}/{task_id}', num_envs={params['num_envs']!r})"
        )
    entry = find_entry(task_id)
    if entry is None or not supports_params(entry, [params]):
        env: gymnasium.Env[Any, Any] = build_env(task_id, render_mode=render_mode, max_episode_steps=NO_LIMIT, **params)
        return env
    env = SingleNativeEnv(task_id, render_mode, **params)
    limit = limits_of(task_id, **params)[0] if params else None
    if limit is not None and limit != limits_of(task_id)[0]:
        env = gymnasium.wrappers.TimeLimit(env, limit)  # the parameters change it, as MiniGrid's max_steps does
    return env


# As a class has it: gymnasium.make() looks for it before it calls an entry point.
make_env.metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 30}  # type: ignore[attr-defined]


def publish(env_ids: Iterable[str]) -> None:
    """Add these ids to Gymnasium's registry, in envfleet's namespace."""
    for env_id in env_ids:
        if "/" not in env_id:
            spec = PublishedSpec(
                f"{NAMESPACE}/{env_id}",
                entry_point="envfleet.building.gymnasium_ids:make_env",
                vector_entry_point="envfleet.apis.gymnasium:make_vector_env",
                kwargs={"task_id": env_id},
            )
            # Not gymnasium.register(), which compares each id with all others.
            registration.registry[spec.id] = spec


def register_ids() -> None:
    """Publish every id."""
    from envfleet.building.registry import list_all_envs

    publish(list_all_envs())
