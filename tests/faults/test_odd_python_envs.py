"""A Python env that does what it may, but unlike others: prints, forks, threads, infos of any size, shared arrays."""

from __future__ import annotations

import numpy as np
import pytest
from misbehaving_pools import STEP, actions, assert_usable, misbehaving_pools, on_two_workers
from support.faulty_env import Misbehavior
from support.space_env import SpaceEnv


@pytest.fixture(params=["serial", "threads", "processes"])
def make(request):
    with misbehaving_pools(**on_two_workers(request.param)) as make:
        yield make


def test_observations_outside_the_bounds_are_passed_on(make):
    """check_env() tells the author; a run is not ended for it."""
    pool = make()
    pool.reset(seed=0)
    batch = pool.step(actions(Misbehavior.OUT_OF_BOUNDS, 2))
    assert batch.obs[2].tolist() == [-7, 1]
    assert batch.faults == ()
    assert_usable(pool)


def test_an_env_that_prints_much(make, capfd):
    pool = make()
    pool.reset(seed=0)
    for count in range(1, 4):
        assert pool.step([Misbehavior.PRINT_MUCH] * 4).obs[:, 1].tolist() == [count] * 4
    assert_usable(pool)
    capfd.readouterr()


def test_infos_larger_than_any_pipe(make):
    pool = make()
    pool.reset(seed=0)
    batch = pool.step(actions(Misbehavior.HUGE_INFO, 2))
    assert batch.info["_log"].tolist() == [False, False, True, False]
    assert len(batch.info["log"][2]) == 8_000_000
    assert_usable(pool)


def test_infos_that_change_their_shape_and_type(make):
    pool = make()
    pool.reset(seed=0)
    pool.step([STEP, STEP], [1, 3])
    for count in range(1, 6):
        batch = pool.step([Misbehavior.RAGGED_INFO] * 4)
        for row, own in enumerate((count, count + 1, count, count + 1)):
            assert batch.info["path"][row].tolist() == list(range(own))
            assert batch.info["changing"][row] == (own, f"step {own}", own / 2, None)[own % 4]
    assert_usable(pool)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # that fork and threads mix badly is the env's affair
def test_an_env_that_forks(make):
    pool = make()
    pool.reset(seed=0)
    for count in range(1, 3):
        batch = pool.step(actions(Misbehavior.FORK, 2))
        assert batch.info["status"][2] == 7
        assert batch.obs[:, 1].tolist() == [count] * 4
    assert_usable(pool)


def test_an_env_that_starts_threads(make):
    pool = make()
    pool.reset(seed=0)
    assert pool.step([Misbehavior.START_THREADS] * 4).info["seen"].tolist() == [4] * 4
    pool.step([Misbehavior.LEAVE_THREAD] * 4)
    assert_usable(pool)
    pool.close()  # its envs' close() ends their threads


def test_an_env_that_uses_one_array_again_and_again(make):
    """MisbehavingEnv does: what was handed out must not change with it."""
    pool = make()
    batches = [pool.reset(seed=0), *(pool.step([STEP] * 4) for _ in range(5))]
    assert [batch.obs[:, 1].tolist() for batch in batches] == [[count] * 4 for count in range(6)]


def test_what_envs_do_with_their_actions_does_not_reach_the_caller(make):
    class Scribbler(SpaceEnv):
        def step(self, action):
            answer = super().step(action)
            action[...] = 0
            return answer

    pool = make(Scribbler, env_kwargs={"kind": "box_image"})
    pool.reset(seed=0)
    given = np.full((4, 8, 8, 3), 9, dtype=np.uint8)
    pool.step(given)
    pool.step(given)
    assert (given == 9).all()
