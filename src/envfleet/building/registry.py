"""The ids that envfleet knows: register(), list_all_envs() and the family of each."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium

from envfleet.building.gymnasium_ids import publish
from envfleet.building.native_envs import (
    NativeEntry,
    built_in_ids,
    find_entry,
    native_ids,
    registered,
    resolve_defaults,
)
from envfleet.core.errors import ConfigError, UnknownEnvError
from envfleet.core.families import find_python_family, native_family, python_family_ids
from envfleet.core.family import Family
from envfleet.core.option_checks import integer_option, number_option
from envfleet.core.options import POOL_OPTIONS

_PYTHON_FAMILY = Family("python", python_opens_windows=True)


def list_all_envs() -> list[str]:
    """Return every id of envfleet's families, sorted. make() also accepts any id of Gymnasium."""
    return sorted(native_ids() | python_family_ids())


def family_of(env: object) -> Family:
    """Return the family of an env. Python envs of no family render themselves."""
    entry = find_entry(env)
    if entry is not None:
        return native_family(entry.native_id)
    return find_python_family(env) or _PYTHON_FAMILY


def register(
    env_id: str,
    base: str,
    *,
    max_episode_steps: int | None = None,
    reward_threshold: float | None = None,
    **params: Any,
) -> None:
    """Register a new id for a native env, with other defaults. Warns if it overrides other defaults of the id.

    >>> register("LongCartPole-v0", "CartPole-v1", max_episode_steps=10_000)
    """
    if not isinstance(env_id, str) or gymnasium.envs.registration.ENV_ID_RE.fullmatch(env_id) is None:
        raise ConfigError(f"register() expected an id such as 'MyEnv-v0' (letters, digits and _:.-), got {env_id!r}")
    if max_episode_steps is not None:
        max_episode_steps = integer_option("max_episode_steps", max_episode_steps, 1, 2**31 - 1)
    reward_threshold = number_option("reward_threshold", reward_threshold)
    if pool := [name for name in params if name in POOL_OPTIONS]:
        raise ConfigError(
            f"register() expected parameters of the env, got {pool[0]}, an option of make(); pass it there"
        )
    if env_id in built_in_ids():
        raise ConfigError(f"register() expected a new id, got {env_id!r}, which is a native env; choose another name")
    origin = find_entry(base)
    if origin is None:
        raise UnknownEnvError(
            f"register() expected the id of a native env as base, got {base!r}; "
            "register Python envs with gymnasium.register()"
        )
    entry = NativeEntry(
        origin.native_id,
        {**origin.params, **params},
        origin.max_episode_steps if max_episode_steps is None else max_episode_steps,
        origin.reward_threshold if reward_threshold is None else reward_threshold,
    )
    # Wrong defaults raise here, not at the first make().
    resolve_defaults(env_id, entry)
    if registered.get(env_id, entry) != entry:
        warnings.warn(f"register() overrides {env_id!r}, which was registered with other defaults", stacklevel=2)
    registered[env_id] = entry
    publish([env_id])
