"""Suites on Python envs: the serial, threads and processes backends against the peers.

Pools have the number of workers that the targets were set for, on any machine. Each contender runs in its own process;
isolated.py says why.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import python_peers as peers
from harness import Case, Contender, Loop, Options, Skipped, Target
from isolated import isolated_contender

PROCESSES, SERIAL = "envfleet processes", "envfleet serial"
ASYNC_VECTOR, SYNC_VECTOR, SUBPROC = "Gymnasium AsyncVectorEnv", "Gymnasium SyncVectorEnv", "SB3 SubprocVecEnv"
_SIZES = (8, 64)
_WORKERS = 2
_CARTPOLE = "CartPole-v1"


def _contender(name: str, function: Callable[..., Loop], env: str, num_envs: int, **arguments: Any) -> Contender:
    return isolated_contender(name, function, env=env, num_envs=num_envs, **arguments)


def _processes(env: str, num_envs: int, num_workers: int = _WORKERS, name: str = PROCESSES) -> Contender:
    return _contender(name, peers.envfleet_sync, env, num_envs, backend="processes", num_workers=num_workers)


def _facts(num_envs: int, num_workers: int = _WORKERS) -> dict[str, Any]:
    return {"num_envs": num_envs, "num_workers": num_workers}


# --- python_cartpole: steps of a few microseconds, so that the overhead dominates ---------------

# By num_envs, tuples (of, bound, against): `of` is at least `bound` times as fast as `against`.
_CARTPOLE_TARGETS = {
    8: ((PROCESSES, 5, ASYNC_VECTOR), (PROCESSES, 6, SUBPROC), (SERIAL, 1.3, SYNC_VECTOR)),
    64: (
        (PROCESSES, 12, ASYNC_VECTOR),
        (PROCESSES, 15, SUBPROC),
        (PROCESSES, 1.5, SYNC_VECTOR),
        (SERIAL, 1.3, SYNC_VECTOR),
    ),
}


def python_cartpole(options: Options) -> list[Case]:
    return [_python_cartpole(num_envs) for num_envs in _SIZES]


def _python_cartpole(num_envs: int) -> Case:
    return Case(
        f"Python CartPole-v1, {num_envs} envs, {_WORKERS} workers",
        "steps/s",
        [
            _processes(_CARTPOLE, num_envs),
            _contender(SERIAL, peers.envfleet_sync, _CARTPOLE, num_envs, backend="serial"),
            _contender(ASYNC_VECTOR, peers.gymnasium_async, _CARTPOLE, num_envs),
            _contender(SUBPROC, peers.sb3_subproc, _CARTPOLE, num_envs),
            _contender(SYNC_VECTOR, peers.gymnasium_sync, _CARTPOLE, num_envs),
        ],
        PROCESSES,
        [Target("ratio", of, bound, against) for of, bound, against in _CARTPOLE_TARGETS[num_envs]],
        facts=_facts(num_envs),
    )


# --- image_env, ant: large observations, many infos ---------------------------------------------


def image_env(options: Options) -> list[Case]:
    bounds = {8: 1.5, 64: 2.0}
    return [_against_async_vector("84x84x4 images, 200 us per step", "image", n, bounds[n]) for n in _SIZES]


def ant(options: Options) -> list[Case]:
    bounds = {8: 1.3, 64: 1.5}
    return [_against_async_vector("Ant-v5 with its infos", "Ant-v5", n, bounds[n]) for n in _SIZES]


def _against_async_vector(what: str, env: str, num_envs: int, bound: float) -> Case:
    return Case(
        f"{what}, {num_envs} envs, {_WORKERS} workers",
        "steps/s",
        [_processes(env, num_envs), _contender(ASYNC_VECTOR, peers.gymnasium_async, env, num_envs)],
        PROCESSES,
        [Target("ratio", PROCESSES, bound, ASYNC_VECTOR)],
        facts=_facts(num_envs),
    )


# --- sleepy: what an asynchronous pool of processes gains ---------------------------------------


def sleepy(options: Options) -> list[Case]:
    num_envs, num_workers, batch_size = 64, 16, 16
    sync, asynchronous = "envfleet sync", f"envfleet async, batches of {batch_size}"
    return [
        Case(
            f"sleeps 0 to 2 ms, {num_envs} envs, {num_workers} workers",
            "steps/s",
            [
                _contender(
                    asynchronous,
                    peers.envfleet_async,
                    "sleepy",
                    num_envs,
                    backend="processes",
                    num_workers=num_workers,
                    batch_size=batch_size,
                ),
                _processes("sleepy", num_envs, num_workers, sync),
            ],
            asynchronous,
            [Target("ratio", asynchronous, 1.5, sync)],
            facts={
                **_facts(num_envs, num_workers),
                "batch_size": batch_size,
                "ceilings": {sync: worker_ceiling(num_envs, num_workers)},
            },
        )
    ]


def worker_ceiling(num_envs: int, num_workers: int, num_trials: int = 20_000) -> float:
    """Return the upper bound of the speedup of an asynchronous pool whose workers each own some of the envs.

    Step times are uniform from 0. Workers of an asynchronous pool are always busy; those of a synchronous pool wait for
    the slowest worker. Simulated; suites.ceiling() is the same for threads that share all envs.
    """
    envs_per_worker = num_envs // num_workers
    durations = np.random.default_rng(0).uniform(0, 1, size=(num_trials, num_workers, envs_per_worker)).sum(axis=2)
    return round(float(durations.max(axis=1).mean() / durations.mean()), 2)


# --- oversubscribed: more workers than cores -----------------------------------------------------


def oversubscribed(options: Options) -> list[Case]:
    """CartPole with four envs per worker is the hardest case: waking a worker costs as much as stepping its envs."""
    many = 16
    names = {count: f"envfleet, {count} workers" for count in (many, _WORKERS)}
    return [
        Case(
            f"{env}, {num_envs} envs, {many} workers against {_WORKERS}",
            "steps/s",
            [_processes(env, num_envs, count, name) for count, name in names.items()],
            names[many],
            [Target("ratio", names[many], 0.7, names[_WORKERS])],
            facts=_facts(num_envs, many),
        )
        for env, num_envs in ((_CARTPOLE, 64), (_CARTPOLE, 256), ("Ant-v5", 64))
    ]


# --- workers: the same envs on ever more workers -----------------------------------------------------

_WORKER_COUNTS = (2, 16, 64, 128)


def workers(options: Options) -> list[Case]:
    """256 CartPoles on 2 to 128 workers: what a worker costs by itself.

    Steps per second depend on what else the machine does; the CPU time of the caller and its workers per step hardly
    does.
    """
    num_envs = 256
    measured = (
        ("steps per second", "steps/s", peers.envfleet_sync, True),
        ("CPU time of all processes per step", "us", peers.envfleet_cpu_time, False),
    )
    return [
        Case(
            f"Python CartPole-v1, {num_envs} envs on {_WORKER_COUNTS[0]} to {_WORKER_COUNTS[-1]} workers: {what}",
            unit,
            [
                _contender(
                    f"envfleet, {count} workers", function, _CARTPOLE, num_envs, backend="processes", num_workers=count
                )
                for count in _WORKER_COUNTS
            ],
            f"envfleet, {_WORKER_COUNTS[0]} workers",
            more_is_better=is_more_better,
            facts={"num_envs": num_envs},
        )
        for what, unit, function, is_more_better in measured
    ]


# --- threads_freethreaded: Python envs on threads, in parallel -----------------------------------


def threads_freethreaded(options: Options) -> list[Case]:
    if _has_gil():
        raise Skipped("expected a free-threaded Python, got one with the GIL, where threads take turns")
    num_envs = 64
    names = {count: f"envfleet, {count} thread{'s' * (count > 1)}" for count in (2, 1)}
    arguments = {"env": _CARTPOLE, "num_envs": num_envs, "backend": "threads"}
    return [
        Case(
            f"Python CartPole-v1, {num_envs} envs, threads without a GIL",
            "steps/s",
            [_contender(name, peers.envfleet_sync, num_workers=count, **arguments) for count, name in names.items()],
            names[2],
            [Target("ratio", names[2], 1.5, names[1])],
            facts=_facts(num_envs, 2),
        )
    ]


def _has_gil() -> bool:
    return getattr(sys, "_is_gil_enabled", lambda: True)()


# --- serial_share: what the serial backend adds to the envs' own steps ---------------------------


def serial_share(options: Options) -> list[Case]:
    num_envs, bare = 64, "bare loop over the envs"
    return [
        Case(
            f"Python CartPole-v1, a batch of {num_envs}: what serial adds",
            "us",
            [
                _contender(SERIAL, peers.envfleet_sync, _CARTPOLE, num_envs, backend="serial", in_us=True),
                _contender(bare, peers.bare_loop, _CARTPOLE, num_envs),
            ],
            SERIAL,
            [Target("difference", SERIAL, 1.0 * num_envs, bare)],  # 1 us per env
            more_is_better=False,
            facts={"num_envs": num_envs},
        )
    ]


SUITES: dict[str, Callable[[Options], list[Case]]] = {
    "python_cartpole": python_cartpole,
    "image_env": image_env,
    "ant": ant,
    "sleepy": sleepy,
    "oversubscribed": oversubscribed,
    "workers": workers,
    "threads_freethreaded": threads_freethreaded,
    "serial_share": serial_share,
}
