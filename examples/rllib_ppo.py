"""PPO on CartPole-v1 with RLlib; the envs of each EnvRunner are an envfleet pool.

python examples/rllib_ppo.py
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from envfleet.apis import rllib


@dataclass
class Args:
    env: str = "CartPole-v1"
    num_env_runners: int = 1
    num_envs: int = 32  # per EnvRunner
    iterations: int = 8
    steps_per_iteration: int = 4096
    seed: int = 0


def train(args: Args) -> list[float]:
    """Train and return the mean episode return of each iteration."""
    rllib.register("fleet", args.env, num_workers=1)
    config = (
        PPOConfig()
        .environment("fleet")
        .env_runners(
            num_env_runners=args.num_env_runners,
            num_envs_per_env_runner=args.num_envs,
            gym_env_vectorize_mode="vector_entry_point",
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], vf_share_layers=False))
        .training(train_batch_size_per_learner=args.steps_per_iteration, minibatch_size=256, num_epochs=8, lr=1e-3)
        .debugging(seed=args.seed, log_level="ERROR")
    )
    algorithm = config.build_algo()
    returns = []
    for iteration in range(args.iterations):
        result = algorithm.train()
        returns.append(float(result["env_runners"]["episode_return_mean"]))
        print(f"iteration {iteration}: mean return {returns[-1]:.0f}", flush=True)
    algorithm.stop()
    return returns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Args):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    train(Args(**vars(parser.parse_args())))
    ray.shutdown()


if __name__ == "__main__":
    main()
