"""RandomEnv: an env that a plan describes, with any spaces, infos, rewards and ends.

Everything it does depends on its plan, seeds and actions alone. Workers import this module, so it depends on nothing
of the tests but space_env.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from support.space_env import checksum

Random = np.random.Generator

# One value of a kind of info. A kind has one dtype and one shape: that of several types differs on purpose.
INFO_KINDS: dict[str, Callable[[Random], Any]] = {
    "int": lambda random: int(random.integers(-(2**62), 2**62)),
    "float": lambda random: float(random.choice([random.normal(), np.nan, np.inf, -0.0])),
    "bool": lambda random: bool(random.random() < 0.5),
    "complex": lambda random: complex(random.normal(), random.normal()),
    "none": lambda random: None,
    "str": lambda random: "é漢🎲x"[: random.integers(5)],
    "bytes": lambda random: random.bytes(3),
    "list": lambda random: [int(random.integers(9)), "text"],
    "tuple": lambda random: (float(random.normal()), None),
    "object": lambda random: Fraction(int(random.integers(9)), 7),
    "empty_dict": lambda random: {},
    "numpy_bool": lambda random: np.bool_(random.random() < 0.5),
    "numpy_str": lambda random: np.str_("abcd"[: random.integers(5)]),
    "datetime": lambda random: np.datetime64(int(random.integers(9999)), "s"),
    **{
        np.dtype(dtype).name: lambda random, dtype=dtype: dtype(random.integers(100))
        for dtype in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
    },
    **{
        np.dtype(dtype).name: lambda random, dtype=dtype: dtype(random.normal())
        for dtype in (np.float16, np.float32, np.float64, np.complex64)
    },
    "array_of_nothing": lambda random: np.zeros((0, 2), np.float32),
    "array_of_one": lambda random: np.array(random.normal(), np.float32),
    "array_of_floats": lambda random: random.normal(size=3),
    "array_of_halves": lambda random: random.normal(size=(2, 2)).astype(np.float16),
    "array_of_bytes": lambda random: random.integers(256, size=(2, 3), dtype=np.uint8),
    "array_of_bools": lambda random: random.random(4) < 0.5,
    "array_of_text": lambda random: np.array(["ab", "漢xyz"][: 1 + random.integers(1)], "<U4"),
    "array_of_one_text": lambda random: np.array(f"{random.integers(100):02}"),
    "array_of_dates": lambda random: random.integers(9999, size=2).astype("datetime64[s]"),
    "array_of_objects": lambda random: np.array([None, "x", int(random.integers(9))], object),
    "array_of_complex": lambda random: random.normal(size=2) * 1j,
    "array_in_fortran_order": lambda random: np.asfortranarray(random.normal(size=(2, 3))),
    "array_reversed": lambda random: random.normal(size=4)[::-1],
}

# Values of several types or sizes under one key: where executors agree with each other, not with Gymnasium.
MIXED_INFO_KINDS: dict[str, Callable[[Random], Any]] = {
    "int_or_float": lambda random: 1 if random.random() < 0.5 else 2.5,
    "bool_or_int": lambda random: True if random.random() < 0.5 else 7,
    "number_or_text": lambda random: 1 if random.random() < 0.5 else "one",
    "number_or_none": lambda random: 1.5 if random.random() < 0.5 else None,
    "arrays_of_sizes": lambda random: np.arange(random.integers(4)),
    "arrays_of_dtypes": lambda random: np.zeros(2, random.choice([np.int8, np.float64, np.int64])),
    "texts_of_sizes": lambda random: np.array("abcdefgh"[: 1 + random.integers(8)]),
    "value_or_dict": lambda random: 3 if random.random() < 0.5 else {"inner": 4},
    "large_int": lambda random: 2 ** int(random.integers(60, 70)),
}

REWARD_KINDS: dict[str, Callable[[float], Any]] = {
    "float": float,
    "int": lambda value: int(value * 10),
    "bool": lambda value: value > 0,
    "float16": np.float16,
    "float32": np.float32,
    "float64": np.float64,
    "int8": lambda value: np.int8(value * 10),
    "array": np.array,
}


@dataclass(frozen=True)
class InfoPlan:
    """One value in the infos of an env: where it stands, what it is, and how often it is there."""

    path: tuple[str, ...]
    kind: str
    chance_at_reset: float
    chance_at_step: float


@dataclass(frozen=True)
class EnvPlan:
    """What an env is like. All envs of a pool have one plan, and seeds of their own."""

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    infos: tuple[InfoPlan, ...] = ()
    max_length: int = 6
    chance_of_both: float = 0.2
    chance_of_termination: float = 0.5
    reward: str = "float"
    has_numpy_flags: bool = False


class RandomEnv(gymnasium.Env[Any, Any]):
    """What its plan says."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 (as Gymnasium declares it)

    def __init__(self, plan: EnvPlan, number: int = 0, render_mode: str | None = None) -> None:
        self.plan, self.number, self.render_mode = plan, number, render_mode
        # Copies: envs that share a space share its generator.
        self.observation_space, self.action_space = deepcopy(plan.observation_space), deepcopy(plan.action_space)
        self.left = self.count = 0
        self.bonus = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count, self.left = 0, int(self.np_random.integers(1, self.plan.max_length + 1))
        info = self._info(True)
        # Empty options reach an env of make() as None, which docs/migrating.md says.
        info["call"] = checksum([seed, sorted(options.items()) if options else None])
        return self._observe(), info

    def step(self, action: Any) -> Any:
        self.count += 1
        self.left -= 1
        random, plan = self.np_random, self.plan
        reward = REWARD_KINDS[plan.reward](random.normal() + self.bonus)
        terminated = truncated = False
        if self.left <= 0:
            terminated = bool(random.random() < plan.chance_of_termination)
            truncated = not terminated or bool(random.random() < plan.chance_of_both)
        flag = np.bool_ if plan.has_numpy_flags else bool
        info = self._info(False)
        info["call"] = checksum(action)
        return self._observe(), reward, flag(terminated), flag(truncated), info

    def render(self) -> Any:
        frame = np.zeros((4, 5, 3), np.uint8)
        frame[:] = [self.number, self.count, max(self.left, 0)]
        return frame

    def describe(self, what: str, times: int = 1) -> str:
        return f"{what} {self.number} {self.count}" * times

    def _observe(self) -> Any:
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()

    def _info(self, at_reset: bool) -> dict[str, Any]:
        info: dict[str, Any] = {}
        for own in self.plan.infos:
            chance = own.chance_at_reset if at_reset else own.chance_at_step
            if self.np_random.random() >= chance:
                continue
            inner = info
            for name in own.path[:-1]:
                inner = inner.setdefault(name, {})
            inner[own.path[-1]] = (INFO_KINDS | MIXED_INFO_KINDS)[own.kind](self.np_random)
        return info
