"""The contenders of native_suites.py: each function returns a Loop over a vector env.

Each peer is imported where it is created, so that a missing one only affects its own row.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from harness import Loop
from loops import async_loop, sync_loop


def envfleet_sync(num_envs: int, num_threads: int, env_id: str = "CartPole-v1", **options: Any) -> Loop:
    import envfleet

    pool = envfleet.make(env_id, num_envs=num_envs, num_threads=num_threads, seed=0, **options)
    pool.reset()
    return sync_loop(pool.step, num_envs, pool.close)


def envfleet_async(
    num_envs: int,
    batch_size: int,
    num_threads: int,
    env_id: str = "CartPole-v1",
    before_send: Callable[[], None] | None = None,
    **options: Any,
) -> Loop:
    import envfleet

    pool = envfleet.make(env_id, num_envs=num_envs, batch_size=batch_size, num_threads=num_threads, seed=0, **options)
    pool.async_reset()
    return async_loop(pool, batch_size, pool.close, before_send)


def envpool_sync(num_envs: int, num_threads: int) -> Loop:
    import envpool

    pool = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=num_envs, num_threads=num_threads, seed=0)
    pool.reset()
    return sync_loop(pool.step, num_envs, pool.close)


def envpool_async(num_envs: int, batch_size: int, num_threads: int) -> Loop:
    import envpool

    pool = envpool.make(
        "CartPole-v1",
        env_type="gymnasium",
        num_envs=num_envs,
        batch_size=batch_size,
        num_threads=num_threads,
        seed=0,
    )
    pool.async_reset()
    return async_loop(pool, batch_size, pool.close)


def gymnasium_numpy(num_envs: int) -> Loop:
    """Gymnasium's vectorized CartPole on numpy arrays, which has no env objects."""
    import gymnasium

    env = gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")
    env.reset(seed=0)
    return sync_loop(env.step, num_envs, env.close)


def gymnasium_sync(num_envs: int) -> Loop:
    import gymnasium

    env = gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="sync")
    env.reset(seed=0)
    return sync_loop(env.step, num_envs, env.close)


def gymnasium_async(num_envs: int) -> Loop:
    import gymnasium

    _preload_forkserver()
    env = gymnasium.make_vec(
        "CartPole-v1", num_envs, vectorization_mode="async", vector_kwargs={"context": "forkserver"}
    )
    env.reset(seed=0)
    return sync_loop(env.step, num_envs, env.close)


def sb3_dummy(num_envs: int) -> Loop:
    from stable_baselines3.common.vec_env import DummyVecEnv

    env = DummyVecEnv([_make_cartpole] * num_envs)
    env.seed(0)
    env.reset()
    return sync_loop(env.step, num_envs, env.close)


def sb3_subproc(num_envs: int) -> Loop:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    _preload_forkserver()
    env = SubprocVecEnv([_make_cartpole] * num_envs, start_method="forkserver")
    env.seed(0)
    env.reset()
    return sync_loop(env.step, num_envs, env.close)


def _make_cartpole() -> Any:
    import gymnasium

    return gymnasium.make("CartPole-v1")


def _preload_forkserver() -> None:
    # A plain fork would copy a process that has threads of EnvPool and envfleet; a server without these imports would
    # repeat them (seconds for torch) in each of 64 workers.
    multiprocessing.set_forkserver_preload(["gymnasium", "stable_baselines3.common.vec_env"])
