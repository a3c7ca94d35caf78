"""The contenders of mujoco_suites.py. isolated.py calls them by name, each in its own process.

Their options are env, num_envs and num_threads, and batch_size for the asynchronous ones.
"""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from harness import Loop
from peers import async_loop, sync_loop
from python_peers import actions_of


def envfleet_sync(**options: Any) -> Loop:
    pool = _envfleet(**options)
    return _sync(pool, pool.single_action_space, options["num_envs"])


def envfleet_async(**options: Any) -> Loop:
    pool = _envfleet(**options)
    return _async(pool, pool.single_action_space, options["batch_size"])


def envpool_sync(**options: Any) -> Loop:
    pool = _envpool(**options)
    # EnvPool's equivalent of Gymnasium's single_action_space.
    return _sync(pool, pool.action_space, options["num_envs"])


def envpool_async(**options: Any) -> Loop:
    pool = _envpool(**options)
    return _async(pool, pool.action_space, options["batch_size"])


def _envfleet(env: str, **options: Any) -> Any:
    import envfleet

    # Not "auto", which would measure a Python pool if the native envs cannot be loaded.
    return envfleet.make(env, backend="native", seed=0, **options)


def _envpool(env: str, **options: Any) -> Any:
    import envpool

    return envpool.make(env, env_type="gymnasium", seed=0, **options)


def _sync(pool: Any, space: spaces.Space[Any], num_envs: int) -> Loop:
    pool.reset()
    return sync_loop(pool.step, num_envs, pool.close, actions=actions_of(space, num_envs))


def _async(pool: Any, space: spaces.Space[Any], batch_size: int) -> Loop:
    pool.async_reset()
    return async_loop(pool, batch_size, pool.close, actions=actions_of(space, batch_size))
