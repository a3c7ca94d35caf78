"""TorchGroup: one pool, stepped with tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from envfleet.apis.common.torch_transfer import TORCH_DTYPES, Tensors, transfer_for
from envfleet.core.backends import find_backend
from envfleet.core.batch import Batch
from envfleet.core.errors import ConfigError
from envfleet.core.infos import all_true, final_info_of, vector_info
from envfleet.core.pool import Pool
from envfleet.core.seeding import Seed
from envfleet.core.spaces import join, leaves_of, split
from envfleet.core.statistics import PoolStats
from envfleet.core.validation import check_actions

Step = tuple[Tensors, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]


class TorchGroup:
    """One pool, stepped with tensors. Made by TorchPool."""

    def __init__(
        self,
        pool: Pool,
        device: torch.device,
        info_tensors: bool,
        reward_dtype: torch.dtype | None,
        static_shapes: bool,
    ) -> None:
        self._pool = pool
        self.num_envs = pool.num_envs
        self._device = device
        self._info_tensors = info_tensors
        self._reward_dtype = reward_dtype
        # A native batch is copied as it is. The small columns of others are gathered for one copy anyway. Converting
        # rewards there takes less time than launching a kernel.
        self._converts_rewards = reward_dtype is torch.float32 and find_backend(pool.spec.backend).runs_python_envs
        self._obs = _ObsColumns(pool.spec.observation_space)
        self._join_actions = join(pool.spec.action_space)
        self._transfer = transfer_for(device)
        self._static_rows = pool.config.batch_size if static_shapes else None
        self._static = StaticTensors(device)
        self.num_batches = 0  # returned so far
        self._everywhere = all_true(0)
        self._everywhere_tensor = torch.ones(0, dtype=torch.bool, device=device)

    @property
    def pool(self) -> Pool:
        """The pool. Waits until no copy reads the rows of the last batch, which the next call may overwrite."""
        self._transfer.wait_for_shared_rows()
        return self._pool

    def reset(
        self, env_ids: Any = None, *, seed: Seed = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Tensors, dict[str, Any]]:
        """Reset these envs (default: all) and return their observations and infos."""
        obs, _, _, _, info = self.tensors(self.reset_batch(env_ids, seed=seed, options=options))
        return obs, info

    def reset_batch(self, env_ids: Any = None, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> Batch:
        """Reset these envs (default: all) and return their rows on the host."""
        ids = _ids(env_ids)
        if self._static_rows is not None:
            num_rows = self.num_envs if ids is None else len(self._pool.check_env_ids("reset()", ids))
            if num_rows > self._static_rows:
                raise ConfigError(
                    f"reset() with static_shapes=True expected at most batch_size={self._static_rows} rows, got "
                    f"{num_rows}; call async_reset() and recv() instead"
                )
        self._transfer.wait_for_shared_rows()
        return self._pool.reset(ids, seed=seed, options=options)

    def step(self, actions: Tensors, env_ids: Any = None, *, timeout: float | None = None) -> Step:
        """Step these envs (default: all)."""
        host_actions, was_idle = self._transfer.to_host(actions)
        self._transfer.wait_for_shared_rows()
        return self.tensors(self._pool.step(host_actions, _ids(env_ids), timeout), was_idle)

    def send(self, actions: Tensors, env_ids: Any = None) -> None:
        """Start a step of these envs (default: all) and return."""
        host_actions, _ = self._transfer.to_host(actions, envs_run=True)
        self._transfer.wait_for_shared_rows()
        self._pool.send(host_actions, _ids(env_ids))

    def checked_columns(self, actions: Tensors, num_rows: int) -> list[Any]:
        """Return actions on the host as one column per leaf of the action space. Raises ActionError for wrong ones."""
        host_actions, _ = self._transfer.to_host(actions, envs_run=True)
        columns = check_actions("step()", host_actions, self._pool.spec.action_space, num_rows, None)
        return columns if isinstance(columns, list) else [columns]

    def send_columns(self, columns: list[Any]) -> None:
        """Start a step of all envs with one column per leaf of the action space."""
        self._transfer.wait_for_shared_rows()
        self._pool.send(self._join_actions(columns))

    def recv(self, *, timeout: float | None = None) -> Step:
        """Wait for the next batch."""
        return self.tensors(self._pool.recv(timeout))

    def async_reset(self, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> None:
        """Start a reset of all envs; recv() returns their rows."""
        self._transfer.wait_for_shared_rows()
        self._pool.async_reset(seed=seed, options=options)

    def drop_pending(self, timeout: float | None = None) -> None:
        """Wait for the envs in flight and discard their rows; see Pool.drop_pending()."""
        self._transfer.wait_for_shared_rows()
        self._pool.drop_pending(timeout)

    def stats(self) -> PoolStats:
        """Return the steps, episodes, returns and times; see Pool.stats(). For any thread at any time."""
        return self._pool.stats()

    def close(self) -> None:
        """Close the pool."""
        self._transfer.close()
        self._pool.close()

    def tensors(self, batch: Batch, is_idle: bool = False) -> Step:
        """Return the batch as tensors. is_idle: the current stream had nothing to do when the step began."""
        self.num_batches += 1
        rewards = batch.reward
        if self._converts_rewards:
            with np.errstate(over="ignore"):  # to infinity, as on the device
                rewards = rewards.astype(np.float32)
        arrays = [*self._obs.arrays(batch.obs), rewards, batch.terminated, batch.truncated]
        num_obs = len(arrays) - 3
        if batch.final is not None:
            arrays += self._obs.arrays(batch.final.obs)
        if len(self._everywhere) != len(batch):
            self._everywhere = all_true(len(batch))
            self._everywhere_tensor = torch.ones(len(batch), dtype=torch.bool, device=self._device)
        info: dict[str, Any] = {}
        numeric: list[tuple[dict[str, Any], str]] = []
        if self._info_tensors:
            info, places = _numeric_columns(self._info(batch))
            for columns, key in places:
                if columns[key] is self._everywhere:  # not copied: every key that all rows have has this mask
                    columns[key] = self._everywhere_tensor
                else:
                    numeric.append((columns, key))
            arrays += [columns[key] for columns, key in numeric]
        tensors = self._transfer.to_device(arrays, batch, is_idle)
        if not self._info_tensors:
            info = self._info(batch)  # while the copy runs
        obs = self._obs.put_back(batch.obs, tensors[:num_obs])
        reward, terminated, truncated = tensors[num_obs : num_obs + 3]
        if self._reward_dtype is not None:
            reward = reward.to(self._reward_dtype)
        if batch.final is not None:
            final_obs = self._obs.put_back(batch.final.obs, tensors[num_obs + 3 : 2 * num_obs + 3])
            info.update(final_obs=final_obs, _final_obs=terminated | truncated)
        for (columns, key), tensor in zip(numeric, tensors[len(tensors) - len(numeric) :], strict=True):
            columns[key] = tensor
        if self._static_rows is None:
            return obs, reward, terminated, truncated, info
        return self._keep_shapes((obs, reward, terminated, truncated, info), len(batch))

    def _info(self, batch: Batch) -> dict[str, Any]:
        return {**vector_info(batch, self._everywhere), **final_info_of(batch)}

    def with_info_tensors(self, info: dict[str, Any]) -> dict[str, Any]:
        """Return an info of all groups with its numeric columns as tensors, if infos are tensors."""
        if not self._info_tensors:
            return info
        joined, numeric = _numeric_columns(info)
        for columns, key in numeric:
            columns[key] = torch.as_tensor(columns[key], device=self._device)
        return joined

    def _keep_shapes(self, step: Step, num_rows: int) -> Step:
        """Copy the rows into tensors that every call returns."""
        capacity = self._static_rows
        assert capacity is not None, "only with static_shapes"
        mask = torch.zeros(capacity, dtype=torch.bool, device=self._device)
        mask[:num_rows] = True
        obs, reward, terminated, truncated, info = self._static.store(step, capacity)
        return obs, reward, terminated, truncated, {**info, "mask": self._static.store(mask, capacity, ("mask",))}


class StaticTensors:
    """Tensors with a fixed number of rows, which every batch is copied into."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tensors: dict[tuple[Any, ...], torch.Tensor] = {}  # by the keys that lead to a tensor

    def store(self, value: Any, num_rows: int, path: tuple[Any, ...] = ()) -> Any:
        """Return a value with its tensors replaced by those of every call. They hold its rows and have num_rows."""
        if isinstance(value, dict):
            return {key: self.store(own, num_rows, (*path, key)) for key, own in value.items()}
        if isinstance(value, tuple):
            return tuple(self.store(own, num_rows, (*path, i)) for i, own in enumerate(value))
        if not isinstance(value, torch.Tensor):
            return value
        shape = (num_rows, *value.shape[1:])
        kept = self._tensors.get(path)
        if kept is None or kept.shape != shape or kept.dtype != value.dtype:  # infos may change from step to step
            kept = self._tensors[path] = torch.zeros(shape, dtype=value.dtype, device=self._device)
        kept[: len(value)].copy_(value)
        return kept


class _ObsColumns:
    """Takes observations apart into the arrays that can be tensors, and puts tensors back in their places."""

    def __init__(self, space: Any) -> None:
        leaves = leaves_of(space)
        self._split, self._join = split(space, "obs"), join(space)
        self._positions = [
            position for position, leaf in enumerate(leaves) if leaf.kind == "array" and leaf.dtype in TORCH_DTYPES
        ]
        self._is_single = len(leaves) == 1 and leaves[0].path == () and bool(self._positions)

    def arrays(self, obs: Any) -> list[NDArray[Any]]:
        if self._is_single:
            return [obs]
        columns = self._split(obs)
        return [columns[position] for position in self._positions]

    def put_back(self, obs: Any, tensors: Sequence[torch.Tensor]) -> Any:
        if self._is_single:
            return tensors[0]
        columns = self._split(obs)
        for position, tensor in zip(self._positions, tensors, strict=True):
            columns[position] = tensor
        return self._join(columns)


def _is_numeric(column: Any) -> bool:
    return isinstance(column, np.ndarray) and column.dtype in TORCH_DTYPES


def _numeric_columns(info: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[dict[str, Any], str]]]:
    """Return a copy of an info, and where its columns that can be tensors are: in which dict, under which key."""
    places: list[tuple[dict[str, Any], str]] = []

    def copied(columns: dict[str, Any]) -> dict[str, Any]:
        own = {key: copied(column) if isinstance(column, dict) else column for key, column in columns.items()}
        places.extend((own, key) for key, column in own.items() if _is_numeric(column))
        return own

    return copied(info), places


def _ids(env_ids: Any) -> Any:
    return env_ids.cpu().numpy() if isinstance(env_ids, torch.Tensor) else env_ids
