"""An asynchronous pool in TorchRL's terms: send rows of actions, receive whole transitions.

reset() -> [num_envs] rows -> send() ... recv() -> (batch_size transitions, the rows they lead to) -> send() ...

No EnvBase: its step() answers the rows that were given, this one those that were first. The long
names are those of torchrl.envs.AsyncEnvPool.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Composite, Unbounded

from envfleet.apis.torchrl.env import done_spec, last_columns
from envfleet.apis.torchrl.making import check_owns_arrays, pool_for
from envfleet.apis.torchrl.trees import Key, SpaceTree
from envfleet.errors import CallOrderError, ConfigError, EnvIdError
from envfleet.pool import Pool
from envfleet.seeding import Seed, seeds_for

# Whose row it is, in every tensordict; AsyncEnvPool's name for it.
ENV_INDEX = "env_index"


class AsyncEnvFleetEnv:
    """num_envs envs, of which the batch_size first finished are received at a time.

    env and options are those of EnvFleetEnv; a pool has to be in autoreset mode same_step. The specs
    are of batch_size rows.
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
        self._action_specs: dict[int, Composite] = {}
        self._next_seed: Seed = None
        # The rows that were sent and not received yet, by env, with all that the policy wrote.
        self._sent: TensorDictBase | None = None

    @property
    def observation_spec(self) -> Composite:
        """Of batch_size rows."""
        return self._observations.spec(self.batch_size[0], self.device)

    @property
    def action_spec(self) -> Composite:
        """Of batch_size rows, with the key "action"."""
        return self.action_spec_of(self.batch_size[0])

    def action_spec_of(self, num_rows: int) -> Composite:
        """Of so many rows: reset() gives all envs."""
        if num_rows not in self._action_specs:
            self._action_specs[num_rows] = self._actions.spec(num_rows, self.device)
        return self._action_specs[num_rows]

    @property
    def reward_spec(self) -> Unbounded:
        """Of batch_size rows."""
        return Unbounded((self.batch_size[0], 1), dtype=torch.float32, device=self.device)

    @property
    def done_spec(self) -> Composite:
        """Of batch_size rows."""
        return done_spec(self.batch_size[0], self.device)

    def set_seed(self, seed: Seed) -> None:
        """Env i starts the next reset from seed + i."""
        seeds_for(seed, np.arange(self.num_envs, dtype=np.int32), self.num_envs)  # raises when it is none
        self._next_seed = seed

    def reset(self, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> TensorDictBase:
        """The first rows of all envs, [num_envs]. May come at any time: what is in flight is dropped."""
        batch = self.pool.reset(seed=self._next_seed if seed is None else seed, options=options)
        self._next_seed = None
        self._sent = None
        return self._first_rows(self._observations.columns(batch.obs), batch.env_id)

    def send(self, rows: TensorDictBase) -> None:
        """Starts a step of these rows, of any number: each with "action" and "env_index"."""
        index = rows.get(ENV_INDEX, None)
        if index is None:
            raise EnvIdError(f"send() expected a tensordict with {ENV_INDEX!r}; send the rows that recv() gave")
        env_ids = index.reshape(-1).to(torch.int32).cpu().numpy()
        self.pool.send(self._actions.value(self._actions.arrays(rows)), env_ids)
        if self._sent is None:
            self._sent = rows.new_zeros(self.num_envs) if len(rows) < self.num_envs else rows.clone()
        self._sent[index.reshape(-1).long()] = rows

    def recv(self, timeout: float | None = None) -> tuple[TensorDictBase, TensorDictBase]:
        """batch_size whole transitions, and the rows to send next: where an episode ended, a new one's first."""
        if self._sent is None:
            raise CallOrderError("recv() found nothing in flight; send() what reset() gave, with actions")
        batch = self.pool.recv(timeout)
        ended = batch.terminated | batch.truncated
        firsts = self._observations.columns(batch.obs)
        if ended.any():
            # last_columns writes into the batch, and the first rows are needed too.
            firsts = [column.copy() for column in firsts]
        following = self._first_rows(firsts, batch.env_id)
        lasts = self._observations.tensors(last_columns(self._observations, batch))
        transitions = self._sent[following.get(ENV_INDEX)]
        others: dict[Key, torch.Tensor] = {
            "reward": torch.from_numpy(batch.reward.astype(np.float32)).unsqueeze(-1),
            "done": torch.from_numpy(ended).unsqueeze(-1),
            "terminated": torch.from_numpy(batch.terminated).unsqueeze(-1),
            "truncated": torch.from_numpy(batch.truncated).unsqueeze(-1),
        }
        transitions.set("next", TensorDict({**lasts, **others}, batch_size=[len(batch)], device=self.device))
        return transitions, following

    # --- AsyncEnvPool's names ------------------------------------------------------------------

    async_step_and_maybe_reset_send = send
    async_step_and_maybe_reset_recv = recv

    # --- life ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes the pool."""
        self.pool.close()

    def __enter__(self) -> AsyncEnvFleetEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _first_rows(self, columns: list[NDArray[Any]], env_ids: NDArray[np.int32]) -> TensorDictBase:
        flags = torch.zeros((3, len(env_ids), 1), dtype=torch.bool)
        rows: dict[Key, torch.Tensor] = {"done": flags[0], "terminated": flags[1], "truncated": flags[2]}
        index = torch.from_numpy(env_ids.astype(np.int64))
        source = {**self._observations.tensors(columns), **rows, ENV_INDEX: index}
        return TensorDict(source, batch_size=[len(env_ids)], device=self.device)


def _check_pool(pool: Pool) -> None:
    if pool.config.autoreset_mode is not AutoresetMode.SAME_STEP:
        raise ConfigError(
            "AsyncEnvFleetEnv expected autoreset_mode 'same_step', got "
            f"{pool.config.autoreset_mode.name.lower()!r}: what recv() gives is sent on without a reset between"
        )
    check_owns_arrays(pool)
