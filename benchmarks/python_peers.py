"""The contenders of python_suites.py: each function returns a Loop over the public step() of a peer.

isolated.py calls them by name, each in its own process, so their arguments are plain values. Each peer is imported only
where it is created.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Loop
from loops import actions_of, async_loop, sync_loop
from numpy.typing import NDArray
from python_envs import env_of, factory_of


def envfleet_sync(env: str, num_envs: int, backend: str, num_workers: int | None = None, in_us: bool = False) -> Loop:
    pool = _envfleet(env, num_envs, backend, num_workers)
    pool.reset()
    return sync_loop(pool.step, num_envs, pool.close, in_us, actions_of(pool.single_action_space, num_envs))


def envfleet_cpu_time(env: str, num_envs: int, backend: str, num_workers: int) -> CpuTimeLoop:
    """Measure the CPU time of the caller and its workers, in microseconds per env step, instead of a rate."""
    pool = _envfleet(env, num_envs, backend, num_workers)
    pool.reset()
    loop = sync_loop(pool.step, num_envs, pool.close, actions=actions_of(pool.single_action_space, num_envs))
    return CpuTimeLoop(loop, [os.getpid(), *pool.pool.executor.worker_pids])


@dataclass
class CpuTimeLoop:
    """A harness.Subject: the CPU time of some processes per env step."""

    loop: Loop
    pids: list[int]

    def measure(self, seconds: float) -> float:
        before_ns, num_batches = self._cpu_ns(), 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self.loop.run(1)
            num_batches += 1
        return (self._cpu_ns() - before_ns) / 1000 / (num_batches * self.loop.steps_per_batch)

    def close(self) -> None:
        self.loop.close()

    def _cpu_ns(self) -> int:
        # The first field of schedstat: nanoseconds on a CPU.
        return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in self.pids)


def envfleet_async(env: str, num_envs: int, backend: str, num_workers: int, batch_size: int) -> Loop:
    pool = _envfleet(env, num_envs, backend, num_workers, batch_size=batch_size)
    pool.async_reset()
    return async_loop(pool, batch_size, pool.close, actions=actions_of(pool.single_action_space, batch_size))


def _envfleet(env: str, num_envs: int, backend: str, num_workers: int | None, **options: Any) -> Any:
    import envfleet

    _require_simulator(env)
    if num_workers is not None:  # serial has no workers
        options["num_workers"] = num_workers
    return envfleet.make(env_of(env), num_envs=num_envs, backend=backend, seed=0, **options)


def gymnasium_sync(env: str, num_envs: int) -> Loop:
    from gymnasium.vector import SyncVectorEnv

    _require_simulator(env)
    return _gymnasium_loop(SyncVectorEnv([factory_of(env)] * num_envs), num_envs)


def gymnasium_async(env: str, num_envs: int) -> Loop:
    """With its defaults: shared memory, and the default start method of this Python.

    Up to Python 3.13 that is fork, which is safe here because the process has created nothing else. The start method
    does not affect the speed of steps.
    """
    from gymnasium.vector import AsyncVectorEnv

    _require_simulator(env)
    multiprocessing.set_forkserver_preload(["gymnasium"])  # with forkserver: import once, not in 64 workers
    return _gymnasium_loop(AsyncVectorEnv([factory_of(env)] * num_envs, shared_memory=True), num_envs)


def _gymnasium_loop(vector_env: Any, num_envs: int) -> Loop:
    vector_env.reset(seed=0)
    actions = actions_of(vector_env.single_action_space, num_envs)
    return sync_loop(vector_env.step, num_envs, vector_env.close, actions=actions)


def sb3_subproc(env: str, num_envs: int) -> Loop:
    """With its default start method, forkserver."""
    from stable_baselines3.common.vec_env import SubprocVecEnv

    _require_simulator(env)
    # Otherwise each of 64 workers would import torch, which takes seconds, before the first step.
    multiprocessing.set_forkserver_preload(["gymnasium", "stable_baselines3.common.vec_env"])
    vec_env = SubprocVecEnv([factory_of(env)] * num_envs)
    vec_env.seed(0)
    vec_env.reset()
    return sync_loop(vec_env.step, num_envs, vec_env.close, actions=actions_of(vec_env.action_space, num_envs))


def bare_loop(env: str, num_envs: int) -> Loop:
    """Call the envs' own step() and reset() without collecting or checking anything, in microseconds per batch."""
    envs = [factory_of(env)() for _ in range(num_envs)]
    for position, one in enumerate(envs):
        one.reset(seed=position)
    ended = [False] * num_envs

    def step(actions: NDArray[Any]) -> None:
        for position, (one, action) in enumerate(zip(envs, actions, strict=True)):
            if ended[position]:  # this row is a reset, as in next-step autoreset
                one.reset()
                ended[position] = False
            else:
                _obs, _reward, terminated, truncated, _info = one.step(action)
                ended[position] = terminated or truncated

    def close() -> None:
        for one in envs:
            one.close()

    return sync_loop(step, num_envs, close, in_us=True, actions=actions_of(envs[0].action_space, num_envs))


def _require_simulator(env: str) -> None:
    """Raise ImportError if the simulator is missing: the table then says "not installed" instead of "failed"."""
    if env.startswith("Ant-"):
        import mujoco  # noqa: F401
