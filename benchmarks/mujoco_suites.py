"""Suites `mujoco` and `dm_control`: native envs against EnvPool's, Gymnasium's AsyncVectorEnv and dm_control itself.

Each contender runs in its own process, because EnvPool contains another version of MuJoCo.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import python_peers
from gymnasium import spaces
from harness import MANY_CORES, Case, Loop, Options, Target
from isolated import isolated_contender
from loops import actions_of, async_loop, sync_loop

ENVFLEET, ENVPOOL, ASYNC_VECTOR = "envfleet", "EnvPool", "Gymnasium AsyncVectorEnv"
_IDS = ("Ant-v5", "HalfCheetah-v5")
_NUM_ENVS = 64
# On many cores: more envs and sizes, against EnvPool only.
_IDS_ON_MANY_CORES = (*_IDS, "Humanoid-v5")
_NUM_ENVS_ON_MANY_CORES = (16, 64, 256)


def mujoco(options: Options) -> list[Case]:
    num_threads = options.num_threads
    if num_threads >= MANY_CORES:
        return [_sync(env, size, num_threads) for env in _IDS_ON_MANY_CORES for size in _NUM_ENVS_ON_MANY_CORES]
    return [case for env in _IDS for case in (_sync(env, _NUM_ENVS, num_threads), _async(env, num_threads))]


def _sync(env: str, num_envs: int, num_threads: int) -> Case:
    common = {"env": env, "num_envs": num_envs, "num_threads": num_threads}
    contenders = [
        isolated_contender(ENVFLEET, envfleet_sync, **common),
        isolated_contender(ENVPOOL, envpool_sync, **common),
    ]
    if num_threads >= MANY_CORES:
        targets = [Target("ratio", ENVFLEET, 1.3, ENVPOOL)]
    else:
        contenders.append(isolated_contender(ASYNC_VECTOR, python_peers.gymnasium_async, env=env, num_envs=num_envs))
        targets = [Target("ratio", ENVFLEET, 1.2, ENVPOOL), Target("ratio", ENVFLEET, 4, ASYNC_VECTOR)]
    return Case(
        f"{env}, {num_envs} envs, synchronous",
        "steps/s",
        contenders,
        ENVFLEET,
        targets,
        facts={"num_envs": num_envs, "num_threads": num_threads},
    )


def _async(env: str, num_threads: int) -> Case:
    batch_size = _NUM_ENVS // 2
    common = {"env": env, "num_envs": _NUM_ENVS, "num_threads": num_threads, "batch_size": batch_size}
    return Case(
        f"{env}, {_NUM_ENVS} envs, batches of {batch_size}",
        "steps/s",
        [
            isolated_contender(ENVFLEET, envfleet_async, **common),
            isolated_contender(ENVPOOL, envpool_async, **common),
        ],
        ENVFLEET,
        [Target("ratio", ENVFLEET, 1.05, ENVPOOL)],
        facts={"num_envs": _NUM_ENVS, "num_threads": num_threads, "batch_size": batch_size},
    )


PROCESSES = "envfleet processes"  # dm_control itself
_AGAINST_ENVPOOL = {"walker-run": "WalkerRun-v1", "cheetah-run": "CheetahRun-v1", "humanoid-run": "HumanoidRun-v1"}
_AGAINST_PYTHON = ("cartpole-swingup", "acrobot-swingup")


def dm_control(options: Options) -> list[Case]:
    common = {"num_envs": _NUM_ENVS, "num_threads": options.num_threads}
    return [
        Case(
            f"{env}, {_NUM_ENVS} envs, synchronous",
            "steps/s",
            [
                isolated_contender(ENVFLEET, envfleet_sync, env=env, **common),
                isolated_contender(ENVPOOL, envpool_sync, env=_AGAINST_ENVPOOL[env], **common)
                if env in _AGAINST_ENVPOOL
                else isolated_contender(PROCESSES, envfleet_processes, env=env, **common),
            ],
            ENVFLEET,
            [
                Target("ratio", ENVFLEET, 1.2, ENVPOOL)
                if env in _AGAINST_ENVPOOL
                else Target("ratio", ENVFLEET, 5, PROCESSES)
            ],
            facts=common,
        )
        for env in (*_AGAINST_ENVPOOL, *_AGAINST_PYTHON)
    ]


# --- contenders: options are env, num_envs and num_threads, and batch_size for the asynchronous ones ---


def envfleet_sync(**options: Any) -> Loop:
    pool = _envfleet(**options)
    return _sync_loop(pool, pool.single_action_space, options["num_envs"])


def envfleet_async(**options: Any) -> Loop:
    pool = _envfleet(**options)
    return _async_loop(pool, pool.single_action_space, options["batch_size"])


def envfleet_processes(env: str, num_envs: int, num_threads: int) -> Loop:
    import envfleet

    pool = envfleet.make(env, backend="processes", num_envs=num_envs, num_workers=num_threads, seed=0)
    return _sync_loop(pool, pool.single_action_space, num_envs)


def envpool_sync(**options: Any) -> Loop:
    pool = _envpool(**options)
    # EnvPool's equivalent of Gymnasium's single_action_space.
    return _sync_loop(pool, pool.action_space, options["num_envs"])


def envpool_async(**options: Any) -> Loop:
    pool = _envpool(**options)
    return _async_loop(pool, pool.action_space, options["batch_size"])


def _envfleet(env: str, **options: Any) -> Any:
    import envfleet

    # Not "auto", which would measure a Python pool if the native envs cannot be loaded.
    return envfleet.make(env, backend="native", seed=0, **options)


def _envpool(env: str, **options: Any) -> Any:
    import envpool

    return envpool.make(env, env_type="gymnasium", seed=0, **options)


def _sync_loop(pool: Any, space: spaces.Space[Any], num_envs: int) -> Loop:
    pool.reset()
    return sync_loop(pool.step, num_envs, pool.close, actions=actions_of(space, num_envs))


def _async_loop(pool: Any, space: spaces.Space[Any], batch_size: int) -> Loop:
    pool.async_reset()
    return async_loop(pool, batch_size, pool.close, actions=actions_of(space, batch_size))


SUITES: dict[str, Callable[[Options], list[Case]]] = {"mujoco": mujoco, "dm_control": dm_control}
