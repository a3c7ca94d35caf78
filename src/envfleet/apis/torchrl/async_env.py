"""An asynchronous pool for TorchRL: send rows of actions, receive transitions. AsyncCollector collects them.

reset() -> [num_envs] rows -> send() ... recv() -> (batch_size transitions, the rows they lead to) -> send() ...

It is not an EnvBase, whose step() returns the rows that it was given: recv() returns those that finish first. The long
method names are those of torchrl.envs.AsyncEnvPool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Composite, Unbounded
from torchrl.envs.utils import ExplorationType, set_exploration_type

from envfleet.apis.common.torch_transfer import transfer_for
from envfleet.apis.common.view import HasStats
from envfleet.apis.torchrl.encoding import Key, SpaceTree
from envfleet.apis.torchrl.env import check_owns_arrays, done_spec, last_columns, pool_for, zip_flags
from envfleet.core.errors import CallOrderError, ConfigError, EnvIdError
from envfleet.core.option_checks import integer_option
from envfleet.core.pool import Pool
from envfleet.core.seeding import Seed, seeds_for

# The env id of each row; AsyncEnvPool's key.
ENV_INDEX = "env_index"


class AsyncEnvFleetEnv(HasStats):
    """num_envs envs; recv() returns the first batch_size that finish.

    The specs are of batch_size rows.

    Args:
        env: Anything that envfleet.make() accepts, or a pool in autoreset mode same_step.
        num_envs: The number of envs.
        batch_size: The rows per batch.
        device: The device of the tensordicts.
        categorical_action_encoding: Use indices instead of one-hot vectors, in observations too.
        disable_env_checker: False wraps Python envs in Gymnasium's PassiveEnvChecker.
        create_env_kwargs: Options of envfleet.make_pool().
        **options: Options of envfleet.make_pool().
    """

    def __init__(
        self,
        env: Any,
        num_envs: int | None = None,
        batch_size: int | None = None,
        *,
        device: Any = None,
        categorical_action_encoding: bool = False,
        disable_env_checker: bool = True,
        create_env_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if batch_size is not None:
            options["batch_size"] = batch_size
        source = pool_for(env, num_envs, create_env_kwargs, disable_env_checker, options)
        pool = source.pool
        try:
            _check_pool(pool)
            self._observations = SpaceTree(
                pool.spec.observation_space, "observation", categorical_action_encoding, True
            )
            self._actions = SpaceTree(pool.spec.action_space, "action", categorical_action_encoding, False)
        except BaseException:
            if source.is_ours:
                pool.close()
            raise
        self.pool: Pool = pool
        self.num_envs = pool.num_envs
        self.batch_size = torch.Size([pool.config.batch_size])
        self.device = None if device is None else torch.device(device)
        self._transfer = transfer_for(self.device)
        self._action_specs: dict[int, Composite] = {}
        self._next_seed: Seed = None
        # The rows in flight, by env, with all that the policy wrote.
        self._sent: TensorDictBase | None = None

    @property
    def observation_spec(self) -> Composite:
        """The spec of batch_size rows."""
        return self._observations.spec(self.batch_size[0], self.device)

    @property
    def action_spec(self) -> Composite:
        """The spec of batch_size rows, with the key "action"."""
        return self.action_spec_of(self.batch_size[0])

    def action_spec_of(self, num_rows: int) -> Composite:
        """Return the action spec of num_rows rows: reset() returns all envs."""
        if num_rows not in self._action_specs:
            self._action_specs[num_rows] = self._actions.spec(num_rows, self.device)
        return self._action_specs[num_rows]

    @property
    def reward_spec(self) -> Unbounded:
        """The spec of batch_size rows."""
        return Unbounded((self.batch_size[0], 1), dtype=torch.float32, device=self.device)

    @property
    def done_spec(self) -> Composite:
        """The spec of batch_size rows."""
        return done_spec(self.batch_size[0], self.device)

    def set_seed(self, seed: Seed) -> None:
        """Seed env i with seed + i at the next reset."""
        seeds_for(seed, np.arange(self.num_envs, dtype=np.int32), self.num_envs)  # raises if it is invalid
        self._next_seed = seed

    def reset(self, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> TensorDictBase:
        """Reset all envs and return their rows, [num_envs]. Allowed at any time: results in flight are dropped."""
        batch = self.pool.reset(seed=self._next_seed if seed is None else seed, options=options)
        self._next_seed = None
        self._sent = None
        return self._first_rows(self._observations.columns(batch.obs), batch.env_id)

    def send(self, rows: TensorDictBase) -> None:
        """Start a step of any number of rows, each with "action" and "env_index"."""
        index = rows.get(ENV_INDEX, None)
        if index is None:
            raise EnvIdError(f"send() expected a tensordict with {ENV_INDEX!r}; send the rows that recv() returned")
        # As they are: the pool refuses what is not an integer in range.
        env_ids = index.reshape(-1).cpu().numpy()
        if self._sent is not None and set(self._sent.keys(True, True)) != set(rows.keys(True, True)):
            # A row without a key would be returned with the value of an earlier one.
            if self.pool.num_in_flight:
                expected, got = (sorted(map(str, own.keys(True, True))) for own in (self._sent, rows))
                raise ConfigError(
                    f"send() expected rows with the keys of those in flight, {expected}, got {got}; "
                    "recv() the rows in flight first, or send the same keys"
                )
            self._sent = None
        self.pool.send(self._actions.value(self._actions.arrays(rows, self._transfer)), env_ids)
        if self._sent is None:
            self._sent = rows.new_zeros(self.num_envs) if len(rows) < self.num_envs else rows.clone()
        self._sent[index.reshape(-1).long()] = rows

    def recv(self, timeout: float | None = None) -> tuple[TensorDictBase, TensorDictBase]:
        """Return batch_size transitions, and the rows to send next: where an episode ended, the next one's first."""
        if self._sent is None:
            raise CallOrderError("recv() found nothing in flight; send() the rows of reset(), with actions, first")
        batch = self.pool.recv(timeout)
        ended = batch.terminated | batch.truncated
        firsts = self._observations.columns(batch.obs)
        if ended.any():
            # last_columns() overwrites rows of the batch that are needed here.
            firsts = [column.copy() for column in firsts]
        following = self._first_rows(firsts, batch.env_id)
        transitions = self._sent[following.get(ENV_INDEX)]
        columns = last_columns(self._observations, batch)
        arrays = [*columns, batch.reward, ended, batch.terminated, batch.truncated]
        tensors = self._transfer.to_device(arrays, arrays)
        lasts = self._observations.tensors(tensors[: len(columns)])
        reward, *flags = (tensor.unsqueeze(-1) for tensor in tensors[len(columns) :])
        others: dict[Key, torch.Tensor] = {"reward": reward.to(torch.float32), **zip_flags(flags)}
        transitions.set("next", TensorDict({**lasts, **others}, batch_size=[len(batch)], device=self.device))
        return transitions, following

    # --- AsyncEnvPool's names ------------------------------------------------------------------

    async_step_and_maybe_reset_send = send
    async_step_and_maybe_reset_recv = recv

    # --- life ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the pool."""
        self._transfer.close()
        self.pool.close()

    def __enter__(self) -> AsyncEnvFleetEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _first_rows(self, columns: list[NDArray[Any]], env_ids: NDArray[np.int32]) -> TensorDictBase:
        rows = zip_flags(torch.zeros((3, len(env_ids), 1), dtype=torch.bool, device=self.device))
        arrays = [*columns, env_ids.astype(np.int64)]
        *tensors, index = self._transfer.to_device(arrays, arrays)
        source = {**self._observations.tensors(tensors), **rows, ENV_INDEX: index}
        return TensorDict(source, batch_size=[len(env_ids)], device=self.device)


def _check_pool(pool: Pool) -> None:
    if pool.config.autoreset_mode is not AutoresetMode.SAME_STEP:
        raise ConfigError(
            "AsyncEnvFleetEnv expected autoreset_mode 'same_step', got "
            f"{pool.config.autoreset_mode.name.lower()!r}; the rows of recv() are sent again without a reset in between"
        )
    check_owns_arrays(pool)


class AsyncCollector:
    """Yields tensordicts of [frames_per_batch] transitions until total_frames; endlessly if that is negative.

    The rows of a trajectory are adjacent and in order of time; ("collector", "traj_ids") and "env_index" identify them,
    so that split_trajectories() returns [trajectory, time].

    Args:
        env: The env to step.
        policy: A TensorDictModule or any callable from tensordict to tensordict; None for random actions. It is called
            with batch_size rows, at the start once with num_envs, on the env's device.
        frames_per_batch: The transitions per tensordict, a multiple of the env's batch_size.
        total_frames: How many transitions to yield; negative for no end.
        exploration_type: The exploration type under which the policy is called.
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
        """Start over with this seed at the next batch."""
        self.env.set_seed(seed)
        self._is_running = False

    def reset(self) -> None:
        """Start new episodes in all envs at the next batch."""
        self._is_running = False

    def shutdown(self) -> None:
        """Close the env."""
        self.env.close()

    def __iter__(self) -> Iterator[TensorDictBase]:
        num_frames = 0
        while self.total_frames < 0 or num_frames < self.total_frames:
            data = self.next()
            num_frames += len(data)
            yield data

    def next(self) -> TensorDictBase:
        """Return one batch. The envs keep working meanwhile. If it raises, the next call starts new episodes."""
        parts: list[TensorDictBase] = []
        is_new, self._is_running = not self._is_running, False  # until the end: rows may be lost on the way
        # Here, not around a yield, so that the caller's exploration type is unchanged.
        with torch.no_grad(), set_exploration_type(self.exploration_type):
            if is_new:
                self._start()
            for _ in range(self.frames_per_batch // self.env.batch_size[0]):
                transitions, following = self.env.recv()
                self._label(transitions)
                parts.append(transitions)
                self.env.send(self._act(following))
        self._is_running = True
        data = torch.cat(parts, 0)
        return data[data.get(("collector", "traj_ids")).argsort(stable=True)]

    def _start(self) -> None:
        first = self.env.reset()
        self._trajectory_of = torch.arange(self.env.num_envs) + self._num_trajectories
        self._num_trajectories += self.env.num_envs
        self.env.send(self._act(first))

    def _act(self, rows: TensorDictBase) -> TensorDictBase:
        # A policy may return its outputs alone.
        return rows.update(self.policy(rows))

    def _label(self, transitions: TensorDictBase) -> None:
        """Write the trajectory id of each row; the rows after an end belong to a new trajectory."""
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
