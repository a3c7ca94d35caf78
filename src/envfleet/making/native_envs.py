"""Native envs by name: which there are, with which parameters, and the executor that runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from envfleet import _native
from envfleet.envs import bsuite, classic_control, dm_control, minigrid, mujoco, toy_text
from envfleet.envs.family import Family, TextColumn
from envfleet.errors import ConfigError
from envfleet.executors.base import Executor
from envfleet.executors.native import NativeExecutor
from envfleet.making.options import NO_LIMIT, POOL_OPTIONS, Options, parse_options
from envfleet.making.params import Param, spread
from envfleet.spec import ArraySpec, EnvSpec, PoolConfig, config_as_dict, space_from_native

_FAMILIES: tuple[Family, ...] = (
    classic_control.FAMILY,
    toy_text.FAMILY,
    toy_text.WITHOUT_PICTURES,
    bsuite.FAMILY,
    mujoco.FAMILY,
    dm_control.FAMILY,
    minigrid.FAMILY,
)
# Families that are loaded when one of their envs is made, since they need a library of an extra.
_LATER = frozenset(env_id for family in _FAMILIES if family.load is not None for env_id in family.ids)


@dataclass(frozen=True)
class Entry:
    """A name: which native env it stands for, with which other defaults."""

    native_id: str
    params: Mapping[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None
    reward_threshold: float | None = None


registered: dict[str, Entry] = {}
# The ids of families whose native env is none by itself.
_NAMED = {env_id: Entry(family.ids[0], params) for family in _FAMILIES for env_id, params in family.named.items()}
_UNNAMED = frozenset(family.ids[0] for family in _FAMILIES if family.named)
plugin_files: dict[str, Path] = {}  # where the envs of plug-ins were loaded from


def native_ids() -> set[str]:
    """Every id that has a native env."""
    return {*unregistered_ids(), *registered}


def unregistered_ids() -> set[str]:
    """The ids of native envs themselves, without those that register() gave."""
    return ({*_native.list_env_types(), *_LATER} - _UNNAMED) | _NAMED.keys()


def find_entry(env_id: Any) -> Entry | None:
    """The native env behind an id, if there is one."""
    if not isinstance(env_id, str):
        return None
    if env_id in registered:
        return registered[env_id]
    if env_id in _NAMED:
        return _NAMED[env_id]
    return Entry(env_id) if env_id in unregistered_ids() else None


def load_entry(entry: Entry) -> None:
    """Makes an entry's env known to the engine. Raises MissingExtraError, or CompileError with the reason."""
    load = family_of_native(entry.native_id).load
    if load is not None and entry.native_id not in plugin_files:  # the user's own env of that id
        load(entry.native_id)


def takes_params(entry: Entry, params: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the native env takes these parameters of the envs; its Python twin may take more."""
    takes = family_of_native(entry.native_id).takes
    return takes is None or all(takes({**entry.params, **own}) for own in params)


def family_of_native(native_id: str) -> Family:
    """The family of a native env; one that nobody lists (a plug-in's) is a family of its own."""
    return next((family for family in _FAMILIES if native_id in family.ids), Family("plug-in", (native_id,)))


def single_env_spec(env_id: str, entry: Entry) -> GymnasiumSpec:
    """What builds one native env as a gymnasium.Env, without its time limit, which is the spec's."""
    spec = resolve(env_id, entry, parse_options({}))[0]
    return GymnasiumSpec(
        env_id,
        entry_point="envfleet.envs.native_env:SingleNativeEnv",
        reward_threshold=spec.reward_threshold,
        max_episode_steps=spec.max_episode_steps,
        kwargs={"env_id": entry.native_id, **entry.params},
    )


def python_spec_of_native(env_id: str) -> GymnasiumSpec | None:
    """What builds a native env in Python, where Gymnasium has no class for its id."""
    entry = find_entry(env_id)
    # A worker of another process does not have the user's plug-ins.
    if entry is None or entry.native_id in plugin_files:
        return None
    has_class = env_id in gymnasium.registry and env_id not in family_of_native(entry.native_id).native_only
    return None if has_class else single_env_spec(env_id, entry)


def native_executor(env_id: str, entry: Entry, options: Options) -> tuple[Executor, PoolConfig]:
    """The executor, and the config with the spec's defaults filled in."""
    spec, values, config = resolve(env_id, entry, options)
    if options.backend == "ray":
        from envfleet.executors.ray.making import ray_native

        library = plugin_files.get(entry.native_id)
        libraries = {} if library is None else {library.name: library.read_bytes()}
        return ray_native(entry.native_id, spec, config, values, libraries, options.given)
    make_renderer = family_of_native(entry.native_id).make_renderer
    return NativeExecutor(entry.native_id, spec, config, values, make_renderer), config


def resolve(env_id: str, entry: Entry, options: Options) -> tuple[EnvSpec, list[dict[str, Any]], PoolConfig]:
    """The spec, the parameter values of each env, and the config with the spec's defaults filled in."""
    config = options.config
    for name in ("step_timeout", "start_method") if options.backend != "ray" else ():
        if name in options.given and getattr(options.config, name) != getattr(PoolConfig(), name):
            raise ConfigError(f"{name} needs worker processes, {env_id} runs on threads in C++; leave it out")
    if config.render_mode not in (None, "rgb_array", "human"):
        raise ConfigError(
            f"render_mode expected 'rgb_array', 'human' or None, got {config.render_mode!r}; render() gives the frames"
        )
    load_entry(entry)
    declared = [Param(*fields) for fields in _native.params_of(entry.native_id)]
    family = family_of_native(entry.native_id)
    values = _values(
        env_id, declared, [family.translate({**entry.params, **own}) for own in options.params], config.num_envs
    )
    described = [_describe(env_id, entry.native_id, own) for own in values]
    texts = [_text_columns(env_id, family, own) for own in values]
    for position, other in enumerate(described):
        if _spaces_of(other) != _spaces_of(described[0]) or texts[position] != texts[0]:
            raise ConfigError(
                f"{env_id} expected the same spaces for all envs, env {position} has others than env 0; "
                "parameters that change a space must be the same for all envs"
            )
    raw = described[0]
    # Where parameters give each env its own, the shorter ones end their episodes themselves.
    own_limits = [own["max_episode_steps"] for own in described]
    limit = config.max_episode_steps or entry.max_episode_steps or (0 not in own_limits and max(own_limits)) or None
    if limit == NO_LIMIT:
        limit = None
    threshold = next(
        (t for t in (config.reward_threshold, entry.reward_threshold, raw["reward_threshold"]) if t is not None), None
    )
    config = PoolConfig(**{**vars(config), "max_episode_steps": limit, "reward_threshold": threshold})
    observation_arrays = tuple(_observation_array(a, texts[0]) for a in raw["obs"])
    spec = EnvSpec(
        id=env_id,
        entry_point=None,
        vector_entry_point="envfleet.making.registry:make_gymnasium",
        reward_threshold=threshold,
        max_episode_steps=limit,
        # What gymnasium.make_vec(spec) passes to the entry point.
        kwargs={"task_id": env_id, **(options.params[0] if len(options.params) == 1 else {})},
        observation_space=_observation_space(raw["structure"], observation_arrays),
        action_space=space_from_native(raw["action"]),
        observation_arrays=observation_arrays,
        info_arrays=tuple(ArraySpec(a["name"], space_from_native(a), a["on_step"], a["on_reset"]) for a in raw["info"]),
        reset_options=raw["reset_options"],
        backend="ray" if options.backend == "ray" else "native",
        native_id=entry.native_id,
        has_state=raw["has_state"],
        metadata={
            "render_modes": ["rgb_array", "human"],
            "render_fps": family.render_fps.get(entry.native_id, 30),
        },
        config=config_as_dict(config, _as_shown(values), options.seed),
    )
    return spec, values, config


def _values(env_id: str, declared: list[Param], given: list[dict[str, Any]], num_envs: int) -> list[dict[str, Any]]:
    if len(given) == 1:
        return spread(env_id, declared, given[0], num_envs, POOL_OPTIONS)
    return [spread(env_id, declared, own, 1, POOL_OPTIONS)[0] for own in given]


def _as_shown(values: list[dict[str, Any]]) -> dict[str, Any]:
    """The parameters as config shows them: one value, or a list of one an env where they differ."""
    shown = dict(values[0])
    for name in shown:
        column = [own[name] for own in values]
        if any(own != column[0] for own in column):
            shown[name] = column
    return shown


def _describe(env_id: str, native_id: str, values: dict[str, Any]) -> dict[str, Any]:
    try:
        return _native.describe(native_id, values)
    except _native.FleetError as error:
        raise ConfigError(f"{env_id} cannot be made with these parameters: {error}") from error


def _spaces_of(raw: Mapping[str, Any]) -> tuple[Any, ...]:
    return raw["structure"], raw["obs"], raw["action"], raw["info"]


def _text_columns(env_id: str, family: Family, params: Mapping[str, Any]) -> Mapping[str, TextColumn]:
    return {} if family.text_columns is None else family.text_columns(env_id, params)


def _observation_array(raw: Mapping[str, Any], texts: Mapping[str, TextColumn]) -> ArraySpec:
    column = texts.get(raw["name"])
    if column is None:
        return ArraySpec(raw["name"], space_from_native(raw))
    return ArraySpec(raw["name"], column.space, texts=column.texts)


def _observation_space(structure: str, arrays: tuple[ArraySpec, ...]) -> gymnasium.Space[Any]:
    if structure == "dict":
        return spaces.Dict([(array.name, array.space) for array in arrays])  # a dict would be sorted
    if structure == "tuple":
        return spaces.Tuple([array.space for array in arrays])
    return arrays[0].space
