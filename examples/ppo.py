"""PPO on CartPole-v1 in one file: reaches a mean return of 475 in well under two minutes on two cores.

    python examples/ppo.py
    python examples/ppo.py --seed 3 --num-envs 128 --total-steps 1000000

Needs torch, rich and matplotlib. Writes the learning curve to ppo_curve.png. The same seed reproduces the same run.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import nn

import envfleet
from envfleet.sampling import rollout


def option(default: Any, text: str) -> Any:
    """Declare a field of Args with its help text."""
    return field(default=default, metadata={"help": text})


@dataclass
class Args:
    env: str = option("CartPole-v1", "any id with a flat Box observation and Discrete actions")
    seed: int = option(1, "seed of the envs and of torch")
    total_steps: int = option(1_000_000, "maximum number of env steps, if the target is not reached earlier")
    target_return: float = option(475.0, "stop when the mean return of the last 100 episodes reaches it")
    num_envs: int = option(32, "number of envs in the pool")
    num_steps: int = option(128, "steps per env between two updates")
    num_epochs: int = option(6, "passes over the rollout per update")
    num_minibatches: int = option(8, "minibatches per pass")
    learning_rate: float = option(1e-3, "initial learning rate of Adam; it decays to a tenth")
    gamma: float = option(0.99, "discount factor")
    gae_lambda: float = option(0.95, "lambda of generalized advantage estimation")
    clip: float = option(0.2, "clipping range of the policy ratio")
    entropy_weight: float = option(0.005, "weight of the entropy bonus")
    value_weight: float = option(0.5, "weight of the value loss")
    max_grad_norm: float = option(0.5, "maximum norm of the gradient")
    curve: str = option("ppo_curve.png", "file for the learning curve; empty for none")
    smoke: bool = option(False, "run for a few seconds only")


def parse_args() -> Args:
    """Parse one option per field of Args: --total-steps for total_steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for own in fields(Args):
        flag, text = "--" + own.name.replace("_", "-"), own.metadata["help"]
        if isinstance(own.default, bool):
            parser.add_argument(flag, action="store_true", help=text)
        else:
            text += " (default: %(default)s)"
            parser.add_argument(flag, type=type(own.default), default=own.default, help=text)
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
        # validate_args would cost more than these networks.
        return torch.distributions.Categorical(logits=self.actor(obs), validate_args=False)

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return self.critic(obs).squeeze(-1)


@dataclass
class Experience:
    """A rollout of num_steps steps of each env, time first."""

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
    """Continue the episodes for num_steps steps."""

    def act(obs: np.ndarray):
        obs_tensor = torch.from_numpy(obs)
        policy = agent.policy(obs_tensor)
        action = policy.sample()
        return action.numpy(), {"log_probs": policy.log_prob(action), "values": agent.value(obs_tensor)}

    data = rollout(envs, act, args.num_steps)
    rewards = torch.from_numpy(data.rewards).float()
    # An episode that the time limit truncated would have continued: add the critic's estimate of the rest.
    cut = data.truncated[data.final_at] & ~data.terminated[data.final_at]
    steps, env_ids = data.final_at
    rewards[steps[cut], env_ids[cut]] += args.gamma * agent.value(torch.from_numpy(data.final_obs[cut]))
    return Experience(
        obs=torch.from_numpy(data.obs),
        actions=torch.from_numpy(data.actions),
        log_probs=torch.from_numpy(data.extras["log_probs"]),
        values=torch.from_numpy(data.extras["values"]),
        rewards=rewards,
        ended=torch.from_numpy(data.ended).float(),
        next_obs=torch.from_numpy(data.last_obs),
        returns=data.episodes.returns.tolist(),
    )


@torch.no_grad()
def advantages_of(experience: Experience, next_value: torch.Tensor, args: Args) -> torch.Tensor:
    """Return the advantages, by generalized advantage estimation."""
    advantages = torch.zeros_like(experience.rewards)
    running = torch.zeros_like(next_value)
    for step in reversed(range(args.num_steps)):
        continues = 1.0 - experience.ended[step]
        delta = experience.rewards[step] + args.gamma * next_value * continues - experience.values[step]
        running = delta + args.gamma * args.gae_lambda * continues * running
        advantages[step] = running
        next_value = experience.values[step]
    return advantages


def update(
    agent: Agent, optimizer: torch.optim.Optimizer, experience: Experience, advantages: torch.Tensor, args: Args
):
    """Optimize PPO's clipped objective for a few epochs."""
    targets = (advantages + experience.values).flatten()
    flat_obs = experience.obs.flatten(0, 1)
    actions, log_probs = experience.actions.flatten(), experience.log_probs.flatten()
    flat_advantages = advantages.flatten()
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
    """Train and return the number of steps and the mean return after each update."""
    torch.manual_seed(args.seed)
    # These networks are too small for several threads.
    torch.set_num_threads(1)
    envs = envfleet.make(args.env, num_envs=args.num_envs, seed=args.seed, autoreset_mode="same_step")
    obs_size = int(np.prod(envs.single_observation_space.shape))
    agent = Agent(obs_size, int(envs.single_action_space.n))
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    steps_per_update = args.num_steps * args.num_envs
    last_returns: deque[float] = deque(maxlen=100)
    steps: list[int] = []
    means: list[float] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with envs, Progress(*columns) as progress:
        task = progress.add_task("return    -", total=args.total_steps)
        for step in range(steps_per_update, args.total_steps + 1, steps_per_update):
            for group in optimizer.param_groups:
                group["lr"] = args.learning_rate * (1 - 0.9 * (step - steps_per_update) / args.total_steps)
            experience = collect(envs, agent, args)
            last_returns.extend(experience.returns)
            with torch.no_grad():
                next_value = agent.value(experience.next_obs)
            update(agent, optimizer, experience, advantages_of(experience, next_value, args), args)
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
