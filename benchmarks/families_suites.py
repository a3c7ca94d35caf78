"""Suites of families: Python ids on processes, and native MiniGrid.

families         against AsyncVectorEnv
worker_families  against SyncVectorEnv, and games for several players against a loop over PettingZoo's envs; runs in the
                 environment of `make test-families`, which has the packages
minigrid         native MiniGrid against SyncVectorEnv and EnvPool
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from harness import Case, Loop, Options, Target
from isolated import isolated_contender
from loops import actions_of, async_loop, sync_loop

PROCESSES, ASYNC_VECTOR = "envfleet processes", "Gymnasium AsyncVectorEnv"
_NUM_ENVS, _WORKERS = 16, 2
# Of the asynchronous pools. A synchronous batch waits for the worker whose envs happen to reset, which takes MiniHack
# as long as 20 steps.
_BATCH_SIZE = 8
BATCHES = f"envfleet processes, batches of {_BATCH_SIZE}"
_BOX2D = ("LunarLander-v3", "BipedalWalker-v3", "CarRacing-v3")  # native in EnvPool, with other trajectories
_IDS = (*_BOX2D, "MiniGrid-Empty-8x8-v0", "cheetah-run")


def families(options: Options) -> list[Case]:
    return [
        Case(
            f"{env_id}, {_NUM_ENVS} envs, {_WORKERS} workers",
            "steps/s",
            [
                isolated_contender(PROCESSES, envfleet_processes, env_id=env_id),
                isolated_contender(ASYNC_VECTOR, gymnasium_async, env_id=env_id),
                *(
                    [isolated_contender(ENVPOOL, envpool_sync, env_id=env_id, num_envs=_NUM_ENVS)]
                    if env_id in _BOX2D
                    else []
                ),
            ],
            PROCESSES,
            # envfleet must not be slower for any family.
            [Target("ratio", PROCESSES, 1.0, ASYNC_VECTOR)],
            facts={"num_envs": _NUM_ENVS, "num_workers": _WORKERS},
        )
        for env_id in _IDS
    ]


# One env per family; the ratio of the others of a family is similar where a step costs as much.
_WORKER_IDS = (
    "FetchReach-v4",
    "Meta-World/MT1-reach-v3",
    "highway-fast-v0",
    "NetHackScore-v0",
    "MiniHack-Room-5x5-v0",
    "Craftax-Classic-Symbolic-v1",
    "LunarLander-v3",
    "BipedalWalker-v3",
    "BabyAI-GoTo-v0",
    "atari/pong_v3",
)


_FOR_PLAYERS = "atari/"
PETTINGZOO = "loop over PettingZoo's envs"


def worker_families(options: Options) -> list[Case]:
    cases = []
    for env_id in _WORKER_IDS:
        if options.envs is not None and not env_id.startswith(options.envs):
            continue
        if env_id.startswith(_FOR_PLAYERS):
            peer = isolated_contender(PETTINGZOO, pettingzoo_loop, env_id=env_id)
        else:
            peer = isolated_contender(SYNC_VECTOR, gymnasium_sync, env_id=env_id, num_envs=_NUM_ENVS)
        cases.append(
            Case(
                f"{env_id}, {_NUM_ENVS} envs, {options.num_threads} workers",
                "steps/s",
                [
                    isolated_contender(PROCESSES, envfleet_processes, env_id=env_id, num_workers=options.num_threads),
                    isolated_contender(BATCHES, envfleet_batches, env_id=env_id, num_workers=options.num_threads),
                    peer,
                ],
                PROCESSES,
                [Target("ratio", name, 1.7, peer.name) for name in (PROCESSES, BATCHES)],
                facts={"num_envs": _NUM_ENVS, "num_workers": options.num_threads, "batch_size": _BATCH_SIZE},
            )
        )
    return cases


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


def gymnasium_sync(env_id: str, num_envs: int = _NUM_GRIDS) -> Loop:
    from gymnasium.vector import SyncVectorEnv

    pool = SyncVectorEnv([partial(_make, env_id)] * num_envs)
    pool.reset(seed=0)
    return _loop(pool, num_envs)


def envpool_sync(env_id: str, num_envs: int = _NUM_GRIDS) -> Loop:
    import envpool

    pool = envpool.make(env_id, env_type="gymnasium", num_envs=num_envs, num_threads=_WORKERS, seed=0)
    pool.reset()
    return sync_loop(pool.step, num_envs, pool.close, actions=actions_of(pool.action_space, num_envs))


def envfleet_processes(env_id: str, num_workers: int = _WORKERS) -> Loop:
    pool = _processes(env_id, num_workers=num_workers)
    pool.reset()
    return sync_loop(pool.step, _NUM_ENVS, pool.close, actions=_actions(pool, _NUM_ENVS))


def envfleet_batches(env_id: str, num_workers: int) -> Loop:
    pool = _processes(env_id, num_workers=num_workers, batch_size=_BATCH_SIZE)
    pool.async_reset()
    return async_loop(pool, _BATCH_SIZE, pool.close, actions=_actions(pool, _BATCH_SIZE))


def _processes(env_id: str, **options: Any) -> Any:
    import envfleet

    make: Callable[..., Any] = envfleet.make
    if env_id.startswith(_FOR_PLAYERS):
        from envfleet.apis.pettingzoo import make_pettingzoo as make
    return make(env_id, num_envs=_NUM_ENVS, backend="processes", seed=0, **options)


def _actions(pool: Any, num_rows: int) -> list[Any]:
    if not hasattr(pool, "possible_agents"):
        return list(actions_of(pool.single_action_space, num_rows))
    by_agent = {agent: actions_of(pool.action_space(agent), num_rows) for agent in pool.possible_agents}
    return [dict(zip(by_agent, batch, strict=True)) for batch in zip(*by_agent.values(), strict=True)]


def pettingzoo_loop(env_id: str) -> Loop:
    """What one writes without an executor: step each env, reset it at its end, and stack the rows by agent."""
    import importlib

    import numpy as np

    from envfleet.families.atari.roms import rom_folder

    module = importlib.import_module(f"pettingzoo.{env_id.replace('/', '.')}")
    envs = [module.parallel_env(auto_rom_install_path=str(rom_folder())) for _ in range(_NUM_ENVS)]
    agents = envs[0].possible_agents
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    by_agent = {agent: actions_of(envs[0].action_space(agent), _NUM_ENVS) for agent in agents}
    batches: list[Any] = [
        [{agent: int(own[i]) for agent, own in zip(agents, batch, strict=True)} for i in range(_NUM_ENVS)]
        for batch in zip(*by_agent.values(), strict=True)
    ]

    def step(batch: list[dict[str, int]]) -> list[dict[str, Any]]:
        results = []
        for env, actions in zip(envs, batch, strict=True):
            obs, reward, terminated, truncated, _ = env.step(actions)
            if not env.agents:
                obs, _ = env.reset()
            results.append((obs, reward, terminated, truncated))
        return [
            {agent: np.stack([own[agent] for own in part]) for agent in agents} for part in zip(*results, strict=True)
        ]

    def close() -> None:
        for env in envs:
            env.close()

    return sync_loop(step, _NUM_ENVS, close, actions=batches)


def gymnasium_async(env_id: str) -> Loop:
    from gymnasium.vector import AsyncVectorEnv

    # AsyncVectorEnv does not support MiniGrid's mission space in shared memory.
    pool = AsyncVectorEnv([partial(_make, env_id)] * _NUM_ENVS, shared_memory=not env_id.startswith("MiniGrid"))
    pool.reset(seed=0)
    return _loop(pool)


def _make(env_id: str) -> Any:
    import gymnasium

    from envfleet.building.builders import gymnasium_spec

    return gymnasium.make(gymnasium_spec(env_id), disable_env_checker=True)


def _loop(pool: Any, num_envs: int = _NUM_ENVS) -> Loop:
    return sync_loop(pool.step, num_envs, pool.close, actions=actions_of(pool.single_action_space, num_envs))


SUITES: dict[str, Callable[[Options], list[Case]]] = {
    "families": families,
    "worker_families": worker_families,
    "minigrid": minigrid,
}
