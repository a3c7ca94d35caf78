"""Random envs through the views of training libraries, against each library's own wrapper of the same envs.

Stable-Baselines3's DummyVecEnv, Tianshou's DummyVectorEnv and TorchRL's GymWrapper; spaces are those that the library
takes. See random_cases.py for the environment variables.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from fuzz.random_cases import (
    NUM_CASES,
    Case,
    assert_same,
    env_plans,
    flat_spaces,
    run_cases,
    vector_cases,
)
from gymnasium import spaces
from hypothesis import strategies as st
from support.random_env import INFO_KINDS, RandomEnv

import envfleet

BACKENDS = ["serial", "threads", "processes"]
SHORT = {"serial": 6, "threads": 3, "processes": 2}

# Without empty arrays, which no library's buffers hold.
_FLAT = flat_spaces(unbounded=False).filter(lambda space: space.shape == () or 0 not in space.shape)
_DICTS = st.dictionaries(st.sampled_from(["a", "b", "zulu"]), _FLAT, min_size=1, max_size=3).map(spaces.Dict)


def factories_of(case: Case) -> list[Any]:
    return [functools.partial(RandomEnv, case.plan, number, "rgb_array") for number in range(case.num_envs)]


def workers(case: Case, backend: str) -> dict[str, Any]:
    return {"backend": backend, **({} if backend == "serial" else {"num_workers": case.num_workers})}


def every_view(check: Any, cases: Any) -> Any:
    """A short and a long test of this check on every backend."""

    @pytest.mark.parametrize("backend", BACKENDS)
    def short(backend: str) -> None:
        run_cases(functools.partial(check, backend), cases, SHORT[backend], f"{check.__name__}, {backend}")

    @pytest.mark.soak
    @pytest.mark.timeout(24 * 3600)
    @pytest.mark.parametrize("backend", BACKENDS)
    def long(backend: str) -> None:
        run_cases(functools.partial(check, backend), cases, NUM_CASES, f"{check.__name__}, {backend}")

    return short, long


# --- Stable-Baselines3 -----------------------------------------------------------------------------


def compare_with_sb3(backend: str, case: Case) -> None:
    sb3 = pytest.importorskip("stable_baselines3.common.vec_env")
    from envfleet.apis.sb3 import EnvFleetVecEnv

    theirs = sb3.DummyVecEnv(factories_of(case))
    own = EnvFleetVecEnv(envfleet.make(factories_of(case), autoreset_mode="same_step", **workers(case, backend)))
    try:
        assert own.observation_space == theirs.observation_space
        assert own.action_space == theirs.action_space
        spaces_of_actions = [theirs.action_space] * case.num_envs
        theirs.action_space.seed(case.seed)
        assert theirs.seed(case.seed) == own.seed(case.seed)
        assert_same(theirs.reset(), own.reset(), "reset()")
        for call in case.calls:
            if call == "reset":
                assert_same(theirs.reset(), own.reset(), "reset()")
                assert_same(theirs.reset_infos, own.reset_infos, "reset_infos", strict=False)
            elif call == "call":
                arguments = ("describe", "x")
                assert theirs.env_method(*arguments, times=2) == own.env_method(*arguments, times=2)
            elif call == "set_attr":
                for envs in (theirs, own):
                    envs.set_attr("bonus", 3.5, [0])
            elif call == "render":
                assert_same(list(theirs.get_images()), list(own.get_images()), "get_images()")
            else:
                actions = np.stack([space.sample() for space in spaces_of_actions])
                expected, got = theirs.step(actions), own.step(actions)
                assert_same(expected[:3], got[:3], "step()")
                assert_same(expected[3], got[3], "infos", strict=False)
                assert_same(theirs.reset_infos, own.reset_infos, "reset_infos", strict=False)
    finally:
        theirs.close()
        own.close()


_SB3_PLANS = env_plans(observation_spaces=st.one_of(_FLAT, _DICTS), action_spaces=_FLAT)
test_sb3, test_sb3_for_long = every_view(compare_with_sb3, vector_cases(_SB3_PLANS, ["same_step"]))


# --- Tianshou --------------------------------------------------------------------------------------


def compare_with_tianshou(backend: str, case: Case) -> None:
    tianshou = pytest.importorskip("tianshou.env")
    from envfleet.apis.tianshou import make_vector_env

    theirs = tianshou.DummyVectorEnv(factories_of(case))
    own = make_vector_env(factories_of(case), **workers(case, backend))
    random = np.random.default_rng(case.seed)
    space = case.plan.action_space
    space.seed(case.seed)
    try:
        assert theirs.seed(case.seed) == own.seed(case.seed)
        assert_same_rows(theirs.reset(), own.reset(), "reset()")
        for call in case.calls:
            if call == "reset_mask":
                ids = random.permutation(case.num_envs)[: random.integers(1, case.num_envs + 1)]
                assert_same_rows(theirs.reset(ids), own.reset(ids), f"reset({ids})")
            elif call == "set_attr":
                for envs in (theirs, own):
                    envs.set_env_attr("bonus", 2.5, [0])
                assert theirs.get_env_attr("bonus") == own.get_env_attr("bonus")
            elif call == "step":
                ids = np.sort(random.permutation(case.num_envs)[: random.integers(1, case.num_envs + 1)])
                actions = np.stack([space.sample() for _ in ids])
                expected, got = theirs.step(actions, ids), own.step(actions, ids)
                assert_same_rows(expected, got, f"step({ids})")
                ended = ids[expected[2] | expected[3]]
                if len(ended):
                    assert_same_rows(theirs.reset(ended), own.reset(ended), f"reset({ended})")
    finally:
        theirs.close()
        own.close()


def assert_same_rows(theirs: Any, own: Any, where: str) -> None:
    """Equal, but for what our infos have besides: elapsed_step, and env_id at a reset too."""
    *expected, infos = theirs
    *got, own_infos = own
    if len(expected) == 4:
        # What Tianshou stacks has the dtype of the envs' rewards and flags; ours are always the same.
        expected[1:] = (np.asarray(column, own.dtype) for column, own in zip(expected[1:], got[1:], strict=True))
        assert [info["env_id"] for info in infos] == [info["env_id"] for info in own_infos], where
    assert_same(expected, got, where, strict=False)
    assert_same(_own_infos(infos), _own_infos(own_infos), f"{where}: infos", strict=False)


def _own_infos(infos: Any) -> list[dict[str, Any]]:
    return [{key: value for key, value in info.items() if key not in ("env_id", "elapsed_step")} for info in infos]


_TIANSHOU_PLANS = env_plans(observation_spaces=st.one_of(_FLAT, _DICTS), action_spaces=_FLAT)
test_tianshou, test_tianshou_for_long = every_view(compare_with_tianshou, vector_cases(_TIANSHOU_PLANS, ["disabled"]))


# --- TorchRL ---------------------------------------------------------------------------------------

# What GymWrapper takes: no start of a Discrete space. Colour images it calls "pixels", ours are the observation.
_BOXES = st.sampled_from(
    [
        spaces.Box(-1, 1, (3,), np.float32),
        spaces.Box(-10, 10, (2, 2), np.float64),
        spaces.Box(0, 255, (4, 4), np.uint8),
        spaces.Box(-5, 5, (2,), np.int64),
        spaces.Box(-np.inf, np.inf, (1,), np.float32),
    ]
)
_CHOICES = st.lists(st.integers(2, 4), min_size=2, max_size=3).map(spaces.MultiDiscrete)
# GymWrapper makes an int of actions of one element that are no Box, which fails.
_ACTIONS = st.one_of(_BOXES, st.integers(2, 6).map(spaces.Discrete), _CHOICES)
_TENSORS = st.one_of(_ACTIONS, st.integers(1, 4).map(spaces.MultiBinary))
_TENSOR_DICTS = st.dictionaries(st.sampled_from(["a", "b", "zulu"]), _TENSORS, min_size=1, max_size=3).map(spaces.Dict)


def compare_with_torchrl(backend: str, case: Case) -> None:
    torch = pytest.importorskip("torch")
    torchrl = pytest.importorskip("torchrl.envs")
    from tensordict import TensorDict

    from envfleet.apis.torchrl import EnvFleetEnv

    is_categorical = case.seed % 2 == 0
    theirs = [
        torchrl.GymWrapper(factory(), categorical_action_encoding=is_categorical) for factory in factories_of(case)
    ]
    own = EnvFleetEnv(
        factories_of(case),
        categorical_action_encoding=is_categorical,
        seed=case.seed,
        autoreset_mode="same_step" if case.mode == "same_step" else "disabled",
        **workers(case, backend),
    )

    def compare(expected: list[Any], got: Any, where: str) -> None:
        for row, one in enumerate(expected):
            part = got[row]
            assert set(one.keys(True, True)) == set(part.keys(True, True)), where
            for key in one.keys(True, True):
                assert one[key].dtype == part[key].dtype, f"{where}, env {row}: {key}"
                assert torch.equal(torch.nan_to_num(one[key]), torch.nan_to_num(part[key])), (
                    f"{where}, env {row}: {key}"
                )

    try:
        torch.manual_seed(case.seed)
        for one, leaf in zip(theirs, [own.action_spec[row] for row in range(case.num_envs)], strict=True):
            assert one.action_spec.shape == leaf.shape
        data = own.reset()
        compare([one.reset(seed=case.seed + row) for row, one in enumerate(theirs)], data, "reset()")
        for _ in case.calls:
            actions = torch.stack([one.action_spec.rand() for one in theirs])
            stepped = own.step(TensorDict({"action": actions}, [case.num_envs]))["next"]
            rows = [one.step(TensorDict({"action": actions[row]}, []))["next"] for row, one in enumerate(theirs)]
            compare(rows, stepped, "step()")
            ended = stepped["done"]
            if ended.any():
                data = own.reset(TensorDict({"_reset": ended}, [case.num_envs]))
                for row in ended[:, 0].nonzero()[:, 0].tolist():
                    first = theirs[row].reset()
                    for key in first.keys(True, True):
                        assert torch.equal(first[key], data[row][key]), f"reset of env {row}: {key}"
    finally:
        own.close(raise_if_closed=False)
        for one in theirs:
            one.close(raise_if_closed=False)


# TorchRL reads no infos unless it is told to.
_TORCHRL_PLANS = env_plans(
    observation_spaces=st.one_of(_TENSORS, _TENSOR_DICTS), action_spaces=_ACTIONS, kinds=[next(iter(INFO_KINDS))]
)
_TORCHRL_CASES = vector_cases(_TORCHRL_PLANS, ["same_step", "disabled"])
test_torchrl, test_torchrl_for_long = every_view(compare_with_torchrl, _TORCHRL_CASES)
