"""AsyncCollector: batches of transitions from an AsyncEnvFleetEnv, as TorchRL's collectors give them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from tensordict import TensorDictBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from envfleet.apis.torchrl.async_env import ENV_INDEX, AsyncEnvFleetEnv
from envfleet.errors import ConfigError
from envfleet.making.options import integer_option
from envfleet.seeding import Seed


class AsyncCollector:
    """Yields tensordicts of [frames_per_batch] transitions until total_frames; below 0: for ever.

    Rows of a trajectory are adjacent and in order of time; ("collector", "traj_ids") tells them apart
    and "env_index" whose they are, so split_trajectories() makes [trajectory, time] of a batch.
    policy: a TensorDictModule or any callable from tensordict to tensordict; None acts at random. It is
    called with batch_size rows, and with num_envs once at the start. Where it lives is the env's device.
    """

    def __init__(
        self,
        env: AsyncEnvFleetEnv,
        policy: Callable[[TensorDictBase], TensorDictBase] | None = None,
        *,
        frames_per_batch: int,
        total_frames: int = -1,
        exploration_type: ExplorationType = ExplorationType.RANDOM,
    ) -> None:
        num_rows = env.batch_size[0]
        frames_per_batch = integer_option("frames_per_batch", frames_per_batch, 1, 2**31 - 1)
        if frames_per_batch % num_rows:
            raise ConfigError(
                f"frames_per_batch expected a multiple of the env's batch_size={num_rows}, got {frames_per_batch}; "
                f"pass {-(-frames_per_batch // num_rows) * num_rows}"
            )
        self.env = env
        self.frames_per_batch = frames_per_batch
        self.total_frames = total_frames
        self.exploration_type = exploration_type
        self.policy = self._at_random if policy is None else policy
        self._trajectory_of = torch.empty(0, dtype=torch.int64)
        self._num_trajectories = 0
        self._is_running = False

    def set_seed(self, seed: Seed) -> None:
        """Starts over with this seed at the next batch."""
        self.env.set_seed(seed)
        self._is_running = False

    def reset(self) -> None:
        """Starts new episodes in all envs at the next batch."""
        self._is_running = False

    def shutdown(self) -> None:
        """Closes the env."""
        self.env.close()

    def __iter__(self) -> Iterator[TensorDictBase]:
        num_frames = 0
        while self.total_frames < 0 or num_frames < self.total_frames:
            data = self.next()
            num_frames += len(data)
            yield data

    def next(self) -> TensorDictBase:
        """One batch. The envs go on working while it is used."""
        parts: list[TensorDictBase] = []
        # Opened here, not around a yield, so that the caller's own mode is left alone.
        with torch.no_grad(), set_exploration_type(self.exploration_type):
            if not self._is_running:
                self._start()
            for _ in range(self.frames_per_batch // self.env.batch_size[0]):
                transitions, following = self.env.recv()
                self._label(transitions)
                parts.append(transitions)
                self.env.send(self._act(following))
        data = torch.cat(parts, 0)
        return data[data.get(("collector", "traj_ids")).argsort(stable=True)]

    def _start(self) -> None:
        first = self.env.reset()
        self._trajectory_of = torch.arange(self.env.num_envs) + self._num_trajectories
        self._num_trajectories += self.env.num_envs
        self.env.send(self._act(first))
        self._is_running = True

    def _act(self, rows: TensorDictBase) -> TensorDictBase:
        # A policy may return its outputs alone.
        return rows.update(self.policy(rows))

    def _label(self, transitions: TensorDictBase) -> None:
        """Writes the trajectory of each row; the rows after an end belong to a new one."""
        index = transitions.get(ENV_INDEX).cpu()
        transitions.set(("collector", "traj_ids"), self._trajectory_of[index].to(transitions.get(ENV_INDEX).device))
        ended = transitions.get(("next", "done")).reshape(-1).cpu()
        num_ended = int(ended.sum())
        self._trajectory_of[index[ended]] = torch.arange(num_ended) + self._num_trajectories
        self._num_trajectories += num_ended

    def _at_random(self, rows: TensorDictBase) -> TensorDictBase:
        return self.env.action_spec_of(len(rows)).rand()

    def __enter__(self) -> AsyncCollector:
        return self

    def __exit__(self, *_: Any) -> None:
        self.shutdown()
