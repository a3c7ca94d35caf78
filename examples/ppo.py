"""PPO on CartPole-v1, in one file: to a mean return of 475 in well under two minutes on two cores.

    python examples/ppo.py
    python examples/ppo.py --seed 3 --num-envs 128 --total-steps 1000000

Needs torch, rich and matplotlib. Writes the learning curve to ppo_curve.png. The same seed gives the same run.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import nn

import envfleet
from envfleet.wrappers import RecordEpisodeStatistics


@dataclass
class Args:
    env: str = "CartPole-v1"
    """any id with a flat Box observation and Discrete actions"""
    seed: int = 1
    """of the envs and of torch"""
    total_steps: int = 1_000_000
    """steps of all envs together, if the target is not reached before"""
    target_return: float = 475.0
    """stop when the mean of the last 100 episodes reaches it"""
    num_envs: int = 32
    """envs in the pool"""
    num_steps: int = 128
    """steps of each env between two updates"""
    num_epochs: int = 6
    """times that each update goes through the rollout"""
    num_minibatches: int = 8
    """parts that the rollout is cut into"""
    learning_rate: float = 1e-3
    """of Adam at the start; it falls to a tenth over the run"""
    gamma: float = 0.99
    """discount"""
    gae_lambda: float = 0.95
    """of generalised advantage estimation"""
    clip: float = 0.2
    """how far the policy's ratio may move"""
    entropy_weight: float = 0.005
    """what keeps the policy from being sure too early"""
    value_weight: float = 0.5
    """of the critic's loss"""
    max_grad_norm: float = 0.5
    """where gradients are clipped"""
    curve: str = "ppo_curve.png"
    """file of the learning curve; empty for none"""
    smoke: bool = False
    """a few seconds, to see that it runs"""


def parse_args() -> Args:
    """One option for each field of Args: --total-steps for total_steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Args):
        flag = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=type(field.default), default=field.default, help=f"default {field.default}")
    args = Args(**vars(parser.parse_args()))
    if args.smoke:
        args.total_steps, args.num_envs = 3 * 8 * args.num_steps, 8
    return args


def layer(size_in: int, size_out: int, gain: float = 2**0.5) -> nn.Linear:
    linear = nn.Linear(size_in, size_out)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


class Agent(nn.Module):
    def __init__(self, obs_size: int, num_actions: int) -> None:
        super().__init__()
        self.actor = nn.Sequential(
            layer(obs_size, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, num_actions, gain=0.01)
        )
        self.critic = nn.Sequential(layer(obs_size, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, gain=1.0))

    def policy(self, obs: torch.Tensor) -> torch.distributions.Categorical:
        # validate_args costs more than these networks do.
        return torch.distributions.Categorical(logits=self.actor(obs), validate_args=False)

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return self.critic(obs).squeeze(-1)


@dataclass
class Rollout:
    """num_steps rows of each env, time first."""

    obs: torch.Tensor
    actions: torch.Tensor
    log_probs: torch.Tensor
    values: torch.Tensor
    rewards: torch.Tensor
    ended: torch.Tensor

    @classmethod
    def empty(cls, num_steps: int, num_envs: int, obs_size: int) -> Rollout:
        shape = (num_steps, num_envs)
        numbers = [torch.zeros(shape) for _ in range(4)]
        return cls(torch.zeros(*shape, obs_size), torch.zeros(shape, dtype=torch.int64), *numbers)


@torch.no_grad()
def collect(envs, agent: Agent, obs: np.ndarray, rollout: Rollout, args: Args) -> tuple[np.ndarray, list[float]]:
    """Fills the rollout; gives the next observations, and the returns of the episodes that ended."""
    returns: list[float] = []
    for step in range(args.num_steps):
        rollout.obs[step] = torch.from_numpy(obs)
        policy = agent.policy(rollout.obs[step])
        action = policy.sample()
        rollout.actions[step], rollout.log_probs[step] = action, policy.log_prob(action)
        rollout.values[step] = agent.value(rollout.obs[step])
        obs, reward, terminated, truncated, info = envs.step(action.numpy())
        rollout.rewards[step] = torch.from_numpy(reward)
        rollout.ended[step] = torch.from_numpy(terminated | truncated)
        if "episode" in info:
            returns.extend(info["episode"]["r"][info["_episode"]])
        cut = np.flatnonzero(truncated & ~terminated)
        if cut.size:
            # Cut off by the time limit, not over: what would have come is worth what the critic says.
            last = torch.from_numpy(np.stack(info["final_obs"][cut]))
            rollout.rewards[step, cut] += args.gamma * agent.value(last)
    return obs, returns


@torch.no_grad()
def advantages_of(rollout: Rollout, next_value: torch.Tensor, args: Args) -> torch.Tensor:
    """Generalised advantage estimation."""
    advantages = torch.zeros_like(rollout.rewards)
    running = torch.zeros_like(next_value)
    for step in reversed(range(args.num_steps)):
        goes_on = 1.0 - rollout.ended[step]
        delta = rollout.rewards[step] + args.gamma * next_value * goes_on - rollout.values[step]
        running = delta + args.gamma * args.gae_lambda * goes_on * running
        advantages[step] = running
        next_value = rollout.values[step]
    return advantages


def update(agent: Agent, optimizer: torch.optim.Optimizer, rollout: Rollout, advantages: torch.Tensor, args: Args):
    """PPO's clipped objective, a few epochs over the rollout."""
    targets = (advantages + rollout.values).flatten()
    flat_obs = rollout.obs.flatten(0, 1)
    actions, log_probs, flat_advantages = rollout.actions.flatten(), rollout.log_probs.flatten(), advantages.flatten()
    for _ in range(args.num_epochs):
        for rows in torch.randperm(len(targets)).chunk(args.num_minibatches):
            policy = agent.policy(flat_obs[rows])
            ratio = (policy.log_prob(actions[rows]) - log_probs[rows]).exp()
            advantage = flat_advantages[rows]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            clipped = ratio.clamp(1 - args.clip, 1 + args.clip)
            policy_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
            value_loss = 0.5 * (agent.value(flat_obs[rows]) - targets[rows]).square().mean()
            loss = policy_loss + args.value_weight * value_loss - args.entropy_weight * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()


def draw_curve(path: str, steps: list[int], means: list[float], args: Args) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot(steps, means)
    axes.axhline(args.target_return, color="gray", linestyle=":", label=f"target {args.target_return:g}")
    axes.set(xlabel="steps of all envs", ylabel="mean return of the last 100 episodes", title=f"PPO on {args.env}")
    axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def train(args: Args) -> tuple[list[int], list[float]]:
    """Steps and mean returns, one pair for each update."""
    torch.manual_seed(args.seed)
    # These networks are too small to share between threads.
    torch.set_num_threads(1)
    envs = envfleet.make(args.env, num_envs=args.num_envs, seed=args.seed, autoreset_mode="same_step")
    envs = RecordEpisodeStatistics(envs)
    obs_size = int(np.prod(envs.single_observation_space.shape))
    agent = Agent(obs_size, int(envs.single_action_space.n))
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    rollout = Rollout.empty(args.num_steps, args.num_envs, obs_size)
    steps_an_update = args.num_steps * args.num_envs
    last_returns: deque[float] = deque(maxlen=100)
    steps: list[int] = []
    means: list[float] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with envs, Progress(*columns) as progress:
        task = progress.add_task("return    -", total=args.total_steps)
        obs, _ = envs.reset()
        for step in range(steps_an_update, args.total_steps + 1, steps_an_update):
            for group in optimizer.param_groups:
                group["lr"] = args.learning_rate * (1 - 0.9 * (step - steps_an_update) / args.total_steps)
            obs, returns = collect(envs, agent, obs, rollout, args)
            last_returns.extend(returns)
            with torch.no_grad():
                next_value = agent.value(torch.from_numpy(obs))
            update(agent, optimizer, rollout, advantages_of(rollout, next_value, args), args)
            steps.append(step)
            means.append(float(np.mean(last_returns)) if last_returns else float("nan"))
            progress.update(task, completed=step, description=f"return {means[-1]:5.1f}")
            if len(last_returns) == last_returns.maxlen and means[-1] >= args.target_return:
                break
    return steps, means


def main() -> None:
    args = parse_args()
    started = time.perf_counter()
    steps, means = train(args)
    print(
        f"mean return {means[-1]:.1f} of the last 100 episodes after {steps[-1]:,} steps, "
        f"{time.perf_counter() - started:.1f} s"
    )
    if args.curve:
        draw_curve(args.curve, steps, means, args)
        print(f"learning curve: {Path(args.curve).resolve()}")


if __name__ == "__main__":
    main()
