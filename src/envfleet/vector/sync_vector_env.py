"""SyncVectorEnv: Gymnasium's, on the serial executor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from envfleet.apis.common.env_builders import inner_env
from envfleet.apis.common.env_errors import raise_cause
from envfleet.core.errors import CallOrderError, EnvError
from envfleet.vector.base import EnvFactory, PoolVectorEnv, Seeds, Step


class SyncVectorEnv(PoolVectorEnv):
    """Runs envs one after the other in the caller's thread; a drop-in for gymnasium.vector.SyncVectorEnv.

    Args:
        env_fns: Functions that each return an env.
        copy: Whether reset() and step() return copies of the observations.
        observation_mode: "same", "different", or a tuple of the batched and the single observation space.
        autoreset_mode: What happens at the end of an episode.
    """

    def __init__(
        self,
        env_fns: Sequence[EnvFactory],
        copy: bool = True,
        observation_mode: str | tuple[gymnasium.Space[Any], gymnasium.Space[Any]] = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    ) -> None:
        self._set_factories(env_fns)
        self.copy = copy
        self.observation_mode = observation_mode
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        built = [env_fn() for env_fn in self.env_fns]
        self._describe(built[0], lambda: [env.observation_space for env in built])
        self._start("serial", dict(enumerate(built)), num_workers=1)
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)

    @property
    def envs(self) -> list[Any]:
        """The env objects, in the order of their ids; none after close()."""
        return [inner_env(env) for env in self.pool.local_envs()]

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or those of options["reset_mask"], and return all rows."""
        self._assert_is_running()
        env_ids, arguments = self._reset_arguments(seed, options)
        try:
            batch = self.pool.reset(env_ids, arguments=arguments)
        except EnvError as error:
            self._raise(error)
        self._ended[batch.env_id] = False
        return self._reset_result(batch)

    def step(self, actions: Any) -> Step:
        """Step all envs."""
        self._assert_is_running()
        if self.autoreset_mode is AutoresetMode.DISABLED and self._ended.any():
            raise _EndedError(
                f"step() expected running episodes, the ones of envs {np.flatnonzero(self._ended).tolist()} have ended "
                "and autoreset_mode is disabled; reset(options={'reset_mask': terminated | truncated}) first"
            )
        try:
            batch = self._step_pool(actions)
        except EnvError as error:
            self._raise(error)
        self._ended = batch.terminated | batch.truncated
        return self._step_result(batch)

    def render(self) -> tuple[Any, ...]:
        """Return what each env renders."""
        return self.call("render")

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env. Non-callable attributes are returned unchanged."""
        self._assert_is_running()
        try:
            return self.pool.call(name, *args, **kwargs)
        except EnvError as error:
            self._raise(error)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute: one value for all envs, or a list or tuple with one value per env."""
        self._assert_is_running()
        self._set_attr(name, values)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the envs."""
        if hasattr(self, "pool"):
            self.pool.close()

    def _raise(self, error: EnvError) -> NoReturn:
        # The env belongs to the caller and keeps its state, as in Gymnasium.
        self.pool.mark_running([fault.env_id for fault in error.faults])
        raise_cause(error.faults[0], error)


class _EndedError(CallOrderError, AssertionError):
    """Gymnasium asserts it."""
