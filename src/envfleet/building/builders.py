"""EnvBuilder: builds one env from an id, a class or a callable, in the worker that will run it.

A builder travels to its worker by cloudpickle. builders_for() makes those of a pool from the argument of make().
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from envfleet.building.native_envs import python_spec_of_native
from envfleet.core.errors import ConfigError, UnknownEnvError, short_repr
from envfleet.core.families import find_python_family
from envfleet.core.option_checks import NO_LIMIT
from envfleet.envs.adapters import AdaptedEnv, adapt, takes_env_id
from envfleet.executors.registered_envs import load_from_main
from envfleet.families.box2d import import_box2d

Source = GymnasiumSpec | Callable[..., Any]
_MUJOCO_ENVS = ("gymnasium.envs.mujoco", "gymnasium_robotics.")
_BOX2D_ENVS = "gymnasium.envs.box2d"


@dataclass(frozen=True)
class EnvBuilder:
    """Builds one env.

    keeps_time_limit: wrap the env in Gymnasium's TimeLimit. Otherwise the pool counts the steps, which costs nothing
    per step; but wrappers must see the end of an episode.
    """

    source: Source
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[Callable[[Any], Any], ...] = ()
    render_mode: str | None = None
    max_episode_steps: int | None = None
    keeps_time_limit: bool = False

    def build(self, env_id: int) -> Any:
        """Build the env, adapted to Gymnasium's API."""
        env = adapt(self._bare(env_id), self.render_mode)
        take_time_limit = getattr(getattr(env, "unwrapped", None), "envfleet_time_limit", None)
        if take_time_limit is not None:
            # An env of ours whose games continue over several resets.
            take_time_limit(self._limit)
        # gymnasium.make() applies that of a spec.
        limit = self._limit if self.keeps_time_limit and not isinstance(self.source, GymnasiumSpec) else None
        if (self.wrappers or limit is not None) and not isinstance(env, gymnasium.Env):
            env = AdaptedEnv(env)  # Gymnasium's wrappers only accept a gymnasium.Env
        if limit is not None:
            env = gymnasium.wrappers.TimeLimit(env, limit)
        for wrapper in self.wrappers:
            env = wrapper(env)
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(env, name, None), gymnasium.Space):
                raise ConfigError(
                    f"expected {type(env).__name__}.{name} as a gymnasium.Space, got {getattr(env, name, None)!r}; "
                    f"set self.{name} in the constructor"
                )
        return env

    @property
    def _limit(self) -> int | None:
        return None if self.max_episode_steps == NO_LIMIT else self.max_episode_steps

    def _bare(self, env_id: int) -> Any:
        kwargs = dict(self.kwargs)
        if isinstance(self.source, GymnasiumSpec):
            if self.render_mode is not None:
                kwargs["render_mode"] = self.render_mode
            if self.render_mode not in (None, "human") and str(self.source.entry_point).startswith(_MUJOCO_ENVS):
                # Without it, the second frame on a machine without a display would end the process.
                from envfleet.envs.mujoco_rendering import choose_gl_backend

                choose_gl_backend()
            if str(self.source.entry_point).startswith(_BOX2D_ENVS):
                import_box2d()
            limit = self.max_episode_steps if self.keeps_time_limit else -1
            # The pool itself does what PassiveEnvChecker and OrderEnforcing do.
            return gymnasium.make(self.source, max_episode_steps=limit, disable_env_checker=True, **kwargs)
        make: Callable[..., Any] = self.source
        is_class = inspect.isclass(make)
        if is_class and self.render_mode is not None and "render_mode" not in kwargs and _accepts(make, "render_mode"):
            kwargs["render_mode"] = self.render_mode
        return make(env_id, **kwargs) if is_class and takes_env_id(make) else make(**kwargs)


@dataclass(frozen=True)
class EnvBuilders:
    """The builders of a pool's envs, and what is known before any env is built.

    max_episode_steps: the time limit that the pool enforces.
    """

    name: str
    builders: tuple[EnvBuilder, ...]
    max_episode_steps: int | None
    reward_threshold: float | None = None

    @property
    def time_limit(self) -> int | None:
        """The time limit, whether the pool or the env enforces it."""
        first = self.builders[0]
        limit = first.max_episode_steps if first.keeps_time_limit else self.max_episode_steps
        return None if limit == NO_LIMIT else limit


def builders_for(
    env: Any,
    num_envs: int,
    env_kwargs: Sequence[Mapping[str, Any]],
    wrappers: Sequence[Callable[[Any], Any]],
    render_mode: str | None,
    max_episode_steps: int | None,
) -> EnvBuilders:
    """Return the builders for the argument of make(). env_kwargs: one dict for all envs, or one per env."""
    sources = _sources(env, num_envs)
    for wrapper in wrappers:
        if not callable(wrapper):
            raise ConfigError(f"wrappers expected callables that take an env and return one, got {short_repr(wrapper)}")
    threshold = None
    keeps = bool(wrappers)
    limit = max_episode_steps
    first = sources[0]
    if isinstance(first, GymnasiumSpec):
        limit = max_episode_steps or first.max_episode_steps
        threshold = first.reward_threshold
    if any(isinstance(source, GymnasiumSpec) for source in sources):
        # Envs from a list may each have a limit of their own.
        keeps = keeps or len(sources) > 1 or bool(getattr(first, "additional_wrappers", ()))
    made: dict[tuple[int, int], EnvBuilder] = {}
    builders = []
    for env_id in range(num_envs):
        # The same object for the same env, so that a pickle of many builders contains it once.
        source = sources[env_id if len(sources) > 1 else 0]
        kwargs = env_kwargs[env_id if len(env_kwargs) > 1 else 0]
        key = (id(source), id(kwargs))
        if key not in made:
            own_limit = limit if len(sources) == 1 else max_episode_steps
            made[key] = EnvBuilder(source, kwargs, tuple(wrappers), render_mode, own_limit, keeps)
        builders.append(made[key])
    # If the envs differ, the pool only enforces a limit that was passed for all.
    counted = max_episode_steps if len(sources) > 1 else None if keeps else limit
    if counted == NO_LIMIT:
        counted = None
    return EnvBuilders(_name_of(first), tuple(builders), counted, threshold)


def build_env(
    env_id: str, *, render_mode: str | None = None, max_episode_steps: int | None = None, **kwargs: Any
) -> Any:
    """Build one Python env of any id that make() accepts, as a worker would, with its time limit."""
    source = _source(env_id, None)
    limit = max_episode_steps or getattr(source, "max_episode_steps", None)
    return EnvBuilder(source, kwargs, (), render_mode, limit, keeps_time_limit=True).build(0)


def gymnasium_spec(env_id: str) -> GymnasiumSpec:
    """Return the Gymnasium spec of an id: a family's, that of a native env without a Python class, or Gymnasium's own.

    "module:Env-v0" imports the module first, as gymnasium.make() does.
    """
    family = find_python_family(env_id)
    if family is not None:
        return family.python_spec(env_id)
    native = python_spec_of_native(env_id)
    if native is not None:
        return native
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    return gymnasium.spec(name)


def _sources(env: Any, num_envs: int) -> list[Source]:
    if isinstance(env, (list, tuple)):
        if not env:
            raise ConfigError("make() expected at least one factory in the list, got none")
        if len(env) != num_envs:
            raise ConfigError(f"make() got {len(env)} factories and num_envs={num_envs}; leave num_envs out")
        return [_source(own, position) for position, own in enumerate(env)]
    return [_source(env, None)]


def _source(env: Any, position: int | None) -> Source:
    if isinstance(env, (str, GymnasiumSpec)):
        spec = deepcopy(gymnasium_spec(env) if isinstance(env, str) else env)
        spec.order_enforce = False
        load_from_main(spec)
        if not spec.entry_point:
            raise ConfigError(
                f"{spec.id} expected an entry_point for single envs, got none; "
                f"make it with gymnasium.make_vec({spec.id!r}), or register an entry_point"
            )
        return spec
    if callable(env):
        return env  # type: ignore[no-any-return]  # callable() narrows to no signature
    raise not_a_source(env, position)


def not_a_source(env: Any, position: int | None = None) -> UnknownEnvError:
    """Return the error for an argument of make(), or an element of a list, that is neither an id nor callable."""
    where = "" if position is None else f" at position {position}"
    remedy = "; pass its class or a function that makes one: each worker builds its own" if hasattr(env, "step") else ""
    return UnknownEnvError(
        f"make() expected an env id such as 'CartPole-v1', a class, a factory or a list of factories{where}, "
        f"got {short_repr(env)}{remedy}"
    )


def _name_of(source: Source) -> str:
    if isinstance(source, GymnasiumSpec):
        return source.id
    # Gymnasium's ids may only contain letters, digits and _:.-, which "<lambda>" does not.
    name = re.sub(r"[^\w:.-]", "", getattr(source, "__name__", type(source).__name__))
    return name if name and name != "lambda" else "PythonEnv"


def _accepts(source: Any, name: str) -> bool:
    try:
        parameters = inspect.signature(source).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(own.name == name or own.kind is own.VAR_KEYWORD for own in parameters)
