"""Measure MuJoCo and Atari by number of threads or workers, envfleet only, on machines with many cores.

python benchmarks/simulator_scaling.py
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import envfleet

_COUNTS = (1, 2, 4, 8, 16)
_CASES = (("Ant-v5", 256, "num_threads"), ("HalfCheetah-v5", 256, "num_threads"), ("Pong-v5", 128, "num_workers"))
_ROUNDS = 3
_SECONDS = 1.5


def steps_per_second(env_id: str, num_envs: int, **options: Any) -> float:
    with envfleet.make(env_id, num_envs=num_envs, seed=0, **options) as envs:
        envs.reset()
        actions = [envs.action_space.sample() for _ in range(8)]
        for action in actions[:4]:
            envs.step(action)
        num_steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < _SECONDS:
            envs.step(actions[num_steps % len(actions)])
            num_steps += 1
        return num_steps * num_envs / (time.perf_counter() - start)


def main() -> None:
    for env_id, num_envs, option in _CASES:
        rounds = [[steps_per_second(env_id, num_envs, **{option: count}) for count in _COUNTS] for _ in range(_ROUNDS)]
        medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
        shown = ", ".join(f"{count}: {median:,.0f}" for count, median in zip(_COUNTS, medians, strict=True))
        print(f"{env_id}, {num_envs} envs, by {option}: {shown}; {medians[-1] / medians[0]:.1f}x")


if __name__ == "__main__":
    main()
