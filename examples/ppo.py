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
from envfleet.sampling import rollout


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
class Experience:
    """num_steps rows of each env, time first."""

    obs: torch.Tensor
    actions: torch.Tensor
    log_probs: torch.Tensor
    values: torch.Tensor
    rewards: torch.Tensor
    ended: torch.Tensor
    next_obs: torch.Tensor
    returns: list[float]


@torch.no_grad()
def collect(envs, agent: Agent, args: Args) -> Experience:
    """Goes on with the episodes for num_steps steps."""

    def act(obs: np.ndarray):
        seen = torch.from_numpy(obs)
        policy = agent.policy(seen)
        action = policy.sample()
        return action.numpy(), {"log_probs": policy.log_prob(action), "values": agent.value(seen)}

    taken = rollout(envs, act, args.num_steps)
    rewards = torch.from_numpy(taken.rewards).float()
    # Cut off by the time limit, not over: what would have come is worth what the critic says.
    cut = taken.truncated[taken.final_at] & ~taken.terminated[taken.final_at]
    steps, env_ids = taken.final_at
    rewards[steps[cut], env_ids[cut]] += args.gamma * agent.value(torch.from_numpy(taken.final_obs[cut]))
    return Experience(
        obs=torch.from_numpy(taken.obs),
        actions=torch.from_numpy(taken.actions),
        log_probs=torch.from_numpy(taken.extras["log_probs"]),
        values=torch.from_numpy(taken.extras["values"]),
        rewards=rewards,
        ended=torch.from_numpy(taken.ended).float(),
        next_obs=torch.from_numpy(taken.last_obs),
        returns=taken.episodes.returns.tolist(),
    )


@torch.no_grad()
def advantages_of(taken: Experience, next_value: torch.Tensor, args: Args) -> torch.Tensor:
    """Generalised advantage estimation."""
    advantages = torch.zeros_like(taken.rewards)
    running = torch.zeros_like(next_value)
    for step in reversed(range(args.num_steps)):
        goes_on = 1.0 - taken.ended[step]
        delta = taken.rewards[step] + args.gamma * next_value * goes_on - taken.values[step]
        running = delta + args.gamma * args.gae_lambda * goes_on * running
        advantages[step] = running
        next_value = taken.values[step]
    return advantages


def update(agent: Agent, optimizer: torch.optim.Optimizer, taken: Experience, advantages: torch.Tensor, args: Args):
    """PPO's clipped objective, a few epochs over the rollout."""
    targets = (advantages + taken.values).flatten()
    flat_obs = taken.obs.flatten(0, 1)
    actions, log_probs, flat_advantages = taken.actions.flatten(), taken.log_probs.flatten(), advantages.flatten()
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
    obs_size = int(np.prod(envs.single_observation_space.shape))
    agent = Agent(obs_size, int(envs.single_action_space.n))
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    steps_an_update = args.num_steps * args.num_envs
    last_returns: deque[float] = deque(maxlen=100)
    steps: list[int] = []
    means: list[float] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with envs, Progress(*columns) as progress:
        task = progress.add_task("return    -", total=args.total_steps)
        for step in range(steps_an_update, args.total_steps + 1, steps_an_update):
            for group in optimizer.param_groups:
                group["lr"] = args.learning_rate * (1 - 0.9 * (step - steps_an_update) / args.total_steps)
            taken = collect(envs, agent, args)
            last_returns.extend(taken.returns)
            with torch.no_grad():
                next_value = agent.value(taken.next_obs)
            update(agent, optimizer, taken, advantages_of(taken, next_value, args), args)
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
