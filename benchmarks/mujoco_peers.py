"""The contenders of mujoco_suites.py, called in a process of their own as those of python_peers.py."""

from __future__ import annotations

from typing import Any

from harness import Loop
from peers import async_loop, sync_loop
from python_peers import actions_of


def envfleet_sync(env: str, num_envs: int, num_threads: int) -> Loop:
    pool = _envfleet(env, num_envs=num_envs, num_threads=num_threads)
    pool.reset()
    return sync_loop(pool.step, num_envs, pool.close, actions=actions_of(pool.single_action_space, num_envs))


def envfleet_async(env: str, num_envs: int, num_threads: int, batch_size: int) -> Loop:
    pool = _envfleet(env, num_envs=num_envs, num_threads=num_threads, batch_size=batch_size)
    pool.async_reset()
    return async_loop(pool, batch_size, pool.close, actions=actions_of(pool.single_action_space, batch_size))


def _envfleet(env: str, **options: Any) -> Any:
    import envfleet

    # Not "auto": where the envs cannot be loaded, a Python pool is not what this measures.
    return envfleet.make(env, backend="native", seed=0, **options)


def envpool_sync(env: str, num_envs: int, num_threads: int) -> Loop:
    pool = _envpool(env, num_envs=num_envs, num_threads=num_threads)
    pool.reset()
    return sync_loop(pool.step, num_envs, pool.close, actions=actions_of(pool.action_space, num_envs))


def envpool_async(env: str, num_envs: int, num_threads: int, batch_size: int) -> Loop:
    pool = _envpool(env, num_envs=num_envs, num_threads=num_threads, batch_size=batch_size)
    pool.async_reset()
    return async_loop(pool, batch_size, pool.close, actions=actions_of(pool.action_space, batch_size))


def _envpool(env: str, **options: Any) -> Any:
    import envpool

    return envpool.make(env, env_type="gymnasium", seed=0, **options)
