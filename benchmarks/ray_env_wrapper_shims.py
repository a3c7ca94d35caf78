"""Make RayEnvWrapper 1.0.1 importable with current packages, as a peer to measure.

    pip install --no-deps RayEnvWrapper==1.0.1        its own pins (an old Ray, SB3 1.x, gym) can no longer be installed
    pip install "ray>=2.60" "stable-baselines3>=2.6,<3"

It needs four things that no longer exist or that are heavy; its speed depends on none of them:
1. `gym`, for a type annotation: replaced by Gymnasium.
2. RLlib's BaseEnv and a few related names, which it does not use: replaced by empty ones, so that RLlib and its pinned
   Gymnasium are not needed.
3. SB3's copy_obs_dict, which later versions lack: replaced by a copy of each array.
4. The constructor of SB3 2 asks for the envs' render_mode, for which its get_attr() returns None: replaced by a list of
   None.
Its actor classes are pickled by value, so that the actors need none of this.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def import_ray_env_wrapper() -> type[Any]:
    """Return WrapperRayVecEnv of RayEnvWrapper 1.0.1. Raises ImportError if it is not installed."""
    import gymnasium

    sys.modules.setdefault("gym", gymnasium)
    for name, members in _RLLIB.items():
        module = ModuleType(name)
        module.__dict__.update(members)
        sys.modules.setdefault(name, module)
    import ray.cloudpickle
    from stable_baselines3.common.vec_env import util

    if not hasattr(util, "copy_obs_dict"):
        util.copy_obs_dict = lambda obs: {key: column.copy() for key, column in obs.items()}
    import RayEnvWrapper
    from RayEnvWrapper import CustomRayRemoteEnv

    ray.cloudpickle.register_pickle_by_value(CustomRayRemoteEnv)
    RayEnvWrapper.WrapperRayVecEnv.get_attr = lambda self, name, indices=None: [None] * self.num_envs
    return RayEnvWrapper.WrapperRayVecEnv


def _no_op_decorator(*arguments: Any, **_: Any) -> Any:
    """A decorator that changes nothing, with or without arguments."""
    return arguments[0] if arguments and callable(arguments[0]) else _no_op_decorator


class _BaseEnv:
    """The base class that RayEnvWrapper derives from and overrides."""


_RLLIB: dict[str, dict[str, Any]] = {
    "ray.rllib": {"BaseEnv": _BaseEnv, "__path__": []},
    "ray.rllib.env": {"__path__": []},
    "ray.rllib.env.base_env": {"BaseEnv": _BaseEnv, "ASYNC_RESET_RETURN": "async_reset_return"},
    "ray.rllib.utils": {"__path__": []},
    "ray.rllib.utils.annotations": {"override": lambda _: lambda method: method, "PublicAPI": _no_op_decorator},
    "ray.rllib.utils.typing": dict.fromkeys(("MultiEnvDict", "EnvType", "EnvID", "MultiAgentDict"), dict),
}
