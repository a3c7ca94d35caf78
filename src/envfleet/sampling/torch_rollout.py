"""rollout() of a TorchPool: a rollout buffer on the device, written batch by batch.

The host waits for the device only where the envs need their actions.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode

from envfleet.apis.common.torch_transfer import Tensors
from envfleet.apis.torch import TorchGroup, TorchPool
from envfleet.core.errors import ConfigError
from envfleet.core.infos import restarted_rows
from envfleet.core.option_checks import integer_option
from envfleet.core.policies import BatchPolicy, Policy, as_arrays
from envfleet.core.seeding import Seed
from envfleet.sampling.rollout import check_extras, judge_rows, used_since


@dataclass(frozen=True)
class TorchRollout:
    """Transitions of all envs as tensors on the pool's device, time first: (steps, num_envs, ...).

    obs[t, i] is what the policy saw, actions[t, i] the action it chose, and rewards, terminated and truncated [t, i]
    the result. mask is False where there was no transition: at the step that a next_step pool ignores, and where an env
    failed and was restarted. final_obs[t, i] is the last observation of an episode that ended there (same_step; None in
    next_step mode, where it is obs[t + 1, i]). last_obs is what the next rollout starts from.
    """

    obs: Tensors
    actions: Tensors
    rewards: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    mask: torch.Tensor
    final_obs: Tensors
    last_obs: Tensors
    extras: dict[str, torch.Tensor]

    @property
    def ended(self) -> torch.Tensor:
        """Where an episode ended, by termination or truncation."""
        return self.terminated | self.truncated

    def next_obs(self) -> Tensors:
        """Return the observation after each action, of the same episode even at its end: (steps, num_envs, ...).

        To bootstrap, use 0 where terminated and else the value of this observation.
        """
        following = _map(lambda obs, last: torch.cat([obs[1:], last[None]]), self.obs, self.last_obs)
        if self.final_obs is None:
            return following
        ended = self.ended

        def choose(final: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return torch.where(ended.reshape(*ended.shape, *[1] * (final.ndim - 2)), final, other)

        return _map(choose, self.final_obs, following)


@dataclass
class _PoolState:
    """Between two rollouts, by group.

    obs, ended, starts: the last observations, and which of them end and start an episode. policies: those with a state.
    """

    obs: list[Tensors]
    ended: list[torch.Tensor]
    starts: list[torch.Tensor]
    policies: list[BatchPolicy | None]
    num_batches: list[int]


# By pool, for as long as it lives.
_states: weakref.WeakKeyDictionary[TorchPool, _PoolState] = weakref.WeakKeyDictionary()


def rollout_on_device(
    envs: TorchPool, policy: Policy | None, steps: int, *, seed: Seed = None, reset: bool = False
) -> TorchRollout:
    """Step all envs `steps` times; see envfleet.sampling.rollout(), which calls this for a TorchPool.

    policy: maps the observations of all envs to actions, or to (actions, extras) or (actions, state), all of them
    tensors or arrays; it is called without gradients. predict() of Stable-Baselines3 is called with arrays. With
    num_groups above 1 it is called with one group's rows at a time, while the other groups step.
    """
    num_steps = integer_option("steps", steps, 1, 1 << 40)
    policies = [BatchPolicy(policy, group.pool.spec.action_space) for group in envs.groups]
    _check(envs)
    state = None if reset or seed is not None else _states.get(envs)
    # Until the end: if anything fails on the way, the state of the envs is unknown and the next call resets them.
    _states.pop(envs, None)
    if state is None:
        obs, _ = envs.reset(seed=seed)
        none = torch.zeros(envs.num_envs, dtype=torch.bool, device=envs.device)
        rows = _rows_of_groups(envs)
        parts_of_obs = [_map(lambda leaf, r=own: leaf[r], obs) for own in rows]
        ended = [none[own] for own in rows]
        state = _PoolState(parts_of_obs, ended, [~own for own in ended], [None] * len(rows), [])
    elif state.num_batches != [group.num_batches for group in envs.groups]:
        raise used_since()
    buffer: dict[str, Any] = {}
    parts = [
        _GroupCollector(group, rows, own, num_steps, envs.num_envs, buffer, *last)
        for group, rows, own, *last in zip(
            envs.groups, _rows_of_groups(envs), policies, state.obs, state.ended, state.starts, strict=True
        )
    ]
    for own, before in zip(policies, state.policies, strict=True):
        own.continue_from(before)
    with torch.no_grad():
        for step in range(num_steps + 1):
            for part in parts:
                if step > 0:
                    part.receive(step - 1)
                if step < num_steps:
                    part.act(step)
    ends = [group.num_batches for group in envs.groups]
    _states[envs] = _PoolState(
        [part.obs for part in parts],
        [part.ended for part in parts],
        [part.starts for part in parts],
        [own if own.has_state else None for own in policies],
        ends,
    )
    last_obs = _map(lambda *leaves: torch.cat(leaves), *(part.obs for part in parts))
    extras = {key.removeprefix("extra "): own for key, own in buffer.items() if key.startswith("extra ")}
    columns = {key: own for key, own in buffer.items() if not key.startswith("extra ")}
    return TorchRollout(**{"final_obs": None, **columns}, last_obs=last_obs, extras=extras)


class _GroupCollector:
    """Steps one group and writes its rows into the buffer that all groups share."""

    def __init__(
        self,
        group: TorchGroup,
        rows: slice,
        policy: BatchPolicy,
        num_steps: int,
        num_envs: int,
        buffer: dict[str, Any],
        obs: Tensors,
        ended: torch.Tensor,
        starts: torch.Tensor,
    ) -> None:
        self._group, self._rows, self._policy = group, rows, policy
        self._shape = (num_steps, num_envs)
        self._buffer = buffer
        self.obs, self.ended, self.starts = obs, ended, starts
        self._is_next_step = group.pool.config.autoreset_mode is AutoresetMode.NEXT_STEP
        self._is_only = group.num_envs == num_envs
        self._actions: Tensors = None

    def act(self, step: int) -> None:
        self._write("obs", step, self.obs)
        self._actions, extras = self._choose()
        self._write("actions", step, self._actions)
        self._write_extras(step, extras)
        if not self._is_only:
            self._group.send(self._actions)

    def receive(self, step: int) -> None:
        # One group has nothing to overlap with: its envs step in the caller's thread, too.
        result = self._group.step(self._actions) if self._is_only else self._group.recv()
        obs, reward, terminated, truncated, info = result
        ended = terminated | truncated
        failed = restarted_rows(info)
        failed = None if failed is None else torch.as_tensor(failed, device=ended.device)
        mask, self.starts = judge_rows(self._is_next_step, self.ended, ended, failed)
        columns = {"rewards": reward, "terminated": terminated, "truncated": truncated, "mask": mask}
        if not self._is_next_step:
            columns["final_obs"] = info["final_obs"]
        for name, column in columns.items():
            self._write(name, step, column)
        self.obs, self.ended = obs, ended

    def _choose(self) -> tuple[Tensors, Mapping[str, torch.Tensor]]:
        device = self.ended.device
        if self._policy.is_random:
            space = gymnasium.vector.utils.batch_space(self._group.pool.spec.action_space, self._group.num_envs)
            space.seed(int(np.random.default_rng().integers(1 << 31)))
            return _map(lambda leaf: torch.as_tensor(leaf, device=device), space.sample()), {}
        obs = as_arrays(self.obs) if self._policy.has_state else self.obs
        actions, extras = self._policy.act(obs, lambda: as_arrays(self.starts))

        def on_device(value: Any) -> Any:
            return torch.as_tensor(value, device=device) if isinstance(value, np.ndarray) else value

        return _map(on_device, actions), {key: on_device(value) for key, value in extras.items()}

    def _write_extras(self, step: int, extras: Mapping[str, torch.Tensor]) -> None:
        rows = {key: _tensor(value) for key, value in extras.items()}
        is_first = step == 0 and self._rows.start == 0
        known = {key.removeprefix("extra "): own for key, own in self._buffer.items() if key.startswith("extra ")}
        check_extras(rows, None if is_first else known, self._group.num_envs, step)
        for key, value in rows.items():
            self._write(f"extra {key}", step, value)

    def _write(self, name: str, step: int, value: Tensors) -> None:
        if name not in self._buffer:
            self._buffer[name] = _map(self._new_column, value)

        def write(column: torch.Tensor, value: Any) -> torch.Tensor:
            rows = _tensor(value)
            # A new column if the old dtype cannot hold the rows: 0 at first, then 0.5.
            dtype = torch.promote_types(column.dtype, rows.dtype)
            if dtype != column.dtype:
                column = column.to(dtype)
            column[step, self._rows] = rows
            return column

        self._buffer[name] = _map(write, self._buffer[name], value)

    def _new_column(self, value: Any) -> torch.Tensor:
        rows = _tensor(value)
        return torch.zeros((*self._shape, *rows.shape[1:]), dtype=rows.dtype, device=rows.device)


def _tensor(value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise ConfigError(f"rollout() of a TorchPool expected tensors, got {type(value).__name__}: {value!r}")
    return value


def _check(envs: TorchPool) -> None:
    config = envs.groups[0].pool.config
    if config.is_async:
        raise ConfigError(
            f"rollout() expected a synchronous pool, got batch_size={config.batch_size}; leave batch_size out"
        )
    if config.autoreset_mode is AutoresetMode.DISABLED:
        raise ConfigError(
            "rollout() of a TorchPool expected autoreset_mode 'next_step' or 'same_step', got 'disabled', for which "
            "the host would have to wait for the ends of episodes"
        )


def _rows_of_groups(envs: TorchPool) -> list[slice]:
    ends = np.cumsum([group.num_envs for group in envs.groups]).tolist()
    return [slice(end - group.num_envs, end) for group, end in zip(envs.groups, ends, strict=True)]


def _map(function: Callable[..., Any], *values: Any) -> Any:
    """Apply a function to the corresponding leaves of dicts and tuples of one structure."""
    first = values[0]
    if isinstance(first, dict):
        return {key: _map(function, *(own[key] for own in values)) for key in first}
    if isinstance(first, tuple) and not (first and isinstance(first[0], str)):
        return tuple(_map(function, *own) for own in zip(*values, strict=True))
    return function(*values)
