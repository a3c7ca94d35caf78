"""Gets RayEnvWrapper 1.0.1 to import beside today's packages, as a peer to measure.

    pip install --no-deps RayEnvWrapper==1.0.1        its own pins (an old Ray, SB3 1.x, gym) no longer install
    pip install "ray>=2.60" "stable-baselines3>=2.6,<3"

It asks for four things that are gone or heavy, none of which its speed depends on:
1. `gym`, for a type annotation: Gymnasium stands in for it.
2. RLlib's BaseEnv and a few names around it, of which it uses nothing: empty ones, so that RLlib and its pin
   of Gymnasium are not needed.
3. SB3's copy_obs_dict, which later ones have not: a copy of each array.
4. SB3 2 asks for the envs' render_mode in the constructor, where its get_attr() gives None: a list of None.
And its actors' classes are sent by value, so that the actors need none of this.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def import_ray_env_wrapper() -> type[Any]:
    """WrapperRayVecEnv of RayEnvWrapper 1.0.1. Raises ImportError when it is not installed."""
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


def _as_it_is(*arguments: Any, **_: Any) -> Any:
    """An annotation that annotates nothing, with or without arguments."""
    return arguments[0] if arguments and callable(arguments[0]) else _as_it_is


class _BaseEnv:
    """What RayEnvWrapper derives from and overrides."""


_RLLIB: dict[str, dict[str, Any]] = {
    "ray.rllib": {"BaseEnv": _BaseEnv, "__path__": []},
    "ray.rllib.env": {"__path__": []},
    "ray.rllib.env.base_env": {"BaseEnv": _BaseEnv, "ASYNC_RESET_RETURN": "async_reset_return"},
    "ray.rllib.utils": {"__path__": []},
    "ray.rllib.utils.annotations": {"override": lambda _: lambda method: method, "PublicAPI": _as_it_is},
    "ray.rllib.utils.typing": dict.fromkeys(("MultiEnvDict", "EnvType", "EnvID", "MultiAgentDict"), dict),
}
