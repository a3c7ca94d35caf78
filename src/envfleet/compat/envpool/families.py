"""EnvPool's classes by family: envpool.classic_control.CartPoleGymEnvPool and its like, made from a table.

Each env of EnvPool has four classes, XEnvSpec, XDMEnvPool, XGymEnvPool and XGymnasiumEnvPool. X stands for one env
with all its versions and options (CartPole), or for a whole simulator (Atari). A class is made on first
use, because XGymEnvPool derives from the gym.Env that is then in use.
"""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import gymnasium

import envfleet.building.registry as registry
from envfleet.compat.envpool.env_spec import EnvPoolSpec
from envfleet.compat.envpool.gym_envpools import GymEnvPool, GymnasiumEnvPool
from envfleet.compat.envpool.gym_module import as_gym_env, gym_module
from envfleet.core.errors import ConfigError
from envfleet.families import dm_control
from envfleet.families.procgen import GAMES

_MUJOCO = (
    "Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|InvertedDoublePendulum|InvertedPendulum|Pusher|Reacher|Swimmer"
    "|Walker2d"
)
_PROCGEN = "|".join(map(str.capitalize, GAMES))
# Which ids each module has. The group is the env; X is its name with the prefix, or the prefix alone without a group.
_RULES: tuple[tuple[str, str, str], ...] = (
    ("classic_control", "", r"(CartPole|Pendulum|MountainCar|MountainCarContinuous|Acrobot)-v\d+"),
    ("toy_text", "", r"(Catch|FrozenLake|Taxi|NChain|CliffWalking|Blackjack)(?:8x8|Slippery)?-v\d+"),
    ("box2d", "", r"(CarRacing|BipedalWalker|LunarLanderContinuous)(?:Hardcore)?-v\d+"),
    ("box2d", "LunarLanderDiscrete", r"LunarLander-v\d+"),
    ("mujoco.gym", "Gym", rf"({_MUJOCO})-v\d+"),
    ("minigrid", "MiniGrid", r"(?:MiniGrid|BabyAI)-.*"),
    ("procgen", "Procgen", rf"(?:{_PROCGEN})(?:Easy|Hard|Extreme|Memory|Exploration)-v0"),
)
# The default task of classes that have several.
_DEFAULT_TASKS = {
    "Atari": "Pong-v5",
    "Vizdoom": "Basic-v1",
    "MiniGrid": "MiniGrid-Empty-8x8-v0",
    "Procgen": "BigfishHard-v0",
    "Taxi": "Taxi-v3",
}
_KINDS = ("EnvSpec", "DMEnvPool", "GymEnvPool", "GymnasiumEnvPool")
MODULES = (
    *("atari", "box2d", "classic_control", "minigrid", "mujoco.dmc", "mujoco.gym", "procgen", "toy_text"),
    "vizdoom",
)


@dataclass(frozen=True)
class EnvClass:
    """One EnvPool class name X (as in XEnvSpec): its module and its task ids."""

    module: str
    name: str


def env_class_of(task_id: Any) -> EnvClass | None:
    """Return the EnvClass of a task id, or None if EnvPool has none."""
    return _env_class_of(task_id) if isinstance(task_id, str) else None


@cache
def _env_class_of(task_id: str) -> EnvClass | None:
    family = registry.family_of(task_id).name
    if family == "atari":  # first: Blackjack-v5 is a game of Atari's
        return None if task_id.startswith("ALE/") else EnvClass("atari", "Atari")
    for module, prefix, pattern in _RULES:
        match = re.fullmatch(pattern, task_id)
        if match is not None:
            return EnvClass(module, prefix + (match[1] if match.groups() else ""))
    if family == "dm_control":
        domain, _ = dm_control.tasks()[task_id]
        return EnvClass("mujoco.dmc", "Dmc" + dm_control.envpool_name(domain, "").removesuffix("-v1"))
    return EnvClass("vizdoom", "Vizdoom") if family == "vizdoom" else None


def task_ids(env_class: EnvClass) -> list[str]:
    """Return the task ids of a class; the first is the default of its config."""
    known = [*registry.list_all_envs(), *(env_id for env_id in gymnasium.registry if "/" not in env_id)]
    ids = sorted({env_id for env_id in known if env_class_of(env_id) == env_class}, key=_version)
    first = _DEFAULT_TASKS.get(env_class.name, "")
    if env_class.module == "mujoco.gym":
        first = f"{env_class.name.removeprefix('Gym')}-v4"
    return [first, *(env_id for env_id in ids if env_id != first)] if first in ids else ids


def _version(env_id: str) -> tuple[int, str]:
    """Return a sort key that puts the newest version first."""
    _, _, version = env_id.rpartition("-v")
    return (-int(version) if version.isdigit() else 0, env_id)


def class_names(module: str) -> list[str]:
    """Return the names of all classes of a module."""
    known = [*registry.list_all_envs(), *gymnasium.registry]
    found = {found for found in map(env_class_of, known) if found is not None and found.module == module}
    return [f"{own.name}{kind}" for own in sorted(found, key=lambda own: own.name) for kind in _KINDS]


def class_of(module: str, name: str) -> type:
    """Return the class of that name in a module of EnvPool's. Raises AttributeError."""
    for kind in _KINDS[::-1]:  # longer suffixes first: XGymEnvPool is not an XEnvPool
        prefix = name.removesuffix(kind)
        if prefix != name and name in class_names(module):
            return _made(EnvClass(module, prefix), kind, gym_module() if kind == "GymEnvPool" else None)
    raise AttributeError(f"module 'envpool.{module}' has no attribute {name!r}; its classes are in __all__")


def classes_for(task_id: Any, kind: str) -> Any:
    """Return the class of that kind for a task: its X's, or the general one where EnvPool has none."""
    env_class = env_class_of(task_id)
    gym = gym_module() if kind == "GymEnvPool" else None
    return _general(kind) if env_class is None else _made(env_class, kind, gym)


def _general(kind: str) -> type:
    if kind == "EnvSpec":
        return EnvPoolSpec
    if kind == "GymnasiumEnvPool":
        return GymnasiumEnvPool
    if kind == "GymEnvPool":
        return as_gym_env(GymEnvPool)
    from envfleet.compat.envpool.dm_envpool import DMEnvPool  # needs dm_env

    return DMEnvPool


@cache
def _made(env_class: EnvClass, kind: str, gym: Any) -> type:
    """Return the class; one is made per gym.Env base class."""
    base = _general(kind)
    doc = f"{base.__doc__ or ''}\n\n    For {env_class.name} of envpool.{env_class.module}."
    members: dict[str, Any] = {"__module__": f"envpool.{env_class.module}", "__doc__": doc}
    if kind == "EnvSpec":
        members.update(__init__=_init_spec, gen_config=_GenConfig(env_class), env_class=env_class)
    return type(base)(f"{env_class.name}{kind}", (base,), members)


class _GenConfig:
    """XEnvSpec.gen_config: the named tuple of X's options, with their defaults. Made when it is first used."""

    def __init__(self, env_class: EnvClass) -> None:
        self._env_class = env_class
        self._type: Any = None

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if self._type is None:
            ids = task_ids(self._env_class)
            if not ids:
                raise ConfigError(f"{self._env_class.name} has no env in envfleet; see list_all_envs()")
            defaults = {**EnvPoolSpec.of_task(ids[0], {}).config_dict(), **_UNDECIDED, "task_id": ids[0]}
            defaults.update(_selectors(self._env_class, ids[0]))
            if self._env_class.name == "FrozenLake":
                defaults["size"] = 4
            self._type = namedtuple("Config", list(defaults), defaults=defaults.values())  # type: ignore[misc]
        return self._type


# Options that depend on others, or on the task, unless they are given.
_UNDECIDED: dict[str, Any] = {
    "batch_size": 0,
    "num_threads": 0,
    "num_workers": None,
    "max_episode_steps": None,
    "reward_threshold": None,
    "backend": "auto",
}


def _selectors(env_class: EnvClass, task_id: str) -> dict[str, str]:
    """Return how EnvPool's config names one of several tasks: task="pong" of Atari, task_name="run" of dm_control."""
    if env_class.module == "atari":
        return {"task": re.sub(r"(?<!^)(?=[A-Z])", "_", task_id.removesuffix("-v5")).lower()}
    if env_class.module == "mujoco.dmc":
        return {"task_name": dm_control.tasks()[task_id][1]}
    return {}


def _selected(env_class: EnvClass, options: dict[str, Any], defaults: Mapping[str, Any]) -> str:
    """Return the task that a config stands for, and remove what selects it from the options."""
    task_id = options.pop("task_id")
    for name in _selectors(env_class, task_id):
        wanted = options.pop(name)
        wanted = wanted.decode() if isinstance(wanted, bytes) else wanted
        if wanted == defaults[name]:
            continue
        matching = [own for own in task_ids(env_class) if wanted in _selectors(env_class, own).values()]
        if not matching:
            raise ConfigError(f"{name} expected a task of {env_class.name}, got {wanted!r}; see registry.specs")
        task_id = matching[0]
    return str(task_id)


def _init_spec(self: Any, config: Any) -> None:
    """XEnvSpec(config): config is made by XEnvSpec.gen_config(), or its values in that order."""
    fields = type(self).gen_config._fields
    if not isinstance(config, tuple) or len(config) != len(fields):
        raise ConfigError(
            f"{type(self).__name__} expected a config of {type(self).__name__}.gen_config(), got {config!r}"
        )
    options = dict(zip(fields, config, strict=True))
    defaults: Mapping[str, Any] = type(self).gen_config._field_defaults
    task_id = _selected(self.env_class, options, defaults)
    given = {name: value for name, value in options.items() if not _same(value, defaults[name])}
    self._start(task_id, given)
    _ = self.env_spec  # raises for invalid options, as in EnvPool


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and bool(repr(one) == repr(other)))
