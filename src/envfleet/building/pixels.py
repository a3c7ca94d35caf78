"""Ids with from_pixels=True: which have pixels, and the spec of the env that renders them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from envfleet.building.native_envs import find_entry, single_env_spec
from envfleet.core.errors import ConfigError
from envfleet.core.families import find_python_family, native_family
from envfleet.core.option_checks import flag_option
from envfleet.envs.pixels import pixel_sizes


def wants_pixels(env: Any, params: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the parameters request pixels of an env that has them. Raises if only some of the envs do."""
    if not any("from_pixels" in own for own in params) or not _has_pixels(env):
        return False
    values = {flag_option("from_pixels", own.get("from_pixels", False)) for own in params}
    if len(values) > 1:
        raise ConfigError("from_pixels expected the same value for all envs, got True for some of them")
    return values.pop()


def pixel_spec(env_id: str, params: Sequence[Mapping[str, Any]]) -> GymnasiumSpec:
    """Return the Gymnasium spec of an id with pixel observations. Checks the parameters."""
    for own in params:
        pixel_sizes(own)
    family, entry = find_python_family(env_id), find_entry(env_id)
    if family is not None:
        spec = family.python_spec(env_id)
    else:
        assert entry is not None, "wants_pixels() has found a family"
        spec = single_env_spec(env_id, entry)
    return GymnasiumSpec(
        env_id,
        entry_point="envfleet.envs.pixels:make_pixel_env",
        max_episode_steps=spec.max_episode_steps,
        reward_threshold=spec.reward_threshold,
        kwargs={"of": spec.entry_point, **spec.kwargs},
    )


def _has_pixels(env: Any) -> bool:
    entry = find_entry(env)
    family = find_python_family(env) if entry is None else native_family(entry.native_id)
    return family is not None and family.has_pixels
