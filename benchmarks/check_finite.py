"""What check_finite=True costs: steps per second with it and without it, in alternating rounds.

python benchmarks/check_finite.py
"""

from __future__ import annotations

import statistics
import time

import numpy as np

import envfleet

CASES = {
    "native CartPole-v1, n=1024, 1 thread": ("CartPole-v1", 1024, 2000, {"num_workers": 1}),
    "Python CartPole-v1, n=64, processes": ("CartPole-v1", 64, 200, {"backend": "processes"}),
    "native Ant-v5, n=64, 1 thread": ("Ant-v5", 64, 20, {"num_workers": 1}),
}
ROUNDS = 31


def main() -> None:
    """Measure every case and print it."""
    for name, (env_id, num_envs, num_steps, options) in CASES.items():
        pools = [envfleet.make_pool(env_id, num_envs=num_envs, check_finite=on, **options) for on in (False, True)]
        space = pools[0].spec.action_space
        space.seed(0)
        actions = np.array([space.sample() for _ in range(num_envs)])
        for pool in pools:
            pool.reset(seed=0)
            steps_per_second(pool, actions, num_steps)
        rounds = [[steps_per_second(pool, actions, num_steps) for pool in pools] for _ in range(ROUNDS)]
        without, checked = (statistics.median(column) for column in zip(*rounds, strict=True))
        ratio = statistics.median(on / off for off, on in rounds)
        print(
            f"{name}: {without:,.0f} steps/s without, {checked:,.0f} with check_finite, ratio {ratio:.3f}", flush=True
        )
        for pool in pools:
            pool.close()


def steps_per_second(pool: envfleet.Pool, actions: np.ndarray, num_steps: int) -> float:
    """Return the rate of num_steps steps of all envs."""
    start = time.perf_counter()
    for _ in range(num_steps):
        pool.step(actions)
    return len(actions) * num_steps / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
