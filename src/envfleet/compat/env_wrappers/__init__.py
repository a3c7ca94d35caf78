"""env-wrappers' names: `from env_wrappers.vec_env import SubprocVecEnv, DummyVecEnv, make_env`, and its samplers,
`from env_wrappers.samplers.subproc_runner import SubprocRunner`.

    import envfleet.compat.env_wrappers
    envfleet.compat.env_wrappers.install()

The classes are here too, for `from envfleet.compat.env_wrappers import SubprocVecEnv`.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from envfleet.compat import gym_stand_in
from envfleet.compat.env_wrappers.monitor import Monitor
from envfleet.compat.env_wrappers.samplers import DummyRunner, SubprocRunner, goal_preproc, path_gen
from envfleet.compat.env_wrappers.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecEnvWrapper
from envfleet.compat.env_wrappers.vec_wrappers import ShmemVecEnv, VecFrameStack, VecMonitor, VecNormalize
from envfleet.compat.modules import WITHOUT_GYM, install_tree, remove_tree
from envfleet.compat.vec_env_adapter import make_env

__all__ = [
    "DummyRunner",
    "DummyVecEnv",
    "Monitor",
    "ShmemVecEnv",
    "SubprocRunner",
    "SubprocVecEnv",
    "VecEnv",
    "VecEnvWrapper",
    "VecFrameStack",
    "VecMonitor",
    "VecNormalize",
    "install",
    "make_env",
    "path_gen",
    "uninstall",
]


def install(*, old_gym: bool = True) -> ModuleType:
    """Install the module tree `env_wrappers`. A second call does nothing.

    old_gym: also install a stand-in for `gym`, unless the real one is installed, for factories that call gym.make().
    """
    names: dict[str, Any] = {
        "DummyVecEnv": DummyVecEnv,
        "ShmemVecEnv": ShmemVecEnv,
        "SubprocVecEnv": SubprocVecEnv,
        "VecEnv": VecEnv,
        "VecEnvWrapper": VecEnvWrapper,
        "VecFrameStack": VecFrameStack,
        "VecMonitor": VecMonitor,
        "VecNormalize": VecNormalize,
        "make_env": make_env,
    }
    members = {
        "": {},
        "monitor": {"Monitor": Monitor},
        "vec_env": names,
        "vec_env.vec_env": {"VecEnv": VecEnv, "VecEnvWrapper": VecEnvWrapper},
        "vec_env.subproc_vec_env": {"SubprocVecEnv": SubprocVecEnv},
        "vec_env.dummy_vec_env": {"DummyVecEnv": DummyVecEnv},
        "vec_env.shmem_vec_env": {"ShmemVecEnv": ShmemVecEnv},
        "vec_env.vec_normalize": {"VecNormalize": VecNormalize},
        "vec_env.vec_frame_stack": {"VecFrameStack": VecFrameStack},
        "vec_env.vec_monitor": {"VecMonitor": VecMonitor},
        "samplers": {},
        "samplers.path_gen": {"path_gen": path_gen, "goal_preproc": goal_preproc},
        "samplers.subproc_runner": {"SubprocRunner": SubprocRunner},
        "samplers.dummy_runner": {"DummyRunner": DummyRunner},
    }
    module = install_tree("env_wrappers", members, __name__, __doc__ or "", WITHOUT_GYM)
    if old_gym:
        gym_stand_in.install()
    return module


def uninstall() -> bool:
    """Remove the tree and the gym stand-in; return True if there was one. Existing vector envs keep working."""
    was_there = remove_tree("env_wrappers", __name__)
    gym_stand_in.uninstall()
    return was_there
