"""env-wrappers' Monitor: the return and length of each episode, in its last info and in ml_logger's log."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

import gymnasium

from envfleet.compat.gym_stand_in import Wrapper
from envfleet.compat.modules import is_available
from envfleet.core.errors import CallOrderError


class _Episodes:
    """The counting, reporting and logging that both Monitors share."""

    env: Any

    def _start(self, prefix: str, allow_early_resets: bool) -> None:
        self.prefix, self.allow_early_resets = prefix, allow_early_resets
        self.t0 = time.time()
        self.rewards: list[float] = []
        self.total_steps = 0
        self.additional_key_values: dict[str, Any] = {}  # copied into each report
        self.logger = import_module("ml_logger").logger if is_available("ml_logger") else None

    def reset(self, **kwargs: Any) -> Any:
        """Reset the env; in the middle of an episode only with allow_early_resets."""
        if self.rewards and not self.allow_early_resets:
            raise CallOrderError(
                f"Monitor.reset() expected an episode that has ended, got one of {len(self.rewards)} steps; "
                "finish the episode, or pass allow_early_resets=True"
            )
        self.rewards = []
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        """Step the env; the step that ends an episode has info["episode"] with r, l, t and total_steps."""
        obs, reward, *flags, info = self.env.step(action)
        self.rewards.append(float(reward))
        self.total_steps += 1
        if any(flags):
            episode = {"r": sum(self.rewards), "l": len(self.rewards), "t": round(time.time() - self.t0, 6)}
            episode.update(self.additional_key_values, total_steps=self.total_steps)
            self.rewards = []
            info["episode"] = episode
            if self.logger is not None:
                with self.logger.PrefixContext(self.prefix):
                    self.logger.log_metrics(episode, flush=True, silent=True)
        return obs, reward, *flags, info


class Monitor(_Episodes, Wrapper):
    """Adds info["episode"] = {"r", "l", "t", "total_steps"} to the step that ends an episode.

    If ml_logger is installed, it logs them under prefix. env: a gym or Gymnasium env; for the latter the result is a
    gymnasium.Wrapper.
    """

    def __new__(cls, env: Any, prefix: str = "", allow_early_resets: bool = False) -> Any:
        """Choose the class by the env's API."""
        if cls is Monitor and isinstance(env, gymnasium.Env):
            return _GymnasiumMonitor(env, prefix, allow_early_resets)
        return super().__new__(cls)

    def __init__(self, env: Any, prefix: str = "", allow_early_resets: bool = False) -> None:
        Wrapper.__init__(self, env)
        self._start(prefix, allow_early_resets)

    def __reduce__(self) -> tuple[Any, ...]:
        # __new__ requires the env, which pickle does not pass.
        return object.__new__, (type(self),), self.__dict__


class _GymnasiumMonitor(_Episodes, gymnasium.Wrapper[Any, Any, Any, Any]):
    """Monitor for Gymnasium envs."""

    def __init__(self, env: Any, prefix: str, allow_early_resets: bool) -> None:
        gymnasium.Wrapper.__init__(self, env)
        self._start(prefix, allow_early_resets)
