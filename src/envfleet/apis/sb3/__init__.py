"""Pools as Stable-Baselines3's vectorized environments.

from envfleet.apis.sb3 import make_vec_env                    # instead of SB3's make_vec_env
from envfleet.apis.sb3 import DummyVecEnv, SubprocVecEnv      # instead of SB3's classes
EnvFleetVecEnv(envfleet.make("CartPole-v1", num_envs=64, autoreset_mode="same_step"))
"""

from envfleet.apis.common.versions import check_version
from envfleet.core.errors import MissingExtraError

try:
    import stable_baselines3
except ImportError as error:
    raise MissingExtraError("stable-baselines3", "sb3", "the sb3 api") from error

# Before 2.0, SB3 used gym's API without terminated and truncated.
check_version("sb3", "stable-baselines3", stable_baselines3.__version__, "2.6", "3", "2.6 to 2.9")

from envfleet.apis.sb3.drop_ins import DummyVecEnv, SubprocVecEnv  # noqa: E402 (after the check of what it imports)
from envfleet.apis.sb3.making import make_vec_env  # noqa: E402
from envfleet.apis.sb3.vec_env import EnvFleetVecEnv  # noqa: E402

__all__ = ["DummyVecEnv", "EnvFleetVecEnv", "SubprocVecEnv", "make_vec_env"]
