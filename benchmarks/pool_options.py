"""What options of a pool cost where nothing goes wrong: steps per second with and without them, in alternating rounds.

python benchmarks/pool_options.py
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
    "Pong-v5, n=64": ("Pong-v5", 64, 20, {}),
}
OPTIONS = {"check_finite": {"check_finite": True}, "restart": {"on_error": "restart"}}
ROUNDS = 31


def main() -> None:
    """Measure every case with every option and print it."""
    for name, (env_id, num_envs, num_steps, own) in CASES.items():
        options = [{}, *OPTIONS.values()]
        pools = [envfleet.make_pool(env_id, num_envs=num_envs, **own, **added) for added in options]
        space = pools[0].spec.action_space
        space.seed(0)
        actions = np.array([space.sample() for _ in range(num_envs)])
        for pool in pools:
            pool.reset(seed=0)
            steps_per_second(pool, actions, num_steps)
        rounds = [[steps_per_second(pool, actions, num_steps) for pool in pools] for _ in range(ROUNDS)]
        print(f"{name}: {statistics.median(rates[0] for rates in rounds):,.0f} steps/s", flush=True)
        for position, option in enumerate(OPTIONS, start=1):
            ratio = statistics.median(rates[position] / rates[0] for rates in rounds)
            print(f"    {option}: {ratio:.3f} of that", flush=True)
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
