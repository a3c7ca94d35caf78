"""Where the time of Stable-Baselines3's PPO goes, and what the same training takes without its buffers.

python benchmarks/sb3_profile.py [--steps 16384] [--only cartpole,images]

Prints shares of the process's CPU time, which other work on the machine does not change, and env steps per CPU second.
docs/training.md has results.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common import env_util

from envfleet.apis.sb3 import make_vec_env

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples" / "train"))
from executors import Envs
from ppo import Settings, Training

NUM_STEPS, BATCH_SIZE, NUM_EPOCHS = 128, 256, 10  # as in the suite training; SB3's default is 10 epochs


class Images(gymnasium.Env[Any, Any]):
    """An env with the shapes of Atari whose steps cost nothing."""

    observation_space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = spaces.Discrete(6)

    def __init__(self) -> None:
        self._obs = np.random.default_rng(0).integers(0, 256, (4, 84, 84), np.uint8)
        self._num_steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._num_steps = 0
        return self._obs, {}

    def step(self, action: Any) -> Any:
        self._num_steps += 1
        return self._obs, 1.0, self._num_steps == 200, False, {}


class Profile:
    """CPU seconds by name; a call inside another counts for its own name only."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inner = [0.0]

    @contextlib.contextmanager
    def measure(self, name: str) -> Iterator[None]:
        self._inner.append(0.0)
        begin = time.process_time()
        try:
            yield
        finally:
            own = time.process_time() - begin
            self.seconds[name] += own - self._inner.pop()
            self._inner[-1] += own

    def wrap(self, owner: Any, method: str, name: str) -> None:
        function: Callable[..., Any] = getattr(owner, method)

        def measured(*args: Any, **kwargs: Any) -> Any:
            with self.measure(name):
                return function(*args, **kwargs)

        setattr(owner, method, measured)


def profile(model: PPO, num_steps: int) -> dict[str, float]:
    """Return CPU seconds by part of the training."""
    result, monitor = Profile(), model.get_env()
    envs = getattr(monitor, "venv", monitor)
    model.learn(NUM_STEPS * model.n_envs)  # builds what is built once
    for method in ("step_async", "step_wait"):
        result.wrap(envs, method, "envs")
        if monitor is not envs:
            result.wrap(monitor, method, "VecMonitor")
    result.wrap(model.policy, "forward", "policy in the rollout")
    for method in ("add", "compute_returns_and_advantage", "swap_and_flatten", "_get_samples", "reset"):
        result.wrap(model.rollout_buffer, method, "rollout buffer")
    result.wrap(model, "collect_rollouts", "rest of the rollout: infos, callbacks")
    result.wrap(model, "train", "update: forward pass, loss, logging")
    result.wrap(model.policy.optimizer, "step", "update: optimizer")
    backward, clip = torch.Tensor.backward, torch.nn.utils.clip_grad_norm_
    result.wrap(torch.Tensor, "backward", "update: backward pass")
    result.wrap(torch.nn.utils, "clip_grad_norm_", "update: optimizer")
    try:
        model.learn(num_steps, reset_num_timesteps=False)
    finally:
        torch.Tensor.backward, torch.nn.utils.clip_grad_norm_ = backward, clip  # type: ignore[method-assign]
    return dict(result.seconds)


def sb3_model(policy: str, envs: Any) -> PPO:
    return PPO(policy, envs, n_steps=NUM_STEPS, batch_size=BATCH_SIZE, n_epochs=NUM_EPOCHS, device="cpu", seed=0)


def torch_seconds(env_id: str, num_envs: int, num_steps: int) -> float:
    """Return the CPU seconds of examples/train/ppo.py with the same settings."""
    envs = Envs("envfleet", env_id, num_envs, torch.device("cpu"), 0, False)
    settings = Settings(
        num_envs=num_envs, num_steps=NUM_STEPS, num_epochs=NUM_EPOCHS,
        num_minibatches=num_envs * NUM_STEPS // BATCH_SIZE, total_steps=NUM_STEPS * num_envs,
    )  # fmt: skip
    with contextlib.redirect_stdout(None):
        Training(envs, settings).run(np.inf)
        settings.total_steps = num_steps
        begin = time.process_time()
        Training(envs, settings).run(np.inf)
    envs.close()
    return time.process_time() - begin


def report(title: str, columns: dict[str, dict[str, float]], num_steps: int) -> None:
    names = sorted({name for parts in columns.values() for name in parts}, key=lambda name: (": " in name, name))
    print(f"\n{title}\n\n| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    totals = {column: sum(parts.values()) for column, parts in columns.items()}
    for name in names:
        print(f"| {name} | {' | '.join(f'{columns[own].get(name, 0.0) / totals[own]:.1%}' for own in columns)} |")
    print(
        f"| env steps per CPU second | {' | '.join(f'{num_steps / totals[own]:,.0f}' for own in columns)} |", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=16384)
    parser.add_argument("--only", default="cartpole,images")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if "cartpole" in arguments.only:
        own = profile(sb3_model("MlpPolicy", make_vec_env("CartPole-v1", n_envs=16, seed=0)), arguments.steps)
        dummy = env_util.make_vec_env("CartPole-v1", n_envs=16, seed=0)
        columns = {"envfleet": own, "DummyVecEnv": profile(sb3_model("MlpPolicy", dummy), arguments.steps)}
        report("16 CartPoles, MlpPolicy", columns, arguments.steps)
        seconds = torch_seconds("CartPole-v1", 16, arguments.steps)
        print(f"\nexamples/train/ppo.py, same settings: {arguments.steps / seconds:,.0f} env steps per CPU second")
    if "images" in arguments.only:
        steps = max(2, arguments.steps // 8192) * 1024
        parts = profile(sb3_model("CnnPolicy", make_vec_env(Images, n_envs=8, seed=0, backend="serial")), steps)
        report("8 envs with Atari's shapes and free steps, CnnPolicy", {"envfleet": parts}, steps)


if __name__ == "__main__":
    main()
