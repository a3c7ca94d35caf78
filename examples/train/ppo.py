"""PPO on the GPU: Atari from pixels, MuJoCo and classic control from state vectors.

    python examples/train/ppo.py CartPole-v1 --preset classic --target 450
    python examples/train/ppo.py Pong-v5 --preset atari --target 18 --num-groups 2
    python examples/train/ppo.py Ant-v5 --preset mujoco --target 4000 --executor envpool --log ant.json

Policy, batches and rollouts are on the device; without a GPU, that is the CPU. Ends when the mean return of the latest
100 episodes reaches the target. With --num-groups 2 the envs of one half step while the policy computes the actions of
the other. --log writes the learning curve and the share of time spent in the envs as JSON. Needs torch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from executors import EXECUTORS, Envs, Group
from torch import nn
from torch.distributions import Categorical, Independent, Normal

# A rollout in this many waits for the device before and after each step of the envs, to see how long they take.
TIMED_EVERY = 8


@dataclass
class Settings:
    num_envs: int = 64
    num_steps: int = 64  # per env per rollout
    num_epochs: int = 4
    num_minibatches: int = 4
    learning_rate: float = 3e-4  # at the beginning; falls linearly to 0 at total_steps, unless there is a target_kl
    target_kl: float = 0.0  # if positive, the learning rate follows the change of the policy per update
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy_weight: float = 0.0
    value_weight: float = 0.5
    max_grad_norm: float = 0.5
    hidden: int = 64  # units per layer, for observations that are vectors
    initial_log_std: float = 0.0  # of continuous actions
    total_steps: int = 10_000_000


# fmt: off
PRESETS = {
    # CleanRL's settings for Pong, with more envs: a GPU has room for them.
    "atari": Settings(
        num_envs=128, num_steps=32, num_minibatches=8, num_epochs=3, learning_rate=5e-4, entropy_weight=0.01,
        total_steps=6_000_000,
    ),
    # The learning rate of rl_games, and less noise at first: at 1.0, HalfCheetah stays below 2000.
    "mujoco": Settings(
        num_minibatches=4, num_epochs=5, target_kl=0.016, gamma=0.98, value_weight=2.0, max_grad_norm=1.0, hidden=256,
        initial_log_std=-1.0,
    ),
    "classic": Settings(num_steps=32, learning_rate=1e-3, hidden=256, initial_log_std=-0.5, total_steps=2_000_000),
}
# fmt: on


def main() -> None:
    arguments = parse_arguments()
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    settings = replace(
        PRESETS[arguments.preset], **{own.name: given[own.name] for own in fields(Settings) if own.name in given}
    )
    device = torch.device(arguments.device)
    torch.manual_seed(arguments.seed)
    torch.set_float32_matmul_precision("high")  # TF32
    torch.backends.cudnn.benchmark = True  # the shapes do not change
    begin = time.perf_counter()
    envs = Envs(
        arguments.executor, arguments.env_id, settings.num_envs, device, arguments.seed, arguments.preset == "atari",
        arguments.num_groups,
    )  # fmt: skip
    startup_s = time.perf_counter() - begin
    try:
        result = Training(envs, settings, arguments.bf16, arguments.compile).run(
            arguments.target, arguments.max_seconds
        )
    finally:
        envs.close()
    if arguments.log:
        result |= {"env_id": arguments.env_id, "executor": arguments.executor, "seed": arguments.seed}
        result |= {"target": arguments.target, "num_groups": arguments.num_groups, "startup_seconds": startup_s}
        result |= {"preset": arguments.preset, "bf16": arguments.bf16, "compile": arguments.compile}
        result |= {"settings": asdict(settings), "machine": machine(device)}
        arguments.log.write_text(json.dumps(result))
    print(
        f"{'reached' if result['reached'] else 'did not reach'} a mean return of {arguments.target:g} in "
        f"{result['seconds']:.1f} s and {result['steps']} steps, {result['env_share']:.0%} of the time in the envs"
    )
    if not result["reached"] and arguments.strict:
        raise SystemExit(1)


# --- training ------------------------------------------------------------------------------------


class Training:
    """The state of a training run."""

    def __init__(self, envs: Envs, settings: Settings, is_bf16: bool = False, is_compiled: bool = False) -> None:
        self.envs, self.settings, self.device = envs, settings, envs.device
        self.agent = Agent(envs.observation_space, envs.action_space, settings, is_bf16).to(envs.device)
        if is_compiled:
            self.agent.compile()
        is_cuda = envs.device.type == "cuda"
        # On a GPU the learning rate is a tensor: a CUDA graph reads it where it is.
        rate = torch.tensor(settings.learning_rate, device=envs.device) if is_cuda else settings.learning_rate
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=rate, eps=1e-5, fused=is_cuda, capturable=is_cuda)
        self._learn: Callable[..., tuple[torch.Tensor, ...]] = self.learn
        self.reward_scale = RewardScale(settings) if self.agent.is_normalized else None
        self.returns = EpisodeReturns(envs.num_envs)
        self.parts = [Part(group, self.agent, envs.device) for group in envs.groups]

    def run(self, target: float, max_seconds: float | None = None) -> dict[str, Any]:
        """Train until the mean return of the latest 100 episodes reaches the target, or steps or time are used up."""
        settings, curve, steps, seconds, is_reached = self.settings, [], 0, 0.0, False
        timed_seconds = env_seconds = 0.0
        begin = time.perf_counter()
        for part in self.parts:
            part.reset()
        while steps < settings.total_steps and not is_reached and seconds < (max_seconds or np.inf):
            if not settings.target_kl:
                self.set_learning_rate(settings.learning_rate * (1 - steps / settings.total_steps))
            is_timed = len(curve) % TIMED_EVERY == 1 or self.device.type == "cpu"
            before = self.clock() if is_timed else 0.0
            env_seconds += self.collect(is_timed)
            self.update(self.rollout())
            if is_timed:
                timed_seconds += self.clock() - before
            steps += settings.num_steps * settings.num_envs
            seconds, mean = time.perf_counter() - begin, self.returns.mean()
            is_reached = self.returns.count >= 100 and mean >= target
            curve.append((round(seconds, 3), steps, mean))
            if len(curve) % 10 == 0 or is_reached:
                print(
                    f"{seconds:7.1f} s {steps:>10} steps {steps / seconds:>9.0f} steps/s   return {mean:9.2f}",
                    flush=True,
                )
        return {
            "reached": is_reached,
            "seconds": seconds,
            "steps": steps,
            "env_share": env_seconds / timed_seconds if timed_seconds else float("nan"),
            "curve": curve,
        }

    def collect(self, is_timed: bool) -> float:
        """Step all envs num_steps times, and return how long the loop waited for them if that is timed."""
        env_seconds = 0.0
        for part in self.parts:
            part.act()
        for step in range(self.settings.num_steps):
            for part in self.parts:
                begin = self.clock() if is_timed else 0.0
                part.receive()
                if is_timed:
                    env_seconds += self.clock() - begin
                if step < self.settings.num_steps - 1:
                    part.act()
        return env_seconds

    @torch.no_grad()
    def rollout(self) -> dict[str, torch.Tensor]:
        """Return the latest rollout with its advantages; rows that reset an env are left out."""
        rows = {name: torch.cat([part.columns(name) for part in self.parts], 1) for name in Part.COLUMNS}
        last_value = torch.cat([self.agent(part.obs)[1] for part in self.parts])
        # The recursions over time are many small operations: on the host they take less time than launching kernels.
        reward, terminated, truncated, is_valid, value = (
            rows[name].cpu().numpy() for name in ("reward", "terminated", "truncated", "is_valid", "value")
        )
        is_end = terminated | truncated
        self.returns.add(reward, is_end, is_valid)
        if self.reward_scale is not None:
            reward = self.reward_scale(reward, is_end, is_valid)
        advantage = self.advantages(reward, value, last_value.cpu().numpy(), terminated, is_end)
        rows["advantage"] = torch.from_numpy(advantage).to(self.device)
        rows["return"] = rows["advantage"] + rows["value"]
        chosen = torch.from_numpy(is_valid.reshape(-1).nonzero()[0]).to(self.device)
        names = ("obs", "action", "log_prob", "advantage", "return")
        return {name: rows[name].flatten(0, 1)[chosen] for name in names}

    def advantages(
        self, reward: np.ndarray, value: np.ndarray, next_value: np.ndarray, terminated: np.ndarray, is_end: np.ndarray
    ) -> np.ndarray:
        """Return generalized advantage estimates. An end that is only a time limit keeps the value of the last obs."""
        settings, running = self.settings, np.zeros_like(next_value)
        advantage = np.zeros_like(value)
        for t in reversed(range(len(reward))):
            delta = reward[t] + settings.gamma * next_value * ~terminated[t] - value[t]
            running = delta + settings.gamma * settings.gae_lambda * running * ~is_end[t]
            advantage[t], next_value = running, value[t]
        return advantage

    def update(self, rollout: dict[str, torch.Tensor]) -> None:
        """Improve the agent by a rollout."""
        settings = self.settings
        advantage = rollout["advantage"]
        rollout["advantage"] = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        num_rows = settings.num_steps * settings.num_envs
        size = num_rows // settings.num_minibatches
        for _ in range(settings.num_epochs):
            kl: list[torch.Tensor] = []
            order = torch.randperm(len(advantage), device=self.device)
            # Rows that reset an env are missing: as many others come twice, so that all minibatches have one size.
            order = order[torch.arange(size * settings.num_minibatches, device=self.device) % len(order)]
            for chosen in order.split(size):
                batch = [column[chosen] for column in rollout.values()]
                if self.device.type == "cuda" and not isinstance(self._learn, CudaGraph):
                    self.record_learn(batch)
                kl.append(self._learn(*batch)[0])
            if settings.target_kl:
                self.follow_kl(float(torch.stack(kl).mean()))
        # Not earlier: the update must see the observations as the policy saw them.
        self.agent.observe(rollout["obs"])

    def learn(
        self,
        obs: torch.Tensor,
        action: torch.Tensor,
        old_log_prob: torch.Tensor,
        advantage: torch.Tensor,
        returns: torch.Tensor,
    ) -> tuple[torch.Tensor]:
        """Take one step of the optimizer, and return the KL divergence of the policy from that of the rollout."""
        settings, agent = self.settings, self.agent
        distribution, value = agent(obs)
        log_ratio = distribution.log_prob(action) - old_log_prob
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
        policy_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
        value_loss = 0.5 * (value - returns).square().mean()
        entropy = distribution.entropy().mean()
        loss = policy_loss + settings.value_weight * value_loss - settings.entropy_weight * entropy
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), settings.max_grad_norm)
        self.optimizer.step()
        return ((ratio.detach() - 1 - log_ratio.detach()).mean(),)

    def record_learn(self, batch: list[torch.Tensor]) -> None:
        """Record learn() as a CUDA graph, and undo the steps that the recording takes."""
        weights = {name: value.clone() for name, value in self.agent.state_dict().items()}
        self._learn = CudaGraph(self.learn, *batch)
        self.agent.load_state_dict(weights)
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()

    def follow_kl(self, kl: float) -> None:
        """Change the learning rate by a step if an epoch moved the policy much less or more than it should."""
        rate = float(self.optimizer.param_groups[0]["lr"])
        if kl > 2 * self.settings.target_kl:
            self.set_learning_rate(max(rate / 1.5, 1e-6))
        elif kl < self.settings.target_kl / 2:
            self.set_learning_rate(min(rate * 1.5, 1e-2))

    def set_learning_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


class Part:
    """A group of envs and what it has recorded of the current rollout."""

    COLUMNS = ("obs", "action", "log_prob", "value", "is_valid", "reward", "terminated", "truncated")

    def __init__(self, group: Group, agent: Agent, device: torch.device) -> None:
        self._group, self._agent = group, agent
        self._act: Callable[[torch.Tensor], tuple[torch.Tensor, ...]] = agent.act
        self._columns: dict[str, list[torch.Tensor]] = {name: [] for name in self.COLUMNS}
        # With next-step autoreset, the step after an episode's end resets the env: its row is not learned from.
        self._is_valid = torch.ones(group.num_envs, dtype=torch.bool, device=device)

    def reset(self) -> None:
        self.obs = self._group.reset()
        if self.obs.is_cuda:
            self._act = CudaGraph(self._agent.act, self.obs)

    def act(self) -> None:
        action, env_action, log_prob, value = self._act(self.obs)
        self._group.send(env_action)
        self._record(obs=self.obs, action=action, log_prob=log_prob, value=value, is_valid=self._is_valid)

    def receive(self) -> None:
        self.obs, reward, terminated, truncated = self._group.recv()
        self._record(reward=reward, terminated=terminated, truncated=truncated)
        self._is_valid = ~(terminated | truncated)

    def columns(self, name: str) -> torch.Tensor:
        """Return a column of the rollout, which is then forgotten: (steps, envs, ...)."""
        column = torch.stack(self._columns[name])
        self._columns[name].clear()
        return column

    def _record(self, **values: torch.Tensor) -> None:
        for name, value in values.items():
            self._columns[name].append(value)


class CudaGraph:
    """A function of tensors, recorded once and launched as a whole: its kernels take less time than their launches."""

    def __init__(self, function: Callable[..., tuple[torch.Tensor, ...]], *examples: torch.Tensor) -> None:
        self._inputs = [example.clone() for example in examples]
        own_stream = torch.cuda.Stream()
        own_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(own_stream):
            for _ in range(3):  # libraries allocate their workspaces, which a recording cannot contain
                function(*self._inputs)
        torch.cuda.current_stream().wait_stream(own_stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._outputs = function(*self._inputs)

    def __call__(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for own, value in zip(self._inputs, values, strict=True):
            own.copy_(value)
        self._graph.replay()
        return tuple(output.clone() for output in self._outputs)


# --- networks and statistics ---------------------------------------------------------------------


class Agent(nn.Module):
    """Policy and value: one network with convolutions for images, two with dense layers for vectors."""

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        settings: Settings,
        is_bf16: bool,
    ) -> None:
        super().__init__()
        shape, hidden = observation_space.shape, settings.hidden
        self.is_normalized, self.is_bf16 = len(shape) == 1, is_bf16
        self.is_discrete = isinstance(action_space, gymnasium.spaces.Discrete)
        num_outputs = int(action_space.n) if self.is_discrete else action_space.shape[0]
        if self.is_normalized:
            self.policy = nn.Sequential(*dense(shape[0], hidden, hidden), layer(hidden, num_outputs, 0.01))
            self.value = nn.Sequential(*dense(shape[0], hidden, hidden), layer(hidden, 1, 1.0))
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
            self.log_std = nn.Parameter(torch.full((num_outputs,), settings.initial_log_std))
            self.register_buffer("low", torch.as_tensor(action_space.low))
            self.register_buffer("high", torch.as_tensor(action_space.high))

    def observe(self, obs: torch.Tensor) -> None:
        """Count observations in the running mean and variance."""
        if self.is_normalized:
            obs = obs.float()
            moments = merge_moments((self.count, self.mean, self.variance), obs.mean(0), obs.var(0), len(obs))
            for buffer, moment in zip((self.count, self.mean, self.variance), moments, strict=True):
                buffer.copy_(moment)  # in place: a CUDA graph reads them where they are

    def forward(self, obs: torch.Tensor) -> tuple[Categorical | Independent, torch.Tensor]:
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.is_bf16):
            if self.is_normalized:
                features = ((obs.float() - self.mean) / (self.variance + 1e-8).sqrt()).clamp(-10, 10)
            else:
                features = self.trunk(obs.float() / 255)
            outputs, value = self.policy(features), self.value(features).squeeze(1)
        outputs, value = outputs.float(), value.float()
        # validate_args would make the host wait for the device.
        if self.is_discrete:
            return Categorical(logits=outputs, validate_args=False), value
        return Independent(Normal(outputs, self.log_std.exp().expand_as(outputs), validate_args=False), 1), value

    @torch.no_grad()
    def act(self, obs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the actions, the actions clipped to the bounds of the envs, log probabilities and values."""
        distribution, value = self(obs)
        if self.is_discrete:
            action = distribution.sample()
        else:  # sample() checks the standard deviations on the host, which a CUDA graph cannot contain
            action = distribution.mean + distribution.stddev * torch.randn_like(distribution.mean)
        env_action = action if self.is_discrete else action.clamp(self.low, self.high)
        return action, env_action, distribution.log_prob(action), value


class RewardScale:
    """Divides rewards by the standard deviation of the discounted return."""

    def __init__(self, settings: Settings) -> None:
        self._gamma = settings.gamma
        self._running = np.zeros(settings.num_envs, np.float32)
        self._moments: tuple[Any, Any, Any] = (1e-4, 0.0, 1.0)

    def __call__(self, reward: np.ndarray, is_end: np.ndarray, is_valid: np.ndarray) -> np.ndarray:
        returns = np.zeros_like(reward)
        for t in range(len(reward)):
            returns[t] = self._running = self._running * self._gamma + reward[t]
            self._running = self._running * ~is_end[t]
        seen = returns[is_valid]
        self._moments = merge_moments(self._moments, seen.mean(), seen.var(), len(seen))
        return (reward / np.sqrt(self._moments[2] + 1e-8)).clip(-10, 10).astype(np.float32)


class EpisodeReturns:
    """The returns of the latest 100 episodes."""

    def __init__(self, num_envs: int) -> None:
        self._running = np.zeros(num_envs)
        self._latest: deque[float] = deque(maxlen=100)
        self.count = 0

    def add(self, reward: np.ndarray, is_end: np.ndarray, is_valid: np.ndarray) -> None:
        for t in range(len(reward)):
            self._running += reward[t] * is_valid[t]
            ended = is_end[t] & is_valid[t]
            self._latest.extend(self._running[ended])
            self.count += int(ended.sum())
            self._running[ended] = 0

    def mean(self) -> float:
        return float(np.mean(self._latest)) if self._latest else float("nan")


def merge_moments(moments: tuple[Any, Any, Any], mean: Any, variance: Any, count: int) -> tuple[Any, Any, Any]:
    """Return (count, mean, variance) of two sets of values together."""
    old_count, old_mean, old_variance = moments
    delta, total = mean - old_mean, old_count + count
    spread = old_variance * old_count + variance * count + delta**2 * old_count * count / total
    return total, old_mean + delta * count / total, spread / total


def orthogonal(module: Any, gain: float = 2**0.5) -> Any:
    nn.init.orthogonal_(module.weight, gain)
    nn.init.zeros_(module.bias)
    return module


def layer(num_inputs: int, num_outputs: int, gain: float = 2**0.5) -> nn.Linear:
    return orthogonal(nn.Linear(num_inputs, num_outputs), gain)


def dense(*sizes: int) -> list[nn.Module]:
    pairs = itertools.pairwise(sizes)
    return [part for num_inputs, num_outputs in pairs for part in (layer(num_inputs, num_outputs), nn.Tanh())]


# --- command line --------------------------------------------------------------------------------


def machine(device: torch.device) -> dict[str, Any]:
    names = ("envfleet", "envpool", "gymnasium", "torch", "numpy", "mujoco", "ale-py")
    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "python": platform.python_version(),
        "versions": versions,
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env_id")
    parser.add_argument("--preset", choices=PRESETS, required=True)
    parser.add_argument("--target", type=float, required=True, help="mean return of 100 episodes at which to stop")
    parser.add_argument("--executor", choices=EXECUTORS, default="envfleet")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--num-groups", type=int, default=1, help="groups of envs that step while the policy runs")
    parser.add_argument("--max-seconds", type=float, help="stop after this time")
    parser.add_argument("--bf16", action="store_true", help="compute the networks in bfloat16")
    parser.add_argument("--compile", action="store_true", help="compile the networks with torch.compile")
    parser.add_argument("--strict", action="store_true", help="exit with an error if the target was not reached")
    parser.add_argument("--log", type=Path, help="write the learning curve as JSON")
    for own in fields(Settings):
        parser.add_argument(f"--{own.name.replace('_', '-')}", type=type(own.default), help="instead of the preset's")
    return parser.parse_args()


if __name__ == "__main__":
    main()
