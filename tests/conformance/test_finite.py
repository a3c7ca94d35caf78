"""check_finite: rewards and observations that are NaN or infinite are faults of their envs."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from support.python_probes import DivergingEnv

import envfleet
from envfleet import CallOrderError, EnvError, Pool

STEP, NAN_IN_POS, INF_REWARD, NAN_REWARD, END, NAN_AT_END, INF_AT_NEXT_RESET = range(7)
MODES = ("next_step", "same_step", "disabled")


def test_without_the_option_they_pass(make):
    pool: Pool = make("Diverging-v0", num_envs=2)
    pool.reset()
    batch = pool.step([NAN_IN_POS, NAN_REWARD])
    assert np.isnan(batch.obs["pos"][0, 1, 2])
    assert np.isnan(batch.reward[1])


@pytest.mark.ray_core(mode="next_step", action=NAN_IN_POS)
@pytest.mark.parametrize(
    ("mode", "action", "what"),
    [
        ("next_step", NAN_IN_POS, "observation['pos'][1, 2] is nan"),
        ("next_step", INF_REWARD, "reward is inf"),
        ("disabled", NAN_REWARD, "reward is nan"),
        ("disabled", NAN_AT_END, "observation['pos'][1, 2] is nan"),
        ("same_step", NAN_IN_POS, "observation['pos'][1, 2] is nan"),
        ("same_step", NAN_AT_END, "observation['pos'][1, 2] is nan"),
    ],
)
def test_a_step_with_them_is_a_fault(make, mode, action, what):
    pool: Pool = make("Diverging-v0", num_envs=4, num_threads=2, autoreset_mode=mode, check_finite=True)
    pool.reset(seed=0)
    pool.step([STEP] * 4)
    with pytest.raises(EnvError, match=rf"env 2 raised in step\(\): {re.escape(what)}, expected finite") as caught:
        pool.step([STEP, STEP, action, STEP])
    batch = caught.value.batch
    assert batch.reward.tolist() == [2, 2, 0, 2]
    assert not batch.terminated.any()
    assert not batch.truncated.any()
    assert batch.obs["joint"][[0, 1, 3], 0].tolist() == [2, 2, 2]
    assert all(np.isfinite(column).all() for column in batch.obs.values())
    with pytest.raises(CallOrderError, match=r"env 2 raised earlier.*reset\(\[2\]\)"):
        pool.step([STEP] * 4)
    assert pool.reset([2]).obs["joint"][0, 0] == 0
    assert pool.step([STEP] * 4).reward.tolist() == [3, 3, 1, 3]


@pytest.mark.parametrize("mode", MODES)
def test_a_first_observation_with_them_is_a_fault_of_the_reset(make, mode):
    pool: Pool = make("Diverging-v0", num_envs=3, autoreset_mode=mode, check_finite=True)
    pool.reset(seed=0)
    pool.step([STEP, INF_AT_NEXT_RESET, STEP])
    what = r"env 1 raised in reset\(\): observation\['joint'\]\[1\] is -inf"
    if mode == "disabled":
        with pytest.raises(EnvError, match=what):
            pool.reset([1])
    else:
        if mode == "next_step":
            pool.step([STEP, END, STEP])
        with pytest.raises(EnvError, match=what) as caught:
            pool.step([STEP, END, STEP])
        assert caught.value.batch.elapsed_step[1] == 0
    assert pool.reset().obs["joint"][:, :2].tolist() == [[0, 0]] * 3


def test_an_end_without_them_is_none(make):
    pool: Pool = make("Diverging-v0", num_envs=2, autoreset_mode="same_step", check_finite=True)
    pool.reset(seed=0)
    batch = pool.step([STEP, END])
    assert batch.terminated.tolist() == [False, True]
    assert batch.final.obs["joint"][1, 0] == 1


@pytest.mark.ray_core(mode="next_step")
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_such_an_env_is_restarted(make, mode):
    pool: Pool = make("Diverging-v0", num_envs=3, autoreset_mode=mode, on_error="restart", check_finite=True)
    pool.reset(seed=0)
    last = {key: column.copy() for key, column in pool.step([STEP, STEP, STEP]).obs.items()}
    batch = pool.step([STEP, NAN_IN_POS, NAN_REWARD])
    shown = batch.obs if batch.final is None else batch.final.obs
    for key, column in last.items():
        np.testing.assert_array_equal(shown[key][1:], column[1:])
    assert batch.truncated.tolist() == [False, True, True]
    assert batch.reward.tolist() == [2, 0, 0]
    assert "observation['pos'][1, 2] is nan" in batch.info["error"][1]
    assert "reward is nan" in batch.info["error"][2]
    assert all(np.isfinite(column).all() for column in batch.obs.values())
    pool.step([STEP, STEP, STEP])
    assert pool.step([STEP, STEP, STEP]).reward.tolist()[0] == 4


def test_on_asynchronous_pools(make):
    pool: Pool = make("Diverging-v0", num_envs=4, batch_size=2, num_threads=2, check_finite=True)
    pool.async_reset()
    first = pool.recv()
    pool.send([NAN_IN_POS, STEP], first.env_id)
    errors = []
    for _ in range(2):
        try:
            pool.recv()
        except EnvError as error:
            errors.append((error.env_id, error.faults[0].message))
    what = "observation['pos'][1, 2] is nan, expected finite numbers, since check_finite is set"
    assert errors == [(first.env_id[0], what)]


class Walker(DivergingEnv):
    """Observations of other spaces and dtypes: action 1 makes them NaN."""

    def __init__(self, space: spaces.Space) -> None:
        self.observation_space = space

    def reset(self, *, seed=None, options=None):
        return filled(self.observation_space, 0), {}

    def step(self, action):
        return filled(self.observation_space, np.nan if action == 1 else 0), 0.0, False, False, {}


def filled(space: spaces.Space, number: float) -> Any:
    """Return an element of a space with this number wherever it holds floats."""
    if isinstance(space, spaces.Dict):
        return {key: filled(part, number) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(filled(part, number) for part in space.spaces)
    if isinstance(space, spaces.Sequence):
        return (filled(space.feature_space, 0), filled(space.feature_space, number))
    if isinstance(space, spaces.Graph):
        return spaces.GraphInstance(np.full((1, *space.node_space.shape), number, np.float32), None, None)
    return np.full(space.shape, number, space.dtype) if isinstance(space, spaces.Box) else np.int64(0)


@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
@pytest.mark.parametrize(
    ("space", "where"),
    [
        (spaces.Box(-1, 1, (3,), np.float16), "observation[0]"),
        (spaces.Box(-1, 1, (3,), np.float32), "observation[0]"),
        (spaces.Box(-1, 1, (), np.float64), "observation"),
        (spaces.Box(-1, 1, (2,), np.longdouble), "observation[0]"),
        (spaces.Box(np.zeros(2, ">f8"), np.ones(2, ">f8"), dtype=np.dtype(">f8")), "observation[0]"),
        (spaces.Tuple([spaces.Discrete(3), spaces.Dict(a=spaces.Box(-1, 1, (2, 2)))]), "observation[1]['a'][0, 0]"),
        (spaces.Sequence(spaces.Box(-1, 1, (2,))), "observation[1][0]"),
        (spaces.Graph(spaces.Box(-1, 1, (2,)), None), "observation[0][0, 0]"),
    ],
    ids=str,
)
def test_every_space_of_floats_is_checked(backend, space, where):
    with envfleet.make_pool([lambda: Walker(space)] * 2, backend=backend, check_finite=True) as pool:
        pool.reset()
        pool.step([0, 0])
        with pytest.raises(EnvError) as caught:
            pool.step([0, 1])
        assert f"env 1 raised in step(): {where} is nan, expected finite" in str(caught.value)


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_a_number_that_is_infinite_in_the_dtype_of_the_space_is_refused(backend):
    class Narrow(Walker):
        def step(self, action):
            return np.array([0, 1e300 if action == 1 else 1]), 0.0, False, False, {}

    space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    with envfleet.make_pool([lambda: Narrow(space)] * 2, backend=backend, check_finite=True) as pool:
        pool.reset()
        with pytest.raises(EnvError, match=r"env 1 raised in step\(\): observation\[1\] is inf, expected finite"):
            pool.step([0, 1])


@pytest.mark.parametrize("value", ["yes", 2, None])
def test_the_option_is_checked(value):
    with pytest.raises(envfleet.ConfigError, match="check_finite expected True or False"):
        envfleet.make_pool("CartPole-v1", check_finite=value)
