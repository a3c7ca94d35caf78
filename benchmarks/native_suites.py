"""Suites on native envs: speed, time and memory to create a pool, uneven steps, overhead of Python, scaling."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import harness
import native_peers as peers
import numpy as np
from harness import Case, Contender, Options, Target
from loops import sync_loop

HERE = Path(__file__).resolve().parent
ENVFLEET, ENVPOOL, ENVPOOL_1 = "envfleet", "EnvPool", "EnvPool, 1 thread"
FAST_MATH = "envfleet, fast_math"
NUMPY = "Gymnasium numpy CartPole"


# --- cartpole: steps per second against the peers ----------------------------------------

# By num_envs: the minimum speedup of the default, exact arithmetic over EnvPool, and of fast_math=True. For two cores.
_SYNC_TARGETS = {1: 20, 64: 40, 1024: 50, 8192: 60}
_FAST_MATH_TARGETS = {64: 50, 1024: 90, 8192: 130}
_NUMPY_TARGET = 3  # over Gymnasium's numpy CartPole, at each of these sizes
_ASYNC_TARGETS = {64: 12, 1024: 20}
_PROCESSES_AT = 64  # where the peers with one process per env run


def cartpole(options: Options) -> list[Case]:
    sync = [_cartpole_sync(n, min(n, options.num_threads)) for n in options.num_envs]
    return sync + [_cartpole_async(n, options.num_threads) for n in options.num_envs if n in _ASYNC_TARGETS]


def _cartpole_sync(num_envs: int, num_threads: int) -> Case:
    contenders = [
        Contender(ENVFLEET, partial(peers.envfleet_sync, num_envs=num_envs, num_threads=num_threads)),
        Contender(FAST_MATH, partial(peers.envfleet_sync, num_envs=num_envs, num_threads=num_threads, fast_math=True)),
        Contender(ENVPOOL, partial(peers.envpool_sync, num_envs, num_threads)),
        Contender(NUMPY, partial(peers.gymnasium_numpy, num_envs)),
        Contender("Gymnasium SyncVectorEnv", partial(peers.gymnasium_sync, num_envs)),
    ]
    if num_threads > 1:
        # EnvPool's threads contend on light envs: one is often faster than two.
        contenders.insert(3, Contender(ENVPOOL_1, partial(peers.envpool_sync, num_envs, 1)))
    if num_envs == _PROCESSES_AT:
        contenders += [
            Contender("Gymnasium AsyncVectorEnv", partial(peers.gymnasium_async, num_envs)),
            Contender("SB3 DummyVecEnv", partial(peers.sb3_dummy, num_envs)),
            Contender("SB3 SubprocVecEnv", partial(peers.sb3_subproc, num_envs)),
        ]
    targets = []
    if num_envs in _SYNC_TARGETS:
        targets += [
            Target("ratio", ENVFLEET, _SYNC_TARGETS[num_envs], ENVPOOL),
            Target("ratio", ENVFLEET, _NUMPY_TARGET, NUMPY),
        ]
    if num_envs in _FAST_MATH_TARGETS:
        targets.append(Target("ratio", FAST_MATH, _FAST_MATH_TARGETS[num_envs], ENVPOOL))
    return Case(
        f"CartPole-v1, {num_envs} env{'s' * (num_envs > 1)}, synchronous",
        "steps/s",
        contenders,
        ENVFLEET,
        targets,
        facts={"num_envs": num_envs, "mode": "sync", "num_threads": num_threads},
    )


def _cartpole_async(num_envs: int, num_threads: int) -> Case:
    batch_size = num_envs // 2
    return Case(
        f"CartPole-v1, {num_envs} envs, asynchronous, batches of {batch_size}",
        "steps/s",
        [
            Contender(
                ENVFLEET,
                partial(peers.envfleet_async, num_envs=num_envs, batch_size=batch_size, num_threads=num_threads),
            ),
            Contender(ENVPOOL, partial(peers.envpool_async, num_envs, batch_size, num_threads)),
            Contender(ENVPOOL_1, partial(peers.envpool_async, num_envs, batch_size, 1)),
        ],
        ENVFLEET,
        [Target("ratio", ENVFLEET, _ASYNC_TARGETS[num_envs], ENVPOOL)],
        facts={"num_envs": num_envs, "mode": "async", "batch_size": batch_size, "num_threads": num_threads},
    )


# --- make: time and memory to create a large pool --------------------------------------------

_LARGE = 65_536


@dataclass
class _FreshProcess:
    """Creates a pool in its own process, so that nothing is cached and no memory is left over."""

    package: str
    num_envs: int
    metric: str

    def measure(self, seconds: float) -> float:
        command = [sys.executable, str(HERE / "make_pool.py"), self.package, str(self.num_envs)]
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        if result.returncode != 0:
            last = result.stderr.strip().splitlines()[-1:] or [f"exit code {result.returncode}"]
            raise (ImportError if last[0].startswith(("ImportError", "ModuleNotFoundError")) else RuntimeError)(last[0])
        return float(json.loads(result.stdout.splitlines()[-1])[self.metric])

    def close(self) -> None:
        pass


def make(options: Options) -> list[Case]:
    names = {ENVFLEET: "envfleet", ENVPOOL: "envpool", NUMPY: "gymnasium"}
    metrics = (("time to make", "make_s", "s", 2.0), ("peak memory with a reset and a step", "peak_mb", "MB", 200.0))
    return [
        Case(
            f"{_LARGE} CartPoles: {what}",
            unit,
            [Contender(name, partial(_FreshProcess, package, _LARGE, metric)) for name, package in names.items()],
            ENVFLEET,
            [Target("value", ENVFLEET, bound)],
            more_is_better=False,
            facts={"num_envs": _LARGE},
        )
        for what, metric, unit, bound in metrics
    ]


# --- uneven: the gain of an asynchronous pool when step times differ ----------------------------

_MIN_US, _MAX_US = 10.0, 1000.0
_LEARNER_S = 500e-6


def uneven(options: Options) -> list[Case]:
    threads = options.num_threads
    burning = [_uneven(n, batch, threads) for n, batch in ((2, 1), (4, 1), (4, 2), (8, 2), (16, 4))]
    waiting = [_uneven(n, batch, n, wait=True) for n, batch in ((8, 2), (16, 4))]
    return [*burning, *waiting, _uneven_with_learner(4, 2, threads)]


def _uneven(num_envs: int, batch_size: int, num_threads: int, wait: bool = False) -> Case:
    """Compare an asynchronous pool with synchronous ones.

    One has the same number of envs. If it has at least one row per thread, another has as many envs as the asynchronous
    batch: a learner that needs batches of that size would use it instead.
    """
    sync, same_batch = f"sync, {num_envs} envs", f"sync, {batch_size} envs"
    contenders = [
        Contender("async", partial(_uneven_async, num_envs, batch_size, num_threads, wait)),
        Contender(sync, partial(_uneven_sync, num_envs, num_threads, wait)),
    ]
    sizes = {sync: num_envs}
    if batch_size >= min(num_threads, 2) and not wait:
        contenders.append(Contender(same_batch, partial(_uneven_sync, batch_size, num_threads, wait)))
        sizes[same_batch] = batch_size
    if wait:
        targets = [Target("ratio", "async", 1.3, sync)]
    else:
        # Only where each thread has one env per batch, and idles when it is done.
        targets = [Target("ratio", "async", 1.3, name) for name, size in sizes.items() if size == num_threads]
    kind = f"waiting, {num_threads} threads" if wait else f"burning, {num_threads} threads"
    return Case(
        f"uneven steps, {kind}: {num_envs} envs, batches of {batch_size}",
        "steps/s",
        contenders,
        "async",
        targets,
        facts={
            "num_envs": num_envs,
            "batch_size": batch_size,
            "num_threads": num_threads,
            "wait": wait,
            "ceilings": {name: ceiling(size, num_threads) for name, size in sizes.items()},
        },
    )


def _uneven_with_learner(num_envs: int, batch_size: int, num_threads: int) -> Case:
    """Compare pools whose caller waits between a batch and its actions, as for an accelerator."""
    sync = f"sync, {batch_size} envs"
    return Case(
        f"uneven steps, burning, {num_threads} threads, learner waits {_LEARNER_S * 1e6:.0f} us per batch: "
        f"{num_envs} envs, batches of {batch_size}",
        "steps/s",
        [
            Contender("async", partial(_uneven_async, num_envs, batch_size, num_threads, False, _learn)),
            Contender(sync, partial(_uneven_sync, batch_size, num_threads, False, _learn)),
        ],
        "async",
        facts={"num_envs": num_envs, "batch_size": batch_size, "num_threads": num_threads, "wait": False},
    )


def ceiling(sync_envs: int, num_threads: int, num_trials: int = 20_000) -> float:
    """Return the upper bound of the speedup of an asynchronous pool. Simulated.

    Its threads are always busy. Threads of a synchronous pool take the next env whenever they are free, but wait for
    the last env of each batch.
    """
    durations = np.random.default_rng(0).uniform(_MIN_US, _MAX_US, size=(num_trials, sync_envs))
    busy_until = np.zeros((num_trials, num_threads))
    for env in range(sync_envs):
        first_free = busy_until.argmin(axis=1)
        busy_until[np.arange(num_trials), first_free] += durations[:, env]
    ideal_us = statistics.fmean((_MIN_US, _MAX_US)) * sync_envs / num_threads
    return round(float(busy_until.max(axis=1).mean()) / ideal_us, 2)


def _learn() -> None:
    time.sleep(_LEARNER_S)


def _uneven_id() -> str:
    import envfleet

    return envfleet.compile(HERE / "uneven.cc")[0]


def _uneven_sync(
    num_envs: int, num_threads: int, wait: bool, before_step: Callable[[], None] | None = None
) -> harness.Loop:
    loop = peers.envfleet_sync(num_envs, num_threads, _uneven_id(), wait=wait)
    if before_step is None:
        return loop
    run_batches = loop.run

    def run(num_batches: int) -> None:
        for _ in range(num_batches):
            before_step()
            run_batches(1)

    return replace(loop, run=run)


def _uneven_async(
    num_envs: int, batch_size: int, num_threads: int, wait: bool, before_send: Callable[[], None] | None = None
) -> harness.Loop:
    return peers.envfleet_async(num_envs, batch_size, num_threads, _uneven_id(), before_send, wait=wait)


# --- python_share: the overhead of Python over the native call -----------------------------------

_FRONT, _POOL, _BARE = "Gymnasium API", "Pool.step", "bare native call"


def python_share(options: Options) -> list[Case]:
    return [
        Case(
            "CartPole-v1, 1 env: layers of a step",
            "us",
            [
                Contender(_FRONT, partial(_layer, lambda env: env.step)),
                Contender(_POOL, partial(_layer, lambda env: env.pool.step)),
                Contender(_BARE, partial(_layer, _bare_step)),
            ],
            _FRONT,
            [Target("difference", _FRONT, 3.0, _BARE)],
            more_is_better=False,
            facts={"num_envs": 1},
        )
    ]


def _layer(step_of: Callable[[Any], Callable[[Any], Any]]) -> harness.Loop:
    import envfleet

    env = envfleet.make("CartPole-v1", num_envs=1, seed=0)
    env.reset()
    return sync_loop(step_of(env), 1, env.close, in_us=True)


def _bare_step(env: Any) -> Callable[[Any], Any]:
    """Return the call that the executor makes, with the same arguments. This is the only private name used here."""
    step = env.pool.executor._native.step
    return lambda actions: step(actions, None, -1.0)


# --- scaling: the same pool by number of threads ----------------------------------------------


def scaling(options: Options) -> list[Case]:
    """Double the number of threads up to options.num_threads, which defaults to the number of cores."""
    threads = [1]
    while threads[-1] * 2 <= options.num_threads:
        threads.append(threads[-1] * 2)
    sizes = (
        ("CartPole-v1", 1024),
        ("CartPole-v1", 8192),
        ("CartPole-v1", 65_536),
        ("Acrobot-v1", 1024),
        ("Acrobot-v1", 8192),
    )
    return [_scaling(env_id, num_envs, threads) for env_id, num_envs in sizes]


def _scaling(env_id: str, num_envs: int, threads: Sequence[int]) -> Case:
    names = {count: f"{count} thread{'s' if count > 1 else ''}" for count in threads}
    contenders = [
        Contender(name, partial(peers.envfleet_sync, num_envs, count, env_id)) for count, name in names.items()
    ]
    facts = {"env_id": env_id, "num_envs": num_envs}
    return Case(f"{env_id}, {num_envs} envs, by threads", "steps/s", contenders, names[threads[-1]], facts=facts)


SUITES: dict[str, Callable[[Options], list[Case]]] = {
    "cartpole": cartpole,
    "make": make,
    "uneven": uneven,
    "python_share": python_share,
    "scaling": scaling,
}
