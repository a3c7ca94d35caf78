"""DQN on CartPole-v1 with Tianshou 2; the envs are an envfleet pool.

python examples/tianshou_dqn.py                   # Collector: every step waits for all envs
python examples/tianshou_dqn.py --wait-num 4      # AsyncCollector: every step waits for the first four
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields

import numpy as np
import torch
from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import AsyncCollector, Collector, VectorReplayBuffer
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net

from envfleet.apis.tianshou import make_vector_env


class WithState(DiscreteQLearningPolicy):
    """A policy that returns a dummy state: the AsyncCollector of Tianshou 2.0 fails without one."""

    def forward(self, batch, state=None, model=None):
        result = super().forward(batch, None, model)
        result.state = np.zeros((len(result.act), 1))
        return result


@dataclass
class Args:
    env: str = "CartPole-v1"
    num_envs: int = 8
    wait_num: int = 0  # 0: wait for all envs
    epochs: int = 5
    steps_per_epoch: int = 8000
    seed: int = 0


def train(args: Args) -> tuple[float, float]:
    """Train and return the mean return before and after."""
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    training_envs = make_vector_env(args.env, num_envs=args.num_envs, wait_num=args.wait_num or None)
    test_envs = make_vector_env(args.env, num_envs=10)
    training_envs.seed(args.seed)
    test_envs.seed(args.seed + 1000)

    observation_space, action_space = training_envs.observation_space[0], training_envs.action_space[0]
    model = Net(state_shape=observation_space.shape, action_shape=action_space.n, hidden_sizes=[64, 64])
    policy_class = WithState if training_envs.is_async else DiscreteQLearningPolicy
    policy = policy_class(model=model, action_space=action_space, eps_training=0.1)
    algorithm = DQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=1e-3),
        gamma=0.99,
        n_step_return_horizon=3,
        target_update_freq=320,
    )
    buffer = VectorReplayBuffer(20_000, args.num_envs)
    collector_class = AsyncCollector if training_envs.is_async else Collector
    training_collector = collector_class(policy, training_envs, buffer, exploration_noise=True)
    test_collector = Collector(policy, test_envs)

    training_collector.reset()
    training_collector.collect(n_step=args.num_envs * 32)
    before = test_collector.collect(n_episode=10, reset_before_collect=True).returns.mean()
    result = algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=training_collector,
            test_collector=test_collector,
            max_epochs=args.epochs,
            epoch_num_steps=args.steps_per_epoch,
            collection_step_num_env_steps=args.num_envs * 2,
            update_step_num_gradient_steps_per_sample=0.125,
            test_step_num_episodes=10,
            batch_size=64,
            stop_fn=lambda mean_return: mean_return >= 475,
            verbose=False,
            show_progress=False,
        )
    )
    training_envs.close()
    test_envs.close()
    return float(before), float(result.best_score)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Args):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    before, after = train(Args(**vars(parser.parse_args())))
    print(f"mean return: {before:.0f} before training, {after:.0f} at best")


if __name__ == "__main__":
    main()
