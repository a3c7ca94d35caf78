"""Suite `atari`: Pong on worker processes against EnvPool, ale-py's vector env, the bare emulator and Python loops.

All contenders have EnvPool's default settings: 84x84 grayscale, four stacked frames, frame skip 4 with the maximum of
the last two, up to 30 no-ops and fire on reset, no sticky actions, unclipped rewards. Each runs in its own process.

The Python loops are the baselines of EnvPool's paper: a for-loop over Gymnasium's wrapped envs (SyncVectorEnv), and one
process per env (Gymnasium's AsyncVectorEnv and Stable-Baselines3's SubprocVecEnv). They do not press fire on reset. The
paper's fourth, Sample Factory (2.1.1), requires NumPy < 2 and Gymnasium < 1 and cannot be installed next to the others.
Rates are also given in frames per second, as in the paper: four frames per step.
"""

from __future__ import annotations

import heapq
import multiprocessing
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import MANY_CORES, Case, Loop, Options, Target, usable_cores
from isolated import isolated_contender
from loops import actions_for, async_loop, sync_loop

ENVFLEET, ENVPOOL, ALE = "envfleet", "EnvPool", "ale-py AtariVectorEnv"
FOR_LOOP, ASYNC_VECTOR = "for-loop (Gymnasium SyncVectorEnv)", "Gymnasium AsyncVectorEnv"
SUBPROC = "SB3 SubprocVecEnv"
BARE, BARE_IN_BATCHES = "bare emulation", "bare emulation, in batches"
_NUM_ACTIONS = 6
_FRAME_SKIP = 4
# By num_envs: the minimum speedup over each peer. _BARE_TARGET is the minimum fraction of the emulator's own speed.
_SYNC_TARGETS = {8: 1.1, 64: 1.15}
_SYNC_TARGETS_ON_MANY_CORES = {16: 1.25, 64: 1.15, 256: 1.1}
_MAX_PROCESSES = 64  # of the peers with one process per env
# In steps: what a reset without a seed costs (2026-11-18, AMD EPYC), and the length of an episode of random actions.
_RESET_STEPS, _EPISODE_STEPS = 1.7, 900
_BARE_TARGET = 0.9
_ASYNC_ENVS, _ASYNC_TARGET = 64, 1.1


def atari(options: Options) -> list[Case]:
    workers = options.num_threads
    bounds = _SYNC_TARGETS_ON_MANY_CORES if workers >= MANY_CORES else _SYNC_TARGETS
    return [*(_sync(num_envs, workers, bound) for num_envs, bound in bounds.items()), _async(workers)]


def _sync(num_envs: int, workers: int, bound: float) -> Case:
    own_workers = _own_workers(num_envs, workers)
    contenders = [isolated_contender(ENVFLEET, envfleet_sync, num_envs=num_envs, workers=own_workers)]
    contenders += [
        isolated_contender(name, function, num_envs=num_envs, workers=workers)
        for name, function in (
            (ENVPOOL, envpool_sync),
            (ALE, ale_sync),
            (BARE, bare_emulation),
            (BARE_IN_BATCHES, bare_in_batches),
        )
    ]
    contenders.append(isolated_contender(FOR_LOOP, gymnasium_sync, num_envs=num_envs))
    if num_envs <= _MAX_PROCESSES:
        contenders += [
            isolated_contender(name, function, num_envs=num_envs)
            for name, function in ((ASYNC_VECTOR, gymnasium_async), (SUBPROC, sb3_subproc))
        ]
    return Case(
        f"Pong-v5, {num_envs} envs, {workers} workers, synchronous",
        "steps/s",
        contenders,
        ENVFLEET,
        [
            Target("ratio", ENVFLEET, bound, ENVPOOL),
            Target("ratio", ENVFLEET, bound, ALE),
            Target("ratio", ENVFLEET, _BARE_TARGET, BARE),
            Target("ratio", ENVFLEET, _BARE_TARGET, BARE_IN_BATCHES),
        ],
        facts={
            "num_envs": num_envs,
            "num_workers": workers,
            "num_workers_of_envfleet": own_workers,
            "frames_per_step": _FRAME_SKIP,
            "busy_share": busy_share(num_envs, workers, own_workers),
            "busy_share_if_threads_shared_the_envs": busy_share(num_envs, workers, num_envs),
        },
    )


def _own_workers(num_envs: int, workers: int) -> int:
    """Return how many processes envfleet has: its default, which may be more, if the peers have a thread per core."""
    import envfleet

    spec = envfleet.make_spec("Pong-v5", num_envs=num_envs, num_workers=None if workers == usable_cores() else workers)
    return int(spec.config["num_workers"])


def busy_share(num_envs: int, num_cores: int, num_workers: int, num_batches: int = 1000) -> float:
    """Return the part of the time that the cores are busy in a synchronous pool, given what resets cost. Simulated.

    A worker steps its envs one after another, on the first core that is free, and the batch ends with the last worker.
    With as many workers as envs, these are threads that share all envs, as EnvPool's and ale-py's do.
    """
    rng = np.random.default_rng(0)
    steps_left = rng.integers(1, _EPISODE_STEPS, num_envs)
    work = elapsed = 0.0
    for _ in range(num_batches):
        costs = np.where(steps_left > 0, rng.uniform(0.8, 1.2, num_envs), _RESET_STEPS)
        steps_left = np.where(steps_left > 0, steps_left - 1, rng.normal(_EPISODE_STEPS, 100, num_envs).astype(int))
        busy_until = [0.0] * num_cores
        for own in np.array_split(costs, num_workers):
            heapq.heapreplace(busy_until, busy_until[0] + float(own.sum()))
        work += float(costs.sum())
        elapsed += max(busy_until)
    return round(work / num_cores / elapsed, 2)


def _async(workers: int) -> Case:
    batch_size = _ASYNC_ENVS // 2
    common = {"num_envs": _ASYNC_ENVS, "batch_size": batch_size, "workers": workers}
    return Case(
        f"Pong-v5, {_ASYNC_ENVS} envs, {workers} workers, batches of {batch_size}",
        "steps/s",
        [
            isolated_contender(ENVFLEET, envfleet_async, **common),
            isolated_contender(ENVPOOL, envpool_async, **common),
            isolated_contender(BARE, bare_emulation, num_envs=_ASYNC_ENVS, workers=workers),
        ],
        ENVFLEET,
        [Target("ratio", ENVFLEET, _ASYNC_TARGET, ENVPOOL), Target("ratio", ENVFLEET, _BARE_TARGET, BARE)],
        facts={
            "num_envs": _ASYNC_ENVS,
            "batch_size": batch_size,
            "num_workers": workers,
            "frames_per_step": _FRAME_SKIP,
        },
    )


def envfleet_sync(num_envs: int, workers: int) -> Loop:
    import envfleet

    pool = envfleet.make("Pong-v5", num_envs=num_envs, num_workers=workers, seed=0)
    pool.reset()
    return sync_loop(pool.step, num_envs, pool.close, actions=actions_for(num_envs, _NUM_ACTIONS))


def envfleet_async(num_envs: int, batch_size: int, workers: int) -> Loop:
    import envfleet

    pool = envfleet.make("Pong-v5", num_envs=num_envs, batch_size=batch_size, num_workers=workers, seed=0)
    pool.async_reset()
    return async_loop(pool, batch_size, pool.close, actions=actions_for(batch_size, _NUM_ACTIONS))


def envpool_sync(num_envs: int, workers: int) -> Loop:
    pool = _envpool(num_envs=num_envs, num_threads=workers)
    pool.reset()
    return sync_loop(pool.step, num_envs, pool.close, actions=actions_for(num_envs, _NUM_ACTIONS))


def envpool_async(num_envs: int, batch_size: int, workers: int) -> Loop:
    pool = _envpool(num_envs=num_envs, batch_size=batch_size, num_threads=workers)
    pool.async_reset()
    return async_loop(pool, batch_size, pool.close, actions=actions_for(batch_size, _NUM_ACTIONS))


def _envpool(**options: Any) -> Any:
    import envpool

    return envpool.make("Pong-v5", env_type="gymnasium", seed=0, **options)


def ale_sync(num_envs: int, workers: int) -> Loop:
    import ale_py

    pool = ale_py.AtariVectorEnv("pong", num_envs, num_threads=workers, reward_clipping=False)
    pool.reset(seed=0)
    return sync_loop(pool.step, num_envs, pool.close, actions=actions_for(num_envs, _NUM_ACTIONS))


def gymnasium_sync(num_envs: int) -> Loop:
    from gymnasium.vector import SyncVectorEnv

    pool = SyncVectorEnv([_make_pong] * num_envs)
    pool.reset(seed=0)
    return sync_loop(pool.step, num_envs, pool.close, actions=actions_for(num_envs, _NUM_ACTIONS))


def gymnasium_async(num_envs: int) -> Loop:
    from gymnasium.vector import AsyncVectorEnv

    pool = AsyncVectorEnv([_make_pong] * num_envs, shared_memory=True)
    pool.reset(seed=0)
    return sync_loop(pool.step, num_envs, pool.close, actions=actions_for(num_envs, _NUM_ACTIONS))


def sb3_subproc(num_envs: int) -> Loop:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    # Otherwise each worker would import torch before its first step.
    multiprocessing.set_forkserver_preload(["gymnasium", "ale_py", "stable_baselines3.common.vec_env"])
    pool = SubprocVecEnv([_make_pong] * num_envs)
    pool.seed(0)
    pool.reset()
    return sync_loop(pool.step, num_envs, pool.close, actions=actions_for(num_envs, _NUM_ACTIONS))


def _make_pong() -> Any:
    """Return Gymnasium's Pong with the wrappers that its documentation recommends, in the settings of this suite."""
    import ale_py
    import gymnasium
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

    gymnasium.register_envs(ale_py)
    env = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0)
    return FrameStackObservation(AtariPreprocessing(env, noop_max=30, frame_skip=_FRAME_SKIP), 4)


def bare_emulation(num_envs: int, workers: int) -> Loop:
    """The same number of emulators and processes, which only call act() four times per step, and reset at the end.

    No process waits for another: they synchronize once per chunk of batches.
    """
    context = multiprocessing.get_context("spawn")
    pipes = []
    processes = []
    for _ in range(workers):
        near, far = context.Pipe()
        process = context.Process(target=_emulate, args=(far, num_envs // workers), daemon=True)
        process.start()
        far.close()
        pipes.append(near)
        processes.append(process)
    for pipe in pipes:
        pipe.recv()

    def run(num_batches: int) -> None:
        for pipe in pipes:
            pipe.send(num_batches)
        for pipe in pipes:
            pipe.recv()

    def close() -> None:
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join()

    return Loop(run, num_envs, close)


def bare_in_batches(num_envs: int, workers: int) -> Loop:
    """The same, but the processes synchronize after every batch: the limit for any synchronous step."""
    bare = bare_emulation(num_envs, workers)

    def run(num_batches: int) -> None:
        for _ in range(num_batches):
            bare.run(1)

    return Loop(run, num_envs, bare.close)


def _emulate(pipe: Any, num_consoles: int) -> None:
    import ale_py
    from ale_py import roms

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    consoles = []
    for _ in range(num_consoles):
        console = ale_py.ALEInterface()
        console.setFloat("repeat_action_probability", 0.0)
        console.loadROM(roms.get_rom_path("pong"))
        console.reset_game()
        consoles.append(console)
    buttons = consoles[0].getMinimalActionSet()
    batches = [[buttons[action] for action in batch] for batch in actions_for(num_consoles, len(buttons))]
    pipe.send(None)
    done = 0
    while (num_batches := pipe.recv()) is not None:
        for _ in range(num_batches):
            for console, button in zip(consoles, batches[done % len(batches)], strict=True):
                act = console.act
                act(button)
                act(button)
                act(button)
                act(button)
                if console.game_over():
                    console.reset_game()
            done += 1
        pipe.send(None)


SUITES: dict[str, Callable[[Options], list[Case]]] = {"atari": atari}
