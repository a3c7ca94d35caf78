"""Rollout: steps one env for check_env(), records its results, and reports what is wrong with them.

Comparisons cover observations, rewards and flags; not infos, which may contain timings.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from envfleet.testing.report import Findings, describe_error_of_env, short
from envfleet.testing.results import check_flag, check_info, check_observation, check_reward

Row = tuple[Any, ...]

_RESET_REMEDY = "def reset(self, *, seed=None, options=None): super().reset(seed=seed); ...; return obs, info"
_STEP_REMEDY = "return obs, reward, terminated, truncated, info"


class RolloutStopped(Exception):  # noqa: N818 (not an error: the finding is already recorded)
    """The env cannot be stepped any further."""


class Rollout:
    """One env and the results of its steps. After an end it is reset without a seed, as a pool does."""

    def __init__(self, env: Any, reset_keywords: frozenset[str], findings: Findings, circumstance: str = "") -> None:
        self.env = env
        self.rows: list[Row] = []
        self._observation_space: spaces.Space[Any] = env.observation_space
        self._reset_keywords = reset_keywords
        self._findings = findings
        self._circumstance = circumstance
        self._handed_out: Any = None
        self._as_handed_out: Any = None

    def run(self, seed: int, actions: Sequence[Any]) -> list[Row]:
        """Reset the env with a seed, step it with these actions and return the results."""
        self.reset(seed)
        for action in actions:
            self.step(action)
        return self.rows

    def reset(self, seed: int | None) -> None:
        """Reset the env; with a seed, discard the recorded rows."""
        if seed is not None:
            self.rows = []
        keywords = {name: value for name, value in (("seed", seed), ("options", None)) if name in self._reset_keywords}
        result = self._call("reset()", lambda: self.env.reset(**keywords))
        if not isinstance(result, tuple) or len(result) != 2:
            self._wrong_tuple("reset()", "(obs, info)", result, _RESET_REMEDY)
        obs, info = result
        self._check_reuse(obs)
        self._check("reset()", lambda: check_observation(self._observation_space, obs, "reset()", self._findings))
        check_info(info, "reset()", self._findings)
        self.rows.append((self._as_handed_out,))

    def step(self, action: Any) -> None:
        """Step the env, and reset it after an end."""
        passed = copy.deepcopy(action)
        result = self._call("step()", lambda: self.env.step(passed), f"; the action was {short(action)}")
        if not same(action, passed):
            self._findings.warning(
                "changes its action",
                f"step() was given {short(action)} and left {short(passed)} in its place",
                "copy the action before changing it: action = action.copy()",
            )
        if not isinstance(result, tuple) or len(result) != 5:
            self._wrong_tuple("step()", "(obs, reward, terminated, truncated, info)", result, _STEP_REMEDY)
        obs, reward, terminated, truncated, info = result
        self._check_reuse(obs)
        self._check("step()", lambda: check_observation(self._observation_space, obs, "step()", self._findings))
        check_reward(reward, "step()", self._findings)
        check_flag("terminated", terminated, "step()", self._findings)
        check_flag("truncated", truncated, "step()", self._findings)
        check_info(info, "step()", self._findings)
        self.rows.append((self._as_handed_out, reward, terminated, truncated))
        if self._check("step()", lambda: bool(terminated) or bool(truncated)):
            self.reset(None)

    def _check_reuse(self, obs: Any) -> None:
        if self._handed_out is not None and not same(self._handed_out, self._as_handed_out):
            self._findings.warning(
                "reuses its observation array",
                "an observation that was returned earlier changed with the next call",
                "return obs.copy(): a pool copies, but other code that keeps an observation would see it change",
            )
        self._handed_out = obs
        self._as_handed_out = _copied(obs)

    def _call(self, method: str, call: Any, detail: str = "") -> Any:
        try:
            return call()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: a pool survives it, and so must the check
            self._raised(method, error, detail)

    def _check(self, method: str, call: Any) -> Any:
        """Run a check that calls methods of what the env returned, such as __bool__()."""
        try:
            return call()
        except Exception as error:
            self._findings.error(
                "result cannot be read",
                f"{method} returned something that raised {describe_error_of_env(error)}",
                "return numpy arrays, floats, bools and dicts",
            )
            raise RolloutStopped from error

    def _raised(self, method: str, error: BaseException, detail: str) -> None:
        takes_too_little = method == "reset()" and self._findings.has("reset() takes no seed or options")
        if isinstance(error, ValueError) and "values to unpack" in str(error):
            # A Gymnasium wrapper around the env unpacked the wrong tuple first.
            remedy = _RESET_REMEDY if method == "reset()" else _STEP_REMEDY
            self._findings.error(f"{method} returns a wrong tuple", describe_error_of_env(error), remedy)
        elif not (takes_too_little and isinstance(error, TypeError)):
            self._findings.error(
                f"{method} raises",
                f"expected a result, got {describe_error_of_env(error)}{detail}{self._circumstance}",
                "correct what raises; to end an episode, return terminated or truncated instead",
            )
        raise RolloutStopped from error

    def _wrong_tuple(self, method: str, expected: str, result: Any, remedy: str) -> None:
        got = f"{len(result)} values" if isinstance(result, tuple | list) else ""
        got = f"a {type(result).__name__}{' of ' + got if got else ''}: {short(result)}"
        self._findings.error(f"{method} returns a wrong tuple", f"expected {expected}, got {got}", remedy)
        raise RolloutStopped


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal bit for bit, including nested ones; NaN equals NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return set(one) == set(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray) and one.dtype != object:
        alike = one.dtype == other.dtype and one.shape == other.shape
        return bool(alike and one.tobytes() == other.tobytes())
    try:
        return bool(one == other) or (one != one and other != other)
    except Exception:  # no truth value: compare what they print
        return short(one) == short(other)


def first_difference(one: Sequence[Row], other: Sequence[Row]) -> str | None:
    """Describe where two rollouts first differ; None if they are the same."""
    names = ("observation", "reward", "terminated", "truncated")
    for index, (row, other_row) in enumerate(zip(one, other, strict=False)):
        if len(row) != len(other_row):
            return f"an episode's end, at row {index}"
        for name, value, other_value in zip(names, row, other_row, strict=False):
            if not same(value, other_value):
                when = "of the first reset()" if index == 0 else f"in row {index}"
                return f"the {name} {when}: {short(value)} and {short(other_value)}"
    return None if len(one) == len(other) else "the number of episodes"


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # not copied: a reused array then goes unnoticed, which does no harm
        return value
