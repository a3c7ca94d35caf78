"""Envs of older APIs. gym is not installed: its classes are stood in for."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


def gym_space(name: str, **attributes: Any) -> Any:
    """A space as the gym package has it: its class name and attributes, nothing of Gymnasium."""
    return type(name, (), {"__module__": f"gym.spaces.{name.lower()}"} | attributes)()


def gym_box(low: float, high: float, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    return gym_space("Box", low=np.full(shape, low, dtype), high=np.full(shape, high, dtype), shape=shape, dtype=dtype)


class OldEnv:
    """gym 0.21: reset() -> obs, a 4-tuple from step(), seed(), render(mode)."""

    metadata: Any = {"render.modes": ["human", "rgb_array"], "video.frames_per_second": 30}  # noqa: RUF012 (as in gym)

    def __init__(self, limit: int = 3) -> None:
        self.observation_space = gym_box(-1, 1, (2,))
        self.action_space = gym_space("Discrete", n=3)
        self.limit = limit
        self.closed = False
        self.np_random = np.random.RandomState(0)

    def seed(self, seed: int | None = None) -> list[int | None]:
        self.np_random = np.random.RandomState(seed)
        return [seed]

    def _obs(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def reset(self) -> Any:
        self.count = 0
        return self._obs()

    def step(self, action: int) -> Any:
        self.count += 1
        timed_out = self.count >= self.limit
        died = action == 2
        info = {"TimeLimit.truncated": not died} if timed_out else {}
        return self._obs(), 1.5, died or timed_out, info

    def render(self, mode: str = "human") -> Any:
        return f"drawn as {mode}"

    def close(self) -> None:
        self.closed = True


class OldWrapper:
    """gym.Wrapper: reset(**kwargs), everything else passed through."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, **kwargs: Any) -> Any:
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        return self.env.step(action)


class Gym26Env:
    """gym 0.26: Gymnasium's calls with gym's spaces."""

    def __init__(self) -> None:
        self.observation_space = gym_box(0, 255, (4,), np.uint8)
        self.action_space = gym_space("Discrete", n=2, start=0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(4, np.uint8), {"seed": seed, "options": options}

    def step(self, action: Any) -> Any:
        return np.ones(4, np.uint8), 1.0, False, True, {"action": action}


class Gym24Env(Gym26Env):
    """gym 0.22 to 0.25: the seed in reset(), an info on request, still a 4-tuple."""

    def reset(self, *, seed: int | None = None, return_info: bool = False, options: Any = None) -> Any:
        obs = np.zeros(4, np.uint8)
        return (obs, {"seed": seed}) if return_info else obs

    def step(self, action: Any) -> Any:
        return np.ones(4, np.uint8), 1.0, True, {}


class DuckEnv:
    """Gymnasium's API without its base class."""

    observation_space = BOX
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return BOX.low, {}

    def step(self, action: Any) -> Any:
        return BOX.low, 0.0, False, False, {}


class ProtocolEnv:
    """envpool_wrapper's five methods; calls are noted in order."""

    def __init__(self, envid: str, size: int = 2) -> None:
        self.envid = envid
        self.observation_space = spaces.Dict(x=spaces.Box(0, 9, (size,), np.int16))
        self.action_space = spaces.Discrete(3)
        self.calls: list[str] = []
        self.np_random = np.random.default_rng()

    def _step_envpool(self, act: Any) -> None:
        self.calls.append(f"step {act}")

    def _reset_envpool(self) -> None:
        self.calls.append("reset")
        self.start = self.np_random.integers(9)

    def _make_obs_envpool(self) -> Any:
        self.calls.append("obs")
        return {"x": np.full(2, self.start, np.int16)}

    def _done_envpool(self) -> bool:
        self.calls.append("done")
        return np.bool_(True)

    def _reward_envpool(self) -> float:
        self.calls.append("reward")
        return 2.0
