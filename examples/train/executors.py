"""The same envs on envfleet, EnvPool and Gymnasium: tensors on a device, next-step autoreset, times spent in the envs.

Each class has reset() -> obs and step(actions) -> (obs, reward, terminated, truncated).
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
import torch

EXECUTORS = ("envfleet", "envpool", "gymnasium")
Step = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

ATARI_OPTIONS = {"max_episode_steps": 27_000, "episodic_life": False, "reward_clip": True}


class Envs:
    """Envs of one executor; `seconds` counts the time that the training loop waits for them."""

    def __init__(
        self, executor: str, env_id: str, num_envs: int, device: torch.device, seed: int, is_atari: bool
    ) -> None:
        self.device = device
        self.seconds = 0.0
        self.num_envs = num_envs
        self._executor = executor
        self._envs = _MAKERS[executor](env_id, num_envs, device, seed, is_atari)
        self._seed = seed
        self.observation_space = self._single("observation_space")
        self.action_space = self._single("action_space")

    def reset(self) -> torch.Tensor:
        if self._executor == "envpool":  # seeded when it was made
            obs, _ = self._envs.reset()
        else:
            obs, _ = self._envs.reset(seed=self._seed)
        return self._tensor(obs)

    def step(self, actions: torch.Tensor) -> Step:
        begin = time.perf_counter()
        if self._executor == "envfleet":
            obs, reward, terminated, truncated, _ = self._envs.step(actions)
        else:
            result = self._envs.step(actions.cpu().numpy())[:4]
            obs, reward, terminated, truncated = (self._tensor(column) for column in result)
        self.seconds += time.perf_counter() - begin
        return obs, reward.float(), terminated, truncated

    def close(self) -> None:
        self._envs.close()

    def _tensor(self, column: Any) -> torch.Tensor:
        if isinstance(column, torch.Tensor):
            return column
        column = np.asarray(column)
        if column.dtype == np.float64:
            column = column.astype(np.float32)
        return torch.as_tensor(column, device=self.device)

    def _single(self, name: str) -> gymnasium.Space[Any]:
        # EnvPool's spaces are those of a single env under the plain names.
        return getattr(self._envs, name if self._executor == "envpool" else f"single_{name}")


def _make_envfleet(env_id: str, num_envs: int, device: torch.device, seed: int, is_atari: bool) -> Any:
    from envfleet.apis.torch import TorchPool

    options = ATARI_OPTIONS if is_atari else {}
    return TorchPool(env_id, device, num_envs=num_envs, seed=seed, **options)


def _make_envpool(env_id: str, num_envs: int, device: torch.device, seed: int, is_atari: bool) -> Any:
    import envpool

    options = ATARI_OPTIONS if is_atari else {}
    return envpool.make(env_id.removeprefix("ALE/"), env_type="gymnasium", num_envs=num_envs, seed=seed, **options)


def _make_gymnasium(env_id: str, num_envs: int, device: torch.device, seed: int, is_atari: bool) -> Any:
    def make() -> gymnasium.Env[Any, Any]:
        if not is_atari:
            return gymnasium.make(env_id)
        import ale_py

        gymnasium.register_envs(ale_py)
        # The simulator repeats no frames and no actions: AtariPreprocessing does, as EnvPool's options say.
        env = gymnasium.make(
            f"ALE/{env_id.removeprefix('ALE/')}",
            frameskip=1,
            repeat_action_probability=0.0,
            max_episode_steps=4 * ATARI_OPTIONS["max_episode_steps"],
        )
        env = gymnasium.wrappers.AtariPreprocessing(env)
        env = gymnasium.wrappers.TransformReward(env, np.sign)
        return gymnasium.wrappers.FrameStackObservation(env, 4)

    return gymnasium.vector.AsyncVectorEnv([make] * num_envs)


_MAKERS = {"envfleet": _make_envfleet, "envpool": _make_envpool, "gymnasium": _make_gymnasium}
