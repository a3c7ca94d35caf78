"""FailingEnv: raises in each of its methods, on demand, from a function of its own.

Workers import this module, so it depends on nothing of the tests.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit, TransformAction

STEP, FAIL, FAIL_CHAINED, FAIL_UNPICKLABLE, BAD_REWARD = range(5)


class TwoArgumentError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class FailingEnv(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(5)

    def __init__(self, fails_at_start: bool = False) -> None:
        if fails_at_start:
            self.look_up("the constructor")

    def look_up(self, name: str) -> NoReturn:
        raise KeyError(name)

    def stop(self) -> None:
        breakpoint()

    def stop_in_pdb(self) -> None:
        import pdb

        pdb.set_trace()

    @property
    def broken(self) -> NoReturn:
        self.look_up("an attribute")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if options:
            self.look_up("reset")
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:
        if action == FAIL:
            self.look_up("step")
        if action == FAIL_CHAINED:
            try:
                self.look_up("a chain")
            except KeyError as error:
                raise ValueError("the reason is above") from error
        if action == FAIL_UNPICKLABLE:
            raise TwoArgumentError(1, 2)
        return np.zeros(2, np.float32), "much" if action == BAD_REWARD else 0.0, False, False, {}


def failing_env(fails_at_start: bool = False) -> gymnasium.Env[Any, Any]:
    return TimeLimit(FailingEnv(fails_at_start), 5)


def always_failing_env() -> gymnasium.Env[Any, Any]:
    return TransformAction(FailingEnv(), lambda action: FAIL, spaces.Discrete(5))


def read_broken(env: Any) -> Any:
    return env.unwrapped.broken


def printed_by(call: Callable[[], Any]) -> str:
    """Return the traceback of what this call raises, without the frames of this function and of lambdas."""
    try:
        call()
    except Exception as error:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_name in ("printed_by", "<lambda>"):
            frames = frames.tb_next
        return "".join(traceback.format_exception(type(error), error, frames))
    raise AssertionError("it raised nothing")
