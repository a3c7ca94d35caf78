"""PPO with everything but the envs on the GPU: TorchPool, and a rollout buffer on the device.

    python examples/ppo_gpu.py
    python examples/ppo_gpu.py --env Pong-v5 --num-envs 64 --num-groups 2
    python examples/ppo_gpu.py --device cpu --smoke

Needs torch. Runs on the CPU if there is no GPU. With --num-groups 2 the envs of one half step while the policy computes
the actions of the other.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import nn

from envfleet.apis.torch import TorchPool
from envfleet.sampling import rollout


@dataclass
class Args:
    env: str = "CartPole-v1"
    """any id with a Box observation, flat or stacked images, and Discrete actions"""
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    """where the policy and the rollouts are"""
    seed: int = 1
    """seed of the envs and of torch"""
    num_envs: int = 1024
    """number of envs in the pool"""
    num_groups: int = 1
    """groups of envs that step while the policy runs for another"""
    num_updates: int = 100
    """number of rollouts and updates"""
    num_steps: int = 32
    """steps per env between two updates"""
    num_epochs: int = 4
    """passes over the rollout per update"""
    num_minibatches: int = 8
    """minibatches per pass"""
    learning_rate: float = 1e-3
    """learning rate of Adam"""
    gamma: float = 0.99
    """discount factor"""
    gae_lambda: float = 0.95
    """lambda of generalized advantage estimation"""
    clip: float = 0.2
    """clipping range of the policy ratio"""
    entropy_weight: float = 0.005
    """weight of the entropy bonus"""
    smoke: bool = False
    """run for a few seconds only"""


def parse_args() -> Args:
    """Parse one option per field of Args: --num-envs for num_envs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Args):
        flag = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=type(field.default), default=field.default, help=f"default {field.default}")
    args = Args(**vars(parser.parse_args()))
    if args.smoke:
        args.num_envs, args.num_updates, args.num_steps = 16, 3, 16
    return args


class Agent(nn.Module):
    def __init__(self, obs_shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        if len(obs_shape) == 3:  # stacked images
            self.body = nn.Sequential(
                nn.Conv2d(obs_shape[0], 32, 8, stride=4),
                nn.ReLU(),
                nn.Conv2d(32, 64, 4, stride=2),
                nn.ReLU(),
                nn.Conv2d(64, 64, 3),
                nn.ReLU(),
                nn.Flatten(),
                nn.LazyLinear(512),
                nn.ReLU(),
            )
            self.scale, size = 1 / 255, 512
        else:
            self.body = nn.Sequential(
                nn.Flatten(), nn.Linear(int(np.prod(obs_shape)), 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()
            )
            self.scale, size = 1.0, 64
        self.actor, self.critic = nn.Linear(size, num_actions), nn.Linear(size, 1)

    def forward(self, obs: torch.Tensor) -> tuple[torch.distributions.Categorical, torch.Tensor]:
        features = self.body(obs.float() * self.scale)
        # validate_args would make the host wait for the GPU.
        policy = torch.distributions.Categorical(logits=self.actor(features), validate_args=False)
        return policy, self.critic(features).squeeze(-1)


@torch.no_grad()
def advantages_of(data, agent: Agent, args: Args) -> torch.Tensor:
    """Return the advantages, by generalized advantage estimation."""
    following = data.next_obs()
    next_values = torch.stack([agent(obs)[1] for obs in following])
    deltas = data.rewards + args.gamma * next_values * ~data.terminated - data.extras["values"]
    advantages = torch.zeros_like(deltas)
    running = torch.zeros_like(deltas[0])
    for step in reversed(range(args.num_steps)):
        running = deltas[step] + args.gamma * args.gae_lambda * ~data.ended[step] * running
        advantages[step] = running
    return advantages


def update(agent: Agent, optimizer: torch.optim.Optimizer, data, advantages: torch.Tensor, args: Args) -> None:
    """Optimize PPO's clipped objective for a few epochs."""
    obs, actions = data.obs.flatten(0, 1), data.actions.flatten()
    log_probs, flat = data.extras["log_probs"].flatten(), advantages.flatten()
    targets = (advantages + data.extras["values"]).flatten()
    for _ in range(args.num_epochs):
        for rows in torch.randperm(len(targets), device=obs.device).chunk(args.num_minibatches):
            policy, values = agent(obs[rows])
            ratio = (policy.log_prob(actions[rows]) - log_probs[rows]).exp()
            advantage = (flat[rows] - flat[rows].mean()) / (flat[rows].std() + 1e-8)
            policy_loss = -torch.min(ratio * advantage, ratio.clamp(1 - args.clip, 1 + args.clip) * advantage).mean()
            value_loss = 0.5 * (values - targets[rows]).square().mean()
            optimizer.zero_grad()
            (policy_loss + 0.5 * value_loss - args.entropy_weight * policy.entropy().mean()).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    pool = TorchPool(
        args.env,
        args.device,
        num_envs=args.num_envs,
        num_groups=args.num_groups,
        seed=args.seed,
        autoreset_mode="same_step",
    )
    with pool as envs:
        agent = Agent(envs.single_observation_space.shape, int(envs.single_action_space.n)).to(args.device)
        agent(envs.reset()[0])  # gives lazy layers their shapes
        optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)

        def act(obs: torch.Tensor):
            policy, values = agent(obs)
            actions = policy.sample()
            return actions, {"log_probs": policy.log_prob(actions), "values": values}

        started = time.perf_counter()
        for number in range(1, args.num_updates + 1):
            data = rollout(envs, act, args.num_steps, reset=number == 1)
            update(agent, optimizer, data, advantages_of(data, agent, args), args)
            if number % max(1, args.num_updates // 10) == 0:
                reward_per_episode = float(data.rewards.sum() / data.ended.sum().clamp(min=1))
                steps_per_s = number * args.num_steps * args.num_envs / (time.perf_counter() - started)
                print(
                    f"update {number}: {reward_per_episode:.1f} reward per episode, {steps_per_s:,.0f} steps per second"
                )


if __name__ == "__main__":
    main()
