"""The vector envs of other libraries, which envfleet bench --compare measures beside envfleet's pools."""

from __future__ import annotations

import importlib
import importlib.util
import operator
import os
import sys
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

import gymnasium

from envfleet.cli.arguments import GivenEnv
from envfleet.tuning.throughput import sample_batches

# Gymnasium's and Stable-Baselines3's have one process per env.
MAX_PROCESSES = 256


class PeerStepper:
    """Steps a vector env with random actions that were sampled beforehand, as RandomStepper steps a pool."""

    batches_per_round = 1

    def __init__(self, envs: Any, action_space: gymnasium.Space[Any], num_envs: int) -> None:
        self.envs = envs
        self.batch_size = num_envs
        self._actions = sample_batches(action_space, num_envs, 0)
        self._next = 0

    def start(self) -> None:
        """Reset all envs."""
        self.envs.reset()

    def step(self) -> object:
        """Step all envs and return the library's own result."""
        self._next = (self._next + 1) % len(self._actions)
        return self.envs.step(self._actions[self._next])

    def __enter__(self) -> PeerStepper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the vector env."""
        processes = getattr(self.envs, "processes", ())
        if kind is None or not processes:
            self.envs.close()
            return
        # After Ctrl-C in the middle of a step, its close() would wait for responses that were already received, or
        # raise a BrokenPipeError in place of the KeyboardInterrupt.
        for process in processes:
            process.terminate()
        self.envs.closed = True  # for its __del__()


def gymnasium_sync(make_env: Callable[[], Any], num_envs: int) -> PeerStepper:
    """Return Gymnasium's SyncVectorEnv."""
    envs = gymnasium.vector.SyncVectorEnv([make_env] * num_envs)
    return PeerStepper(envs, envs.single_action_space, num_envs)


def gymnasium_async(make_env: Callable[[], Any], num_envs: int) -> PeerStepper:
    """Return Gymnasium's AsyncVectorEnv, with its own defaults."""
    envs = gymnasium.vector.AsyncVectorEnv([make_env] * num_envs)
    return PeerStepper(envs, envs.single_action_space, num_envs)


def sb3_subproc(make_env: Callable[[], Any], num_envs: int) -> PeerStepper:
    """Return Stable-Baselines3's SubprocVecEnv, with its own defaults."""
    from stable_baselines3.common.vec_env import SubprocVecEnv

    envs = SubprocVecEnv([make_env] * num_envs)
    return PeerStepper(envs, envs.action_space, num_envs)


# By the name that --compare takes: the name in the table, the package, whether each env has a process, the constructor.
PEERS: dict[str, tuple[str, str, bool, Callable[..., PeerStepper]]] = {
    "sync": ("Gymnasium Sync", "gymnasium", False, gymnasium_sync),
    "async": ("Gymnasium Async", "gymnasium", True, gymnasium_async),
    "sb3": ("SB3 Subproc", "stable_baselines3", True, sb3_subproc),
}


def is_installed(name: str) -> bool:
    """Return whether the package of a peer is installed."""
    return importlib.util.find_spec(PEERS[name][1]) is not None


def is_registered(env_id: str) -> bool:
    """Return whether Gymnasium alone can make an id."""
    try:
        gymnasium.spec(env_id)
    except gymnasium.error.Error:
        return False
    return True


def env_factory(given: GivenEnv, params: dict[str, Any]) -> Callable[[], Any]:
    """Return a function that makes one env with Gymnasium alone, in any process."""
    return partial(_make_env, os.getcwd(), given.module, given.name, isinstance(given.env, str), params)


def _make_env(folder: str, module: str, name: str, is_id: bool, params: dict[str, Any]) -> Any:
    if module and folder not in sys.path:  # the module is most often a file in this folder
        sys.path.insert(0, folder)
    own = importlib.import_module(module) if module else None
    return gymnasium.make(name, **params) if is_id else operator.attrgetter(name)(own)(**params)
