"""Suites `families` (ids on processes against AsyncVectorEnv) and `minigrid` (native MiniGrid against its peers)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from harness import Case, Loop, Options, Target
from isolated import isolated_contender
from loops import actions_of, sync_loop

PROCESSES, ASYNC_VECTOR = "envfleet processes", "Gymnasium AsyncVectorEnv"
_NUM_ENVS, _WORKERS = 16, 2
_IDS = ("LunarLander-v3", "BipedalWalker-v3", "CarRacing-v3", "MiniGrid-Empty-8x8-v0", "cheetah-run")


def families(options: Options) -> list[Case]:
    return [
        Case(
            f"{env_id}, {_NUM_ENVS} envs, {_WORKERS} workers",
            "steps/s",
            [
                isolated_contender(PROCESSES, envfleet_processes, env_id=env_id),
                isolated_contender(ASYNC_VECTOR, gymnasium_async, env_id=env_id),
            ],
            PROCESSES,
            # envfleet must not be slower for any family.
            [Target("ratio", PROCESSES, 1.0, ASYNC_VECTOR)],
            facts={"num_envs": _NUM_ENVS, "num_workers": _WORKERS},
        )
        for env_id in _IDS
    ]


NATIVE, SYNC_VECTOR, ENVPOOL = "envfleet", "Gymnasium SyncVectorEnv", "EnvPool"
_NUM_GRIDS = 64
_GRID_IDS = ("MiniGrid-DoorKey-8x8-v0", "MiniGrid-MultiRoom-N6-v0")


def minigrid(options: Options) -> list[Case]:
    return [
        Case(
            f"{env_id}, {_NUM_GRIDS} envs, {_WORKERS} threads",
            "steps/s",
            [
                isolated_contender(NATIVE, envfleet_native, env_id=env_id),
                isolated_contender(SYNC_VECTOR, gymnasium_sync, env_id=env_id),
                isolated_contender(ENVPOOL, envpool_sync, env_id=env_id),
            ],
            NATIVE,
            [Target("ratio", NATIVE, 100.0, SYNC_VECTOR), Target("ratio", NATIVE, 5.0, ENVPOOL)],
            facts={"num_envs": _NUM_GRIDS, "num_threads": _WORKERS},
        )
        for env_id in _GRID_IDS
    ]


def envfleet_native(env_id: str) -> Loop:
    import envfleet

    pool = envfleet.make(env_id, num_envs=_NUM_GRIDS, num_threads=_WORKERS, seed=0)
    pool.reset()
    return _loop(pool, _NUM_GRIDS)


def gymnasium_sync(env_id: str) -> Loop:
    from gymnasium.vector import SyncVectorEnv

    pool = SyncVectorEnv([partial(_make, env_id)] * _NUM_GRIDS)
    pool.reset(seed=0)
    return _loop(pool, _NUM_GRIDS)


def envpool_sync(env_id: str) -> Loop:
    import envpool

    pool = envpool.make(env_id, env_type="gymnasium", num_envs=_NUM_GRIDS, num_threads=_WORKERS, seed=0)
    pool.reset()
    return sync_loop(pool.step, _NUM_GRIDS, pool.close, actions=actions_of(pool.action_space, _NUM_GRIDS))


def envfleet_processes(env_id: str) -> Loop:
    import envfleet

    pool = envfleet.make(env_id, num_envs=_NUM_ENVS, num_workers=_WORKERS, backend="processes", seed=0)
    pool.reset()
    return _loop(pool)


def gymnasium_async(env_id: str) -> Loop:
    from gymnasium.vector import AsyncVectorEnv

    # AsyncVectorEnv does not support MiniGrid's mission space in shared memory.
    pool = AsyncVectorEnv([partial(_make, env_id)] * _NUM_ENVS, shared_memory=not env_id.startswith("MiniGrid"))
    pool.reset(seed=0)
    return _loop(pool)


def _make(env_id: str) -> Any:
    import gymnasium

    from envfleet.making.builders import gymnasium_spec

    return gymnasium.make(gymnasium_spec(env_id), disable_env_checker=True)


def _loop(pool: Any, num_envs: int = _NUM_ENVS) -> Loop:
    return sync_loop(pool.step, num_envs, pool.close, actions=actions_of(pool.single_action_space, num_envs))


SUITES: dict[str, Callable[[Options], list[Case]]] = {"families": families, "minigrid": minigrid}
