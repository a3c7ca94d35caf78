"""A Python env that raises or answers wrongly: what the caller gets, and what becomes of the others."""

from __future__ import annotations

import os
import pickle
import re
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from misbehaving_pools import STEP, actions, assert_usable, misbehaving_pools, on_two_workers
from support.deliveries import Deliveries
from support.faulty_env import JointError, Misbehavior
from support.python_probes import FaultyEnv, HalfwayEnv, TrailEnv, scribble_on_trails, trail_row

import envfleet
from envfleet import CallOrderError, ConfigError, EnvError
from envfleet.testing import check_env


@pytest.fixture(params=["serial", "threads", "processes"])
def make(request):
    with misbehaving_pools(**on_two_workers(request.param)) as make:
        yield make


def assert_others_kept(error: EnvError, starts: np.ndarray) -> None:
    """Row 2 is zeros, the others are what their envs gave."""
    batch = error.batch
    assert batch.env_id.tolist() == [0, 1, 2, 3]
    assert batch.obs[:, 1].tolist() == [1, 1, 0, 1]
    assert batch.obs[[0, 1, 3], 0].tolist() == starts[[0, 1, 3]].tolist()
    assert batch.reward.tolist() == [1, 1, 0, 1]
    assert not batch.terminated.any()


RAISES = {
    Misbehavior.RAISE: "joint 3 exploded",
    Misbehavior.RAISE_UNPICKLABLE: "stuck at home",
    Misbehavior.RAISE_UNPRINTABLE: "Unprintable",
    Misbehavior.RAISE_AT_LENGTH: "long long long",
    Misbehavior.RECURSE: "recursion",
    Misbehavior.SYS_EXIT: "SystemExit",
}
ANSWERS_WRONGLY = {
    Misbehavior.WRONG_SHAPE: r"(?s)expected.*\(2,\).*got.*\(3,\)",
    Misbehavior.WRONG_DTYPE: r"(?s)expected.*int64.*got.*float64",
    Misbehavior.WRONG_STRUCTURE: r"(?s)expected.*got.*dict",
    Misbehavior.NO_OBSERVATION: r"(?s)expected.*got.*None",
    Misbehavior.SHORT_TUPLE: r"(?s)expected.*got.*3",
    Misbehavior.NO_TUPLE: r"(?s)expected.*got.*int",
    Misbehavior.BAD_REWARD: r"(?s)expected.*got.*(plenty|str)",
    Misbehavior.BAD_INFO: r"(?s)expected.*dict.*got.*list",
}
FAULTS = {**RAISES, **ANSWERS_WRONGLY}


PIXELS, SMALL = spaces.Box(0, 255, (2, 2), np.uint8), spaces.Box(-100, 100, (2,), np.int8)
CAST = re.escape("return np.asarray(obs, dtype=np.")


@pytest.mark.parametrize(
    ("space", "obs", "proposes_cast", "remedy"),
    [
        (PIXELS, np.full((2, 2), 128) / 255.0, False, r"dtype=np\.float64 in the space, or scale.*0\.50.*and round"),
        (PIXELS, np.full((2, 2), np.nan), False, r"dtype=np\.float64 in the space, or scale the values to"),
        (PIXELS, np.full((2, 2), 256), False, r"dtype=np\.int64 in the space, or scale.*from 256 to 256.*clip"),
        (PIXELS, np.full((2, 2), -1, np.int8), False, r"dtype=np\.int8 in the space, or scale.*from -1 to -1.*clip"),
        (PIXELS, np.full((2, 2), 1 + 2j), False, r"return obs\.real and obs\.imag, or np\.abs"),
        (PIXELS, np.full((2, 2), "dark"), False, "return an element of observation_space"),
        (SMALL, np.array([300, 0]), False, r"which it cannot hold; declare dtype=np\.int64.*from 0 to 300.*clip"),
        (spaces.Discrete(3), 0.5, False, r"declare a Box of dtype np\.float64, or scale"),
        (PIXELS, np.full((2, 2), 255), True, r"dtype=np\.int64 in the space, or return.*if all its values fit"),
        (PIXELS, np.full((2, 2), 7.0), True, r"dtype=np\.float64 in the space, or return.*are whole numbers, as these"),
    ],
)
def test_a_cast_is_proposed_only_where_it_keeps_the_values(space, obs, proposes_cast, remedy):
    class Env(gymnasium.Env):
        observation_space, action_space = space, spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return obs, {}

        def step(self, action):
            return obs, 0.0, False, False, {}

    def env():
        return Env()

    with envfleet.make_pool(env, num_envs=1, backend="serial") as pool:
        with pytest.raises(EnvError, match=remedy) as caught:
            pool.reset()
        assert bool(re.search(CAST, str(caught.value))) == proposes_cast
        assert "astype" not in str(caught.value)
    if space is not SMALL and np.asarray(obs).dtype.kind != "U":
        found = str(check_env(env))
        assert re.search(remedy, found), found
        assert bool(re.search(CAST, found)) == proposes_cast
        assert "astype" not in found


@pytest.mark.parametrize(("trouble", "message"), FAULTS.items(), ids=[trouble.name for trouble in FAULTS])
def test_a_fault_in_step_names_the_env_and_keeps_the_other_rows(make, trouble, message):
    pool = make()
    starts = pool.reset(seed=0).obs[:, 0]
    with pytest.raises(EnvError, match=message) as caught:
        pool.step(actions(trouble, 2))
    error = caught.value
    assert (error.env_id, error.method) == (2, "step")
    assert [fault.env_id for fault in error.faults] == [2]
    assert_others_kept(error, starts)
    with pytest.raises(CallOrderError, match="env 2 raised earlier"):
        pool.step([STEP] * 4)
    assert pool.step([STEP] * 3, [0, 1, 3]).obs[:, 1].tolist() == [2, 2, 2]
    assert_usable(pool)


@pytest.mark.parametrize(("trouble", "message"), FAULTS.items(), ids=[trouble.name for trouble in FAULTS])
def test_a_fault_is_restarted_on_request(make, trouble, message):
    pool = make(on_error="restart")
    start = pool.reset(seed=0).obs[2].tolist()
    batch = pool.step(actions(trouble, 2))
    assert batch.obs[2].tolist() == start
    assert batch.truncated.tolist() == [False, False, True, False]
    assert batch.info["_error"].tolist() == [False, False, True, False]
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(batch.info["error"][2])
    assert pool.step([STEP] * 4).elapsed_step.tolist() == [2, 2, 0, 2]
    assert pool.step([STEP] * 4).obs[:, 1].tolist() == [3, 3, 1, 3]
    assert_usable(pool)


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
def test_a_restarted_row_has_the_last_objects(backend, mode):
    with envfleet.make_pool(
        TrailEnv, num_envs=3, num_workers=2 if backend != "serial" else None, backend=backend, on_error="restart",
        autoreset_mode=mode,
    ) as pool:  # fmt: skip
        pool.reset(seed=0)
        for failing in (1, 2, 1):
            batch = pool.step([0, 0, 0])
            expected = trail_row(batch.obs, failing)
            scribble_on_trails(batch.obs)
            scribble_on_trails(pool.observe())
            batch = pool.step([int(env_id == failing) for env_id in range(3)])
            assert trail_row(batch.obs if batch.final is None else batch.final.obs, failing) == expected
            assert trail_row(batch.obs, 0)[0][-1] != [-1, -1]
            if mode == "next_step":
                pool.step([0, 0, 0])


class Unreadable:
    """Can be pickled, but not unpickled."""

    def __reduce__(self):
        return str.encode, ("surrogate \udc80",)


class UnreadableEnv(HalfwayEnv):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(self.STEP)
        return obs, reward, terminated, truncated, {"note": Unreadable()} if action == self.THROW else info


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_a_row_that_cannot_be_read_was_not_delivered(mode, copy):
    with envfleet.make_pool(
        UnreadableEnv, num_envs=2, num_workers=1, backend="processes", on_error="restart", autoreset_mode=mode,
        copy=copy,
    ) as pool:  # fmt: skip
        deliveries = Deliveries(2)
        deliveries.record(range(2), pool.reset(seed=0))
        for action in (0, 1, 0, 1):
            deliveries.check(pool.step([action, 0]))
        assert deliveries.num_restarts == 2


@pytest.mark.parametrize("batch_size", [4, 2])
def test_faults_of_envs_that_were_sent(make, batch_size):
    pool = make(batch_size=batch_size)
    pool.reset(seed=0)
    pool.send(actions(Misbehavior.RAISE, 2), [0, 1, 2, 3])
    faults, rows = [], []
    for _ in range(4 // batch_size):
        try:
            batch = pool.recv()
        except EnvError as error:
            faults += [fault.env_id for fault in error.faults]
            batch = error.batch
        rows += batch.env_id.tolist()
    assert faults == [2]
    assert sorted(rows) == [0, 1, 2, 3]
    assert_usable(pool)


def test_the_original_exception_and_its_traceback_come_along(make):
    pool = make()
    pool.reset(seed=0)
    with pytest.raises(EnvError) as caught:
        pool.step(actions(Misbehavior.RAISE, 2))
    error = caught.value
    assert isinstance(error.__cause__, JointError)
    assert str(error.__cause__) == "joint 3 exploded"
    assert 'raise JointError("joint 3 exploded")' in error.env_traceback
    assert "faulty_env.py" in error.env_traceback
    assert pickle.loads(pickle.dumps(error)).env_traceback == error.env_traceback


def test_an_exception_that_cannot_be_sent_still_has_its_traceback(make):
    pool = make()
    pool.reset(seed=0)
    with pytest.raises(EnvError) as caught:
        pool.step(actions(Misbehavior.RAISE_UNPICKLABLE, 2))
    assert "_raise_unpicklable" in caught.value.env_traceback


def test_a_constructor_that_raises_leaves_nothing(make):
    for _ in range(3):
        with pytest.raises(EnvError, match="no licence for this simulator") as caught:
            make(FaultyEnv, env_kwargs={"fail_construction": True})
        assert caught.value.method == "__init__"


def test_the_constructor_of_one_env_that_raises(make, tmp_path):
    """Every other env is closed, also those of another worker."""

    class Closing(FaultyEnv):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            (tmp_path / f"built {os.getpid()} {id(self)}").touch()

        def close(self):
            (tmp_path / f"closed {os.getpid()} {id(self)}").touch()

    kwargs = [{}, {}, {"fail_construction": True}, {}]
    with pytest.raises(EnvError, match="no licence for this simulator") as caught:
        make(Closing, env_kwargs=kwargs)
    assert (caught.value.env_id, caught.value.method) == (2, "__init__")
    names = [path.name.split(" ", 1) for path in tmp_path.iterdir()]
    built, closed = ([own for deed, own in names if deed == wanted] for wanted in ("built", "closed"))
    assert len(built) >= 2
    assert sorted(closed) == sorted(built)


def test_a_factory_that_gives_no_env(make):
    with pytest.raises((EnvError, ConfigError), match=r"(?s)expected.*got"):
        make(lambda: 7)


def test_a_fault_in_reset(make):
    pool = make()
    pool.reset(seed=0)
    with pytest.raises(EnvError, match="trouble in reset") as caught:
        pool.reset([1, 3], options={"fail": True})
    assert caught.value.method == "reset"
    assert [fault.env_id for fault in caught.value.faults] == [1, 3]
    assert pool.step([STEP] * 2, [0, 2]).obs[:, 1].tolist() == [1, 1]
    assert pool.reset([1, 3]).obs[:, 1].tolist() == [0, 0]
    assert_usable(pool)


def test_a_reset_that_always_raises_is_not_tried_for_ever(make):
    pool = make(on_error="restart", max_restarts=3, env_kwargs={"fail_in": "reset"})
    with pytest.raises(EnvError, match="trouble in reset"):
        pool.reset()


def test_a_fault_in_render_harms_nobody(make):
    kwargs = [{}, {"fail_in": "render"}, {}, {}]
    pool = make(render_mode="rgb_array", env_kwargs=kwargs)
    pool.reset(seed=0)
    pool.step([STEP] * 4)
    with pytest.raises(EnvError, match="trouble in render") as caught:
        pool.render(1)
    assert (caught.value.env_id, caught.value.method) == (1, "render")
    assert pool.render(2).tolist() == [[[1] * 3] * 6] * 4
    assert pool.step([STEP] * 4).obs[:, 1].tolist() == [2, 2, 2, 2]


def test_a_fault_in_a_called_method_harms_nobody(make):
    pool = make()
    pool.reset(seed=0)
    assert pool.call("greet", "world", punctuation="?") == ("hello world?",) * 4
    with pytest.raises((EnvError, JointError), match="trouble in greet"):
        pool.call("greet", "nobody")
    with pytest.raises(AttributeError, match="no_such_thing"):
        pool.get_attr("no_such_thing")
    assert pool.step([STEP] * 4).obs[:, 1].tolist() == [1, 1, 1, 1]


def test_a_fault_in_close_does_not_keep_the_pool_open(make):
    pool = make(env_kwargs=[{}, {"fail_in": "close"}, {}, {}])
    pool.reset(seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it may be said, it must not be raised
        pool.close()
    assert pool.closed
    pool.close()


class NeedsAPackage(FaultyEnv):
    def __init__(self) -> None:
        super().__init__()
        import no_such_package  # noqa: F401


@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
def test_a_constructor_that_lacks_a_package(backend):
    with pytest.raises(EnvError, match=r"No module named 'no_such_package'; install the package that it needs"):
        envfleet.make_pool(NeedsAPackage, num_envs=2, backend=backend)
