"""Python envs: from the argument of make() to the spec and the executor that runs them."""

from __future__ import annotations

import difflib
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from envfleet.building.builders import EnvBuilders, builders_for, gymnasium_spec, not_a_source
from envfleet.building.gymnasium_ids import PublishedSpec
from envfleet.building.native_envs import find_entry, native_ids, python_spec_of_native
from envfleet.building.pixels import pixel_spec, wants_pixels
from envfleet.core.backends import Backend, find_backend
from envfleet.core.errors import CompileError, ConfigError, EnvError, MissingExtraError, UnknownEnvError
from envfleet.core.executor import Executor
from envfleet.core.families import find_python_family, python_family_ids
from envfleet.core.options import POOL_OPTIONS, Options, PoolConfig, misspelt_option, resolve_num_workers
from envfleet.core.spec import NAMESPACE, ArraySpec, EnvSpec, config_as_dict
from envfleet.executors.python.building import EnvDescription, build_envs, close_envs, describe_env


def auto_backend(env: Any, config: PoolConfig) -> Backend:
    """Return the backend that "auto" means for a Python env."""
    if config.num_envs == 1 and config.step_timeout is None:
        return find_backend("serial")
    family = find_python_family(env)
    if family is None or config.step_timeout is not None:  # a thread cannot be killed
        return find_backend("processes")
    return find_backend(family.python_backend)


def opens_windows(env: Any, options: Options) -> bool:
    """Return whether a Python env opens its own window with render_mode="human", as Gymnasium's and users' envs do."""
    family = find_python_family(env)
    if family is not None:
        return family.python_opens_windows
    return not wants_pixels(env, options.params) and (not isinstance(env, str) or python_spec_of_native(env) is None)


def python_executor(env: Any, backend: Backend, options: Options) -> tuple[Executor, PoolConfig]:
    """Return the executor, and the config with all defaults resolved."""
    config = options.config
    if not backend.has_processes:
        if config.step_timeout is not None:
            raise ConfigError(
                f"step_timeout needs a worker that can be killed, got backend={backend.name!r}; use backend='processes'"
            )
        if config.start_method != POOL_OPTIONS["start_method"]:
            raise ConfigError(f"start_method expected backend='processes', got backend={backend.name!r}; leave it out")
    builders, config = _resolve(env, backend, options)

    def make_spec(description: EnvDescription) -> EnvSpec:
        return _spec(env, builders, description, backend, config, options)

    try:
        return backend.make_python(builders, make_spec, config, options.params)
    except EnvError as error:
        builder = builders.builders[error.env_id]
        raise_for_wrong_arguments(error, builder.source, builders.name, options.params, builder.kwargs)
        raise


def python_spec(env: Any, backend: Backend, options: Options) -> EnvSpec:
    """Return the spec of python_executor()'s pool. Builds one env in this process and closes it again."""
    builders, config = _resolve(env, backend, options)
    try:
        built = build_envs(builders.builders[:1], [0])
    except EnvError as error:
        builder = builders.builders[error.env_id]
        raise_for_wrong_arguments(error, builder.source, builders.name, options.params, builder.kwargs)
        raise
    try:
        return _spec(env, builders, describe_env(built[0]), backend, config, options)
    finally:
        close_envs(built.values())


def check_known(env: Any, position: int | None = None) -> None:
    """Raise ConfigError, for unknown ids UnknownEnvError, unless Python envs can be made from this.

    position: of env in a list.
    """
    if isinstance(env, (list, tuple)):
        for i, own in enumerate(env):
            check_known(own, i)
    elif isinstance(env, str):
        if isinstance(gymnasium.registry.get(env), PublishedSpec):
            name = env.removeprefix(f"{NAMESPACE}/")
            raise UnknownEnvError(f"make() expected an id without Gymnasium's namespace, got {env!r}; use {name!r}")
        if not _is_known(env):
            raise _unknown(env) if find_entry(env) is None else _native_only(env, position)
    elif not isinstance(env, GymnasiumSpec) and not callable(env):
        raise not_a_source(env, position)


def _is_known(env_id: str) -> bool:
    try:
        gymnasium_spec(env_id)
    except (CompileError, MissingExtraError):  # of a native env without a Python class
        raise
    except Exception:  # not registered, or its module cannot be imported
        return False
    return True


def _native_only(env_id: str, position: int | None) -> ConfigError:
    remedy = "use backend='native', without wrappers" if position is None else "pass the id itself, with num_envs"
    return ConfigError(f"make() expected a Python env, got {env_id!r}, which is implemented in C++ only; {remedy}")


def _unknown(env_id: str) -> UnknownEnvError:
    reason = ""
    try:
        gymnasium_spec(env_id)
    except gymnasium.error.Error as error:
        # Gymnasium's message helps if it knows more: a deprecated version, a missing namespace.
        if not isinstance(error, gymnasium.error.NameNotFound):
            reason = f"; Gymnasium says: {error}"
    except ImportError as error:
        reason = f"; its module cannot be imported: {error}"
    gymnasium_ids = {own for own in gymnasium.registry if not own.startswith(f"{NAMESPACE}/")}
    known = sorted({*native_ids(), *python_family_ids(), *gymnasium_ids})
    nearest = difflib.get_close_matches(env_id, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else "envfleet.list_all_envs() lists envfleet's ids"
    module, colon, name = env_id.partition(":")
    if colon and not reason and name.isidentifier():  # what the command line takes
        hint = f"for a class or a factory of a module, import it: from {module} import {name}; make({name}, ...)"
    return UnknownEnvError(f"make() expected a known env id, got {env_id!r}; {hint}{reason}")


def _resolve(env: Any, backend: Backend, options: Options) -> tuple[EnvBuilders, PoolConfig]:
    """Return the builders, and the config with all defaults resolved."""
    config = options.config
    family = find_python_family(env)
    if family is not None and family.check_params is not None:
        for params in options.params:
            family.check_params(env, params)
    render_mode = config.render_mode
    if render_mode == "human" and not opens_windows(env, options):
        render_mode = "rgb_array"  # the pool opens the window
    source = pixel_spec(env, options.params) if wants_pixels(env, options.params) else env
    builders = builders_for(
        source, config.num_envs, options.params, options.wrappers, render_mode, config.max_episode_steps
    )
    if options.keywords:
        warn_of_misspelt_options(builders.builders[0].source, builders.name, options.keywords)
    threshold = config.reward_threshold if config.reward_threshold is not None else builders.reward_threshold
    if family is None:
        num_workers = resolve_num_workers(config, backend)
    else:
        num_workers = resolve_num_workers(
            config, backend, family.workers_per_core, has_slow_steps=family.has_slow_steps
        )
    return builders, replace(
        config,
        num_workers=num_workers,
        max_episode_steps=builders.time_limit,
        reward_threshold=threshold,
    )


def _spec(
    env: Any, builders: EnvBuilders, description: EnvDescription, backend: Backend, config: PoolConfig, options: Options
) -> EnvSpec:
    shared = options.params[0] if len(options.params) == 1 else {}
    family = find_python_family(env)
    env_options: Mapping[str, Any] = {}
    if family is not None and family.all_options is not None and len(options.params) == 1:
        env_options = family.all_options(env, shared)
    return EnvSpec(
        id=builders.name,
        entry_point=None,
        vector_entry_point="envfleet.apis.gymnasium:make_gymnasium",
        reward_threshold=config.reward_threshold,
        max_episode_steps=config.max_episode_steps,
        kwargs={"task_id": env, **shared},
        observation_space=description.observation_space,
        action_space=description.action_space,
        info_arrays=_info_arrays(description),
        own_step_limit=description.max_steps,
        backend=backend.name,
        metadata=description.metadata,
        render_mode=description.render_mode,
        config=config_as_dict(config, {**env_options, **shared}, options.seed),
    )


def _info_arrays(description: EnvDescription) -> tuple[ArraySpec, ...]:
    """Return the infos that an env declares in its attribute info_space."""
    declared = description.info_space
    if declared is None:
        return ()
    if not isinstance(declared, spaces.Dict):
        raise ConfigError(
            f"info_space of {description.class_name} expected a gymnasium.spaces.Dict of the infos' keys, "
            f"got {declared}; correct or remove it"
        )
    return tuple(ArraySpec(name, space) for name, space in declared.spaces.items())


def warn_of_misspelt_options(source: Any, env_name: str, keywords: Iterable[str]) -> None:
    """Warn of keywords that look like options of make() and disappear in an env's **kwargs.

    An env without **kwargs refuses them itself: see _raise_for_unknown_option().
    """
    misspelt = {name: misspelt_option(name) for name in sorted(keywords)}
    misspelt = {name: nearest for name, nearest in misspelt.items() if nearest is not None}
    if not misspelt:
        return
    named, takes_any = _keywords_of(source)
    for name, nearest in misspelt.items():
        if takes_any and name not in named:
            warnings.warn(
                f"{env_name} got {name!r} in its **kwargs, and make() has the option {nearest!r}; "
                f"correct the name, or pass env_kwargs={{{name!r}: ...}} if it is a parameter of the env",
                stacklevel=_callers_level(),
            )


def _keywords_of(source: Any) -> tuple[set[str], bool]:
    """Return the keywords that a constructor or factory names, those of base classes included, and if it takes any."""
    named: set[str] = set()
    if isinstance(source, GymnasiumSpec):
        named |= set(source.kwargs)
        entry_point: Any = source.entry_point
        try:
            is_text = isinstance(entry_point, str)
            source = gymnasium.envs.registration.load_env_creator(entry_point) if is_text else entry_point
        except Exception:  # building the envs reports it
            return named, False
    source = inspect.unwrap(source)
    # A class may pass its **kwargs on to its base class.
    functions: list[Callable[..., Any]] = [source]
    if inspect.isclass(source):
        functions = [vars(own)["__init__"] for own in source.__mro__ if "__init__" in vars(own) and own is not object]
    takes_any = False
    for position, function in enumerate(functions):
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):  # implemented in C
            continue
        named |= set(parameters)
        takes_any |= position == 0 and any(own.kind is own.VAR_KEYWORD for own in parameters.values())
    return named, takes_any


def _callers_level() -> int:
    """Return the stacklevel of the first frame outside envfleet, for a warning of the function that calls this."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "envfleet":
        level, frame = level + 1, frame.f_back
    return level


def raise_for_wrong_arguments(
    error: EnvError, source: Any, name: str, params: Sequence[Mapping[str, Any]], given: Mapping[str, Any]
) -> None:
    """Raise ConfigError if a constructor or factory was called with the wrong arguments.

    name: of the env, for a source without one. params: the parameters of all envs. given: those of the env that failed.
    """
    env_name = getattr(source, "__name__", name)  # not "PythonEnv" for a lambda
    _raise_for_unknown_option(error, source, env_name, params)
    _raise_for_missing_argument(error, source, env_name, given)


def _raise_for_unknown_option(error: EnvError, source: Any, env_name: str, params: Sequence[Mapping[str, Any]]) -> None:
    """Raise ConfigError if a constructor got an unexpected keyword: most often a misspelt option of the pool."""
    text = error.faults[0].message
    unexpected = _unexpected_options(text, env_name, params)
    if not unexpected:
        return
    nearest = {name: misspelt_option(name) for name in unexpected}
    name = next((name for name in unexpected if nearest[name]), unexpected[0])
    if nearest[name] is None:
        own = _keywords_of(source)[0] - {"self"}
        nearest[name] = next(iter(difflib.get_close_matches(name, own, n=1)), None)
    hint = f"did you mean {nearest[name]!r}?" if nearest[name] else "leave it out."
    raise ConfigError(
        f"{env_name} got the unknown option {name!r}; {hint} The pool's options are "
        f"{', '.join(sorted(POOL_OPTIONS))}; all others go to the env, which raised: {text}"
    ) from error


def _raise_for_missing_argument(error: EnvError, source: Any, env_name: str, given: Mapping[str, Any]) -> None:
    """Raise ConfigError if a class or a factory requires a parameter that it was not given."""
    text = error.faults[0].message
    if not text.startswith("TypeError: ") or "missing" not in text:
        return
    try:
        parameters = inspect.signature(source).parameters.values()
    except (TypeError, ValueError):
        return
    # In the text too: the exception may come from another function, which the constructor called.
    missing = [
        own.name for own in parameters if own.default is own.empty and own.name not in given and f"{own.name!r}" in text
    ]
    if not missing:
        return
    if any(name in POOL_OPTIONS for name in missing):
        remedy = f"pass env_kwargs={{{', '.join(f'{name!r}: ...' for name in missing)}}}"
    else:
        remedy = f"pass {', '.join(f'{name}=...' for name in missing)}"
    names = f"argument{'s' if len(missing) > 1 else ''} {' and '.join(map(repr, missing))}"
    raise ConfigError(f"{env_name} expected the {names}, got none; {remedy}") from error


def _unexpected_options(text: str, env_name: str, params: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the options that a constructor did not expect, according to its exception."""
    given = [name for own in params for name in own]
    if "unexpected keyword argument" in text:
        return [name for name in given if f"argument {name!r}" in text][:1]
    # A class without __init__. Gymnasium's words follow for one that was registered; else it may be another class,
    # which the constructor called.
    is_own = f" {env_name}() takes no arguments" in f" {text}" or "takes no arguments was raised from the env" in text
    return given if is_own else []
