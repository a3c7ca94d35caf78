"""Random Python envs under random calls: every executor and drop-in against Gymnasium's SyncVectorEnv.

Observations, rewards, flags, infos, frames and attributes are compared bit for bit after every call, in all autoreset
modes. See random_cases.py for the environment variables. What differs on purpose is listed in docs/migrating.md; of
those, two show here: infos of several types under one key (drawn only where executors are compared with each
other), and numpy's integers in the final_obs of `make`.
"""

from __future__ import annotations

import functools
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from fuzz.random_cases import ALL_KINDS, NUM_CASES, Case, assert_same, env_plans, run_cases, vector_cases
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from support.random_env import RandomEnv
from support.ray_session import ray_session

import envfleet
import envfleet.apis.gymnasium
import envfleet.vector

OWN_KEYS = ("env_id", "_env_id", "elapsed_step", "_elapsed_step")


def factories_of(case: Case) -> list[Any]:
    return [functools.partial(RandomEnv, case.plan, number, "rgb_array") for number in range(case.num_envs)]


def make_on(backend: str, case: Case) -> Any:
    options = {} if backend == "serial" else {"num_workers": case.num_workers}
    if backend == "ray":
        ray_session()
        options["ray"] = envfleet.RayConfig(inner_backend="serial")
    return envfleet.make(factories_of(case), backend=backend, autoreset_mode=case.mode, **options)


def drop_in(kind: str, case: Case) -> Any:
    cls = {"sync": envfleet.vector.SyncVectorEnv, "async": envfleet.vector.AsyncVectorEnv}[kind]
    return cls(factories_of(case), autoreset_mode=AutoresetMode[case.mode.upper()])


SUBJECTS = {
    **{backend: functools.partial(make_on, backend) for backend in ("serial", "threads", "processes", "ray")},
    "vector.SyncVectorEnv": functools.partial(drop_in, "sync"),
    "vector.AsyncVectorEnv": functools.partial(drop_in, "async"),
}
SHORT = {"serial": 30, "threads": 15, "processes": 5, "vector.SyncVectorEnv": 20, "vector.AsyncVectorEnv": 4}


def without_own_keys(info: dict[str, Any]) -> dict[str, Any]:
    """The info of a pool without the keys that Gymnasium's vector envs do not have."""
    return {
        key: without_own_keys(value) if key == "final_info" else value
        for key, value in info.items()
        if key not in OWN_KEYS
    }


class Comparison:
    """Makes the same calls to two vector envs and compares what they return."""

    def __init__(self, theirs: Any, own: Any, case: Case, *, strict: bool, same_keys: bool) -> None:
        self._theirs, self._own, self._case = theirs, own, case
        self._strict, self._same_keys = strict, same_keys
        self._random = np.random.default_rng(case.seed)
        self._ended = np.zeros(case.num_envs, np.bool_)

    def run(self) -> None:
        self._reset(seed=self._case.seed)
        self._theirs.action_space.seed(self._case.seed)
        for call in self._case.calls:
            getattr(self, call)()

    def _compare(self, expected: Any, got: Any, what: str) -> None:
        if not self._same_keys:
            got = (*got[:-1], without_own_keys(got[-1]))
        assert_same(expected, got, what, strict=self._strict)

    def _reset(self, **arguments: Any) -> None:
        # Gymnasium takes the mask out of the dict.
        options = arguments.get("options")
        if options is not None:
            arguments["options"] = dict(options)
        expected = self._theirs.reset(**arguments)
        if options is not None:
            arguments["options"] = dict(options)
        self._compare(expected, self._own.reset(**arguments), f"reset({arguments})")
        mask = (options or {}).get("reset_mask")
        self._ended[... if mask is None else mask] = False

    def _mask(self) -> Any:
        mask = self._random.random(self._case.num_envs) < 0.5
        mask[self._random.integers(len(mask))] = True
        return mask

    def _seeds(self) -> list[int | None]:
        seeds = self._random.integers(2**31, size=self._case.num_envs)
        return [int(seed) if self._random.random() < 0.7 else None for seed in seeds]

    def step(self) -> None:
        if self._case.mode == "disabled" and self._ended.any():
            self._reset(options={"reset_mask": self._ended.copy()})
        actions = self._theirs.action_space.sample()
        expected, got = self._theirs.step(actions), self._own.step(actions)
        self._compare(expected, got, "step()")
        self._ended = expected[2] | expected[3]

    def reset(self) -> None:
        self._reset()

    def reset_seed(self) -> None:
        self._reset(seed=int(self._random.integers(2**31)))

    def reset_seeds(self) -> None:
        self._reset(seed=self._seeds())

    def reset_options(self) -> None:
        options = [{}, {"why": 1}, {"why": "text", "array": 2.5}, None][self._random.integers(4)]
        self._reset(options=options)

    def reset_mask(self) -> None:
        self._reset(options={"reset_mask": self._mask()})

    def reset_mask_seeds(self) -> None:
        self._reset(seed=self._seeds(), options={"reset_mask": self._mask(), "why": 3})

    def render(self) -> None:
        assert_same(self._theirs.render(), self._own.render(), "render()")

    def call(self) -> None:
        expected = self._theirs.call("describe", "step", times=2)
        assert_same(expected, self._own.call("describe", "step", times=2), "call()")

    def get_attr(self) -> None:
        for name in ("number", "count", "bonus", "render_mode"):
            assert_same(self._theirs.get_attr(name), self._own.get_attr(name), f"get_attr({name!r})")

    def set_attr(self) -> None:
        values = self._random.integers(9, size=self._case.num_envs).tolist()
        for envs in (self._theirs, self._own):
            envs.set_attr("bonus", values)

    def detour(self) -> None:
        """Save, go somewhere else, and come back: what follows must be as if nothing had been."""
        if not isinstance(self._own, envfleet.apis.gymnasium.GymnasiumPool):
            return  # the drop-ins have Gymnasium's methods alone
        saved = self._own.get_state()
        if self._case.mode == "disabled" and self._ended.any():
            self._own.reset(options={"reset_mask": self._ended.copy()})
        self._own.step(self._theirs.action_space.sample())
        self._own.set_state(saved)


def compare(subject: str, case: Case) -> None:
    mode = AutoresetMode[case.mode.upper()]
    is_drop_in = subject.startswith("vector.")
    theirs = SyncVectorEnv(factories_of(case), autoreset_mode=mode)
    with closing(theirs), SUBJECTS[subject](case) as own:
        assert own.single_observation_space == theirs.single_observation_space
        assert own.single_action_space == theirs.single_action_space
        assert own.observation_space == theirs.observation_space
        assert own.action_space == theirs.action_space
        Comparison(theirs, own, case, strict=False, same_keys=is_drop_in).run()


@pytest.mark.parametrize("subject", SHORT)
def test_random_envs_are_as_in_gymnasium(subject: str) -> None:
    run_cases(functools.partial(compare, subject), vector_cases(), SHORT[subject], subject)


@pytest.mark.soak
@pytest.mark.timeout(24 * 3600)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_many_random_envs_are_as_in_gymnasium(subject: str) -> None:
    run_cases(functools.partial(compare, subject), vector_cases(), num_cases_of(subject), subject)


def num_cases_of(subject: str) -> int:
    """Every case on Ray starts actors, which takes seconds."""
    return max(1, NUM_CASES // 10) if subject == "ray" else NUM_CASES


# --- executors with each other ---------------------------------------------------------------------


def compare_with_serial(backend: str, case: Case) -> None:
    with make_on("serial", case) as reference, make_on(backend, case) as own:
        Comparison(reference, own, case, strict=True, same_keys=True).run()


MIXED_CASES = vector_cases(env_plans(kinds=ALL_KINDS))


@pytest.mark.parametrize(("backend", "num_cases"), [("threads", 8), ("processes", 3)])
def test_executors_agree_about_infos_of_several_types(backend: str, num_cases: int) -> None:
    run_cases(functools.partial(compare_with_serial, backend), MIXED_CASES, num_cases, backend)


@pytest.mark.soak
@pytest.mark.timeout(24 * 3600)
@pytest.mark.parametrize("backend", ["threads", "processes", "ray"])
def test_executors_agree_in_many_cases(backend: str) -> None:
    run_cases(functools.partial(compare_with_serial, backend), MIXED_CASES, num_cases_of(backend), backend)
