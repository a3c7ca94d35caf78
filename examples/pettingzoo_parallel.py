"""Play at random in many copies of a multi-agent env, with one row per player.

python examples/pettingzoo_parallel.py --num-envs 8 --steps 500

Knights and archers die one by one, so the number of rows changes from step to step.
Needs: pip install "envfleet[pettingzoo]" pygame
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

from envfleet.apis.pettingzoo import make_pettingzoo


@dataclass
class Args:
    env: str = "butterfly/knights_archers_zombies_v11"
    num_envs: int = 8
    steps: int = 500
    backend: str = "processes"
    seed: int = 0


def parse_args() -> Args:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in vars(Args()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    return Args(**vars(parser.parse_args()))


def main(args: Args) -> None:
    rng = np.random.default_rng(args.seed)
    with make_pettingzoo(args.env, layout="rows", num_envs=args.num_envs, backend=args.backend) as envs:
        obs, info = envs.reset(seed=args.seed)
        returns = np.zeros((args.num_envs, len(envs.possible_agents)))
        finished: list[tuple[str, float]] = []
        num_rows = 0
        for _ in range(args.steps):
            # A policy would use obs, which has one row per player; here all players act at random.
            actions = rng.integers(envs.single_action_space.n, size=len(obs))
            obs, reward, terminated, truncated, info = envs.step(actions)
            env_id, player = info["players.env_id"], info["players.id"]
            returns[env_id, player] += reward
            num_rows += len(obs)
            for row in np.flatnonzero(terminated | truncated):
                name = envs.possible_agents[player[row]]
                finished.append((name, returns[env_id[row], player[row]]))
                returns[env_id[row], player[row]] = 0
    print(f"{num_rows / args.steps:.1f} players per step in {args.num_envs} envs, {len(finished)} finished")
    for name in envs.possible_agents:
        totals = [total for agent, total in finished if agent == name]
        if totals:
            print(f"  {name}: mean return {np.mean(totals):.2f} over {len(totals)} lives")


if __name__ == "__main__":
    main(parse_args())
