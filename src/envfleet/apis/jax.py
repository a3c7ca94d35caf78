"""Pools inside XLA programs: step(), send() and recv() that jax.jit, lax.scan and lax.fori_loop can trace.

envs = JaxPool("CartPole-v1", num_envs=64)
handle, (obs, info) = envs.reset(seed=0)

@jax.jit
def rollout(handle, obs):
    def step(carry, _):
        handle, obs = carry
        handle, (obs, reward, terminated, truncated, info) = envs.step(handle, policy(obs))
        return (handle, obs), reward
    return jax.lax.scan(step, (handle, obs), length=128)

The handle orders the calls: each call takes the handle that the one before returned. Native pools are stepped in C++,
without the GIL; on a GPU, batches are copied from page-locked memory on XLA's own stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envfleet.apis.common.view import HasStats
from envfleet.apis.common.xla import Arrays, Step, TracedPool, check_not_traced, gymnasium_rows  # names the extra
from envfleet.building.pools import make_pool
from envfleet.core.errors import ConfigError
from envfleet.core.pool import Pool
from envfleet.core.seeding import Seed

import jax  # isort: skip
import jax.numpy as jnp  # isort: skip


class JaxPool(HasStats):
    """Envs that jitted functions step.

    Args:
        env: A Pool, or anything that envfleet.make_pool() accepts. A pool is used as it is and closed with this one.
        **options: Options of envfleet.make_pool().
    """

    def __init__(self, env: Any, **options: Any) -> None:
        if isinstance(env, Pool) and options:
            raise ConfigError(
                f"JaxPool expected a pool without further options, got {sorted(options)}; "
                "pass the env's id or class to have the pool made"
            )
        # The rows are copied to XLA's memory anyway.
        self.pool = env if isinstance(env, Pool) else make_pool(env, **{"copy": False, **options})
        try:
            self._traced = TracedPool(self.pool)
        except BaseException:
            if self.pool is not env:
                self.pool.close()
            raise
        self.spec = self.pool.spec
        self.num_envs = self.pool.num_envs
        self.single_observation_space = self.spec.observation_space
        self.single_action_space = self.spec.action_space

    @property
    def handle(self) -> jax.Array:
        """The handle that the first call takes."""
        return jnp.asarray(self._traced.handle)

    def reset(
        self, *, seed: Seed = None, options: Mapping[str, Any] | None = None
    ) -> tuple[jax.Array, tuple[Arrays, dict[str, Any]]]:
        """Reset all envs, from Python, and return (handle, (obs, info)).

        Not to be traced. A computation that steps this pool must have ended: wait for its handle.
        """
        check_not_traced("reset()")
        obs, _, _, _, info = gymnasium_rows(self._traced.arrays_of(self.pool.reset(seed=seed, options=options)))
        return self.handle, (obs, info)

    def async_reset(self, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> jax.Array:
        """Start a reset of all envs, from Python, and return a handle; recv() returns their rows."""
        check_not_traced("async_reset()")
        self.pool.async_reset(seed=seed, options=options)
        return self.handle

    def step(self, handle: Any, actions: Arrays, env_ids: Any = None) -> tuple[jax.Array, Step]:
        """Step these envs (default: all) and return (handle, (obs, reward, terminated, truncated, info)).

        On an asynchronous pool: send() and recv().
        """
        handle, batch = self._traced.step(handle, actions, env_ids)
        return handle, gymnasium_rows(batch)

    def send(self, handle: Any, actions: Arrays, env_ids: Any = None) -> jax.Array:
        """Start a step of these envs (default: all) and return the handle."""
        return self._traced.send(handle, actions, env_ids)

    def recv(self, handle: Any) -> tuple[jax.Array, Step]:
        """Wait for the next batch; info["env_id"] names its rows."""
        handle, batch = self._traced.recv(handle)
        return handle, gymnasium_rows(batch)

    def drop_pending(self, timeout: float | None = None) -> None:
        """Wait for the envs in flight and discard their rows, from Python; see Pool.drop_pending()."""
        self.pool.drop_pending(timeout)

    def close(self) -> None:
        """Close the pool. A computation that steps it later raises."""
        self.pool.close()

    def __enter__(self) -> JaxPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.num_envs
