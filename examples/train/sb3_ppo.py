"""PPO of Stable-Baselines3 on envfleet, trained until CartPole-v1 is solved.

    python examples/train/sb3_ppo.py
    python examples/train/sb3_ppo.py --env LunarLander-v3 --target 200 --total-steps 2000000

Ends when the mean return of the latest 100 episodes reaches the target. --executor dummy and --executor subproc run the
same on Stable-Baselines3's own vector envs. Needs stable-baselines3: pip install "envfleet[sb3]"
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common import env_util
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from envfleet.apis.sb3 import make_vec_env


def option(default: Any, text: str) -> Any:
    """Declare a field of Args with its help text."""
    return field(default=default, metadata={"help": text})


@dataclass
class Args:
    env: str = option("CartPole-v1", "any envfleet or Gymnasium id with a vector as observation")
    target: float = option(450.0, "mean return of the latest 100 episodes at which to stop")
    executor: str = option("envfleet", "or dummy or subproc: Stable-Baselines3's own vector envs")
    seed: int = option(1, "seed of the envs and of torch")
    total_steps: int = option(400_000, "maximum number of env steps")
    num_envs: int = option(32, "number of envs")
    num_steps: int = option(64, "steps per env between two updates")
    num_epochs: int = option(8, "passes over the rollout per update")
    batch_size: int = option(512, "rows per minibatch")
    learning_rate: float = option(1e-3, "learning rate of Adam")
    strict: bool = option(False, "exit with an error if the target was not reached")


class StopAtTarget(BaseCallback):
    """Prints the mean return after each rollout, and ends training when it reaches the target."""

    def __init__(self, target: float) -> None:
        super().__init__()
        self.target, self.mean, self.is_reached = target, float("nan"), False
        self.begin = time.perf_counter()

    def _on_rollout_end(self) -> None:
        episodes = self.model.ep_info_buffer
        self.mean = float(np.mean([episode["r"] for episode in episodes])) if episodes else float("nan")
        self.is_reached = len(episodes) == episodes.maxlen and self.mean >= self.target
        print(
            f"{time.perf_counter() - self.begin:7.1f} s {self.num_timesteps:>10} steps   return {self.mean:9.2f}",
            flush=True,
        )

    def _on_step(self) -> bool:
        return not self.is_reached


def make_envs(args: Args) -> VecEnv:
    if args.executor == "envfleet":
        return make_vec_env(args.env, n_envs=args.num_envs, seed=args.seed)
    own_class = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}[args.executor]
    return env_util.make_vec_env(args.env, n_envs=args.num_envs, seed=args.seed, vec_env_cls=own_class)


def main(args: Args) -> None:
    torch.set_num_threads(1)  # the networks are small: threads would only compete with the envs
    envs = make_envs(args)
    model = PPO(
        "MlpPolicy", envs, n_steps=args.num_steps, n_epochs=args.num_epochs, batch_size=args.batch_size,
        learning_rate=args.learning_rate, gae_lambda=0.95, seed=args.seed, device="cpu",
    )  # fmt: skip
    callback = StopAtTarget(args.target)
    try:
        model.learn(args.total_steps, callback)
    finally:
        envs.close()
    print(
        f"{'reached' if callback.is_reached else 'did not reach'} a mean return of {args.target:g} in "
        f"{time.perf_counter() - callback.begin:.1f} s and {model.num_timesteps} steps"
    )
    if args.strict and not callback.is_reached:
        raise SystemExit(1)


def parse_args() -> Args:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for own in fields(Args):
        flag, text = "--" + own.name.replace("_", "-"), own.metadata["help"]
        if isinstance(own.default, bool):
            parser.add_argument(flag, action="store_true", help=text)
        else:
            text += " (default: %(default)s)"
            parser.add_argument(flag, type=type(own.default), default=own.default, help=text)
    return Args(**vars(parser.parse_args()))


if __name__ == "__main__":
    main(parse_args())
