"""Suite `atari`: Pong on worker processes against EnvPool, ale-py's vector env and the bare emulator.

All contenders have EnvPool's default settings: 84x84 grayscale, four stacked frames, frame skip 4 with the maximum of
the last two, up to 30 no-ops and fire on reset, no sticky actions, unclipped rewards. Each runs in its own process.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from harness import Case, Loop, Options, Target
from isolated import isolated_contender
from loops import actions_for, async_loop, sync_loop

ENVFLEET, ENVPOOL, ALE = "envfleet", "EnvPool", "ale-py AtariVectorEnv"
BARE, BARE_IN_BATCHES = "bare emulation", "bare emulation, in batches"
_NUM_ACTIONS = 6
_WORKERS = 2
# By num_envs: the minimum speedup over each peer. _BARE_TARGET is the minimum fraction of the emulator's own speed.
_SYNC_TARGETS = {8: 1.1, 64: 1.15}
_BARE_TARGET = 0.9
_ASYNC_ENVS, _ASYNC_TARGET = 64, 1.1


def atari(options: Options) -> list[Case]:
    return [*(_sync(num_envs, bound) for num_envs, bound in _SYNC_TARGETS.items()), _async()]


def _sync(num_envs: int, bound: float) -> Case:
    contenders = [
        (ENVFLEET, envfleet_sync),
        (ENVPOOL, envpool_sync),
        (ALE, ale_sync),
        (BARE, bare_emulation),
        (BARE_IN_BATCHES, bare_in_batches),
    ]
    return Case(
        f"Pong-v5, {num_envs} envs, {_WORKERS} workers, synchronous",
        "steps/s",
        [isolated_contender(name, function, num_envs=num_envs) for name, function in contenders],
        ENVFLEET,
        [
            Target("ratio", ENVFLEET, bound, ENVPOOL),
            Target("ratio", ENVFLEET, bound, ALE),
            Target("ratio", ENVFLEET, _BARE_TARGET, BARE),
            Target("ratio", ENVFLEET, _BARE_TARGET, BARE_IN_BATCHES),
        ],
        facts={"num_envs": num_envs, "num_workers": _WORKERS},
    )


def _async() -> Case:
    batch_size = _ASYNC_ENVS // 2
    common = {"num_envs": _ASYNC_ENVS, "batch_size": batch_size}
    return Case(
        f"Pong-v5, {_ASYNC_ENVS} envs, {_WORKERS} workers, batches of {batch_size}",
        "steps/s",
        [
            isolated_contender(ENVFLEET, envfleet_async, **common),
            isolated_contender(ENVPOOL, envpool_async, **common),
            isolated_contender(BARE, bare_emulation, num_envs=_ASYNC_ENVS),
        ],
        ENVFLEET,
        [Target("ratio", ENVFLEET, _ASYNC_TARGET, ENVPOOL), Target("ratio", ENVFLEET, _BARE_TARGET, BARE)],
        facts={**common, "num_workers": _WORKERS},
    )


def envfleet_sync(num_envs: int) -> Loop:
    import envfleet

    pool = envfleet.make("Pong-v5", num_envs=num_envs, num_workers=_WORKERS, seed=0)
    pool.reset()
    return sync_loop(pool.step, num_envs, pool.close, actions=actions_for(num_envs, _NUM_ACTIONS))


def envfleet_async(num_envs: int, batch_size: int) -> Loop:
    import envfleet

    pool = envfleet.make("Pong-v5", num_envs=num_envs, batch_size=batch_size, num_workers=_WORKERS, seed=0)
    pool.async_reset()
    return async_loop(pool, batch_size, pool.close, actions=actions_for(batch_size, _NUM_ACTIONS))


def envpool_sync(num_envs: int) -> Loop:
    pool = _envpool(num_envs=num_envs)
    pool.reset()
    return sync_loop(pool.step, num_envs, pool.close, actions=actions_for(num_envs, _NUM_ACTIONS))


def envpool_async(num_envs: int, batch_size: int) -> Loop:
    pool = _envpool(num_envs=num_envs, batch_size=batch_size)
    pool.async_reset()
    return async_loop(pool, batch_size, pool.close, actions=actions_for(batch_size, _NUM_ACTIONS))


def _envpool(**options: Any) -> Any:
    import envpool

    return envpool.make("Pong-v5", env_type="gymnasium", num_threads=_WORKERS, seed=0, **options)


def ale_sync(num_envs: int) -> Loop:
    import ale_py

    pool = ale_py.AtariVectorEnv("pong", num_envs, num_threads=_WORKERS, reward_clipping=False)
    pool.reset(seed=0)
    return sync_loop(pool.step, num_envs, pool.close, actions=actions_for(num_envs, _NUM_ACTIONS))


def bare_emulation(num_envs: int) -> Loop:
    """The same number of emulators and processes, which only call act() four times per step, and reset at the end.

    No process waits for another: they synchronize once per chunk of batches.
    """
    context = multiprocessing.get_context("spawn")
    pipes = []
    processes = []
    for _ in range(_WORKERS):
        near, far = context.Pipe()
        process = context.Process(target=_emulate, args=(far, num_envs // _WORKERS), daemon=True)
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


def bare_in_batches(num_envs: int) -> Loop:
    """The same, but the processes synchronize after every batch: the limit for any synchronous step."""
    bare = bare_emulation(num_envs)

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
