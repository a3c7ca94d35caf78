"""Suite `vizdoom`: the basic scenario on the threads backend against Gymnasium's SyncVectorEnv and EnvPool.

Each contender runs in its own process and folder, because the engines of the vizdoom package write to the working
directory.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from harness import Case, Loop, Options, Target
from isolated import isolated_contender
from loops import NUM_ACTION_BATCHES, actions_for, sync_loop
from numpy.typing import NDArray

THREADS, SYNC_VECTOR, ENVPOOL = "envfleet threads", "Gymnasium SyncVectorEnv", "EnvPool"
_NUM_ENVS, _CORES = 8, 2
_WORKERS = 2 * _CORES  # envfleet's default: each thread waits for engines half of the time


def vizdoom(options: Options) -> list[Case]:
    facts = {"num_envs": _NUM_ENVS, "num_workers": _WORKERS}
    return [
        Case(
            f"VizdoomBasic-v1, 320x240 RGB, frame skip 4, {_NUM_ENVS} envs",
            "steps/s",
            [isolated_contender(THREADS, package_id_threads), isolated_contender(SYNC_VECTOR, package_id_sync)],
            THREADS,
            [Target("ratio", THREADS, 1.8, SYNC_VECTOR)],
            facts=facts,
        ),
        Case(
            f"Basic-v1, 84x84 RGB, 4 frames, {_NUM_ENVS} envs",
            "steps/s",
            [
                isolated_contender(THREADS, envpool_id_threads),
                isolated_contender(SYNC_VECTOR, envpool_id_sync),
                isolated_contender(ENVPOOL, envpool),
            ],
            THREADS,
            [Target("ratio", THREADS, 1.8, SYNC_VECTOR), Target("ratio", THREADS, 1.0, ENVPOOL)],
            facts=facts,
        ),
    ]


def package_id_threads() -> Loop:
    import envfleet

    pool = envfleet.make(
        "VizdoomBasic-v1", num_envs=_NUM_ENVS, num_workers=_WORKERS, backend="threads", seed=0, frame_skip=4
    )
    pool.reset()
    return sync_loop(pool.step, _NUM_ENVS, pool.close, actions=actions_for(_NUM_ENVS, 4))


def package_id_sync() -> Loop:
    """The vizdoom package's own env."""
    import gymnasium
    from gymnasium.vector import SyncVectorEnv
    from vizdoom import gymnasium_wrapper  # noqa: F401 (registers the ids)

    remove = _enter_temporary_folder()
    envs = SyncVectorEnv([partial(gymnasium.make, "VizdoomBasic-v1", frame_skip=4)] * _NUM_ENVS)
    envs.reset(seed=0)
    return _close_with(sync_loop(envs.step, _NUM_ENVS, envs.close, actions=actions_for(_NUM_ENVS, 4)), remove)


def envpool_id_threads() -> Loop:
    import envfleet

    pool = envfleet.make("Basic-v1", num_envs=_NUM_ENVS, num_workers=_WORKERS, backend="threads", seed=0)
    pool.reset()
    return sync_loop(pool.step, _NUM_ENVS, pool.close, actions=_buttons())


def envpool_id_sync() -> Loop:
    """envfleet's env class in Gymnasium's SyncVectorEnv."""
    from gymnasium.vector import SyncVectorEnv
    from gymnasium.wrappers import TimeLimit

    from envfleet.families.vizdoom.env import DoomEnv

    envs = SyncVectorEnv([lambda: TimeLimit(DoomEnv("basic.cfg"), 525)] * _NUM_ENVS)
    envs.reset(seed=0)
    return sync_loop(envs.step, _NUM_ENVS, envs.close, actions=_buttons())


def envpool() -> Loop:
    import envpool

    remove = _enter_temporary_folder()
    pool = envpool.make_gymnasium("Basic-v1", num_envs=_NUM_ENVS, num_threads=_CORES, seed=0)
    pool.reset()
    return _close_with(sync_loop(pool.step, _NUM_ENVS, pool.close, actions=_buttons()), remove)


def _buttons() -> Sequence[NDArray[np.float64]]:
    shape = (NUM_ACTION_BATCHES, _NUM_ENVS, 3)
    return list(np.random.default_rng(0).integers(0, 2, shape).astype(np.float64))


def _enter_temporary_folder() -> Callable[[], None]:
    """Change to a new folder, which engines started later write to, and return the function that removes it."""
    folder = tempfile.mkdtemp(prefix="envfleet-benchmark-")
    os.makedirs(os.path.join(folder, "_vizdoom"))  # two engines that create it at the same time fail
    os.chdir(folder)
    return partial(shutil.rmtree, folder, ignore_errors=True)


def _close_with(loop: Loop, after: Callable[[], None]) -> Loop:
    def shut() -> None:
        loop.shut()
        after()

    return replace(loop, shut=shut)


SUITES: dict[str, Callable[[Options], list[Case]]] = {"vizdoom": vizdoom}
