"""A pool in dm_env's API: TimeSteps whose fields are arrays over the rows.

The discount is 0 only where an episode terminated: one that was truncated could have gone on. An env that
knows better (a life lost in a game that goes on) says so in its info, as "discount".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet._native import dm_columns
from envfleet.apis.view import PoolView
from envfleet.batch import Batch
from envfleet.errors import ConfigError, MissingExtraError
from envfleet.pool import Pool
from envfleet.seeding import Seed

try:
    import dm_env
    from dm_env import specs
except ImportError as error:
    raise MissingExtraError("dm-env", "dm", "the dm api") from error


# A named tuple without the call of its own constructor, which takes a twentieth of a step of 64 envs.
_new = tuple.__new__


class State(NamedTuple):
    """What a TimeStep's observation holds: the env's own, and whose row it is."""

    obs: Any
    env_id: NDArray[np.int32]
    elapsed_step: NDArray[np.int32]
    info: dict[str, Any]


class DmPool(PoolView, dm_env.Environment):  # type: ignore[misc]  # dm_env ships no types
    """num_envs envs as one dm_env.Environment over batches. Made by envfleet.make_dm()."""

    def __init__(self, pool: Pool) -> None:
        if pool.config.autoreset_mode is AutoresetMode.SAME_STEP:
            raise ConfigError(
                "the dm api expected autoreset_mode 'next_step' or 'disabled', got 'same_step', "
                "whose rows are LAST and FIRST at once"
            )
        self.pool = pool
        self.num_envs = pool.num_envs
        self.spec = pool.spec

    def reset(
        self, env_id: Any = None, *, seed: Seed = None, options: Mapping[str, Any] | None = None
    ) -> dm_env.TimeStep:
        """FIRST TimeSteps of all envs, or of those of env_id."""
        return time_step(self.pool.reset(env_id, seed=seed, options=options))

    def step(self, action: Any, env_id: Any = None, *, timeout: float | None = None) -> dm_env.TimeStep:
        """Steps all envs, or those of env_id."""
        return time_step(self.pool.step(action, env_id, timeout))

    def async_reset(self, *, seed: Seed = None) -> None:
        """Starts a reset of all envs; recv() gives their rows."""
        self.pool.async_reset(seed=seed)

    def send(self, action: Any, env_id: Any = None) -> None:
        """Starts a step of these envs and returns."""
        self.pool.send(action, env_id)

    def recv(self, timeout: float | None = None) -> dm_env.TimeStep:
        """The rows that are ready; observation.env_id says whose they are."""
        return time_step(self.pool.recv(timeout))

    def observation_spec(self) -> Any:
        """Specs of one env's observation, with names and bounds."""
        return State(
            spec_of_space(self.spec.observation_space, "obs"),
            specs.BoundedArray((), np.int32, 0, self.num_envs - 1, "env_id"),
            specs.Array((), np.int32, "elapsed_step"),
            {array.name: spec_of_space(array.space, array.name) for array in self.spec.info_arrays},
        )

    def action_spec(self) -> Any:
        """Spec of one env's action."""
        return spec_of_space(self.spec.action_space, "action")

    def reward_spec(self) -> specs.Array:
        """Spec of one env's reward."""
        return specs.Array((), np.float64, "reward")

    def discount_spec(self) -> specs.BoundedArray:
        """Spec of one env's discount."""
        return specs.BoundedArray((), np.float32, 0.0, 1.0, "discount")

    def close(self) -> None:
        """Closes the pool."""
        self.pool.close()


def time_step(batch: Batch) -> dm_env.TimeStep:
    """The rows of a batch as one TimeStep."""
    step_type, discount = dm_columns(batch.elapsed_step, batch.terminated, batch.truncated)
    if "discount" in batch.info:
        told = batch.info.get("_discount", True)  # no mask: every row has one
        discount = np.where(told, batch.info["discount"], discount).astype(np.float32)
    observation = _new(State, (batch.obs, batch.env_id, batch.elapsed_step, batch.info))
    return _new(dm_env.TimeStep, (step_type, batch.reward, discount, observation))


def spec_of_space(space: gymnasium.Space[Any], name: str) -> Any:
    """A space as dm_env specs: nested as the space is."""
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
