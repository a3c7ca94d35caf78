"""The return, length and time of each episode, in the info of the row that ended it."""

from __future__ import annotations

import operator
import time
from collections import deque
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from envfleet.core.errors import ConfigError
from envfleet.wrappers.base import BatchRows, PoolWrapper


class RecordEpisodeStatistics(PoolWrapper):
    """Adds info["episode"] = {"r": return, "l": length, "t": seconds} with the mask info["_episode"].

    An episode that an env's failure cut short (on_error="restart") does not count. pool.stats() returns means and
    extremes of the same episodes without a wrapper.

    Args:
        env: The pool, or another wrapper of it.
        buffer_length: How many episodes the queues hold.
        stats_key: The key in the info, "episode" by default.

    Attributes:
        episode_count: How many episodes ended.
        return_queue: The returns of the last episodes.
        length_queue: Their lengths.
        time_queue: Their durations in seconds.
    """

    state_names = ("_returns", "_lengths", "episode_count", "return_queue", "length_queue", "time_queue")

    def __init__(self, env: VectorEnv[Any, Any, Any], buffer_length: int = 100, stats_key: str = "episode") -> None:
        super().__init__(env)
        max_episodes = None if buffer_length is None else _checked_length(buffer_length)
        self._key = stats_key
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, dtype=np.int64)
        self._started = np.full(self.num_envs, time.perf_counter())
        self.episode_count = 0
        self.return_queue: deque[float] = deque(maxlen=max_episodes)
        self.length_queue: deque[int] = deque(maxlen=max_episodes)
        self.time_queue: deque[float] = deque(maxlen=max_episodes)

    def process(
        self, rows: BatchRows, obs: Any, reward: NDArray[np.float64], info: dict[str, Any]
    ) -> tuple[Any, NDArray[np.float64]]:
        """Add up rewards and steps, and report the episodes that ended."""
        # Rows of resets have no reward, and are set to zero below anyway.
        self._returns[rows.env_index] += reward
        self._lengths[rows.env_index] += rows.stepped
        over = np.flatnonzero(rows.first | rows.ended)
        if over.size:
            done = rows.ended & ~rows.failed
            now = time.perf_counter()
            if done.any():
                self._report(done, rows.env_id, now, info)
            ids = rows.env_id[over]
            self._returns[ids], self._lengths[ids], self._started[ids] = 0.0, 0, now
        return obs, reward

    def _report(self, done: NDArray[np.bool_], env_id: NDArray[np.int32], now: float, info: dict[str, Any]) -> None:
        if self._key in info:
            raise ConfigError(
                f"expected an info without the key {self._key!r}, but the env or another wrapper sets it; "
                "pass another stats_key"
            )
        ids = env_id[done]
        returns, lengths, seconds = self._returns[ids], self._lengths[ids], now - self._started[ids]
        episode = {"r": np.zeros(len(done)), "l": np.zeros(len(done), dtype=np.int64), "t": np.zeros(len(done))}
        episode["r"][done], episode["l"][done], episode["t"][done] = returns, lengths, seconds
        info[self._key], info[f"_{self._key}"] = episode, done
        self.episode_count += len(ids)
        self.return_queue.extend(returns.tolist())
        self.length_queue.extend(lengths.tolist())
        self.time_queue.extend(seconds.tolist())


def _checked_length(given: Any) -> int:
    try:
        length = -1 if isinstance(given, bool) else operator.index(given)
    except TypeError:
        length = -1
    if length < 0:
        raise ConfigError(f"buffer_length expected an integer of at least 0, got {given!r}")
    return length
