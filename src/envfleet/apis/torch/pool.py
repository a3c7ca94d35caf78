"""TorchPool: envs that are stepped with tensors on a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from envfleet.apis.common.torch_transfer import Tensors
from envfleet.apis.torch.group import StaticTensors, Step, TorchGroup
from envfleet.apis.torch.groups import JoinedGroups, make_pools
from envfleet.core.errors import ConfigError
from envfleet.core.option_checks import flag_option
from envfleet.core.seeding import Seed
from envfleet.core.statistics import PoolStats, joined_stats


class TorchPool:
    """Envs that are stepped with tensors on a device.

    Args:
        env: A Pool, or anything that envfleet.make_pool() accepts. A pool is used as it is and closed with this one.
        device: Where the tensors are.
        info_tensors: Return numeric infos as tensors on the device instead of numpy arrays. Batches share the masks of
            infos that all rows have.
        reward_dtype: The dtype of rewards; None keeps the pool's float64.
        static_shapes: Return the same tensors from every call, with capacity rows, as CUDA graphs need them. The next
            call overwrites them. info["mask"] is True for the rows that hold a result: all of them unless a call named
            some envs only.
        num_groups: Split the envs into groups that step independently of each other (see `groups`), so that the envs of
            one step while the policy computes the actions of another.
        **options: Options of envfleet.make_pool().
    """

    def __init__(
        self,
        env: Any,
        device: torch.device | str = "cuda",
        *,
        info_tensors: bool = False,
        reward_dtype: torch.dtype | None = torch.float32,
        static_shapes: bool = False,
        num_groups: int = 1,
        **options: Any,
    ) -> None:
        self.device = _checked_device(device)
        flag_option("info_tensors", info_tensors)
        flag_option("static_shapes", static_shapes)
        if reward_dtype is not None and not isinstance(reward_dtype, torch.dtype):
            raise ConfigError(
                f"reward_dtype expected a torch.dtype or None, got {reward_dtype!r}; pass for example torch.float32"
            )
        pools = make_pools(env, num_groups, self.device.type == "cuda", options)
        try:
            self.groups: tuple[TorchGroup, ...] = tuple(
                TorchGroup(pool, self.device, info_tensors, reward_dtype, static_shapes) for pool in pools
            )
        except BaseException:
            for pool in pools:
                if pool is not env:
                    pool.close()
            raise
        self.spec = pools[0].spec
        self.single_observation_space = self.spec.observation_space
        self.single_action_space = self.spec.action_space
        self.num_envs = sum(group.num_envs for group in self.groups)
        static = StaticTensors(self.device) if static_shapes else None
        self._joined = JoinedGroups(self.groups, static) if len(self.groups) > 1 else None

    def reset(
        self, env_ids: Any = None, *, seed: Seed = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Tensors, dict[str, Any]]:
        """Reset these envs (default: all) and return their observations and infos."""
        if self._joined is not None and env_ids is None:
            return self._joined.reset(seed, options)
        return self._only_group("reset() of some envs").reset(env_ids, seed=seed, options=options)

    def step(self, actions: Tensors, env_ids: Any = None, *, timeout: float | None = None) -> Step:
        """Step these envs (default: all); on an asynchronous pool, send the actions and receive the next batch."""
        if self._joined is not None and env_ids is None:
            return self._joined.step(actions, timeout)
        return self._only_group("step() of some envs").step(actions, env_ids, timeout=timeout)

    def send(self, actions: Tensors, env_ids: Any = None) -> None:
        """Start a step of these envs (default: all) and return."""
        self._only_group("send()").send(actions, env_ids)

    def recv(self, *, timeout: float | None = None) -> Step:
        """Wait for the next batch; info["env_id"] names its rows.

        With several groups: the rows of a step() that timed out.
        """
        if self._joined is not None:
            return self._joined.recv(timeout)
        return self.groups[0].recv(timeout=timeout)

    def async_reset(self, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> None:
        """Start a reset of all envs; recv() returns their rows."""
        self._only_group("async_reset()").async_reset(seed=seed, options=options)

    def drop_pending(self, timeout: float | None = None) -> None:
        """Wait for the envs in flight and discard their rows; see Pool.drop_pending()."""
        self._only_group("drop_pending()").drop_pending(timeout)

    def stats(self) -> PoolStats:
        """Return the steps, episodes, returns and times of all groups; see Pool.stats(). For any thread at any time."""
        return joined_stats([group.stats() for group in self.groups])

    def close(self) -> None:
        """Close the pool. Tensors that were returned stay valid."""
        for group in self.groups:
            group.close()

    def __enter__(self) -> TorchPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.num_envs

    def _only_group(self, call: str) -> TorchGroup:
        if len(self.groups) > 1:
            raise ConfigError(
                f"{call} expected num_groups=1, got {len(self.groups)} groups; call it on one of envs.groups"
            )
        return self.groups[0]


def _checked_device(device: torch.device | str) -> torch.device:
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device expected 'cpu', 'cuda' or 'cuda:0', got {device!r}") from error
    if found.type not in ("cpu", "cuda"):
        raise ConfigError(
            f"device expected 'cpu' or 'cuda', got {str(found)!r}; pass device='cpu' and move the tensors with to()"
        )
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device='cuda' expected a CUDA device that torch can use, got none; pass device='cpu'")
    if found.type == "cuda" and found.index is not None and found.index >= torch.cuda.device_count():
        raise ConfigError(f"device expected one of {torch.cuda.device_count()} CUDA devices, got {str(found)!r}")
    return found
