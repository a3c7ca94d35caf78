"""What two mistakes in a training loop cost: the loop of docs/tutorials/training_loop.md with and without them.

    python benchmarks/loop_mistakes.py
    python benchmarks/loop_mistakes.py --envs NChain-v0 --seeds 10

For each env, loop and seed: PPO for a fixed number of steps on a next_step pool, then the mean return of the greedy
policy over longer episodes. Prints a table in Markdown: mean, worst and best of the seeds.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass

import numpy as np
import torch
from gymnasium.spaces import Discrete
from torch import nn

import envfleet

NUM_STEPS, GAMMA, LAMBDA = 128, 0.99, 0.95


@dataclass(frozen=True)
class Task:
    """An env, its time limits in training and in evaluation, and the number of updates."""

    env_id: str
    training_limit: int
    evaluation_limit: int
    num_updates: int
    reward_scale: float = 1 - GAMMA  # so that values are of the order of the rewards
    num_envs: int = 32


@dataclass(frozen=True)
class Loop:
    """masks: leaves out the rows that only reset an env. bootstraps: adds the value of the rest where truncated."""

    masks: bool = True
    bootstraps: bool = True


TASKS = [
    Task("Catch-v0", 9, 9, 8, reward_scale=1.0),  # every tenth row is a reset
    Task("NChain-v0", 6, 1000, 8),  # a reward of 10 per step at the end of a chain that takes four steps, or 2 at once
    Task("CartPole-v1", 50, 500, 25),
]
LOOPS = {
    "of the page": Loop(),
    "reset rows in the batch": Loop(masks=False),
    "truncation as termination": Loop(bootstraps=False),
    "both": Loop(masks=False, bootstraps=False),
}


class Agent(nn.Module):
    def __init__(self, obs_size: int, num_actions: int) -> None:
        super().__init__()
        self.actor, self.critic = self._network(obs_size, num_actions, 0.01), self._network(obs_size, 1, 1.0)

    @staticmethod
    def _network(num_inputs: int, num_outputs: int, gain: float) -> nn.Sequential:
        layers = [nn.Linear(num_inputs, 64), nn.Linear(64, 64), nn.Linear(64, num_outputs)]
        for layer, own in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
            nn.init.orthogonal_(layer.weight, own)
            nn.init.zeros_(layer.bias)
        return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])

    def policy(self, obs: torch.Tensor) -> torch.distributions.Categorical:
        return torch.distributions.Categorical(logits=self.actor(obs), validate_args=False)

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return self.critic(obs).squeeze(-1)


def features(envs, obs: np.ndarray) -> torch.Tensor:
    """Return observations as vectors: Discrete ones one-hot."""
    if isinstance(envs.single_observation_space, Discrete):
        return nn.functional.one_hot(torch.from_numpy(obs), int(envs.single_observation_space.n)).float()
    return torch.from_numpy(obs).float().flatten(1)


@torch.no_grad()
def collect(envs, agent: Agent, obs: np.ndarray, starts: np.ndarray, task: Task, loop: Loop):
    rows = []
    for _ in range(NUM_STEPS):
        row = {"obs": features(envs, obs), "valid": torch.from_numpy(~starts | (not loop.masks))}
        policy = agent.policy(row["obs"])
        row["action"] = policy.sample()
        row["log_prob"], row["value"] = policy.log_prob(row["action"]), agent.value(row["obs"])
        obs, reward, terminated, truncated, _ = envs.step(row["action"].numpy())
        starts = terminated | truncated
        row["ended"] = torch.from_numpy(starts)
        row["reward"] = task.reward_scale * torch.from_numpy(reward).float()
        row["cut"] = torch.from_numpy(terminated if loop.bootstraps else starts)
        rows.append(row)
    rows = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    rows["advantage"] = torch.zeros_like(rows["value"])
    next_value, running = agent.value(features(envs, obs)), torch.zeros(len(obs))
    for t in reversed(range(NUM_STEPS)):
        delta = rows["reward"][t] + GAMMA * next_value * ~rows["cut"][t] - rows["value"][t]
        running = delta + GAMMA * LAMBDA * running * ~rows["ended"][t]
        rows["advantage"][t], next_value = running, rows["value"][t]
    rows["target"] = rows["advantage"] + rows["value"]
    return {name: column[rows["valid"]] for name, column in rows.items()}, obs, starts


def update(agent: Agent, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]) -> None:
    for _ in range(6):
        for chosen in torch.randperm(len(batch["obs"])).chunk(8):
            part = {name: column[chosen] for name, column in batch.items()}
            policy = agent.policy(part["obs"])
            ratio = (policy.log_prob(part["action"]) - part["log_prob"]).exp()
            advantage = (part["advantage"] - part["advantage"].mean()) / (part["advantage"].std() + 1e-8)
            gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            error = 0.5 * (agent.value(part["obs"]) - part["target"]).square().mean()
            optimizer.zero_grad()
            (0.5 * error - gain - 0.005 * policy.entropy().mean()).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


def train(task: Task, loop: Loop, seed: int) -> float:
    """Return the mean return of the greedy policy after training."""
    torch.manual_seed(seed)
    with envfleet.make(
        task.env_id, num_envs=task.num_envs, seed=1000 * seed, max_episode_steps=task.training_limit
    ) as envs:
        obs, _ = envs.reset()
        agent = Agent(features(envs, obs).shape[1], int(envs.single_action_space.n))
        optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3, eps=1e-5)
        starts = np.zeros(task.num_envs, bool)
        for _ in range(task.num_updates):
            batch, obs, starts = collect(envs, agent, obs, starts, task, loop)
            update(agent, optimizer, batch)
    return evaluate(task, agent)


@torch.no_grad()
def evaluate(task: Task, agent: Agent, num_envs: int = 100) -> float:
    """Return the mean return of one episode per env."""
    with envfleet.make(task.env_id, num_envs=num_envs, seed=10**6, max_episode_steps=task.evaluation_limit) as envs:
        obs, _ = envs.reset()
        returns, running = np.zeros(num_envs), np.ones(num_envs, bool)
        while running.any():
            obs, reward, terminated, truncated, _ = envs.step(agent.actor(features(envs, obs)).argmax(1).numpy())
            returns += reward * running
            running &= ~(terminated | truncated)
    return float(returns.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", default=[task.env_id for task in TASKS])
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| env | time limit in training | steps | loop | mean return | worst seed | best seed |")
    print("|---|---|---|---|---|---|---|")
    for task in TASKS:
        if task.env_id not in arguments.envs:
            continue
        num_steps = task.num_updates * NUM_STEPS * task.num_envs
        for title, loop in LOOPS.items():
            returns = [train(task, loop, seed) for seed in range(arguments.seeds)]
            figures = " | ".join(f"{own:.4g}" for own in (statistics.fmean(returns), min(returns), max(returns)))
            print(f"| {task.env_id} | {task.training_limit} | {num_steps:,} | {title} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
