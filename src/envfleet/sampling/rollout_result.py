"""Rollout: what rollout() gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envfleet.spaces import join, split


@dataclass(frozen=True)
class Episodes:
    """The episodes that ended in a rollout, in the order of their ends; one that began before counts whole."""

    env_id: NDArray[np.int32]
    step: NDArray[np.int64]  # of the rollout, where it ended
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.returns)

    @property
    def return_mean(self) -> float:
        """The mean return; NaN when none ended."""
        return float(self.returns.mean()) if len(self) else float("nan")

    @property
    def length_mean(self) -> float:
        """The mean length; NaN when none ended."""
        return float(self.lengths.mean()) if len(self) else float("nan")


@dataclass(frozen=True)
class Rollout:
    """Transitions of all envs, time first: the arrays have the shape (steps, num_envs, ...).

    obs[t, i] is what the policy saw, actions[t, i] what it did there, rewards, terminated and truncated [t, i] what
    came of it. Observations and actions of Dict and Tuple spaces are dicts and tuples of arrays.

    mask is False where there was no transition: the step that a next_step pool ignores, and one in which an env
    failed and was restarted. final_obs holds the last observation of each episode that ended, a row each, and
    final_at = (steps, env_ids) says where; last_obs is what the next rollout starts from. next_obs() joins them.
    """

    obs: Any
    actions: Any
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    mask: NDArray[np.bool_]
    final_obs: Any
    final_at: tuple[NDArray[np.int64], NDArray[np.int64]]
    last_obs: Any
    extras: dict[str, NDArray[Any]]
    episodes: Episodes
    space: gymnasium.Space[Any] = field(repr=False)

    @property
    def ended(self) -> NDArray[np.bool_]:
        """Where an episode ended, one way or the other."""
        return self.terminated | self.truncated

    def next_obs(self) -> Any:
        """What each action led to, of the same episode even at its end: shape (steps, num_envs, ...).

        Made on demand, as it is a copy of obs for the most part. To bootstrap: 0 where terminated, else the value of
        this.
        """
        take_apart, put_together = split(self.space), join(self.space)
        columns = []
        parts = zip(take_apart(self.obs), take_apart(self.last_obs), take_apart(self.final_obs), strict=True)
        for obs, last, final in parts:
            following = np.empty_like(obs)
            following[:-1] = obs[1:]
            if following.dtype == object:
                for env_id, value in enumerate(last):
                    following[-1, env_id] = value
            else:
                following[-1] = last
            following[self.final_at] = final
            columns.append(following)
        return put_together(columns)
