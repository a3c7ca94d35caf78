"""What make() is given, as builders: one for each env, fit to travel to a worker.

An id, a class, a callable, or a list of callables. A builder is pickled by cloudpickle and runs
where the env will live; nothing is built here.
"""

from __future__ import annotations

import importlib
import inspect
import pickle
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, cast

import cloudpickle
import gymnasium
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec
from gymnasium.envs.registration import load_env_creator

from envfleet.envs.adapters import AdaptedEnv, adapt, takes_env_id
from envfleet.envs.simulators import find_simulator
from envfleet.errors import ConfigError
from envfleet.making.gymnasium_ids import NAMESPACE
from envfleet.making.native_envs import python_spec_of_native
from envfleet.making.options import NO_LIMIT

Source = GymnasiumSpec | Callable[..., Any]
_MUJOCO_ENVS = "gymnasium.envs.mujoco"


@dataclass(frozen=True)
class EnvBuilder:
    """Builds one env.

    keeps_time_limit: the env brings its own TimeLimit. Without wrappers that must see an episode's
    end, the pool counts instead: its limit costs nothing a step.
    """

    source: Source
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[Callable[[Any], Any], ...] = ()
    render_mode: str | None = None
    max_episode_steps: int | None = None
    keeps_time_limit: bool = False

    def build(self, env_id: int) -> Any:
        """The env, in Gymnasium's dialect whatever it was written in."""
        env = adapt(self._bare(env_id), self.render_mode)
        take_time_limit = getattr(getattr(env, "unwrapped", None), "envfleet_time_limit", None)
        if take_time_limit is not None:
            take_time_limit(
                None if self.max_episode_steps == NO_LIMIT else self.max_episode_steps
            )  # an env of ours whose games go on over several resets
        if self.wrappers and not isinstance(env, gymnasium.Env):
            env = AdaptedEnv(env)  # Gymnasium's wrappers refuse what only looks like an env
        for wrapper in self.wrappers:
            env = wrapper(env)
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(env, name, None), gymnasium.Space):
                raise ConfigError(
                    f"expected {type(env).__name__}.{name} as a gymnasium.Space, got {getattr(env, name, None)!r}; "
                    f"set self.{name} in the constructor"
                )
        return env

    def _bare(self, env_id: int) -> Any:
        given = dict(self.kwargs)
        if isinstance(self.source, GymnasiumSpec):
            if self.render_mode is not None:
                given["render_mode"] = self.render_mode
            if self.render_mode not in (None, "human") and str(self.source.entry_point).startswith(_MUJOCO_ENVS):
                # Without it, the second picture on a machine that has no screen would end the process.
                from envfleet.envs.mujoco_pictures import choose_gl

                choose_gl()
            limit = self.max_episode_steps if self.keeps_time_limit else -1
            # What PassiveEnvChecker and OrderEnforcing see to, the pool does for every env.
            return gymnasium.make(self.source, max_episode_steps=limit, disable_env_checker=True, **given)
        make: Callable[..., Any] = self.source
        is_class = inspect.isclass(make)
        if is_class and self.render_mode is not None and "render_mode" not in given and _takes(make, "render_mode"):
            given["render_mode"] = self.render_mode
        return make(env_id, **given) if is_class and takes_env_id(make) else make(**given)


@dataclass(frozen=True)
class Recipe:
    """The builders of a pool, and what is known of its envs before one is built."""

    name: str
    builders: tuple[EnvBuilder, ...]
    max_episode_steps: int | None  # what the pool counts itself
    reward_threshold: float | None = None

    @property
    def shown_limit(self) -> int | None:
        """The time limit that users see, whoever counts it."""
        own = self.builders[0]
        limit = own.max_episode_steps if own.keeps_time_limit else self.max_episode_steps
        return None if limit == NO_LIMIT else limit


def recipe_for(
    env: Any,
    num_envs: int,
    env_kwargs: Sequence[Mapping[str, Any]],
    wrappers: Sequence[Callable[[Any], Any]],
    render_mode: str | None,
    max_episode_steps: int | None,
) -> Recipe:
    """The builders for what make() was given. env_kwargs: one dict for all envs, or one for each."""
    sources = _sources(env, num_envs)
    for wrapper in wrappers:
        if not callable(wrapper):
            raise ConfigError(f"wrappers expected callables that take an env and give one, got {wrapper!r}")
    threshold = None
    keeps = False
    limit = max_episode_steps
    first = sources[0]
    if isinstance(first, GymnasiumSpec):
        limit = max_episode_steps or first.max_episode_steps
        threshold = first.reward_threshold
    if any(isinstance(source, GymnasiumSpec) for source in sources):
        # Each of several envs has a limit of its own.
        keeps = bool(wrappers) or len(sources) > 1 or bool(getattr(first, "additional_wrappers", ()))
    made: dict[tuple[int, int], EnvBuilder] = {}
    builders = []
    for env_id in range(num_envs):
        # The same object for the same env, so that a pickle of many holds it once.
        source = sources[env_id if len(sources) > 1 else 0]
        kwargs = env_kwargs[env_id if len(env_kwargs) > 1 else 0]
        key = (id(source), id(kwargs))
        if key not in made:
            own_limit = limit if len(sources) == 1 else max_episode_steps
            made[key] = EnvBuilder(source, kwargs, tuple(wrappers), render_mode, own_limit, keeps)
        builders.append(made[key])
    # Where envs differ, the pool counts only a limit that was given for all.
    counted = max_episode_steps if len(sources) > 1 else None if keeps else limit
    if counted == NO_LIMIT:
        counted = None
    return Recipe(_name_of(first), tuple(builders), counted, threshold)


def registered_envs() -> bytes:
    """What was registered with Gymnasium besides its own envs, pickled: a worker must know it too."""
    own = {env_id: spec for env_id, spec in gymnasium.registry.items() if not _is_known_to_workers(spec)}
    if tuple(own.values()) != _registered_before[0]:
        portable = {}
        for env_id, spec in own.items():
            copied = deepcopy(spec)
            try:
                _load_from_main(copied)
                cloudpickle.dumps(copied)
            except Exception:  # one that cannot travel, and that may never be asked for
                continue
            portable[env_id] = copied
        _registered_before[:] = [tuple(own.values()), cloudpickle.dumps(portable)]
    data: bytes = _registered_before[1]
    return data


def adopt_registered(data: bytes) -> None:
    """Makes what registered_envs() gave known to this process."""
    # A package registers its envs when it is imported; here they are known before.
    warnings.filterwarnings("ignore", message=r".*Overriding environment .* already in registry")
    for env_id, spec in pickle.loads(data).items():
        gymnasium.registry.setdefault(env_id, spec)


# The specs that were pickled last, and their pickle: registries of a thousand games do not change between pools.
_registered_before: list[Any] = [None, b""]


def _is_known_to_workers(spec: GymnasiumSpec) -> bool:
    """Gymnasium's own, and what envfleet registers when it is imported."""
    return spec.namespace == NAMESPACE or (
        isinstance(spec.entry_point, str) and spec.entry_point.startswith("gymnasium.")
    )


def _load_from_main(spec: GymnasiumSpec) -> None:
    """A class of the main module by itself and not by name: a worker's main module is another."""
    if isinstance(spec.entry_point, str) and spec.entry_point.startswith("__main__:"):
        spec.entry_point = cast(Any, load_env_creator(spec.entry_point))


def build_env(
    env_id: str, *, render_mode: str | None = None, max_episode_steps: int | None = None, **kwargs: Any
) -> Any:
    """One Python env of any id that make() takes, as a worker builds it, with its time limit inside."""
    source = _source(env_id, None)
    limit = max_episode_steps or getattr(source, "max_episode_steps", None)
    return EnvBuilder(source, kwargs, (), render_mode, limit, keeps_time_limit=True).build(0)


def gymnasium_spec(env_id: str) -> GymnasiumSpec:
    """The spec of an id: a simulator family's, that of a native env without a Python class, else Gymnasium's.
    "module:Env-v0" imports the module first, as gymnasium.make() does."""
    simulator = find_simulator(env_id)
    if simulator is not None:
        return simulator.spec(env_id)
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
        _load_from_main(spec)
        if not spec.entry_point:
            raise ConfigError(f"{spec.id} has no entry_point for single envs; make it on the native backend")
        return spec
    if callable(env):
        return env  # type: ignore[no-any-return]  # callable() tells no signature
    where = "" if position is None else f" at position {position}"
    instance = "; pass its class or a function that makes one: each worker builds its own"
    remedy = instance if hasattr(env, "step") else ""
    raise ConfigError(
        f"make() expected an env id, a class, a factory or a list of factories{where}, "
        f"got {type(env).__name__}: {env!r}{remedy}"
    )


def _name_of(source: Source) -> str:
    if isinstance(source, GymnasiumSpec):
        return source.id
    # Gymnasium's specs take letters, digits and _:.- only: a lambda's name is none.
    name = re.sub(r"[^\w:.-]", "", getattr(source, "__name__", type(source).__name__))
    return name if name and name != "lambda" else "PythonEnv"


def _takes(source: Any, name: str) -> bool:
    try:
        parameters = inspect.signature(source).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(own.name == name or own.kind is own.VAR_KEYWORD for own in parameters)
