"""Rollouts of a pool in every way that rows come, and the rows of each env in their order.

Actions are a function of the env and of how many it was sent, so two pools of one seed roll out alike whatever the
order of their batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

MODES = ["next_step", "same_step", "disabled"]


class Row(NamedTuple):
    obs: Any
    reward: float | None  # None: of a reset
    ended: bool
    elapsed: int
    info: dict[str, Any]
    row: int

    def value(self, key: str) -> Any:
        """This row's value of an info, or None."""
        if key not in self.info or not self.info[f"_{key}"][self.row]:
            return None
        column = self.info[key]
        if isinstance(column, dict):
            return {name: values[self.row] for name, values in column.items() if not name.startswith("_")}
        return column[self.row]


def row_of(obs: Any, row: int) -> Any:
    if isinstance(obs, dict):
        return {key: value[row] for key, value in obs.items()}
    return tuple(value[row] for value in obs) if isinstance(obs, tuple) else obs[row]


class Rollout:
    """Steps envs and keeps what came, by env."""

    def __init__(self, envs: Any, choose: Callable[[int, int], Any]) -> None:
        self.envs, self.choose = envs, choose
        self.rows: list[list[Row]] = [[] for _ in range(envs.num_envs)]
        self.sent = [0] * envs.num_envs

    def reset(self, env_id: Any = None, **options: Any) -> None:
        obs, info = self.envs.reset(*(() if env_id is None else (env_id,)), **options)
        self.note(obs, None, None, None, info)

    def actions(self, env_ids: Any) -> Any:
        chosen = []
        for env_id in env_ids:
            chosen.append(self.choose(int(env_id), self.sent[env_id]))
            self.sent[env_id] += 1
        return np.stack(chosen)

    def note(self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> list[int]:
        ended_ids = []
        for row, env_id in enumerate(info["env_id"]):
            ended = bool(reward is not None and (terminated[row] or truncated[row]))
            own = None if reward is None else float(reward[row])
            self.rows[env_id].append(Row(row_of(obs, row), own, ended, int(info["elapsed_step"][row]), info, row))
            if ended:
                ended_ids.append(int(env_id))
        return ended_ids

    def steps(self, count: int) -> Rollout:
        """Steps of all envs at once, with resets of those that ended where nobody else does it."""
        everyone = range(self.envs.num_envs)
        for _ in range(count):
            ended = self.note(*self.envs.step(self.actions(everyone)))
            if ended and self.envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED:
                self.reset(np.array(ended))
        return self

    def some_steps(self, count: int) -> Rollout:
        """Steps of a part of the envs, in a changing order."""
        rng = np.random.default_rng(0)
        for _ in range(count):
            ids = rng.permutation(self.envs.num_envs)[: self.envs.num_envs // 2 + 1].astype(np.int32)
            ended = self.note(*self.envs.step(self.actions(ids), ids))
            if ended and self.envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED:
                self.reset(np.array(ended))
        return self

    def batches(self, count: int) -> Rollout:
        """async_reset, then recv and send."""
        self.envs.async_reset()
        for _ in range(count):
            step = self.envs.recv()
            ended = self.note(*step)
            ids = step[4]["env_id"]
            if ended and self.envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED:
                self.reset(np.array(ended, dtype=np.int32))
            self.envs.send(self.actions(ids), ids)
        return self


def roll(envs: Any, choose: Callable[[int, int], Any], way: str, count: int) -> Rollout:
    rollout = Rollout(envs, choose)
    if way != "batches":
        rollout.reset()
    return getattr(rollout, way)(count)


def same(one: Any, other: Any) -> None:
    """Asserts that two nested values are equal."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            same(one[key], other[key])
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            same(a, b)
    else:
        np.testing.assert_array_equal(one, other)
        assert np.asarray(one).dtype == np.asarray(other).dtype
