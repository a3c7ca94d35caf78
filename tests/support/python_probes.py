"""Python envs that do on demand what real envs do by accident: the twins of plugins/probe.cc.

The same spaces, the same draws, the same infos. What only Python envs and whole processes can do wrong is in
faulty_env.py, and every kind of space in space_env.py. Workers import this module, so it depends on nothing of
the tests.
"""

from __future__ import annotations

import os
import time
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces

MAX_GATE = 2**24 - 1  # a float32 holds it exactly
_GATE_PATIENCE_S = 120.0  # then an env goes on: a test that fails must not leave it waiting for ever


def gate_files(number: int) -> tuple[str, str]:
    """The file that says that an env has come to a gate, and the one that says that it is open."""
    return f"/tmp/gate-{number}-reached", f"/tmp/gate-{number}-open"


def wait_at_gate(number: int) -> None:
    """Waits until a test opens the gate, or has left it; gates.py has the other side."""
    reached, opened = gate_files(number)
    with open(reached, "w"):
        pass
    deadline = time.monotonic() + _GATE_PATIENCE_S
    while not os.path.exists(opened) and os.path.exists(reached) and time.monotonic() < deadline:
        time.sleep(0.002)


class NoException(BaseException):
    """What throwing an int is to C++: nothing that `except Exception` catches, nor can it be pickled."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("this exception stays at home")


class FaultyEnv(gymnasium.Env[Any, Any]):
    """Counts its steps; the action says what goes wrong."""

    STEP, THROW, THROW_INT, THROW_AT_RESET, END, THROW_IN_OBSERVE, THROW_NONSENSE = range(7)

    observation_space = spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (2,), np.int64)
    action_space = spaces.Discrete(7)

    def __init__(self, fail_construction: bool = False, length: int = 1000) -> None:
        if fail_construction:
            raise RuntimeError("no licence for this simulator")
        self.length = length
        self.start = self.count = self.total = 0
        self.throw_at_reset = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if self.throw_at_reset:
            raise RuntimeError("the level file is gone")
        self.start, self.count = int(self.np_random.integers(0, 1_000_000)), 0
        return self._obs(), {"total": self.total}

    def step(self, action: Any) -> Any:
        if action == self.THROW:
            raise RuntimeError("joint 3 exploded")
        if action == self.THROW_INT:
            raise NoException(42)
        if action == self.THROW_NONSENSE:
            raise RuntimeError("caf\udce9 \udcff")  # what decoding broken bytes leaves: no UTF-8
        self.throw_at_reset |= bool(action == self.THROW_AT_RESET)
        self.count += 1
        self.total += 1
        terminated = bool(action == self.END or self.count >= self.length)
        return self._obs(), float(self.count), terminated, False, {"total": self.total, "last_action": int(action)}

    def _obs(self) -> np.ndarray:
        return np.array([self.start, self.count], dtype=np.int64)


class HalfwayEnv(gymnasium.Env[Any, Any]):
    """Returns an observation of which only the first half can be written, of a space without zeros."""

    STEP, THROW, END, THROW_AT_RESET = range(4)

    observation_space = spaces.Dict(
        {"first": spaces.Box(100, 200, (3,), np.float64), "second": spaces.Box(100, 200, (2,), np.float64)}
    )
    action_space = spaces.Discrete(4)

    def __init__(self, throw_at_reset: bool = False) -> None:
        self.throw_at_reset = throw_at_reset

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._obs(self.throw_at_reset), {}

    def step(self, action: Any) -> Any:
        self.throw_at_reset |= bool(action == self.THROW_AT_RESET)
        return self._obs(bool(action == self.THROW)), 1.0, bool(action == self.END), False, {}

    def _obs(self, throws: bool) -> dict[str, np.ndarray]:
        first = self.np_random.uniform(100, 200, 3)
        return {"first": first, "second": np.zeros(7) if throws else self.np_random.uniform(100, 200, 2)}


class TrailEnv(gymnasium.Env[Any, Any]):
    """Observes all of its episode so far: arrays, a text and objects of no fixed size. Raises on action 1."""

    observation_space = spaces.Dict(
        {
            "trail": spaces.Sequence(spaces.Box(0, 1000, (2,), np.int64)),
            "image": spaces.Box(0, 255, (4,), np.uint8),
            "note": spaces.Text(12),
        }
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.trail = [self.np_random.integers(1, 1000, 2)]
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.trail.append(self.np_random.integers(1, 1000, 2))
        if action == 1:
            raise RuntimeError("the trail goes cold")
        return self._obs(), 1.0, False, False, {}

    def _obs(self) -> dict[str, Any]:
        image = np.full(4, 1 + len(self.trail), dtype=np.uint8)
        return {"trail": tuple(self.trail), "image": image, "note": f"step {len(self.trail)}"}


def trail_row(obs: dict[str, Any], row: int) -> tuple[Any, ...]:
    """A row of a batch of TrailEnv's as plain values."""
    return [step.tolist() for step in obs["trail"][row]], obs["image"][row].tolist(), obs["note"][row]


def scribble_on_trails(obs: dict[str, Any]) -> None:
    """What a caller may do with the rows that are its own."""
    obs["image"][...] = 0
    for trail in obs["trail"]:
        for step in trail:
            step[...] = -1


class RefusingEnv(FaultyEnv):
    """Raises when its budget is set to a negative number."""

    def __init__(self) -> None:
        super().__init__()
        self._budget = 10

    @property
    def budget(self) -> int:
        return self._budget

    @budget.setter
    def budget(self, value: int) -> None:
        if value < 0:
            raise ValueError("the budget is spent")
        self._budget = value


class SleepyEnv(gymnasium.Env[Any, Any]):
    """Sleeps as many milliseconds as its action says; 7,777 raises, a negative one names a gate."""

    observation_space = spaces.Box(np.iinfo(np.int32).min, np.iinfo(np.int32).max, (), np.int32)
    action_space = spaces.Box(-MAX_GATE, 10_000, (), np.float32)
    count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return np.array(self.count, dtype=np.int32), {}

    def step(self, action: Any) -> Any:
        if action < 0:
            wait_at_gate(-int(action))
        elif action == 7777:
            raise RuntimeError("joint 3 exploded")
        else:
            time.sleep(float(action) / 1000)
        self.count += 1
        return np.array(self.count, dtype=np.int32), 0.0, False, False, {}


class SlowResetEnv(SleepyEnv):
    """Its next reset waits at the gate that a negative action names."""

    gate = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        gate, self.gate = self.gate, 0
        if gate:
            wait_at_gate(gate)
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        self.gate = -int(min(action, 0))
        return super().step(max(action, 0))


class SinkEnv(gymnasium.Env[Any, Any]):
    """Every kind of array in a Dict observation. Made with max_episode_steps=7, it is the native Sink-v0."""

    action_space = spaces.MultiDiscrete([3, 4])

    def __init__(
        self,
        size: int = 3,
        scale: float = 1.0,
        loud: bool = False,
        label: str = "plain",
        weights: tuple[float, ...] = (0.5, 0.25),
    ) -> None:
        if size < 1:
            raise ValueError(f"size expected a positive number, got {size}")
        self.size, self.scale = size, scale
        self.bonus = (100 if loud else 0) + sum(weights) + len(label)
        self.draw, self.count = 0.0, 0
        self.observation_space = spaces.Dict(
            {
                "zulu": spaces.Box(0, 255, (size, 2), np.uint8),
                "alpha": spaces.Box(-np.inf, np.inf, (size,), np.float64),
                "mike": spaces.Discrete(1000, start=-5),
                "flags": spaces.MultiBinary(size),
                "small": spaces.Box(-7, 7, (1,), np.int16),
            }
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.draw, self.count = float(self.np_random.standard_normal()), 0
        return self._obs(), {"draw": self.draw}

    def step(self, action: Any) -> Any:
        self.draw = float(self.np_random.standard_normal())
        self.count += 1
        reward = self.scale * (int(action[0]) * 10 + int(action[1])) + self.bonus
        return self._obs(), reward, False, False, {"draw": self.draw}

    def _obs(self) -> dict[str, Any]:
        elements = np.arange(self.size)
        zulu = np.zeros((self.size, 2), dtype=np.uint8)
        if self.count % 2 == 0:
            zulu[:, 0] = self.count + elements
        return {
            "zulu": zulu,
            "alpha": self.draw * elements.astype(np.float64),
            "mike": np.int64(self.count - 5),
            "flags": ((self.count + elements) % 2).astype(np.int8),
            "small": np.array([-self.count], dtype=np.int16),
        }


class DivergingEnv(gymnasium.Env[Any, Any]):
    """Counts its steps; the action says which number is not finite."""

    STEP, NAN_IN_POS, INF_REWARD, NAN_REWARD, END, NAN_AT_END, INF_AT_NEXT_RESET = range(7)

    observation_space = spaces.Dict(
        joint=spaces.Box(-np.inf, np.inf, (4,), np.float32), pos=spaces.Box(-np.inf, np.inf, (2, 3), np.float64)
    )
    action_space = spaces.Discrete(7)
    count, inf_at_reset = 0, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        obs = self._obs()
        if self.inf_at_reset:
            obs["joint"][1] = -np.inf
        self.inf_at_reset = False
        return obs, {}

    def step(self, action: Any) -> Any:
        self.count += 1
        self.inf_at_reset |= bool(action == self.INF_AT_NEXT_RESET)
        obs = self._obs()
        if action in (self.NAN_IN_POS, self.NAN_AT_END):
            obs["pos"][1, 2] = np.nan
        reward = {self.INF_REWARD: np.inf, self.NAN_REWARD: np.nan}.get(int(action), float(self.count))
        return obs, reward, bool(action in (self.END, self.NAN_AT_END)), False, {}

    def _obs(self) -> dict[str, Any]:
        obs = {"joint": np.zeros(4, np.float32), "pos": np.zeros((2, 3))}
        obs["joint"][0] = obs["pos"][0, 0] = self.count
        return obs
