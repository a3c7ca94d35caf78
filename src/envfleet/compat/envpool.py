"""EnvPool's name for envfleet: `import envpool` in code that shall not be changed.

    import envfleet.compat.envpool
    envfleet.compat.envpool.install()   # before anything imports envpool

    import envpool
    env = envpool.make("CartPole-v1", env_type="gym", num_envs=64)

The functions are here too, for `from envfleet.compat import envpool`.
"""

from __future__ import annotations

import sys
import warnings
from functools import partial
from types import ModuleType
from typing import Any

import envfleet.registry as registry
from envfleet.compat import gym_stand_in
from envfleet.compat.envpool_mixin import EnvPoolMixin
from envfleet.compat.envpool_options import parse_envpool_options
from envfleet.compat.envpool_pools import GymEnvPool, GymnasiumEnvPool
from envfleet.compat.envpool_spec import EnvPoolSpec
from envfleet.compat.modules import install_tree, remove_tree
from envfleet.errors import ConfigError
from envfleet.registry import Env, list_all_envs

# The last EnvPool whose env_type="gym" speaks the old gym's dialect, as ours does.
__version__ = "0.8.4+envfleet"

__all__ = [
    "EnvPoolMixin",
    "EnvPoolSpec",
    "GymEnvPool",
    "GymnasiumEnvPool",
    "install",
    "list_all_envs",
    "make",
    "make_dm",
    "make_gym",
    "make_gymnasium",
    "make_spec",
    "register",
    "uninstall",
]


def make(task_id: Env, env_type: str = "gym", **options: Any) -> Any:
    """A pool as EnvPool makes them. All options of envfleet.make() besides EnvPool's."""
    if env_type == "gym":
        return make_gym(task_id, **options)
    if env_type == "gymnasium":
        return make_gymnasium(task_id, **options)
    if env_type == "dm":
        return make_dm(task_id, **options)
    raise ConfigError(f"env_type expected 'gym', 'gymnasium' or 'dm', got {env_type!r}")


def make_gym(task_id: Env, **options: Any) -> GymEnvPool:
    """A pool in the old gym's dialect: reset() -> obs, step() -> 4-tuples."""
    asked = parse_envpool_options(options, reset_returns_info=False)
    make_pool = partial(registry.make_pool, task_id, **{**_defaults(task_id), **asked.options})
    return GymEnvPool(make_pool, registry.family_of(task_id), asked)


def make_gymnasium(task_id: Env, **options: Any) -> GymnasiumEnvPool:
    """A pool in Gymnasium's dialect: (obs, info) and 5-tuples."""
    asked = parse_envpool_options(options, reset_returns_info=True)
    make_pool = partial(registry.make_pool, task_id, **{**_defaults(task_id), **asked.options})
    return GymnasiumEnvPool(make_pool, registry.family_of(task_id), asked)


def make_dm(task_id: Env, **options: Any) -> Any:
    """A pool in dm_env's dialect."""
    from envfleet.compat.envpool_dm import DMEnvPool  # needs dm_env

    asked = parse_envpool_options(options, reset_returns_info=True)
    make_pool = partial(registry.make_pool, task_id, **{**_defaults(task_id), **asked.options})
    return DMEnvPool(make_pool, registry.family_of(task_id), asked)


def _defaults(task_id: Env) -> dict[str, Any]:
    """What EnvPool always gives and envfleet on request: the memory of an Atari game, as info["ram"]."""
    return {"ram_in_info": True} if registry.family_of(task_id).name == "atari" else {}


def make_spec(task_id: Env, **options: Any) -> EnvPoolSpec:
    """What make() would build."""
    asked = parse_envpool_options(options, reset_returns_info=True)
    return EnvPoolSpec(registry.make_spec(task_id, **asked.options), asked.given, old_gym_spaces=True)


def register(task_id: str, *args: Any, **kwargs: Any) -> None:
    """envfleet.register(task_id, base, ...). EnvPool's own, for its C++ classes, has nothing to register here."""
    if "import_path" in kwargs or "spec_cls" in kwargs or len(args) > 1:
        raise ConfigError(
            f"register({task_id!r}, ...) expected a known id as base, got the classes of an env built for EnvPool; "
            "port it with envfleet.compile(), or give a Python env's class to make()"
        )
    registry.register(task_id, *args, **kwargs)


def install(*, old_gym: bool = True) -> ModuleType:
    """Puts the module tree `envpool` in place. A second call changes nothing.

    old_gym: also a light `gym`, if the real one is not installed: EnvPool's users test for its spaces.
    """
    module = install_tree("envpool", envpool_members(), __name__, __doc__ or "")
    if old_gym:
        gym_stand_in.install()
    torchrl = sys.modules.get("torchrl.envs.libs.envpool")
    if torchrl is not None and not getattr(torchrl, "_has_envpool", True):
        warnings.warn(
            "install() came after torchrl was imported, which has noted that there is no envpool: its "
            "MultiThreadedEnv will refuse to work; call install() before the first import of torchrl",
            RuntimeWarning,
            stacklevel=2,
        )
    return module


def uninstall() -> bool:
    """Takes the tree, and the light gym, out again; whether there was one. Pools that were made go on."""
    was_there = remove_tree("envpool", __name__)
    gym_stand_in.uninstall()
    return was_there


def envpool_members() -> dict[str, dict[str, Any]]:
    """The modules of EnvPool's tree, by their path in it."""
    here = sys.modules[__name__]
    functions = {name: getattr(here, name) for name in __all__ if name.startswith(("make", "list", "reg"))}
    # EnvPool's protocols are for annotations; these are what they describe.
    protocols = {
        "EnvPool": EnvPoolMixin,
        "EnvSpec": EnvPoolSpec,
        "GymEnvPool": GymEnvPool,
        "GymnasiumEnvPool": GymnasiumEnvPool,
        "DMEnvPool": EnvPoolMixin,
    }
    return {
        "": {**functions, **protocols, "__version__": __version__},
        "registration": {**functions, "base_path": ""},
        "entry": {},
        "python": {},
        "python.envpool": {"EnvPoolMixin": EnvPoolMixin},
        "python.protocol": protocols,
        "python.api": {"EnvPool": EnvPoolMixin, "EnvSpec": EnvPoolSpec},
        "python.env_spec": {"EnvSpecMixin": EnvPoolSpec},
        "python.gym_envpool": {"GymEnvPoolMixin": GymEnvPool},
        "python.gymnasium_envpool": {"GymnasiumEnvPoolMixin": GymnasiumEnvPool},
        "python.dm_envpool": {"DMEnvPoolMixin": EnvPoolMixin},
    }
