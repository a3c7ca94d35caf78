"""Native envs: the entry that each id stands for, its spec and parameter values, and the executor that runs it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from envfleet import _native
from envfleet.core import families
from envfleet.core.backends import Backend, find_backend
from envfleet.core.errors import ConfigError, EnvfleetError
from envfleet.core.executor import Executor
from envfleet.core.families import native_family
from envfleet.core.family import Family, TextColumn
from envfleet.core.option_checks import NO_LIMIT
from envfleet.core.options import POOL_OPTIONS, Options, PoolConfig, pool_options, resolve_num_workers
from envfleet.core.params import Param, parameter_values, unknown_option
from envfleet.core.spec import ArraySpec, EnvSpec, config_as_dict, space_from_native
from envfleet.executors.native import NativeExecutor

# Ids that the engine learns when an env of them is made, since they need the library of an extra.
_LOADED_ON_DEMAND = frozenset(
    env_id for family in families.FAMILIES if family.load is not None for env_id in family.native_ids
)


@dataclass(frozen=True)
class NativeEntry:
    """The native env that an id stands for, and the defaults that the id changes."""

    native_id: str
    params: Mapping[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None
    reward_threshold: float | None = None


registered: dict[str, NativeEntry] = {}  # by register()
plugin_files: dict[str, Path] = {}  # the library of each plug-in env
_ALIASES = {
    env_id: NativeEntry(family.native_ids[0], params)
    for family in families.FAMILIES
    for env_id, params in family.aliases.items()
}
_ONLY_BY_ALIAS = frozenset(family.native_ids[0] for family in families.FAMILIES if family.aliases)


def native_ids() -> set[str]:
    """Return every id that has a native env."""
    return {*built_in_ids(), *registered}


def built_in_ids() -> set[str]:
    """Return the ids of native envs, plug-ins included, without those that register() added."""
    # An alias with its module ("procgen:procgen-coinrun-v0") is another spelling of one without.
    aliases = {env_id for env_id in _ALIASES if ":" not in env_id}
    return ({*_native.list_env_types(), *_LOADED_ON_DEMAND} - _ONLY_BY_ALIAS) | aliases


def find_entry(env_id: Any) -> NativeEntry | None:
    """Return the native env that an id stands for, or None."""
    if not isinstance(env_id, str):
        return None
    if env_id in registered:
        return registered[env_id]
    if env_id in _ALIASES:
        return _ALIASES[env_id]
    return NativeEntry(env_id) if env_id in built_in_ids() else None


def load_entry(entry: NativeEntry) -> None:
    """Load an entry's env into the engine. Raises MissingExtraError, or CompileError with the reason."""
    load = native_family(entry.native_id).load
    if load is not None and entry.native_id not in plugin_files:  # else a plug-in has replaced the built-in env
        load(entry.native_id)


def supports_params(entry: NativeEntry, params: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the native env supports these parameters; the Python env of the same id may support more."""
    supports = native_family(entry.native_id).supports_params
    return supports is None or all(supports({**entry.params, **own}) for own in params)


def single_env_spec(env_id: str, entry: NativeEntry) -> GymnasiumSpec:
    """Return the Gymnasium spec of one native env. The time limit is in the spec, not in the env."""
    spec = resolve_defaults(env_id, entry).spec
    return GymnasiumSpec(
        env_id,
        entry_point="envfleet.building.native_env:SingleNativeEnv",
        reward_threshold=spec.reward_threshold,
        max_episode_steps=spec.max_episode_steps,
        kwargs={"env_id": _id_everywhere(entry), **entry.params},
    )


def _id_everywhere(entry: NativeEntry) -> str:
    """Return an id of the env that worker processes know too, unlike those of register()."""
    if entry.native_id not in _ONLY_BY_ALIAS:
        return entry.native_id
    return next(
        env_id
        for env_id, own in _ALIASES.items()
        if own.native_id == entry.native_id and all(entry.params.get(key) == own.params[key] for key in own.params)
    )


def python_spec_of_native(env_id: str) -> GymnasiumSpec | None:
    """Return the Gymnasium spec of a native id for which Gymnasium has no class, or None."""
    entry = find_entry(env_id)
    # A worker process does not have the user's plug-ins.
    if entry is None or entry.native_id in plugin_files:
        return None
    has_class = env_id in gymnasium.registry and env_id not in native_family(entry.native_id).native_only
    return None if has_class else single_env_spec(env_id, entry)


def native_executor(env_id: str, entry: NativeEntry, backend: Backend, options: Options) -> tuple[Executor, PoolConfig]:
    """Return the executor, and the config with all defaults resolved."""
    spec, params, config = resolve(env_id, entry, backend, options)
    make_renderer = native_family(entry.native_id).make_renderer
    plugin = plugin_files.get(entry.native_id)
    return backend.make_native(entry.native_id, spec, config, params, make_renderer, plugin)


class ResolvedEnvs(NamedTuple):
    """The envs of a native pool. params: one dict for all envs, or one per env. config: with all defaults resolved."""

    spec: EnvSpec
    params: list[dict[str, Any]]
    config: PoolConfig


def resolve(env_id: str, entry: NativeEntry, backend: Backend, options: Options) -> ResolvedEnvs:
    """Return what is known of a pool's envs before they are built. Raises ConfigError for options that do not fit."""
    _check_options(env_id, entry, backend, options)
    load_entry(entry)
    declared = [Param(**fields) for fields in _native.params_of(entry.native_id)]
    family = native_family(entry.native_id)
    translated = [family.translate({**entry.params, **own}) for own in options.params]
    _check_names(env_id, entry, declared, translated)
    params = _complete_params(env_id, declared, translated, options.config.num_envs)
    described = [_describe(env_id, entry.native_id, own) for own in params]
    texts = [_text_columns(env_id, family, own) for own in params]
    for position, other in enumerate(described):
        if _spaces_of(other) != _spaces_of(described[0]) or texts[position] != texts[0]:
            raise ConfigError(
                f"{env_id} expected the same spaces for all envs, env {position} has other spaces than env 0; "
                "parameters that change a space must be the same for all envs"
            )
    config = _resolved_config(entry, backend, options, described)
    try:
        spec = _make_spec(env_id, entry, backend, options, config, params, described[0], texts[0])
    except (AssertionError, ValueError) as error:  # of Gymnasium's spaces
        raise ConfigError(
            f"{env_id} expected spaces that Gymnasium accepts, got: {error}; correct its spec(), or these parameters"
        ) from error
    return ResolvedEnvs(spec, params, config)


def resolve_defaults(env_id: str, entry: NativeEntry, **options: Any) -> ResolvedEnvs:
    """Return what is known of the envs of a native pool on this machine with these options."""
    return resolve(env_id, entry, find_backend("native"), pool_options(**options))


def _check_options(env_id: str, entry: NativeEntry, backend: Backend, options: Options) -> None:
    config = options.config
    # A worker process does not have the user's plug-ins.
    remedy = "" if entry.native_id in plugin_files else "pass backend='processes', which runs them in Python, or "
    for name in () if backend.has_processes else ("step_timeout", "start_method"):
        if getattr(config, name) != POOL_OPTIONS[name]:
            raise ConfigError(
                f"{name} needs worker processes, but envs of {env_id} run on threads in C++; {remedy}leave it out"
            )
    if config.render_mode not in (None, "rgb_array", "human"):
        raise ConfigError(
            f"render_mode expected 'rgb_array', 'human' or None, got {config.render_mode!r}; "
            "render() returns the frames"
        )


def _resolved_config(
    entry: NativeEntry, backend: Backend, options: Options, described: Sequence[Mapping[str, Any]]
) -> PoolConfig:
    config = options.config
    # If the limits differ per env, the pool has the longest, and envs with a shorter one end their episodes themselves.
    own_limits = [own["max_episode_steps"] for own in described]
    limit = config.max_episode_steps or entry.max_episode_steps or (0 not in own_limits and max(own_limits)) or None
    thresholds = (config.reward_threshold, entry.reward_threshold, described[0]["reward_threshold"])
    return replace(
        config,
        num_workers=resolve_num_workers(config, backend),
        max_episode_steps=None if limit == NO_LIMIT else limit,
        reward_threshold=next((threshold for threshold in thresholds if threshold is not None), None),
    )


def _make_spec(
    env_id: str,
    entry: NativeEntry,
    backend: Backend,
    options: Options,
    config: PoolConfig,
    params: list[dict[str, Any]],
    raw: Mapping[str, Any],
    texts: Mapping[str, TextColumn],
) -> EnvSpec:
    """Return the spec. config: resolved. raw: what the native module says about the env."""
    observation_arrays = tuple(_observation_array(a, texts) for a in raw["obs"])
    return EnvSpec(
        id=env_id,
        entry_point=None,
        vector_entry_point="envfleet.apis.gymnasium:make_gymnasium",
        reward_threshold=config.reward_threshold,
        max_episode_steps=config.max_episode_steps,
        # What gymnasium.make_vec(spec) passes to the entry point.
        kwargs={"task_id": env_id, **(options.params[0] if len(options.params) == 1 else {})},
        observation_space=_observation_space(raw["structure"], observation_arrays),
        action_space=space_from_native(raw["action"]),
        observation_arrays=observation_arrays,
        info_arrays=tuple(ArraySpec(a["name"], space_from_native(a), a["on_step"], a["on_reset"]) for a in raw["info"]),
        reset_options=raw["reset_options"],
        backend=backend.name,
        native_id=entry.native_id,
        has_state=raw["has_state"],
        metadata={
            "render_modes": ["rgb_array", "human"],
            "render_fps": native_family(entry.native_id).render_fps.get(entry.native_id, 30),
        },
        config=config_as_dict(config, _merged(params), options.seed),
    )


def _check_names(
    env_id: str, entry: NativeEntry, declared: Sequence[Param], params: Sequence[Mapping[str, Any]]
) -> None:
    """Raise ConfigError for a parameter that the env does not declare."""
    names = {param.name for param in declared}
    for name in (name for own in params for name in own):
        if name in names:
            continue
        if name in _attributes(env_id, entry):
            raise ConfigError(
                f"{env_id} got the unknown option {name!r}, which is an attribute of the env; set it after make() with "
                f"set_attr({name!r}, value)"
            )
        raise unknown_option(env_id, name, names, POOL_OPTIONS)


def _attributes(env_id: str, entry: NativeEntry) -> Collection[str]:
    """Return the names of the attributes of an env with default parameters; none if it cannot be built."""
    try:
        # Not the parameters that it was registered with: the one in question may be among them.
        spec, params, config = resolve_defaults(env_id, replace(entry, params={}))
        executor = NativeExecutor(entry.native_id, spec, config, params, None)
    except EnvfleetError:
        return ()
    try:
        return executor.get_attrs(0).keys()
    finally:
        executor.close()


def _complete_params(
    env_id: str, declared: list[Param], params: list[dict[str, Any]], num_envs: int
) -> list[dict[str, Any]]:
    """Return the value of every declared parameter: one dict for all envs, or one per env."""
    if len(params) == 1:
        return parameter_values(env_id, declared, params[0], num_envs)
    return [parameter_values(env_id, declared, own, 1)[0] for own in params]


def _merged(params: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the parameters for the config: one value, or a list with one value per env if they differ."""
    merged = dict(params[0])
    for name in merged:
        column = [own[name] for own in params]
        if any(own != column[0] for own in column):
            merged[name] = column
    return merged


def _describe(env_id: str, native_id: str, params: dict[str, Any]) -> dict[str, Any]:
    try:
        return _native.describe(native_id, params)
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
        return spaces.Dict([(array.name, array.space) for array in arrays])  # pairs: Gymnasium sorts a plain dict
    if structure == "tuple":
        return spaces.Tuple([array.space for array in arrays])
    return arrays[0].space
