"""Actors and nodes that die or are stuck: WorkerDied or a restart, the rows of the others, a pool that goes on."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import pytest
from ray_probes import LargeEnv, LargeSleepyEnv, PlacedEnv, StuckEnv, TalkativeEnv, leave
from support.python_probes import FaultyEnv, SleepyEnv, TrailEnv, scribble_on_trails, trail_row
from support.ray_session import OBJECT_STORE_BYTES, ray_session, spare_nodes
from support.traces import alive, is_alive, wait_until

from envfleet import CallOrderError, EnvError, Pool, RayConfig, WorkerDied
from envfleet.core.errors import PlacementError
from envfleet.core.seeding import restart_seed

ray = pytest.importorskip("ray")

STEP = FaultyEnv.STEP
SPARE = {"resources": {"spare": 1}, "num_cpus": 0}


def kill_by_ray(pool: Pool, worker: int) -> None:
    """Ray kills at leisure: a message may still be answered before."""
    ray.kill(pool.executor.actors[worker])
    assert wait_until(lambda: not is_alive(pool.executor.worker_pids[worker]), 20)


def kill_by_signal(pool: Pool, worker: int) -> None:
    os.kill(pool.executor.worker_pids[worker], signal.SIGKILL)
    assert wait_until(lambda: not is_alive(pool.executor.worker_pids[worker]))


KILLS = pytest.mark.parametrize("kill", [kill_by_ray, kill_by_signal])


def first_draw(seed: int) -> int:
    return int(np.random.default_rng(seed).integers(0, 1_000_000))


@KILLS
def test_a_killed_actor_is_a_death_of_its_envs_alone_and_a_reset_brings_them_back(make, kill):
    pool = make(FaultyEnv, num_workers=2, num_envs=4)
    pool.reset(seed=5)
    kill(pool, 1)
    with pytest.raises(WorkerDied, match=r"env 2 raised in step\(\).*Ray actor") as caught:
        pool.step([STEP] * 4)
    assert [fault.env_id for fault in caught.value.faults] == [2, 3]
    assert caught.value.batch.obs[:, 1].tolist() == [1, 1, 0, 0]
    assert pool.step([STEP] * 2, [0, 1]).obs[:, 1].tolist() == [2, 2]
    batch = pool.reset([3, 2])
    assert batch.obs[:, 0].tolist() == [first_draw(restart_seed(5 + env_id, 1)) for env_id in (3, 2)]
    assert pool.step([STEP] * 4).obs[:, 1].tolist() == [3, 3, 1, 1]
    pool.close()
    assert wait_until(lambda: not alive(pool.executor.worker_pids), 20)


def test_observe_has_the_rows_of_the_envs_that_were_reset_since_their_actor_died(make):
    pool = make(FaultyEnv, num_workers=2, num_envs=4)
    pool.reset(seed=5)
    kill_by_signal(pool, 1)
    with pytest.raises(WorkerDied):
        pool.step([STEP] * 4)
    row = pool.reset([2]).obs[0]
    observed = pool.observe()
    assert observed[2].tolist() == row.tolist()
    assert observed[2, 0] == first_draw(restart_seed(7, 1))
    assert observed[3].tolist() == [0, 0]
    assert observed[:2, 1].tolist() == [1, 1]
    with pytest.raises(CallOrderError, match="3"):
        pool.step([STEP] * 4)  # env 3 is still lost


def test_a_restart_reports_truncated_rows_and_reseeds(make):
    pool = make(FaultyEnv, num_workers=2, num_envs=4, on_error="restart")
    pool.reset(seed=5)
    pool.step([STEP] * 4)
    kill_by_signal(pool, 0)
    batch = pool.step([STEP] * 4)
    assert batch.truncated.tolist() == [True, True, False, False]
    assert batch.obs[:, 1].tolist() == [1, 1, 2, 2]
    assert ["Ray actor" in (text or "") for text in batch.info["error"]] == [True, True, False, False]
    batch = pool.step([STEP] * 4)
    assert batch.elapsed_step.tolist() == [0, 0, 3, 3]
    assert batch.obs[:2, 0].tolist() == [first_draw(restart_seed(5 + env_id, 1)) for env_id in (0, 1)]
    assert "error" not in batch.info


def test_a_restarted_row_has_the_last_observation(make):
    """Whether the env raised, or its actor was killed; and after a state was restored."""
    pool = make(TrailEnv, num_workers=2, num_envs=4, on_error="restart")
    pool.reset(seed=5)
    for failing in ([1], [0, 1]):
        batch = pool.step([0] * 4)
        expected = [trail_row(batch.obs, env_id) for env_id in failing]
        scribble_on_trails(batch.obs)
        if len(failing) == 1:
            batch = pool.step([0, 1, 0, 0])
        else:
            kill_by_signal(pool, 0)
            batch = pool.step([0] * 4)
        assert np.flatnonzero(batch.truncated).tolist() == failing
        assert not batch.reward[failing].any()
        assert [trail_row(batch.obs, env_id) for env_id in failing] == expected
        pool.step([0] * 4)
    batch = pool.step([0] * 4)
    expected = [trail_row(batch.obs, env_id) for env_id in range(4)]
    state = pool.get_state()
    pool.step([0] * 4)
    pool.set_state(state)
    kill_by_signal(pool, 1)
    batch = pool.step([0] * 4)
    assert [trail_row(batch.obs, env_id) for env_id in (2, 3)] == expected[2:]


@pytest.mark.parametrize("mode", ["same_step", pytest.param("disabled", marks=pytest.mark.soak)])
def test_a_restart_in_other_modes(make, mode):
    pool = make(FaultyEnv, num_workers=2, num_envs=2, on_error="restart", autoreset_mode=mode)
    pool.reset(seed=5)
    kill_by_ray(pool, 0)
    batch = pool.step([STEP] * 2)
    assert batch.truncated.tolist() == [True, False]
    assert (batch.obs if batch.final is None else batch.final.obs)[0].tolist() == [first_draw(5), 0]
    if mode == "disabled":
        pool.reset([0])
    assert pool.step([STEP] * 2).obs[:, 1].tolist() == [1, 2]


def test_an_actor_that_died_idle_is_replaced_by_a_reset(make):
    pool = make(FaultyEnv, num_workers=2, num_envs=2)
    pool.reset(seed=0)
    kill_by_signal(pool, 0)
    assert pool.reset(seed=0).obs[:, 0].tolist() == [first_draw(0), first_draw(1)]


def test_of_an_async_pool_the_rows_of_a_dead_worker_come_back_once(make):
    pool = make(SleepyEnv, num_workers=2, num_envs=4, batch_size=2, on_error="restart")
    pool.reset()
    pool.send(np.array([3000, 3000, 1, 1], dtype=np.float32), np.arange(4, dtype=np.int32))
    assert pool.recv().env_id.tolist() == [2, 3]
    kill_by_ray(pool, 0)
    batch = pool.recv()
    assert batch.env_id.tolist() == [0, 1]
    assert batch.truncated.all()
    pool.send(np.ones(4, dtype=np.float32), np.arange(4, dtype=np.int32))
    assert sorted(pool.recv().env_id.tolist() + pool.recv().env_id.tolist()) == [0, 1, 2, 3]


def test_calls_of_a_dead_actor_name_it(make):
    pool = make(FaultyEnv, num_workers=2, num_envs=2)
    pool.reset(seed=0)
    kill_by_ray(pool, 1)
    with pytest.raises(WorkerDied, match=r"env 1 raised in get_attr\('count'\): its Ray actor.*; reset the env"):
        pool.get_attr("count")
    assert pool.get_attr("count", env_ids=[0]) == (0,)
    pool.reset([1])
    assert pool.get_attr("count") == (0, 0)
    assert pool.stats().num_steps == 0


def test_a_killed_node_moves_its_envs_to_another(make):
    with spare_nodes(2) as nodes:
        pool = make(PlacedEnv, num_workers=2, num_envs=4, on_error="restart", ray=RayConfig(actor_options=SPARE))
        pool.reset(seed=5)
        places = node_of(pool)
        assert len(set(places)) == 2  # SPREAD
        victim = next(node for node in nodes if node.node_id == places[0])
        ray_session().remove_node(victim, allow_graceful=False)
        assert wait_until(lambda: not is_alive(pool.executor.worker_pids[0]), 20)
        batch = pool.step([STEP] * 4)
        assert batch.truncated.tolist() == [True, True, False, False]
        assert batch.obs[2:, 1].tolist() == [1, 1]
        pool.step([STEP] * 4)
        assert pool.step([STEP] * 4).obs[:, 1].tolist() == [1, 1, 3, 3]
        assert set(node_of(pool)) == {places[1]}
        pool.close()


def test_an_actor_that_nothing_has_room_for_is_told_in_time(make):
    with pytest.raises(PlacementError, match=r"1 of 1 Ray actors.*placement_timeout_s=1;.*'num_cpus': 1000.*has"):
        make(FaultyEnv, num_workers=1, ray=RayConfig(placement_timeout_s=1, actor_options={"num_cpus": 1000}))
    with pytest.raises(PlacementError, match="spare"):
        make(FaultyEnv, num_workers=1, ray=RayConfig(placement_timeout_s=0.5, actor_options=SPARE))


def test_an_env_that_hangs_is_given_up_after_step_timeout(make):
    pool = make(SleepyEnv, num_workers=2, num_envs=2, step_timeout=1.0)
    pool.reset()
    with pytest.raises(WorkerDied, match=r"step_timeout=1 s") as caught:
        pool.step(np.array([10_000, 1], dtype=np.float32))
    assert caught.value.batch.obs.tolist() == [0, 1]
    pool.reset([0])
    assert pool.step(np.zeros(2, dtype=np.float32)).obs.tolist() == [1, 2]


@pytest.mark.soak  # seconds of sleep
def test_a_slow_env_within_step_timeout_is_left_alone(make):
    pool = make(SleepyEnv, num_workers=1, num_envs=2, batch_size=1, step_timeout=3.0, on_error="restart")
    pool.reset()
    pool.send(np.array([1800], dtype=np.float32), [0])
    pool.send(np.array([1800], dtype=np.float32), [1])  # waits its turn, which does not count
    assert [int(pool.recv().env_id[0]) for _ in range(2)] == [0, 1]
    assert pool.step(np.zeros(1, dtype=np.float32), [0]).obs.tolist() == [2]


@pytest.mark.parametrize("is_direct", [True, False])
def test_what_is_asked_behind_a_step_that_hangs_comes_back_after_step_timeout(make_direct, is_direct):
    options = {"batch_size": 1, "step_timeout": 2.0, "ray": RayConfig(direct=is_direct)}
    pool = make_direct(StuckEnv, num_workers=2, num_envs=4, **options)
    pool.reset()
    pool.send([STEP, STEP], [0, 2])  # what is answered and not received yet is no reason to wait either
    pool.send([StuckEnv.HANG], [1])
    assert pool.stats().num_steps == 1
    rows, deaths = [], []
    for _ in range(3):
        try:
            rows.append(int(pool.recv().env_id[0]))
        except WorkerDied as error:
            deaths.append(str(error))
    assert sorted(rows) == [0, 2]
    assert len(deaths) == 1
    assert "env 1 raised in step(): its Ray actor did not answer within step_timeout=2 s" in deaths[0]
    pool.reset()
    pool.send([StuckEnv.HANG], [1])
    # The pool allows no calls while envs are in flight; its executor does.
    with pytest.raises(WorkerDied, match=r"env 0 raised in get_attr.*step_timeout=2 s"):
        pool.executor.get_attr([0], "count")
    assert pool.executor.get_attr([2], "count") == [0]


def test_a_learner_that_is_away_longer_than_step_timeout_loses_nothing(make):
    """The rows lie on the actor's node until they are fetched."""
    with spare_nodes(1):
        options = {"num_envs": 2, "step_timeout": 4.0, "ray": RayConfig(actor_options=SPARE, direct=False)}
        pool = make(LargeSleepyEnv, num_workers=2, **options)
        other = make(LargeSleepyEnv, num_workers=2, batch_size=1, **options)
        for own in (pool, other):
            own.reset()
            own.send(np.ones(2, dtype=np.float32), np.arange(2, dtype=np.int32))
        time.sleep(5.0)  # the subject, not a wait for anything
        assert pool.recv().obs[:, 0].tolist() == [1, 1]
        assert [other.recv().obs[0, 0] for _ in range(2)] == [1, 1]
        pool.close()
        other.close()


def test_a_constructor_that_raises_or_dies(make):
    with pytest.raises(EnvError, match=r"env 1 raised in __init__\(\).*licence"):
        make(FaultyEnv, num_workers=2, env_kwargs=[{}, {"fail_construction": True}], num_envs=2)
    with pytest.raises(WorkerDied, match=r"env 0 raised in __init__\(\)"):
        make(leave, num_workers=1)


def test_a_full_object_store_loses_no_row(make):
    """Replies that need the store are fetched in pieces that do not."""
    pool = make(LargeEnv, num_workers=2, num_envs=2, on_error="raise", ray=RayConfig(direct=False))
    held = fill_object_store()
    pool.reset(seed=0)
    for count in range(1, 3):
        batch = pool.step([0, 0])
        assert batch.obs[:, -1].tolist() == [count, count]
    held.clear()


def test_an_answer_that_ray_loses_is_not_the_death_of_its_actor(make):
    pool = make(TalkativeEnv, num_workers=2, num_envs=2, ray=RayConfig(direct=False))
    pool.reset(seed=0)
    pool.step([STEP] * 2)
    pids = list(pool.executor.worker_pids)
    held = fill_object_store()
    with pytest.raises(EnvError, match=r"env 0 raised in tell.*Ray lost its response") as caught:
        pool.call("tell", 8_000_000, env_ids=[0])
    assert not isinstance(caught.value, WorkerDied)
    held.clear()
    assert pool.step([STEP] * 2).obs[:, 1].tolist() == [2, 2]
    assert pool.executor.worker_pids == pids
    assert len(pool.call("tell", 10)[0]) == 10


def fill_object_store() -> list[Any]:
    """What keeps the driver's object store full while it is held."""
    held: list[Any] = []
    try:
        while True:
            held.append(ray.put(np.zeros(OBJECT_STORE_BYTES // 32, dtype=np.uint8)))
    except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError):
        return held


def node_of(pool: Pool) -> list[str]:
    """The node of each of two workers of two envs."""
    return list(pool.call("whereabouts", env_ids=[0, 2]))
