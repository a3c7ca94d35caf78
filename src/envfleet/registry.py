"""Names to specs to pools: make(), register(), list_all_envs().

make(id, ...) -> spec -> Pool -> the api that env_type names
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, overload

import gymnasium
import numpy as np
from gymnasium import spaces

from envfleet import _native
from envfleet.envs import bsuite, classic_control, toy_text
from envfleet.envs.family import Family
from envfleet.errors import ConfigError, UnknownEnvError
from envfleet.executors.native import NativeExecutor
from envfleet.options import POOL_OPTIONS, integer_option, pool_config
from envfleet.params import Param, spread
from envfleet.pool import Pool
from envfleet.seeding import seeds_for
from envfleet.spec import ArraySpec, EnvSpec, PoolConfig, config_as_dict, space_from_native

if TYPE_CHECKING:
    from envfleet.apis.dm import DmPool
    from envfleet.apis.gym import GymPool
    from envfleet.apis.gymnasium import GymnasiumPool

_FAMILIES: tuple[Family, ...] = (classic_control.FAMILY, toy_text.FAMILY, bsuite.FAMILY)


@dataclass(frozen=True)
class _Entry:
    """A name: which native env it stands for, with which other defaults."""

    native_id: str
    params: Mapping[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None
    reward_threshold: float | None = None


_registered: dict[str, _Entry] = {}


def list_all_envs() -> list[str]:
    """Every id that make() knows, sorted."""
    return sorted({*_native.list_env_types(), *_registered})


def family_of(env_id: str) -> Family:
    """The family of an id; one that nobody lists (a plug-in's) is a family of its own."""
    return _family_of_native(_entry_of(env_id).native_id)


def register(
    env_id: str,
    base: str,
    *,
    max_episode_steps: int | None = None,
    reward_threshold: float | None = None,
    **params: Any,
) -> None:
    """Gives a known env a new id with other defaults.

    >>> register("LongCartPole-v0", "CartPole-v1", max_episode_steps=10_000)
    """
    if not isinstance(env_id, str) or gymnasium.envs.registration.ENV_ID_RE.fullmatch(env_id) is None:
        raise ConfigError(f"register() expected an id such as 'MyEnv-v0' (letters, digits and _:.-), got {env_id!r}")
    if max_episode_steps is not None:
        max_episode_steps = integer_option("max_episode_steps", max_episode_steps, 1, 2**31 - 1)
    if env_id in _native.list_env_types():
        raise ConfigError(f"register() expected a new id, {env_id!r} is a native env; choose another name")
    origin = _entry_of(base)
    entry = _Entry(
        origin.native_id,
        {**origin.params, **params},
        origin.max_episode_steps if max_episode_steps is None else max_episode_steps,
        origin.reward_threshold if reward_threshold is None else reward_threshold,
    )
    _resolve(env_id, entry, PoolConfig(), {}, None)  # raises here, not at the first make(), when the defaults are wrong
    _registered[env_id] = entry


def make_spec(task_id: str, **options: Any) -> EnvSpec:
    """What make() would build, without building it."""
    config, seed, params = pool_config(task_id, options)
    seeds_for(seed, np.arange(config.num_envs, dtype=np.int32), config.num_envs)  # raises when it is none
    return _resolve(task_id, _entry_of(task_id), config, params, seed)[0]


def make_pool(task_id: str, **options: Any) -> Pool:
    """The bare pool; what make() wraps in an api."""
    config, seed, params = pool_config(task_id, options)
    entry = _entry_of(task_id)
    spec, values, config = _resolve(task_id, entry, config, params, seed)
    return Pool(NativeExecutor(entry.native_id, spec, config, values), config, seed)


@overload
def make(task_id: str, env_type: Literal["gymnasium"] = "gymnasium", **options: Any) -> GymnasiumPool: ...
@overload
def make(task_id: str, env_type: Literal["gym"], **options: Any) -> GymPool: ...
@overload
def make(task_id: str, env_type: Literal["dm"], **options: Any) -> DmPool: ...


def make(task_id: str, env_type: str = "gymnasium", **options: Any) -> GymnasiumPool | GymPool | DmPool:
    """A pool of num_envs envs behind the API that env_type names.

    Options of the pool are the fields of envfleet.spec.PoolConfig (num_envs, batch_size,
    num_threads ...), seed and backend; all others are parameters of the env, one value for
    all envs or a list of num_envs values.
    """
    if env_type == "gymnasium":
        return make_gymnasium(task_id, **options)
    if env_type == "gym":
        return make_gym(task_id, **options)
    if env_type == "dm":
        return make_dm(task_id, **options)
    raise ConfigError(f"env_type expected 'gymnasium', 'gym' or 'dm', got {env_type!r}")


def make_gymnasium(task_id: str, **options: Any) -> GymnasiumPool:
    """A pool as a gymnasium.vector.VectorEnv."""
    from envfleet.apis.gymnasium import GymnasiumPool

    return GymnasiumPool(make_pool(task_id, **options), family_of(task_id))


def make_gym(task_id: str, *, gym_reset_return_info: bool = False, **options: Any) -> GymPool:
    """A pool in the old gym's API: obs = reset(); obs, rew, done, info = step(action)."""
    from envfleet.apis.gym import GymPool

    return GymPool(make_gymnasium(task_id, **options), gym_reset_return_info)


def make_dm(task_id: str, **options: Any) -> DmPool:
    """A pool in dm_env's API: TimeSteps of arrays."""
    from envfleet.apis.dm import DmPool

    return DmPool(make_pool(task_id, **options))


def _entry_of(env_id: str) -> _Entry:
    if not isinstance(env_id, str):
        raise UnknownEnvError(
            f"make() expected an env id such as 'CartPole-v1', got {type(env_id).__name__}: {env_id!r}"
        )
    if env_id in _registered:
        return _registered[env_id]
    known = list_all_envs()
    if env_id in _native.list_env_types():
        return _Entry(env_id)
    nearest = difflib.get_close_matches(env_id, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else "envfleet.list_all_envs() lists them"
    if env_id in gymnasium.registry:
        hint = "Gymnasium has it, but it has no native env and this version runs native envs only; " + hint
    raise UnknownEnvError(f"make() expected a known env id, got {env_id!r}; {hint}")


def _resolve(
    env_id: str, entry: _Entry, config: PoolConfig, params: Mapping[str, Any], seed: Any
) -> tuple[EnvSpec, list[dict[str, Any]], PoolConfig]:
    """The spec, the parameter values of each env, and the config with the spec's defaults filled in."""
    declared = [Param(*fields) for fields in _native.params_of(entry.native_id)]
    translate = _family_of_native(entry.native_id).translate
    given = translate({**entry.params, **params})
    values = spread(env_id, declared, given, config.num_envs, POOL_OPTIONS)
    described = [_describe(env_id, entry.native_id, own) for own in values]
    for position, other in enumerate(described):
        if _spaces_of(other) != _spaces_of(described[0]):
            raise ConfigError(
                f"{env_id} expected the same spaces for all envs, env {position} has others than env 0; "
                "parameters that change a space must be the same for all envs"
            )
    raw = described[0]
    limit = config.max_episode_steps or entry.max_episode_steps or raw["max_episode_steps"] or None
    threshold = next(
        (t for t in (config.reward_threshold, entry.reward_threshold, raw["reward_threshold"]) if t is not None), None
    )
    config = PoolConfig(**{**vars(config), "max_episode_steps": limit, "reward_threshold": threshold})
    observation_arrays = tuple(ArraySpec(a["name"], space_from_native(a)) for a in raw["obs"])
    spec = EnvSpec(
        id=env_id,
        entry_point=None,
        vector_entry_point="envfleet.registry:make_gymnasium",
        reward_threshold=threshold,
        max_episode_steps=limit,
        kwargs={"task_id": env_id, **params},  # what gymnasium.make_vec(spec) passes to the entry point
        observation_space=_observation_space(raw["structure"], observation_arrays),
        action_space=space_from_native(raw["action"]),
        observation_arrays=observation_arrays,
        info_arrays=tuple(ArraySpec(a["name"], space_from_native(a), a["on_step"], a["on_reset"]) for a in raw["info"]),
        reset_options=raw["reset_options"],
        native_id=entry.native_id,
        has_state=raw["has_state"],
        config=config_as_dict(config, _as_shown(values), seed),
    )
    return spec, values, config


def _as_shown(values: list[dict[str, Any]]) -> dict[str, Any]:
    """The parameters as config shows them: one value, or a list of one an env where they differ."""
    shown = dict(values[0])
    for name in shown:
        column = [own[name] for own in values]
        if any(own != column[0] for own in column):
            shown[name] = column
    return shown


def _family_of_native(native_id: str) -> Family:
    return next((family for family in _FAMILIES if native_id in family.ids), Family("plug-in", (native_id,)))


def _describe(env_id: str, native_id: str, values: dict[str, Any]) -> dict[str, Any]:
    try:
        return _native.describe(native_id, values)
    except _native.FleetError as error:
        raise ConfigError(f"{env_id} cannot be made with these parameters: {error}") from error


def _spaces_of(raw: Mapping[str, Any]) -> tuple[Any, ...]:
    return raw["structure"], raw["obs"], raw["action"], raw["info"]


def _observation_space(structure: str, arrays: tuple[ArraySpec, ...]) -> gymnasium.Space[Any]:
    if structure == "dict":
        return spaces.Dict({array.name: array.space for array in arrays})
    if structure == "tuple":
        return spaces.Tuple([array.space for array in arrays])
    return arrays[0].space
