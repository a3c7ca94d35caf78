"""PPO of Stable-Baselines3 on a native pool: only one import changes.

    python examples/sb3_ppo.py
    python examples/sb3_ppo.py --env LunarLander-v3 --num-envs 16

Needs stable-baselines3: pip install "envfleet[sb3]"
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field, fields
from typing import Any

from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy

from envfleet.apis.sb3 import make_vec_env  # was: from stable_baselines3.common.env_util import make_vec_env


def option(default: Any, text: str) -> Any:
    """Declare a field of Args with its help text."""
    return field(default=default, metadata={"help": text})


@dataclass
class Args:
    env: str = option("CartPole-v1", "any envfleet or Gymnasium id")
    seed: int = option(1, "seed of the envs and of torch")
    total_steps: int = option(100_000, "total number of env steps")
    num_envs: int = option(16, "number of envs in the pool")
    num_eval_episodes: int = option(20, "number of episodes of the final evaluation")


def main(args: Args) -> float:
    envs = make_vec_env(args.env, n_envs=args.num_envs, seed=args.seed)
    model = PPO("MlpPolicy", envs, n_steps=64, batch_size=256, gae_lambda=0.98, seed=args.seed, device="cpu")
    started = time.perf_counter()
    model.learn(args.total_steps)
    seconds = time.perf_counter() - started
    mean, deviation = evaluate_policy(model, envs, n_eval_episodes=args.num_eval_episodes)
    envs.close()
    print(
        f"{model.num_timesteps} steps in {seconds:.0f} s; mean return {mean:.0f} (standard deviation {deviation:.0f})"
    )
    return float(mean)


def parse_args() -> Args:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for own in fields(Args):
        flag, text = "--" + own.name.replace("_", "-"), f"{own.metadata['help']} (default: %(default)s)"
        parser.add_argument(flag, type=type(own.default), default=own.default, help=text)
    return Args(**vars(parser.parse_args()))


if __name__ == "__main__":
    main(parse_args())
