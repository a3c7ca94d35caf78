"""PPO on CartPole with TorchRL's collector, GAE and clipped loss; envfleet runs the envs.

python examples/torchrl_rollout.py --total-frames 200000
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, fields

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import RewardSum, TransformedEnv
from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from envfleet.apis.torchrl import EnvFleetEnv


@dataclass(frozen=True)
class Args:
    env: str = "CartPole-v1"
    num_envs: int = 16
    total_frames: int = 200_000
    frames_per_batch: int = 2048
    minibatch: int = 256
    epochs: int = 6
    learning_rate: float = 1e-3
    seed: int = 1


def network(num_inputs: int, num_outputs: int) -> MLP:
    return MLP(in_features=num_inputs, out_features=num_outputs, num_cells=[64, 64], activation_class=nn.Tanh)


def train(args: Args) -> None:
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # the networks are small
    env = TransformedEnv(EnvFleetEnv(args.env, args.num_envs, seed=args.seed), RewardSum())
    num_features, num_actions = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]

    actor = ProbabilisticActor(
        TensorDictModule(network(num_features, num_actions), in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(network(num_features, 1), in_keys=["observation"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    loss_module = ClipPPOLoss(actor, critic, entropy_coeff=0.01)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=args.learning_rate)

    collector = Collector(
        env,
        actor,
        frames_per_batch=args.frames_per_batch,
        total_frames=args.total_frames,
        auto_register_policy_transforms=True,
    )
    start, num_frames = time.perf_counter(), 0
    for data in collector:
        num_frames += data.numel()
        ended = data["next", "done"]
        for _ in range(args.epochs):
            with torch.no_grad():
                advantage(data)
            rows = data.reshape(-1)
            for index in torch.randperm(len(rows)).split(args.minibatch):
                losses = loss_module(rows[index])
                loss = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(loss_module.parameters(), 0.5)
                optimizer.step()
        returns = data["next", "episode_reward"][ended]
        mean = f"{returns.mean():.1f}" if len(returns) else "(no episode ended)"
        print(f"frames {num_frames:>8}  mean return {mean}  {num_frames / (time.perf_counter() - start):.0f} frames/s")
    collector.shutdown()


def parse_args() -> Args:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Args):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    return Args(**vars(parser.parse_args()))


if __name__ == "__main__":
    train(parse_args())
