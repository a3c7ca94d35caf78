"""Suites on the ray backend: against RayEnvWrapper 1.0.1, and against bare Ray actors, which show Ray's own limit.

All contenders share one local Ray session with two cores; an idle actor costs nothing. ray_env_wrapper_shims.py says
how to install RayEnvWrapper.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from harness import Case, Contender, Loop, Options, Target
from loops import async_loop, sync_loop
from numpy.typing import NDArray
from python_envs import SleepyEnv
from ray_env_wrapper_shims import import_ray_env_wrapper

FLEET, NATIVE = "envfleet ray", "envfleet ray, native CartPole"
THROUGH_RAY = "envfleet ray, direct=False"
BARE, WRAPPER = "bare Ray actors", "RayEnvWrapper"
ASYNC, SYNC = "envfleet ray, asynchronous", "envfleet ray, synchronous"
_WORKERS = 2
_CARTPOLE = "CartPole-v1"


def _session() -> Any:
    import ray

    if not ray.is_initialized():
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    return ray


def fleet(per_worker: int, inner_backend: str, direct: bool = True) -> Loop:
    import envfleet

    _session()
    pool = envfleet.make(
        _CARTPOLE,
        backend="ray",
        num_workers=_WORKERS,
        num_envs=_WORKERS * per_worker,
        ray=envfleet.RayConfig(inner_backend=inner_backend, direct=direct),
    )
    pool.reset(seed=0)
    return sync_loop(pool.step, pool.num_envs, pool.close)


def wrapper(per_worker: int) -> Loop:
    _session()
    vec = import_ray_env_wrapper()(make_and_seed, _WORKERS, per_worker)
    vec.reset()
    return sync_loop(vec.step, vec.num_envs, vec.close)


def bare(per_worker: int) -> Loop:
    """The same work by minimal actors: a loop over the envs, arrays as replies, one ray.get() for all."""
    ray = _session()
    actors = [ray.remote(BareActor).remote(per_worker) for _ in range(_WORKERS)]
    ray.get([actor.reset.remote() for actor in actors])

    def step(actions: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        parts = np.split(actions, _WORKERS)
        replies = ray.get([actor.step.remote(part) for actor, part in zip(actors, parts, strict=True)])
        return tuple(np.concatenate(columns) for columns in zip(*replies, strict=True))

    def close() -> None:
        for actor in actors:
            ray.kill(actor)

    return sync_loop(step, _WORKERS * per_worker, close)


class BareActor:
    def __init__(self, count: int) -> None:
        self.envs = [gymnasium.make(_CARTPOLE) for _ in range(count)]

    def reset(self) -> NDArray[Any]:
        return np.stack([env.reset()[0] for env in self.envs])

    def step(self, actions: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        rows = []
        for env, action in zip(self.envs, actions, strict=True):
            obs, reward, terminated, truncated, _ = env.step(action)
            is_done = terminated or truncated
            rows.append((env.reset()[0] if is_done else obs, reward, is_done))
        obs, rewards, dones = zip(*rows, strict=True)
        return np.stack(obs), np.array(rewards, dtype=np.float32), np.array(dones)


def make_and_seed(seed: int) -> gymnasium.Env[Any, Any]:
    env = gymnasium.make(_CARTPOLE)
    env.reset(seed=seed)
    return env


class UnevenEnv(SleepyEnv):
    """Sleeps for 1 to 20 ms per step, long enough to justify a message of a millisecond."""

    def step(self, action: np.int64) -> Any:
        time.sleep(self.np_random.uniform(0.001, 0.02))
        return np.zeros(4, np.float32), 0.0, False, False, {}


def uneven(batch_size: int) -> Loop:
    """Eight workers of one env each."""
    import envfleet

    _session()
    pool = envfleet.make(UnevenEnv, backend="ray", num_workers=8, num_envs=8, batch_size=batch_size, seed=0)
    if batch_size == pool.num_envs:
        pool.reset()
        return sync_loop(pool.step, pool.num_envs, pool.close)
    pool.async_reset()
    return async_loop(pool, batch_size, pool.close)


def ray_cartpole(options: Options) -> list[Case]:
    few, many, native = 4, 256, 4096

    def contenders(per_worker: int) -> list[Contender]:
        return [
            Contender(FLEET, partial(fleet, per_worker, "serial")),
            Contender(THROUGH_RAY, partial(fleet, per_worker, "serial", False)),
            Contender(BARE, partial(bare, per_worker)),
            Contender(WRAPPER, partial(wrapper, per_worker)),
        ]

    return [
        Case(
            f"CartPole-v1 on Ray, {_WORKERS} workers of {few} envs",
            "steps/s",
            contenders(few),
            FLEET,
            [Target("ratio", FLEET, 1.1, WRAPPER), Target("ratio", FLEET, 0.9, BARE)],
            facts={"num_workers": _WORKERS, "envs_per_worker": few},
        ),
        Case(
            f"CartPole-v1 on Ray, {_WORKERS} workers of {many} envs, native ones {native}",
            "steps/s",
            [*contenders(many), Contender(NATIVE, partial(fleet, native, "native"))],
            FLEET,
            [Target("ratio", FLEET, 2.0, WRAPPER), Target("ratio", NATIVE, 20.0, WRAPPER)],
            facts={"num_workers": _WORKERS, "envs_per_worker": many, "native_envs_per_worker": native},
        ),
    ]


def ray_uneven(options: Options) -> list[Case]:
    return [
        Case(
            "Envs that sleep 1 to 20 ms on Ray, 8 workers of 1 env, batches of 2",
            "steps/s",
            [Contender(ASYNC, partial(uneven, 2)), Contender(SYNC, partial(uneven, 8))],
            ASYNC,
            [Target("ratio", ASYNC, 1.3, SYNC)],
            facts={"num_workers": 8, "envs_per_worker": 1},
        )
    ]


SUITES = {"ray_cartpole": ray_cartpole, "ray_uneven": ray_uneven}
