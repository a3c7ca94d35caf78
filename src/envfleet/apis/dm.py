"""Pools with dm_env's API: DmPool, with TimeSteps whose fields are arrays over the rows, and DmEnv, a single env.

The discount is 0 only where an episode terminated: a truncated one could have continued. An env may override it by a
number in info["discount"], for example when a life is lost in a game that continues. Anything else under that key
stays in the info and is ignored: an error would lose the rows of envs that have moved.
"""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet._native import dm_columns
from envfleet.apis.common.view import HasStats, PoolView
from envfleet.building.pools import Env, make_pool
from envfleet.core.batch import Batch
from envfleet.core.errors import ConfigError, MissingExtraError
from envfleet.core.pool import Pool
from envfleet.core.seeding import Seed
from envfleet.core.spaces import row_getter

try:
    import dm_env
    from dm_env import specs
except ImportError as error:
    raise MissingExtraError("dm-env", "dm", "the dm api") from error


# Bypasses a named tuple's own constructor, which takes a twentieth of a step of 64 envs.
_new = tuple.__new__


class State(NamedTuple):
    """The observation of a TimeStep: the env's observation, env id, elapsed steps and info."""

    obs: Any
    env_id: NDArray[np.int32]
    elapsed_step: NDArray[np.int32]
    info: dict[str, Any]


class DmPool(PoolView, dm_env.Environment):  # type: ignore[misc]  # dm_env ships no types
    """num_envs envs as one dm_env.Environment over batches. Made by envfleet.make_dm()."""

    def __init__(self, pool: Pool) -> None:
        _check_autoreset_mode(pool)
        self.pool = pool
        self.num_envs = pool.num_envs
        self.spec = pool.spec

    def reset(
        self, env_id: Any = None, *, seed: Seed = None, options: Mapping[str, Any] | None = None
    ) -> dm_env.TimeStep:
        """Reset all envs, or those of env_id, and return their FIRST TimeSteps."""
        return time_step(self.pool.reset(env_id, seed=seed, options=options))

    def step(self, action: Any, env_id: Any = None, *, timeout: float | None = None) -> dm_env.TimeStep:
        """Step all envs, or those of env_id."""
        return time_step(self.pool.step(action, env_id, timeout))

    def async_reset(self, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> None:
        """Start a reset of all envs; recv() returns their rows."""
        self.pool.async_reset(seed=seed, options=options)

    def send(self, action: Any, env_id: Any = None) -> None:
        """Start a step of these envs without waiting for it."""
        self.pool.send(action, env_id)

    def recv(self, timeout: float | None = None) -> dm_env.TimeStep:
        """Receive the rows that are ready; observation.env_id tells which envs they belong to."""
        return time_step(self.pool.recv(timeout))

    def xla(self) -> Any:
        """Return (handle, recv, send, step) for use inside jax.jit, as EnvPool's xla() does; see docs/jax.md."""
        from envfleet.apis.common.xla import xla_functions

        return xla_functions(self.pool, _traced_time_step)

    def observation_spec(self) -> Any:
        """Return the specs of one env's observation, with names and bounds."""
        return State(
            spec_of_space(self.spec.observation_space, "obs"),
            specs.BoundedArray((), np.int32, 0, self.num_envs - 1, "env_id"),
            specs.Array((), np.int32, "elapsed_step"),
            {array.name: spec_of_space(array.space, array.name) for array in self.spec.info_arrays},
        )

    def action_spec(self) -> Any:
        """Return the spec of one env's action."""
        return spec_of_space(self.spec.action_space, "action")

    def reward_spec(self) -> specs.Array:
        """Return the spec of one env's reward."""
        return specs.Array((), np.float64, "reward")

    def discount_spec(self) -> specs.BoundedArray:
        """Return the spec of one env's discount."""
        return specs.BoundedArray((), np.float32, 0.0, 1.0, "discount")

    def close(self) -> None:
        """Close the pool."""
        self.pool.close()


def time_step(batch: Batch) -> dm_env.TimeStep:
    """Return the rows of a batch as one TimeStep."""
    step_type, discount = dm_columns(batch.elapsed_step, batch.terminated, batch.truncated)
    if "discount" in batch.info:
        discount = _overridden(discount, batch.info)
    observation = _new(State, (batch.obs, batch.env_id, batch.elapsed_step, batch.info))
    return _new(dm_env.TimeStep, (step_type, batch.reward, discount, observation))


def _overridden(discount: NDArray[Any], info: Mapping[str, Any]) -> NDArray[Any]:
    """Return the discounts with those that the envs have set to a number."""
    column, is_set = info["discount"], info.get("_discount", True)  # no mask: every row has one
    if isinstance(column, dict) or column.ndim != 1:
        return discount
    if column.dtype.kind in "biuf":
        return np.where(is_set, column, discount).astype(discount.dtype)
    discount = discount.copy()
    for row in np.flatnonzero(np.broadcast_to(is_set, len(column))):  # numbers next to other values
        if isinstance(column[row], numbers.Real):
            with contextlib.suppress(OverflowError):  # an integer beyond the largest float
                discount[row] = column[row]
    return discount


def _traced_time_step(batch: Batch) -> dm_env.TimeStep:
    from envfleet.apis.common.xla import dm_columns as traced_columns

    step_type, discount = traced_columns(batch)
    observation = State(batch.obs, batch.env_id, batch.elapsed_step, batch.info)
    return dm_env.TimeStep(step_type, batch.reward, discount, observation)


def spec_of_space(space: gymnasium.Space[Any], name: str) -> Any:
    """Return a space as dm_env specs, nested like the space."""
    if isinstance(space, spaces.Dict):
        return {key: spec_of_space(own, key) for key, own in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(spec_of_space(own, f"{name}_{i}") for i, own in enumerate(space.spaces))
    if isinstance(space, spaces.Discrete):
        if space.start == 0:
            return specs.DiscreteArray(int(space.n), space.dtype, name)
        return specs.BoundedArray((), space.dtype, space.start, space.start + space.n - 1, name)
    if isinstance(space, spaces.MultiDiscrete):
        return specs.BoundedArray(space.shape, space.dtype, space.start, space.start + (space.nvec - 1), name)
    if isinstance(space, spaces.MultiBinary):
        return specs.BoundedArray(space.shape, np.int8, 0, 1, name)
    if isinstance(space, spaces.Box):
        return specs.BoundedArray(space.shape, space.dtype, space.low, space.high, name)
    if isinstance(space, spaces.Text):
        return specs.StringArray((), str, name)
    raise ConfigError(
        f"the dm api expected a Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict or Tuple space for {name!r}, "
        f"got {space}, which no dm_env spec describes; use envfleet.make() and Gymnasium's api, or wrap the env"
    )


class DmEnv(HasStats, dm_env.Environment):  # type: ignore[misc]  # dm_env ships no types
    """A pool of one env as a dm_env.Environment. Made by make_dm_single().

    reward_spec() and discount_spec() are dm_env's defaults: floats.
    """

    def __init__(self, pool: Pool) -> None:
        if pool.num_envs != 1:
            raise ConfigError(
                f"DmEnv expected a pool with num_envs=1, got {pool.num_envs}; envfleet.make_dm() returns batches"
            )
        _check_autoreset_mode(pool)
        self.pool = pool
        # Here, not at the first call, so that a space without a spec is refused early.
        self._observation_spec = spec_of_space(pool.spec.observation_space, "obs")
        self._action_spec = spec_of_space(pool.spec.action_space, "action")
        self._row_of = row_getter(pool.spec.observation_space)
        # The next step() resets, as dm_env requires, by reset(): its action may be anything.
        self._starts_episode = True

    def reset(self, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> dm_env.TimeStep:
        """Start an episode: a FIRST TimeStep."""
        return self._time_step(self.pool.reset(seed=seed, options=options))

    def step(self, action: Any) -> dm_env.TimeStep:
        """Step the env. On a new env and after a LAST TimeStep, ignore the action and start an episode."""
        if self._starts_episode:
            return self.reset()
        return self._time_step(self.pool.step([action]))

    def observation_spec(self) -> Any:
        """Return the specs of an observation, nested as its space is, with names and bounds."""
        return self._observation_spec

    def action_spec(self) -> Any:
        """Return the specs of an action, nested as its space is, with names and bounds."""
        return self._action_spec

    def close(self) -> None:
        """Close the pool."""
        self.pool.close()

    def _time_step(self, batch: Batch) -> dm_env.TimeStep:
        obs = self._row_of(batch.obs, 0)
        reward = float(batch.reward[0])
        self._starts_episode = bool(batch.terminated[0] or batch.truncated[0])
        if not self._starts_episode and batch.elapsed_step[0] == 0:
            return dm_env.restart(obs)
        discount = np.array([0.0 if batch.terminated[0] else 1.0])
        if "discount" in batch.info:
            discount = _overridden(discount, batch.info)
        step_type = dm_env.StepType.LAST if self._starts_episode else dm_env.StepType.MID
        return dm_env.TimeStep(step_type, reward, float(discount[0]), obs)


def make_dm_single(task_id: Env, *, num_envs: int = 1, **options: Any) -> DmEnv:
    """Make one env as a dm_env.Environment; options as in envfleet.make()."""
    if num_envs != 1:
        raise ConfigError(f"make_dm_single() expected num_envs=1, got {num_envs!r}; envfleet.make_dm() returns batches")
    pool = make_pool(task_id, num_envs=1, **options)
    try:
        return DmEnv(pool)
    except ConfigError:
        pool.close()
        raise


def _check_autoreset_mode(pool: Pool) -> None:
    if pool.config.autoreset_mode is AutoresetMode.SAME_STEP:
        raise ConfigError(
            "the dm api expected autoreset_mode 'next_step' or 'disabled', got 'same_step', "
            "whose rows are LAST and FIRST at once; leave it out"
        )
