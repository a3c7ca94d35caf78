"""Stable-Baselines3's PPO on envs that Ctrl-C meets inside a step, in a script or a test of Ray."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from support.gates import Gate

torch.set_num_threads(1)
N_STEPS = 4  # of a rollout
GATED_STEP = 6  # in the second rollout


class Steered(VecEnvWrapper):
    """SleepyEnv or Sleepy-v0 for PPO: env 1 waits at the gate in one step, the others take a few milliseconds."""

    def __init__(self, venv: VecEnv) -> None:
        super().__init__(venv, spaces.Box(-np.inf, np.inf, (1,), np.float32), spaces.Discrete(2))
        self.gate: Gate | None = None
        self.num_steps = self.num_resets = 0

    def reset(self) -> Any:
        self.num_resets += 1
        return self._obs(self.venv.reset())

    def step_async(self, actions: Any) -> None:
        self.num_steps += 1
        # From the first step: a native env whose steps are short runs in the caller's thread.
        milliseconds = np.full(self.num_envs, 2, np.float32)
        if self.num_steps == GATED_STEP:
            milliseconds[1] = self.gate.action
        self.venv.step_async(milliseconds)

    def step_wait(self) -> Any:
        obs, rewards, dones, infos = self.venv.step_wait()
        return self._obs(obs), rewards, dones, infos

    def _obs(self, obs: Any) -> Any:
        return obs[:, None].astype(np.float32)


def interrupted_model(envs: VecEnv, gate: Gate, opens: bool) -> PPO:
    """A model whose learn() Ctrl-C has interrupted while an env was inside its step.

    opens: whether the env can go on from then on.
    """
    steered = Steered(envs)
    steered.gate = gate
    model = PPO("MlpPolicy", steered, n_steps=N_STEPS, batch_size=N_STEPS, n_epochs=1, seed=0, device="cpu")
    with _ctrl_c_opens(gate if opens else None):
        thread = gate.interrupt_when_reached()
        try:
            model.learn(5 * N_STEPS * envs.num_envs)
        except KeyboardInterrupt:
            thread.join()
            # The step was taken, its rows are lost.
            assert model.num_timesteps == (GATED_STEP - 1) * envs.num_envs
            return model
    raise AssertionError("learn() was not interrupted")


def go_on(model: PPO) -> int:
    """Learn on for one rollout; return how often the envs were reset in all."""
    steered = model.get_env()
    before = steered.num_steps
    model.learn(N_STEPS * steered.num_envs, reset_num_timesteps=False)
    assert steered.num_steps == before + N_STEPS
    return steered.num_resets


@contextmanager
def _ctrl_c_opens(gate: Gate | None) -> Iterator[None]:
    def handle(*arguments: Any) -> None:
        if gate is not None:
            gate.open()  # not before: the env is inside while learn() is interrupted
        signal.default_int_handler(*arguments)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
