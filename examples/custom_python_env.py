"""Your own Python env on worker processes, with a simulator that crashes now and then.

    python examples/custom_python_env.py
    python examples/custom_python_env.py --num-envs 16 --num-workers 4 --crash-rate 0.01

A truck drives along a road and must stop at the mark. On every step, its "simulator" raises or crashes the whole
process with some probability. With on_error="restart" the run continues: the row of such an env is truncated,
info["error"] says why, and the env is rebuilt, in a new process if necessary. Needs only envfleet.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter

import gymnasium
import numpy as np

import envfleet
from envfleet.wrappers import RecordEpisodeStatistics


class TruckEnv(gymnasium.Env):
    """Stop within half a meter of the mark. The action is an acceleration from -2 to 2."""

    def __init__(self, crash_rate: float = 0.0) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)
        self.crash_rate = crash_rate

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # sets self.np_random
        self.distance, self.speed = float(self.np_random.uniform(20, 60)), 0.0
        return self._obs(), {}

    def step(self, action):
        draw = self.np_random.random()
        if draw < self.crash_rate / 10:
            os._exit(3)  # like a segmentation fault in a simulator: the process is gone
        if draw < self.crash_rate:
            raise RuntimeError("the solver did not converge")
        self.speed += 0.1 * float(action[0])
        self.distance -= 0.1 * self.speed
        arrived = abs(self.distance) < 0.5 and abs(self.speed) < 0.2
        reward = 10.0 if arrived else -0.01 * abs(self.distance)
        return self._obs(), reward, arrived, self.distance < -20, {"distance": self.distance}

    def _obs(self) -> np.ndarray:
        return np.array([self.distance, self.speed], dtype=np.float32)


def drive(obs: np.ndarray) -> np.ndarray:
    """Drive as fast as the brakes allow."""
    distance, speed = obs[:, 0], obs[:, 1]
    target_speed = np.sign(distance) * np.sqrt(1.5 * np.abs(distance))
    return np.clip(2.0 * (target_speed - speed), -2.0, 2.0)[:, None].astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--num-steps", type=int, default=2000)
    parser.add_argument("--crash-rate", type=float, default=0.002)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="run for a second or two only")
    args = parser.parse_args()
    if args.smoke:
        args.num_steps = 200

    pool = envfleet.make(
        TruckEnv,
        num_envs=args.num_envs,
        backend="processes",
        num_workers=args.num_workers,
        on_error="restart",
        max_restarts=1000,
        max_episode_steps=500,
        crash_rate=args.crash_rate,
        seed=args.seed,
    )
    errors: Counter[str] = Counter()
    with RecordEpisodeStatistics(pool) as envs:
        obs, _ = envs.reset()
        for _ in range(args.num_steps):
            obs, _, _, _, info = envs.step(drive(obs))
            if "error" in info:
                errors.update(info["error"][info["_error"]])
        print(envs.stats())
    print(f"{sum(errors.values())} restarts, and the run continued after each of them:")
    for message, count in errors.most_common():
        print(f"  {count:>4} x {message.splitlines()[0]}")


if __name__ == "__main__":
    main()
