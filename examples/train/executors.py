"""The same envs on envfleet, EnvPool and Gymnasium, as groups that take and return tensors on a device.

A group has `num_envs`, reset() -> obs, send(actions) and recv() -> (obs, reward, terminated, truncated), with next-step
autoreset. There is one group, except on envfleet with num_groups above 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch

EXECUTORS = ("envfleet", "envpool", "gymnasium")
Step = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

ATARI_OPTIONS = {"max_episode_steps": 27_000, "episodic_life": False, "reward_clip": True}


class Group:
    """Envs that step together, in the call of recv()."""

    def __init__(self, num_envs: int, reset: Callable[[], Any], step: Callable[[Any], Any]) -> None:
        self.num_envs = num_envs
        self._reset, self._step = reset, step
        self._actions: Any = None

    def reset(self) -> torch.Tensor:
        return self._reset()

    def send(self, actions: torch.Tensor) -> None:
        self._actions = actions

    def recv(self) -> Step:
        obs, reward, terminated, truncated = self._step(self._actions)[:4]
        return obs, reward.float(), terminated, truncated


class OverlappingGroup(Group):
    """Envs of an envfleet pool with several groups: they step between send() and recv()."""

    def __init__(self, group: Any) -> None:
        super().__init__(group.num_envs, lambda: group.reset()[0], lambda _: group.recv())
        self.send = group.send  # type: ignore[method-assign]


class Envs:
    """All envs of a training run."""

    def __init__(
        self,
        executor: str,
        env_id: str,
        num_envs: int,
        device: torch.device,
        seed: int,
        is_atari: bool,
        num_groups: int = 1,
    ) -> None:
        if num_groups > 1 and executor != "envfleet":
            raise SystemExit(f"--num-groups expected 1 with --executor {executor}, got {num_groups}")
        self.num_envs, self.device = num_envs, device
        options = ATARI_OPTIONS if is_atari else {}
        if executor == "envfleet":
            self._make_envfleet(env_id, seed, num_groups, options)
        elif executor == "envpool":
            self._make_envpool(env_id, seed, options)
        else:
            self._make_gymnasium(env_id, seed, is_atari)

    def _make_envfleet(self, env_id: str, seed: int, num_groups: int, options: dict[str, Any]) -> None:
        from envfleet.apis.torch import TorchPool

        envs = TorchPool(env_id, self.device, num_envs=self.num_envs, num_groups=num_groups, seed=seed, **options)
        self.close = envs.close
        self.observation_space, self.action_space = envs.single_observation_space, envs.single_action_space
        if num_groups == 1:
            self.groups = [Group(self.num_envs, lambda: envs.reset()[0], envs.step)]
        else:
            self.groups = [OverlappingGroup(group) for group in envs.groups]

    def _make_envpool(self, env_id: str, seed: int, options: dict[str, Any]) -> None:
        import envpool

        envs = envpool.make(
            env_id.removeprefix("ALE/"), env_type="gymnasium", num_envs=self.num_envs, seed=seed, **options
        )
        self.close = envs.close
        # EnvPool's spaces are those of a single env; it was seeded when it was made.
        self.observation_space, self.action_space = envs.observation_space, envs.action_space
        self.groups = [self._numpy_group(lambda: envs.reset()[0], envs.step)]

    def _make_gymnasium(self, env_id: str, seed: int, is_atari: bool) -> None:
        make = _make_gymnasium_atari if is_atari else gymnasium.make
        envs = gymnasium.vector.AsyncVectorEnv([lambda: make(env_id)] * self.num_envs)
        self.close = envs.close
        self.observation_space, self.action_space = envs.single_observation_space, envs.single_action_space
        self.groups = [self._numpy_group(lambda: envs.reset(seed=seed)[0], envs.step)]

    def _numpy_group(self, reset: Callable[[], Any], step: Callable[[Any], Any]) -> Group:
        def step_tensors(actions: torch.Tensor) -> list[torch.Tensor]:
            return [self._tensor(column) for column in step(actions.cpu().numpy())[:4]]

        return Group(self.num_envs, lambda: self._tensor(reset()), step_tensors)

    def _tensor(self, column: Any) -> torch.Tensor:
        column = np.asarray(column)
        if column.dtype == np.float64:
            column = column.astype(np.float32)
        return torch.as_tensor(column, device=self.device)


def _make_gymnasium_atari(env_id: str) -> gymnasium.Env[Any, Any]:
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
