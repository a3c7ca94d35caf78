"""Python envs: from what make() was given to the executor that runs them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from envfleet.envs.pixels import pixel_spec, wants_pixels
from envfleet.envs.simulators import find_simulator, simulated_ids
from envfleet.errors import ConfigError, EnvError, MissingExtraError, UnknownEnvError
from envfleet.executors.backends import PYTHON_EXECUTORS
from envfleet.executors.base import Executor
from envfleet.executors.python.building import EnvDescription, build_envs, close_envs, describe_env
from envfleet.making.builders import Recipe, gymnasium_spec, recipe_for
from envfleet.making.native_envs import native_ids, python_spec_of_native
from envfleet.making.options import POOL_OPTIONS, Options
from envfleet.spec import ArraySpec, EnvSpec, PoolConfig, config_as_dict


def auto_backend(env: Any, config: PoolConfig) -> str:
    """The Python backend for an env of which nothing else is known."""
    if config.num_envs == 1 and config.step_timeout is None:
        return "serial"
    simulator = find_simulator(env)
    # A thread cannot be killed: a limit on steps needs processes.
    return "processes" if simulator is None or config.step_timeout is not None else simulator.backend


def opens_windows(env: Any, options: Options) -> bool:
    """Whether a Python env shows itself with render_mode="human", as Gymnasium's and the user's own do."""
    simulator = find_simulator(env)
    if simulator is not None:
        return simulator.opens_windows
    return not wants_pixels(env, options.params) and (not isinstance(env, str) or python_spec_of_native(env) is None)


def python_executor(env: Any, backend: str, options: Options) -> tuple[Executor, PoolConfig]:
    """The executor, and the config with the env's defaults filled in."""
    config = options.config
    if backend not in ("processes", "ray"):
        if config.step_timeout is not None:
            raise ConfigError(
                f"step_timeout needs a worker that can be killed, got backend={backend!r}; use backend='processes'"
            )
        if "start_method" in options.given and config.start_method != PoolConfig().start_method:
            raise ConfigError(f"start_method is for backend='processes', got it with {backend!r}; leave it out")
    recipe, config = _resolve(env, options)

    def make_spec(description: EnvDescription) -> EnvSpec:
        return _spec(env, recipe, description, backend, config, options)

    try:
        if backend == "ray":
            from envfleet.executors.ray.making import ray_python

            return ray_python(recipe, make_spec, config, options.params, options.given)
        return PYTHON_EXECUTORS[backend](recipe, make_spec, config, options.params), config
    except EnvError as error:
        _explain(error, recipe, options)
        raise


def python_spec(env: Any, backend: str, options: Options) -> EnvSpec:
    """What python_executor() would have: one env is built here and closed again."""
    recipe, config = _resolve(env, options)
    try:
        built = build_envs(recipe.builders[:1], [0])
    except EnvError as error:
        _explain(error, recipe, options)
        raise
    try:
        return _spec(env, recipe, describe_env(built[0]), backend, config, options)
    finally:
        close_envs(built.values())


def check_known(env: Any) -> None:
    """Raises when an id is neither a native env's nor Gymnasium's."""
    if isinstance(env, (list, tuple)):
        for own in env:
            check_known(own)
    elif isinstance(env, str):
        if not _is_known(env):
            raise _unknown(env)
    elif not isinstance(env, (list, tuple, GymnasiumSpec)) and not callable(env):
        raise UnknownEnvError(
            f"make() expected an env id such as 'CartPole-v1', a class, a factory or a list of factories, "
            f"got {type(env).__name__}: {env!r}"
            + ("; pass its class or a function that makes one" if hasattr(env, "step") else "")
        )


def _is_known(env_id: str) -> bool:
    try:
        gymnasium_spec(env_id)
    except MissingExtraError:
        raise
    except Exception:  # not registered, or a module that cannot be imported
        return False
    return True


def _unknown(env_id: str) -> UnknownEnvError:
    reason = ""
    try:
        gymnasium_spec(env_id)
    except gymnasium.error.Error as error:
        # Gymnasium says it well where it knows more: a deprecated version, a missing namespace.
        if not isinstance(error, gymnasium.error.NameNotFound):
            reason = f"; Gymnasium says: {error}"
    except ImportError as error:
        reason = f"; its module cannot be imported: {error}"
    known = sorted({*native_ids(), *simulated_ids(), *gymnasium.registry})
    nearest = difflib.get_close_matches(env_id, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else "envfleet.list_all_envs() lists envfleet's own"
    return UnknownEnvError(f"make() expected a known env id, got {env_id!r}; {hint}{reason}")


def _resolve(env: Any, options: Options) -> tuple[Recipe, PoolConfig]:
    config = options.config
    simulator = find_simulator(env)
    if simulator is not None and simulator.check is not None:
        for params in options.params:
            simulator.check(env, params)
    render_mode = config.render_mode
    if render_mode == "human" and not opens_windows(env, options):
        render_mode = "rgb_array"  # the pool shows it
    source = pixel_spec(env, options.params) if wants_pixels(env, options.params) else env
    recipe = recipe_for(
        source, config.num_envs, options.params, options.wrappers, render_mode, config.max_episode_steps
    )
    threshold = config.reward_threshold if config.reward_threshold is not None else recipe.reward_threshold
    filled: dict[str, Any] = {"max_episode_steps": recipe.shown_limit, "reward_threshold": threshold}
    if simulator is not None and options.backend != "ray" and not {"num_workers", "num_threads"} & options.given:
        filled["num_workers"] = min(config.num_envs, config.num_workers * simulator.workers_per_core)
    return recipe, PoolConfig(**{**vars(config), **filled})


def _spec(
    env: Any, recipe: Recipe, description: EnvDescription, backend: str, config: PoolConfig, options: Options
) -> EnvSpec:
    shared = options.params[0] if len(options.params) == 1 else {}
    simulator = find_simulator(env)
    settings: Mapping[str, Any] = {}
    if simulator is not None and simulator.settings_of is not None and len(options.params) == 1:
        settings = simulator.settings_of(env, shared)
    return EnvSpec(
        id=recipe.name,
        entry_point=None,
        vector_entry_point="envfleet.making.registry:make_gymnasium",
        reward_threshold=config.reward_threshold,
        max_episode_steps=config.max_episode_steps,
        kwargs={"task_id": env, **shared},
        observation_space=description.observation_space,
        action_space=description.action_space,
        info_arrays=_info_arrays(description),
        own_step_limit=description.max_steps,
        backend=backend,
        metadata=description.metadata,
        render_mode=description.render_mode,
        config=config_as_dict(config, {**settings, **shared}, options.seed),
    )


def _info_arrays(description: EnvDescription) -> tuple[ArraySpec, ...]:
    """The infos that an env declares in its attribute info_space."""
    declared = description.info_space
    if declared is None:
        return ()
    if not isinstance(declared, spaces.Dict):
        raise ConfigError(
            f"info_space of {description.class_name} expected a gymnasium.spaces.Dict of the infos' keys, "
            f"got {declared}; correct or remove it"
        )
    return tuple(ArraySpec(name, space) for name, space in declared.spaces.items())


def _explain(error: EnvError, recipe: Recipe, options: Options) -> None:
    """A constructor that does not know a parameter is most often a misspelt option of the pool."""
    text = error.faults[0].message
    name = next((key for own in options.params for key in own if f"argument {key!r}" in text), None)
    if name is None or "unexpected keyword argument" not in text:
        return
    nearest = difflib.get_close_matches(name, sorted(POOL_OPTIONS), n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else "leave it out"
    raise ConfigError(
        f"{recipe.name} got the unknown option {name!r}; {hint} Options of the pool are "
        f"{', '.join(sorted(POOL_OPTIONS))}; all others go to the env, which said: {text}"
    ) from error
