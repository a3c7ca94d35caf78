"""A synchronous pool as a torchrl EnvBase of batch size [num_envs].

Ended envs wait for their reset, as in TorchRL: rollout() and collectors reset them by mask. Every step is therefore a
real transition, and the step after an end is the first of an episode. An env that is stepped without that reset starts
its next episode with the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import PassiveEnvChecker
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import EnvBase

from envfleet.apis.common.torch_transfer import Transfer, transfer_for
from envfleet.apis.common.view import HasStats, PoolView
from envfleet.apis.torchrl.encoding import Key, SpaceTree
from envfleet.building.pools import make_pool, make_spec
from envfleet.core.batch import Batch
from envfleet.core.errors import ConfigError
from envfleet.core.option_checks import integer_option
from envfleet.core.pool import Pool
from envfleet.core.seeding import Seed, seeds_for


class EnvFleetEnv(HasStats, EnvBase):  # type: ignore[misc]  # torchrl ships no types
    """num_envs envs as one EnvBase.

    Args:
        env: Anything that envfleet.make() accepts, or a pool in autoreset mode same_step or disabled.
        num_envs: The number of envs.
        device: The device of the tensordicts.
        categorical_action_encoding: Use indices instead of one-hot vectors, in observations too (as in GymEnv).
        frame_skip: How often each action is repeated. Rewards are summed, and the end of an episode stops it.
        allow_done_after_reset: As in EnvBase.
        disable_env_checker: False wraps Python envs in Gymnasium's PassiveEnvChecker.
        create_env_kwargs: Options of envfleet.make_pool().
        run_type_checks: As in EnvBase.
        **options: Options of envfleet.make_pool().
    """

    # Otherwise TorchRL repeats the action itself, in a Python loop over whole tensordicts.
    _has_frame_skip = True
    # The shape of each env's reward and done.
    _row_shape: tuple[int, ...] = (1,)
    _autoreset_modes: tuple[AutoresetMode, ...] = (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)

    def __init__(
        self,
        env: Any,
        num_envs: int | None = None,
        *,
        device: Any = None,
        categorical_action_encoding: bool = False,
        frame_skip: int = 1,
        allow_done_after_reset: bool = False,
        disable_env_checker: bool = True,
        create_env_kwargs: Mapping[str, Any] | None = None,
        run_type_checks: bool = False,
        **options: Any,
    ) -> None:
        frame_skip = integer_option("frame_skip", frame_skip, 1, 2**31 - 1)
        source = pool_for(env, num_envs, create_env_kwargs, disable_env_checker, options)
        pool = source.pool
        try:
            self._check_pool(pool)
            observations = self._observation_tree(env, pool, categorical_action_encoding)
            actions = SpaceTree(pool.spec.action_space, "action", categorical_action_encoding, False)
            super().__init__(
                device=device,
                batch_size=[pool.num_envs],
                run_type_checks=run_type_checks,
                allow_done_after_reset=allow_done_after_reset,
            )
        except BaseException:
            if source.is_ours:
                pool.close()
            raise
        self.pool: Pool = pool
        self._reopen_pool = source.reopen
        self.num_envs = pool.num_envs
        self.frame_skip = frame_skip
        self._observations = observations
        self._actions = actions
        self._env_ids = np.arange(pool.num_envs, dtype=np.int32)
        self._is_same_step = pool.config.autoreset_mode is AutoresetMode.SAME_STEP
        # same_step: ended envs whose next episode the pool has begun, but whose first row was not requested yet.
        self._begun = np.zeros(pool.num_envs, dtype=np.bool_)
        # Other modes: ended envs that have to be reset.
        self._waiting = np.zeros(pool.num_envs, dtype=np.bool_)
        self._next_seeds: dict[int, int | None] = {}
        self.observation_spec = observations.spec(pool.num_envs, self.device)
        self.action_spec = actions.spec(pool.num_envs, self.device)
        self.reward_spec = Unbounded((pool.num_envs, *self._row_shape), dtype=torch.float32, device=self.device)
        self.done_spec = done_spec(pool.num_envs, self.device, self._row_shape)
        self._transfers: dict[Any, Transfer] = {}  # by device: TorchRL may move the env
        self.is_closed = False

    # --- TorchRL's hooks -----------------------------------------------------------------------

    def _reset(
        self,
        tensordict: TensorDictBase | None = None,
        *,
        seed: Seed = None,
        options: Mapping[str, Any] | None = None,
    ) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        asked = np.ones(self.num_envs, dtype=np.bool_) if mask is None else _rows_of(mask)
        if self.pool.closed:
            self.pool = self._reopen_pool()
            self._begun[:] = False
            asked = np.ones_like(asked)
        self.is_closed = False
        stale = asked
        if seed is None and options is None:
            # The pool has begun these episodes already; another reset would skip one.
            reseeded = np.zeros_like(asked)
            reseeded[list(self._next_seeds)] = True
            stale = asked & (~self._begun | reseeded)
        obs = None
        if stale.all():
            obs = self.pool.reset(seed=self._seeds_of(self._env_ids, seed), options=options).obs
        elif stale.any():
            ids = self._env_ids[stale]
            self.pool.reset(ids, seed=self._seeds_of(ids, seed), options=options)
        for env_id in np.flatnonzero(stale):
            self._next_seeds.pop(int(env_id), None)
        self._begun[asked] = self._waiting[asked] = False
        columns = self._observations.columns(self.pool.observe() if obs is None else obs)
        flags = torch.zeros((3, self.num_envs, *self._row_shape), dtype=torch.bool, device=self.device)
        return self._tensordict(self._transfer().to_device(columns, columns), zip_flags(flags))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        mask = tensordict.get("_step", None)
        actions = self._actions.arrays(tensordict, self._transfer())
        if mask is None:
            return self._stepped(actions, None)
        rows = _rows_of(mask)
        ids = self._env_ids[rows]
        # Other envs keep their rows.
        whole = self._skip_tensordict(tensordict)
        stepped = self._stepped([column[rows] for column in actions], ids)
        whole[torch.from_numpy(rows).to(self.device)] = stepped
        return whole

    def _set_seed(self, seed: int | None) -> None:
        """Seed env i with seed + i at its next reset."""
        if seed is not None:
            self._next_seeds = dict(enumerate(seeds_for(seed, self._env_ids, self.num_envs)))

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the pool."""
        self.is_closed = True
        for transfer in self._transfers.values():
            transfer.close()
        self._transfers.clear()
        self.pool.close()

    def __del__(self) -> None:
        # The pool closes itself when it is garbage collected; one that was passed in may be in use elsewhere.
        pass

    # --- rows ----------------------------------------------------------------------------------

    def _stepped(self, actions: list[NDArray[Any]], env_ids: NDArray[np.int32] | None) -> TensorDictBase:
        """Step these envs (None: all) and return the next tensordict."""
        if self._waiting.any():
            self._reset_waiting(env_ids)
        actions = self._fitted(actions)
        # Before the step, which moves all envs even if one of them raises.
        self._begun[slice(None) if env_ids is None else env_ids] = False
        batch = self.pool.step(self._actions.value(actions), env_ids)
        columns = self._last_columns(batch)
        reward, terminated, truncated = batch.reward, batch.terminated, batch.truncated
        ended = terminated | truncated
        for _ in range(self.frame_skip - 1):
            going = ~ended
            if not going.any():
                break
            more = self.pool.step(self._actions.value([column[going] for column in actions]), batch.env_id[going])
            for column, part in zip(columns, self._last_columns(more), strict=True):
                column[going] = part
            reward[going] += more.reward
            terminated[going], truncated[going] = more.terminated, more.truncated
            ended = terminated | truncated
        (self._begun if self._is_same_step else self._waiting)[batch.env_id] = ended
        arrays = [*columns, reward, ended, terminated, truncated]
        tensors = self._transfer().to_device(arrays, arrays)
        rewards, *flags = (tensor.reshape(len(batch), *self._row_shape) for tensor in tensors[len(columns) :])
        others: dict[Key, torch.Tensor] = {"reward": rewards.to(torch.float32), **zip_flags(flags)}
        return self._tensordict(tensors[: len(columns)], others)

    def _observation_tree(self, env: Any, pool: Pool, categorical: bool) -> SpaceTree:
        """Return the leaves of the observations; a hook for subclasses."""
        return SpaceTree(pool.spec.observation_space, "observation", categorical, True)

    def _transfer(self) -> Transfer:
        if self.device not in self._transfers:
            self._transfers[self.device] = transfer_for(self.device)
        return self._transfers[self.device]

    def _fitted(self, actions: list[NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the actions in the form that the pool accepts; a hook for subclasses."""
        return actions

    def _last_columns(self, batch: Batch) -> list[NDArray[Any]]:
        """Return the observations that the steps led to: the final ones where episodes ended."""
        return last_columns(self._observations, batch)

    def _tensordict(self, columns: list[torch.Tensor], others: dict[Key, torch.Tensor]) -> TensorDictBase:
        num_rows = len(others["done"])
        return TensorDict({**self._observations.tensors(columns), **others}, batch_size=[num_rows], device=self.device)

    def _seeds_of(self, env_ids: NDArray[np.int32], seed: Seed) -> Seed:
        if seed is not None or not self._next_seeds:
            return seed
        return [self._next_seeds.get(int(env_id)) for env_id in env_ids]

    def _reset_waiting(self, env_ids: NDArray[np.int32] | None) -> None:
        """Reset those of these envs that have ended, before a step."""
        asked = self._env_ids if env_ids is None else env_ids
        ids = asked[self._waiting[asked]]
        if len(ids):
            self.pool.reset(ids, seed=self._seeds_of(ids, None))
            for env_id in ids:
                self._next_seeds.pop(int(env_id), None)

    def _check_pool(self, pool: Pool) -> None:
        if pool.config.autoreset_mode not in self._autoreset_modes:
            raise ConfigError(
                "EnvFleetEnv expected autoreset_mode 'same_step' or 'disabled', got 'next_step', whose reset steps "
                "would enter rollouts as transitions"
            )
        if pool.config.is_async:
            raise ConfigError(
                f"EnvFleetEnv expected batch_size={pool.num_envs}, all envs in each step, got "
                f"{pool.config.batch_size}; use AsyncEnvFleetEnv for smaller batches"
            )
        check_owns_arrays(pool)


def done_spec(num_rows: int, device: Any, row_shape: tuple[int, ...] = (1,)) -> Composite:
    """Return the spec of done, terminated and truncated."""
    flags = {name: Categorical(2, shape=(num_rows, *row_shape), dtype=torch.bool) for name in _FLAGS}
    spec = Composite(flags, shape=(num_rows,))
    return spec if device is None else spec.to(device)


_FLAGS = ("done", "terminated", "truncated")


def zip_flags(flags: Iterable[torch.Tensor]) -> dict[Key, torch.Tensor]:
    """Return done, terminated and truncated by name."""
    return dict(zip(_FLAGS, flags, strict=True))


def last_columns(observations: SpaceTree, batch: Batch) -> list[NDArray[Any]]:
    """Return the observations that a batch's steps led to: the final ones where episodes ended."""
    columns = observations.columns(batch.obs)
    ended = batch.terminated | batch.truncated
    if batch.final is not None and ended.any():
        for column, final in zip(columns, observations.columns(batch.final.obs), strict=True):
            # In place: the batch belongs to the caller.
            column[ended] = final[ended]
    return columns


def _rows_of(mask: torch.Tensor) -> NDArray[np.bool_]:
    return np.asarray(mask.reshape(len(mask), -1).any(-1).cpu())


@dataclass(frozen=True)
class PoolSource:
    """A pool, whether it was made here, and a function that opens it again after close().

    Collectors close their env, and GymEnv can be used after that. A pool that was passed in cannot be opened again:
    reopen() raises PoolClosedError.
    """

    pool: Pool
    is_ours: bool
    reopen: Callable[[], Pool]


def pool_for(
    env: Any,
    num_envs: int | None,
    create_env_kwargs: Mapping[str, Any] | None,
    disable_env_checker: bool,
    options: Mapping[str, Any],
) -> PoolSource:
    """Return the pool that these arguments describe."""
    if isinstance(env, (Pool, PoolView)):
        pool = env.pool if isinstance(env, PoolView) else env
        given = {**(create_env_kwargs or {}), **options}
        if given:
            raise ConfigError(
                f"expected no options together with a pool, got {', '.join(sorted(given))}; pass them to make_pool()"
            )
        if num_envs is not None and num_envs != pool.num_envs:
            raise ConfigError(f"num_envs expected {pool.num_envs}, the pool's, got {num_envs}; leave it out")
        return PoolSource(pool, False, partial(_reset_pool_of, env))
    if create_env_kwargs is not None and not isinstance(create_env_kwargs, Mapping):
        raise ConfigError(f"create_env_kwargs expected a dict, got {type(create_env_kwargs).__name__}")
    asked = {**(create_env_kwargs or {}), **options}
    if num_envs is not None:
        asked["num_envs"] = num_envs
    asked.setdefault("autoreset_mode", AutoresetMode.SAME_STEP)
    if not disable_env_checker:
        asked = with_env_checker(env, asked)
    make = partial(make_pool, env, **asked)
    return PoolSource(make(), True, make)


def with_env_checker(env: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with Gymnasium's PassiveEnvChecker as a wrapper of Python envs.

    Native envs are checked by envfleet's tests, and a wrapper would turn them into Python envs.
    """
    deciding = {name: options[name] for name in ("backend", "wrappers") if name in options}
    if make_spec(env, **deciding).native_id:
        return dict(options)
    return {**options, "wrappers": [PassiveEnvChecker, *(options.get("wrappers") or ())]}


def _reset_pool_of(envs: Pool | PoolView) -> Pool:
    """Reset a pool that was passed in. EnvPool's views then open again; the others raise PoolClosedError."""
    envs.reset()  # type: ignore[union-attr]  # every view that has a pool has it
    return envs.pool if isinstance(envs, PoolView) else envs


def check_owns_arrays(pool: Pool) -> None:
    """Raise ConfigError unless the pool's arrays belong to the caller: tensors share their memory."""
    if not pool.config.copy:
        raise ConfigError("the torchrl api expected a pool with copy=True, got copy=False; leave it out")
