"""One env in dm_env's API: what code written for a single dm_env.Environment expects.

A pool of one env, with plain TimeSteps instead of batches: a FIRST has neither reward nor
discount, step() on a fresh env or after a LAST starts an episode, and the discount is 0 only
where the episode terminated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium.vector import AutoresetMode

from envfleet.apis.dm import spec_of_space
from envfleet.batch import Batch
from envfleet.errors import ConfigError, MissingExtraError
from envfleet.making.make import Env, make_pool
from envfleet.pool import Pool
from envfleet.seeding import Seed
from envfleet.spaces import row_getter

try:
    import dm_env
except ImportError as error:
    raise MissingExtraError("dm-env", "dm", "the dm api") from error


class DmEnv(dm_env.Environment):  # type: ignore[misc]  # dm_env ships no types
    """A pool of one env as a dm_env.Environment. Made by make_dm_single().

    reward_spec() and discount_spec() are dm_env's own: floats.
    """

    def __init__(self, pool: Pool) -> None:
        if pool.num_envs != 1:
            raise ConfigError(
                f"a single dm_env env expected a pool with num_envs=1, got {pool.num_envs}; "
                "envfleet.make_dm() shows many as batches"
            )
        if pool.config.autoreset_mode is AutoresetMode.SAME_STEP:
            raise ConfigError(
                "a single dm_env env expected autoreset_mode 'next_step' or 'disabled', got 'same_step', "
                "whose rows are LAST and FIRST at once; leave it out"
            )
        self.pool = pool
        # Here, not at the first call: a space without a spec is no env for dm_env.
        self._observation_spec = spec_of_space(pool.spec.observation_space, "obs")
        self._action_spec = spec_of_space(pool.spec.action_space, "action")
        self._row_of = row_getter(pool.spec.observation_space)
        # step() then resets, as dm_env has it; by reset(), for the action may be anything.
        self._starts_episode = True

    def reset(self, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> dm_env.TimeStep:
        """Starts an episode: a FIRST TimeStep."""
        return self._time_step(self.pool.reset(seed=seed, options=options))

    def step(self, action: Any) -> dm_env.TimeStep:
        """Steps; on a fresh env, or after a LAST, ignores the action and starts an episode."""
        if self._starts_episode:
            return self.reset()
        return self._time_step(self.pool.step([action]))

    def observation_spec(self) -> Any:
        """Specs of an observation, nested as its space is, with names and bounds."""
        return self._observation_spec

    def action_spec(self) -> Any:
        """Specs of an action, nested as its space is, with names and bounds."""
        return self._action_spec

    def close(self) -> None:
        """Closes the pool."""
        self.pool.close()

    def _time_step(self, batch: Batch) -> dm_env.TimeStep:
        obs = self._row_of(batch.obs, 0)
        reward = float(batch.reward[0])
        self._starts_episode = bool(batch.terminated[0] or batch.truncated[0])
        if batch.terminated[0]:
            return dm_env.termination(reward, obs)
        if batch.truncated[0]:
            return dm_env.truncation(reward, obs)
        return dm_env.restart(obs) if batch.elapsed_step[0] == 0 else dm_env.transition(reward, obs)


def make_dm_single(task_id: Env, **options: Any) -> DmEnv:
    """One env as a dm_env.Environment; options as in envfleet.make(), without num_envs."""
    if options.get("num_envs", 1) != 1:
        raise ConfigError(
            f"make_dm_single() expected num_envs=1, got {options['num_envs']!r}; "
            "envfleet.make_dm() shows many as batches"
        )
    pool = make_pool(task_id, **{**options, "num_envs": 1})
    try:
        return DmEnv(pool)
    except ConfigError:
        pool.close()
        raise
