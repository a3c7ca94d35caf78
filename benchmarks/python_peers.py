"""The contenders of python_suites.py: one function each, giving a Loop over its public step().

They are called in a process of their own (isolated.py), by name, so their arguments are
plain. As in peers.py: the same pre-drawn action batches for everybody, results held until
the next batch, and each peer imported where it is made.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from harness import Loop
from numpy.typing import NDArray
from peers import NUM_ACTION_BATCHES, actions_for, async_loop, sync_loop
from python_envs import env_of, factory_of


def actions_of(space: spaces.Space[Any], num_rows: int) -> Sequence[NDArray[Any]]:
    """Batches of actions for num_rows envs that have this space each."""
    if isinstance(space, spaces.Discrete):
        return actions_for(num_rows, int(space.n))
    assert isinstance(space, spaces.Box)
    shape = (NUM_ACTION_BATCHES, num_rows, *space.shape)
    return list(np.random.default_rng(0).uniform(space.low, space.high, shape).astype(space.dtype))


def envfleet_sync(env: str, num_envs: int, backend: str, num_workers: int | None = None, in_us: bool = False) -> Loop:
    pool = _envfleet(env, num_envs, backend, num_workers)
    pool.reset()
    return sync_loop(pool.step, num_envs, pool.close, in_us, actions_of(pool.single_action_space, num_envs))


def envfleet_async(env: str, num_envs: int, backend: str, num_workers: int, batch_size: int) -> Loop:
    pool = _envfleet(env, num_envs, backend, num_workers, batch_size=batch_size)
    pool.async_reset()
    return async_loop(pool, batch_size, pool.close, actions=actions_of(pool.single_action_space, batch_size))


def _envfleet(env: str, num_envs: int, backend: str, num_workers: int | None, **options: Any) -> Any:
    import envfleet

    _demand_simulator(env)
    if num_workers is not None:  # serial has none
        options["num_workers"] = num_workers
    return envfleet.make(env_of(env), num_envs=num_envs, backend=backend, seed=0, **options)


def gymnasium_sync(env: str, num_envs: int) -> Loop:
    from gymnasium.vector import SyncVectorEnv

    _demand_simulator(env)
    return _gymnasium_loop(SyncVectorEnv([factory_of(env)] * num_envs), num_envs)


def gymnasium_async(env: str, num_envs: int) -> Loop:
    """With its own defaults: shared memory, and the start method of this Python.

    That is a fork up to Python 3.13: safe here, where the process has made nothing else before.
    How a worker was started makes no difference to its steps.
    """
    from gymnasium.vector import AsyncVectorEnv

    _demand_simulator(env)
    multiprocessing.set_forkserver_preload(["gymnasium"])  # where it is a forkserver: once, not in 64 workers
    return _gymnasium_loop(AsyncVectorEnv([factory_of(env)] * num_envs, shared_memory=True), num_envs)


def _gymnasium_loop(vector_env: Any, num_envs: int) -> Loop:
    vector_env.reset(seed=0)
    actions = actions_of(vector_env.single_action_space, num_envs)
    return sync_loop(vector_env.step, num_envs, vector_env.close, actions=actions)


def sb3_subproc(env: str, num_envs: int) -> Loop:
    """With its own default, a forkserver."""
    from stable_baselines3.common.vec_env import SubprocVecEnv

    _demand_simulator(env)
    # Without it each worker would import torch: 64 times seconds before the first step.
    multiprocessing.set_forkserver_preload(["gymnasium", "stable_baselines3.common.vec_env"])
    vec_env = SubprocVecEnv([factory_of(env)] * num_envs)
    vec_env.seed(0)
    vec_env.reset()
    return sync_loop(vec_env.step, num_envs, vec_env.close, actions=actions_of(vec_env.action_space, num_envs))


def bare_loop(env: str, num_envs: int) -> Loop:
    """The envs' own steps and resets, in microseconds a batch: nothing is collected or checked."""
    envs = [factory_of(env)() for _ in range(num_envs)]
    for position, one in enumerate(envs):
        one.reset(seed=position)
    ended = [False] * num_envs

    def step(actions: NDArray[Any]) -> None:
        for position, (one, action) in enumerate(zip(envs, actions, strict=True)):
            if ended[position]:  # a row that is a reset, as with a next-step autoreset
                one.reset()
                ended[position] = False
            else:
                _obs, _reward, terminated, truncated, _info = one.step(action)
                ended[position] = terminated or truncated

    def close() -> None:
        for one in envs:
            one.close()

    return sync_loop(step, num_envs, close, in_us=True, actions=actions_of(envs[0].action_space, num_envs))


def _demand_simulator(env: str) -> None:
    """Raises ImportError, which the table shows as not installed; Gymnasium's own error would be a failure."""
    if env.startswith("Ant-"):
        import mujoco  # noqa: F401
