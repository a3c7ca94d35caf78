"""PPO on the GPU: Atari from pixels, MuJoCo and classic control from state vectors.

    python examples/train/ppo.py Pong-v5 --preset atari --target 18
    python examples/train/ppo.py Ant-v5 --preset mujoco --target 4000 --executor envpool

Prints the mean return of the latest episodes over time, and ends when it reaches the target. --log writes the learning
curve and the share of time spent in the envs as JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections import deque
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import torch
from executors import EXECUTORS, Envs
from torch import nn
from torch.distributions import Categorical, Independent, Normal


@dataclass
class Settings:
    num_envs: int = 64
    num_steps: int = 64  # per env and rollout
    num_epochs: int = 4
    num_minibatches: int = 4
    learning_rate: float = 3e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy_weight: float = 0.0
    value_weight: float = 0.5
    max_grad_norm: float = 0.5
    total_steps: int = 20_000_000


PRESETS = {
    "atari": Settings(
        num_steps=128, num_epochs=3, num_minibatches=4, learning_rate=8e-4, gamma=0.99, entropy_weight=0.01
    ),
    "mujoco": Settings(num_envs=256, num_steps=32, num_epochs=5, learning_rate=5e-4, value_weight=2.0),
    "classic": Settings(num_envs=64, num_steps=32, num_epochs=4, learning_rate=1e-3, total_steps=2_000_000),
}


def main() -> None:
    arguments = parse_arguments()
    settings = PRESETS[arguments.preset]
    if arguments.total_steps:
        settings = replace(settings, total_steps=arguments.total_steps)
    if arguments.num_envs:
        settings = replace(settings, num_envs=arguments.num_envs)
    device = torch.device(arguments.device)
    torch.manual_seed(arguments.seed)
    torch.set_float32_matmul_precision("high")
    envs = Envs(
        arguments.executor, arguments.env_id, settings.num_envs, device, arguments.seed, arguments.preset == "atari"
    )
    try:
        result = train(envs, settings, arguments.target)
    finally:
        envs.close()
    result |= {"env_id": arguments.env_id, "executor": arguments.executor, "seed": arguments.seed}
    result |= {"settings": asdict(settings), "target": arguments.target}
    if arguments.log:
        arguments.log.write_text(json.dumps(result))
    reached = "reached" if result["reached"] else "did not reach"
    share = result["env_seconds"] / result["seconds"]
    print(
        f"{reached} a mean return of {arguments.target:g} in {result['seconds']:.1f} s and {result['steps']} steps, "
        f"{share:.0%} of the time in the envs"
    )
    if not result["reached"] and arguments.strict:
        raise SystemExit(1)


def train(envs: Envs, settings: Settings, target: float) -> dict[str, Any]:
    """Train until the mean return of the latest 100 episodes reaches the target or the steps are used up."""
    agent = Agent(envs.observation_space, envs.action_space).to(envs.device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=settings.learning_rate, eps=1e-5)
    scale = RewardScale(settings, envs.device) if agent.normalizes else None
    returns = EpisodeReturns(envs.num_envs, envs.device)
    begin, steps, curve, is_reached = time.perf_counter(), 0, [], False
    obs = envs.reset()
    # With next-step autoreset, the step after an episode's end resets the env: its row is not learned from.
    is_reset_row = torch.zeros(envs.num_envs, dtype=torch.bool, device=envs.device)
    while steps < settings.total_steps and not is_reached:
        anneal(optimizer, settings, steps)
        rollout, obs, is_reset_row = collect(envs, agent, settings, obs, is_reset_row, scale, returns)
        update(agent, optimizer, rollout, settings)
        steps += settings.num_steps * envs.num_envs
        seconds, mean = time.perf_counter() - begin, returns.mean()
        is_reached = returns.count >= 100 and mean >= target
        curve.append((seconds, steps, mean))
        if len(curve) % 10 == 0 or is_reached:
            print(
                f"{seconds:7.1f} s {steps:>10} steps {steps / seconds:>9.0f} steps/s   return {mean:9.2f}", flush=True
            )
    return {
        "reached": is_reached,
        "seconds": time.perf_counter() - begin,
        "env_seconds": envs.seconds,
        "steps": steps,
        "curve": curve,
    }


@torch.no_grad()
def collect(
    envs: Envs,
    agent: Agent,
    settings: Settings,
    obs: torch.Tensor,
    is_reset_row: torch.Tensor,
    scale: RewardScale | None,
    returns: EpisodeReturns,
) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    """Step the envs and return the rollout with its advantages, and where the next one begins."""
    columns: dict[str, list[torch.Tensor]] = {name: [] for name in ("obs", "action", "log_prob", "value", "is_valid")}
    rewards, terminals, ends = [], [], []
    for _ in range(settings.num_steps):
        agent.observe(obs)
        distribution, value = agent(obs)
        action = distribution.sample()
        next_obs, reward, terminated, truncated = envs.step(agent.to_env(action))
        is_end = terminated | truncated
        returns.add(reward, is_end, is_reset_row)
        if scale is not None:
            reward = scale(reward, is_end)
        row = (obs, action, distribution.log_prob(action), value, ~is_reset_row)
        for column, values in zip(columns.values(), row, strict=True):
            column.append(values)
        rewards.append(reward)
        terminals.append(terminated)
        ends.append(is_end)
        obs, is_reset_row = next_obs, is_end
    value = agent(obs)[1]
    advantage, advantages = torch.zeros_like(value), []
    for t in reversed(range(settings.num_steps)):
        # An end that was only a time limit keeps the value of the last observation.
        delta = rewards[t] + settings.gamma * value * ~terminals[t] - columns["value"][t]
        advantage = delta + settings.gamma * settings.gae_lambda * advantage * ~ends[t]
        advantages.append(advantage)
        value = columns["value"][t]
    rollout = {name: torch.cat(column) for name, column in columns.items()}
    rollout["advantage"] = torch.cat(advantages[::-1])
    rollout["return"] = rollout["advantage"] + rollout["value"]
    return rollout, obs, is_reset_row


def update(
    agent: Agent, optimizer: torch.optim.Optimizer, rollout: dict[str, torch.Tensor], settings: Settings
) -> None:
    """Improve the agent by a rollout."""
    rows = rollout.pop("is_valid").nonzero().squeeze(1)
    advantage = rollout["advantage"][rows]
    rollout["advantage"] = (rollout["advantage"] - advantage.mean()) / (advantage.std() + 1e-8)
    for _ in range(settings.num_epochs):
        shuffled = rows[torch.randperm(len(rows), device=rows.device)]
        for chosen in shuffled.chunk(settings.num_minibatches):
            batch = {name: column[chosen] for name, column in rollout.items()}
            distribution, value = agent(batch["obs"])
            ratio = (distribution.log_prob(batch["action"]) - batch["log_prob"]).exp()
            clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
            policy_loss = -torch.min(ratio * batch["advantage"], clipped * batch["advantage"]).mean()
            value_loss = 0.5 * (value - batch["return"]).square().mean()
            entropy = distribution.entropy().mean()
            loss = policy_loss + settings.value_weight * value_loss - settings.entropy_weight * entropy
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), settings.max_grad_norm)
            optimizer.step()


def anneal(optimizer: torch.optim.Optimizer, settings: Settings, steps: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = settings.learning_rate * (1 - steps / settings.total_steps)


class Agent(nn.Module):
    """Policy and value of one network: convolutions for pictures, layers of 256 units for vectors."""

    def __init__(self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> None:
        super().__init__()
        shape = observation_space.shape
        self.normalizes = len(shape) == 1
        self.is_discrete = isinstance(action_space, gymnasium.spaces.Discrete)
        num_outputs = int(action_space.n) if self.is_discrete else action_space.shape[0]
        if self.normalizes:
            self.policy = nn.Sequential(*dense(shape[0], 256, 256), layer(256, num_outputs, 0.01))
            self.value = nn.Sequential(*dense(shape[0], 256, 256), layer(256, 1, 1.0))
            self.register_buffer("mean", torch.zeros(shape))
            self.register_buffer("variance", torch.ones(shape))
            self.register_buffer("count", torch.tensor(1e-4))
        else:
            self.trunk = nn.Sequential(
                orthogonal(nn.Conv2d(shape[0], 32, 8, stride=4)),
                nn.ReLU(),
                orthogonal(nn.Conv2d(32, 64, 4, stride=2)),
                nn.ReLU(),
                orthogonal(nn.Conv2d(64, 64, 3, stride=1)),
                nn.ReLU(),
                nn.Flatten(),
                layer(64 * 7 * 7, 512),
                nn.ReLU(),
            )
            self.policy, self.value = layer(512, num_outputs, 0.01), layer(512, 1, 1.0)
        if not self.is_discrete:
            self.log_std = nn.Parameter(torch.full((num_outputs,), -0.5))
            self.register_buffer("low", torch.as_tensor(action_space.low))
            self.register_buffer("high", torch.as_tensor(action_space.high))

    def observe(self, obs: torch.Tensor) -> None:
        """Count an observation in the running mean and variance."""
        if not self.normalizes:
            return
        obs = obs.float()
        size, mean, variance = len(obs), obs.mean(0), obs.var(0, unbiased=False)
        delta, total = mean - self.mean, self.count + size
        spread = self.variance * self.count + variance * size + delta.square() * self.count * size / total
        self.mean += delta * size / total
        self.variance = spread / total
        self.count = total

    def forward(self, obs: torch.Tensor) -> tuple[Categorical | Independent, torch.Tensor]:
        if self.normalizes:
            features = ((obs.float() - self.mean) / (self.variance + 1e-8).sqrt()).clamp(-10, 10)
        else:
            features = self.trunk(obs.float() / 255)
        outputs, value = self.policy(features), self.value(features).squeeze(1)
        if self.is_discrete:
            return Categorical(logits=outputs, validate_args=False), value
        return Independent(Normal(outputs, self.log_std.exp().expand_as(outputs), validate_args=False), 1), value

    def to_env(self, action: torch.Tensor) -> torch.Tensor:
        return action if self.is_discrete else action.clamp(self.low, self.high)


class RewardScale:
    """Divides rewards by the standard deviation of the discounted return."""

    def __init__(self, settings: Settings, device: torch.device) -> None:
        self._gamma = settings.gamma
        self._running = torch.zeros(settings.num_envs, device=device)
        self._mean = torch.zeros((), device=device)
        self._variance = torch.ones((), device=device)
        self._count = torch.tensor(1e-4, device=device)

    def __call__(self, reward: torch.Tensor, is_end: torch.Tensor) -> torch.Tensor:
        self._running = self._running * self._gamma + reward
        size, delta = len(reward), self._running.mean() - self._mean
        total = self._count + size
        spread = self._variance * self._count + self._running.var(unbiased=False) * size
        self._variance = (spread + delta.square() * self._count * size / total) / total
        self._mean += delta * size / total
        self._count = total
        self._running = self._running * ~is_end
        return (reward / (self._variance + 1e-8).sqrt()).clamp(-10, 10)


class EpisodeReturns:
    """The returns of the latest 100 episodes; read once per rollout, since reading waits for the GPU."""

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self._running = torch.zeros(num_envs, device=device)
        self._ended: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._latest: deque[float] = deque(maxlen=100)
        self.count = 0

    def add(self, reward: torch.Tensor, is_end: torch.Tensor, is_reset_row: torch.Tensor) -> None:
        self._running = self._running * ~is_reset_row + reward * ~is_reset_row
        self._ended.append((self._running, is_end & ~is_reset_row))

    def mean(self) -> float:
        if self._ended:
            values, ended = (torch.stack(parts) for parts in zip(*self._ended, strict=True))
            new = values[ended].tolist()
            self._latest.extend(new)
            self.count += len(new)
            self._ended.clear()
        return sum(self._latest) / len(self._latest) if self._latest else float("nan")


def orthogonal(module: Any, gain: float = 2**0.5) -> Any:
    nn.init.orthogonal_(module.weight, gain)
    nn.init.zeros_(module.bias)
    return module


def layer(num_inputs: int, num_outputs: int, gain: float = 2**0.5) -> nn.Linear:
    return orthogonal(nn.Linear(num_inputs, num_outputs), gain)


def dense(*sizes: int) -> list[nn.Module]:
    pairs = itertools.pairwise(sizes)
    return [part for num_inputs, num_outputs in pairs for part in (layer(num_inputs, num_outputs), nn.Tanh())]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env_id")
    parser.add_argument("--preset", choices=PRESETS, required=True)
    parser.add_argument("--target", type=float, required=True, help="mean return of 100 episodes at which to stop")
    parser.add_argument("--executor", choices=EXECUTORS, default="envfleet")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--num-envs", type=int)
    parser.add_argument("--total-steps", type=int)
    parser.add_argument("--strict", action="store_true", help="exit with an error if the target was not reached")
    parser.add_argument("--log", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
