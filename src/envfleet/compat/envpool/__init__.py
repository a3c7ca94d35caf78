"""EnvPool's API over envfleet's pools, and the module name `envpool` for code that must stay as it is.

    import envfleet.compat.envpool
    envfleet.compat.envpool.install()   # before anything imports envpool

    import envpool
    env = envpool.make("CartPole-v1", env_type="gym", num_envs=64)

The functions are here too, for `from envfleet.compat import envpool`.
"""

from __future__ import annotations

from envfleet.compat.envpool.alias import envpool_members, install, uninstall
from envfleet.compat.envpool.env_spec import EnvPoolSpec, __version__
from envfleet.compat.envpool.gym_envpools import GymEnvPool, GymnasiumEnvPool
from envfleet.compat.envpool.pool_mixin import EnvPoolMixin
from envfleet.compat.envpool.registration import (
    list_all_envs,
    make,
    make_dm,
    make_gym,
    make_gymnasium,
    make_spec,
    register,
    registry,
)

__all__ = [
    "EnvPoolMixin",
    "EnvPoolSpec",
    "GymEnvPool",
    "GymnasiumEnvPool",
    "__version__",
    "envpool_members",
    "install",
    "list_all_envs",
    "make",
    "make_dm",
    "make_gym",
    "make_gymnasium",
    "make_spec",
    "register",
    "registry",
    "uninstall",
]
