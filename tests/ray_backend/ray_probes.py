"""Envs for the tests of the ray backend."""

from __future__ import annotations

import os
import threading
from typing import Any, NoReturn

import gymnasium
import numpy as np
from support.python_probes import FaultyEnv, SleepyEnv, wait_at_gate


class PlacedEnv(FaultyEnv):
    """Knows where it is."""

    def whereabouts(self) -> str:
        """The node of its actor."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def placement_group(self) -> str | None:
        """The id of the placement group that its actor belongs to."""
        import ray

        group = ray.util.get_current_placement_group()
        return None if group is None else str(group.id.hex())

    def variable(self, name: str) -> str | None:
        """An environment variable of its process."""
        return os.environ.get(name)


class LargeEnv(FaultyEnv):
    """Observations that do not fit into a message."""

    observation_space = gymnasium.spaces.Box(0, 255, (4_000_000,), np.uint8)

    def _obs(self) -> np.ndarray:
        obs = np.zeros(4_000_000, dtype=np.uint8)
        obs[-1] = self.count
        return obs


class StuckEnv(FaultyEnv):
    """Never comes back from some steps."""

    HANG = FaultyEnv.THROW

    def step(self, action: Any) -> Any:
        if action == self.HANG:
            threading.Event().wait()
        return super().step(action)


class TalkativeEnv(FaultyEnv):
    """Answers at any length."""

    def tell(self, num_bytes: int) -> bytes:
        return os.urandom(num_bytes)


class UnevenEnv(FaultyEnv):
    """An info that cannot be pickled on some steps, and one that cannot be unpickled by the caller."""

    def step(self, action: Any) -> Any:
        *row, info = super().step(0)
        if action == self.THROW:
            info["lock"] = (number for number in range(3))
        if action == self.THROW_INT:
            info["odd"] = OnlyThere()
        return *row, info


class OnlyThere:
    """What raises when it is unpickled elsewhere than in an actor."""

    def __reduce__(self) -> Any:
        return only_there, ()


def only_there() -> OnlyThere:
    import ray

    if ray.get_runtime_context().get_actor_id() is None:
        raise RuntimeError("not a value for this place")
    return OnlyThere()


def leave() -> NoReturn:
    """A constructor that ends its process."""
    os._exit(3)


class GatedEnv(FaultyEnv):
    """Waits at a gate in a call, or in its next step."""

    gate: int | None = None

    def wait(self, number: int) -> int:
        wait_at_gate(number)
        return number

    def wait_in_step(self, number: int) -> None:
        self.gate = number

    def step(self, action: Any) -> Any:
        if self.gate is not None:
            wait_at_gate(self.gate)
            self.gate = None
        return super().step(action)


class LargeSleepyEnv(SleepyEnv):
    """Observations of which no socket holds eight."""

    observation_space = gymnasium.spaces.Box(0, 255, (4_000_000,), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(4_000_000, np.uint8), {}

    def step(self, action: Any) -> Any:
        super().step(action)
        return np.full(4_000_000, self.count % 200, np.uint8), 0.0, False, False, {}


class BigActionEnv(SleepyEnv):
    """Actions that no socket holds; the first number is for how long to sleep."""

    action_space = gymnasium.spaces.Box(0, 10_000, (2_000_000,), np.float32)

    def step(self, action: Any) -> Any:
        return super().step(action[0])


class UnpackableEnv(FaultyEnv):
    """An info that interrupts whoever packs it, once."""

    def step(self, action: Any) -> Any:
        *row, info = super().step(0)
        if action == self.THROW:
            info["odd"] = RaisesOnce()
        return *row, info


class RaisesOnce:
    """What cannot be pickled the first time."""

    num_tries = 0

    def __reduce__(self) -> Any:
        RaisesOnce.num_tries += 1
        if RaisesOnce.num_tries == 1:
            raise KeyboardInterrupt
        return int, ()
