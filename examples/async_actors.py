"""An asynchronous actor loop: every env continues as soon as it is ready, and none waits for the slowest.

    python examples/async_actors.py
    python examples/async_actors.py --env Acrobot-v1 --num-envs 128 --batch-size 32

Every env of the pool evaluates its own linear policy. When its episode ends, the policy and its return go to the search
(the cross-entropy method over the last 64 episodes), and the env continues with a newly sampled policy. There are no
generations, so a policy that balances for 500 steps does not delay those that fall after ten. The order of the rows
depends on timing: runs with the same seed are similar, but not identical. Needs only numpy.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from dataclasses import dataclass, fields

import numpy as np

import envfleet
from envfleet.wrappers import RecordEpisodeStatistics


@dataclass
class Args:
    env: str = "CartPole-v1"
    seed: int = 1
    num_envs: int = 64
    batch_size: int = 16
    total_steps: int = 2_000_000
    target_return: float = 475.0
    elite: int = 16
    memory: int = 64
    noise: float = 0.05
    smoke: bool = False


def parse_args() -> Args:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Args):
        flag = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=type(field.default), default=field.default, help=f"default {field.default}")
    args = Args(**vars(parser.parse_args()))
    if args.smoke:
        args.total_steps = 20_000
    return args


class Search:
    """Samples policies near the best of the last episodes."""

    def __init__(self, shape: tuple[int, ...], args: Args) -> None:
        self.rng = np.random.default_rng(args.seed)
        self.mean, self.deviation = np.zeros(shape), np.ones(shape)
        self.episodes: deque[tuple[float, np.ndarray]] = deque(maxlen=args.memory)
        self.elite, self.noise = args.elite, args.noise

    def sample(self) -> np.ndarray:
        return self.mean + self.deviation * self.rng.standard_normal(self.mean.shape)

    def report(self, policy: np.ndarray, episode_return: float) -> None:
        self.episodes.append((episode_return, policy))
        if len(self.episodes) == self.episodes.maxlen:
            best = sorted(self.episodes, key=lambda episode: -episode[0])[: self.elite]
            policies = np.stack([policy for _, policy in best])
            self.mean, self.deviation = policies.mean(axis=0), policies.std(axis=0) + self.noise


def main() -> None:
    args = parse_args()
    pool = envfleet.make(args.env, num_envs=args.num_envs, batch_size=args.batch_size, seed=args.seed)
    with RecordEpisodeStatistics(pool) as envs:
        obs_size, num_actions = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
        search = Search((obs_size, num_actions), args)
        policies = np.stack([search.sample() for _ in range(args.num_envs)])
        num_steps, next_report, started = 0, 0, time.perf_counter()
        envs.async_reset()
        while num_steps < args.total_steps:
            obs, _, _, _, info = envs.recv()
            ids = info["env_id"]
            num_steps += len(ids)
            if "episode" in info:
                for row in np.flatnonzero(info["_episode"]):
                    search.report(policies[ids[row]], info["episode"]["r"][row])
                    policies[ids[row]] = search.sample()
            mean = np.mean(envs.return_queue) if envs.return_queue else float("nan")
            if num_steps >= next_report:
                next_report = num_steps + args.total_steps // 20
                print(f"{num_steps:>9,} steps  {envs.episode_count:>6,} episodes  mean return {mean:6.1f}")
            if len(envs.return_queue) == 100 and mean >= args.target_return:
                break
            # One matrix per row: the policy of the env that the row belongs to.
            actions = np.einsum("ro,roa->ra", obs, policies[ids]).argmax(axis=1)
            envs.send(actions, ids)
        seconds = time.perf_counter() - started
    print(f"mean return {mean:.1f} of the last 100 episodes after {num_steps:,} steps, {seconds:.1f} s")


if __name__ == "__main__":
    main()
