"""A worker process that dies: WorkerDied, the rows of the others, and a pool that goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import psutil
import pytest
from gymnasium import spaces
from misbehaving_pools import (
    STEP,
    actions,
    assert_both_workers_usable,
    assert_second_worker_kept,
    misbehaving_pools,
    on_two_workers,
    worker_pids,
)
from support.deliveries import Deliveries, run_with_faults
from support.faulty_env import MisbehavingEnv, Misbehavior
from support.python_probes import FaultyEnv, HalfwayEnv, SleepyEnv
from support.traces import alive, is_alive, wait_until

import envfleet
from envfleet import Pool
from envfleet.core import errors

START_METHODS = ["forkserver", "spawn", "fork"]
# CPython says that fork() and threads mix badly; pytest's own timeout thread is one.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def make():
    with misbehaving_pools(**on_two_workers("processes")) as make:
        yield make


DEATHS = {
    Misbehavior.OS_EXIT: (3, None),
    Misbehavior.SEGFAULT: (None, signal.SIGSEGV),
    Misbehavior.ABORT: (None, signal.SIGABRT),
    Misbehavior.SIGKILL: (None, signal.SIGKILL),
    Misbehavior.ALLOCATE: (None, signal.SIGKILL),
}


@pytest.mark.parametrize("trouble", DEATHS, ids=lambda trouble: trouble.name)
def test_an_env_that_ends_its_process(make, trouble):
    exit_code, signal_number = DEATHS[trouble]
    pool = make()
    pool.reset(seed=0)
    dead = worker_pids(pool)[0]
    with pytest.raises(errors.WorkerDied, match=r"env \d") as caught:
        pool.step(actions(trouble, 1))
    error = caught.value
    assert (error.exit_code, error.signal) == (exit_code, signal_number)
    assert_second_worker_kept(error)
    assert wait_until(lambda: not psutil.pid_exists(dead)), "a zombie was left"
    # The second worker goes on before the first is replaced.
    assert pool.step([STEP] * 2, [2, 3]).obs[:, 1].tolist() == [2, 2]
    assert_both_workers_usable(pool)


@pytest.mark.parametrize("start_method", START_METHODS)
def test_every_start_method_knows_how_a_worker_ended(make, start_method):
    pool = make(start_method=start_method)
    for trouble in (Misbehavior.SIGKILL, Misbehavior.OS_EXIT):
        pool.reset(seed=0)
        with pytest.raises(errors.WorkerDied) as caught:
            pool.step(actions(trouble, 1))
        assert (caught.value.exit_code, caught.value.signal) == DEATHS[trouble]
        assert_second_worker_kept(caught.value)
    assert_both_workers_usable(pool)


def test_rows_that_were_finished_before_the_death_are_kept(make):
    pool = make()
    starts = pool.reset(seed=0).obs[:, 0]
    with pytest.raises(errors.WorkerDied) as caught:
        pool.step(actions(Misbehavior.SLEEP_THEN_SIGKILL, 1))
    assert [fault.env_id for fault in caught.value.faults] == [1]
    batch = caught.value.batch
    assert batch.obs[[0, 2, 3]].tolist() == [[start, 1] for start in starts[[0, 2, 3]]]
    assert batch.reward.tolist() == [1, 0, 1, 1]
    # Env 0 is gone with its worker all the same: it says so once, and a reset brings it back.
    with pytest.raises((envfleet.EnvError, envfleet.CallOrderError)):
        pool.step([STEP], [0])
    assert pool.reset([0, 1]).obs[:, 1].tolist() == [0, 0]
    assert pool.step([STEP] * 4).obs[:, 1].tolist() == [1, 1, 2, 2]


@pytest.mark.parametrize("batch_size", [4, 1])
def test_a_worker_killed_between_two_steps(make, batch_size):
    pool = make(batch_size=batch_size)
    pool.reset(seed=0)
    os.kill(worker_pids(pool)[0], signal.SIGKILL)
    with pytest.raises(errors.WorkerDied) as caught:
        pool.step([STEP], [0])
    assert caught.value.signal == signal.SIGKILL
    assert caught.value.batch.env_id.tolist() == [0]
    assert pool.num_in_flight == 0
    assert pool.step([STEP], [3]).obs[:, 1].tolist() == [1]
    assert pool.reset().obs[:, 1].tolist() == [0] * 4
    assert pool.step([STEP], [0]).obs[:, 1].tolist() == [1]


def test_a_worker_killed_while_the_caller_waits(make, gate):
    pool = make(SleepyEnv)
    pool.reset()
    pid = worker_pids(pool)[0]
    killer = threading.Thread(target=lambda: (gate.wait_until_reached(), os.kill(pid, signal.SIGKILL)))
    killer.start()
    with pytest.raises(errors.WorkerDied) as caught:
        pool.step(np.array([1, gate.action, 1, 1], dtype=np.float32))
    killer.join()
    assert caught.value.signal == signal.SIGKILL
    assert caught.value.batch.obs.tolist() == [1, 0, 1, 1]
    assert pool.reset().obs.tolist() == [0] * 4


def test_an_asynchronous_pool_gives_the_rows_of_the_others(make):
    pool = make(batch_size=2)
    pool.reset(seed=0)
    pool.send(actions(Misbehavior.SIGKILL, 1), [0, 1, 2, 3])
    rows, faulty = [], set()
    for _ in range(2):
        try:
            batch = pool.recv(timeout=30)
        except errors.WorkerDied as error:
            batch = error.batch
            faulty |= {fault.env_id for fault in error.faults}
        rows += batch.env_id.tolist()
    assert sorted(rows) == [0, 1, 2, 3]
    assert {1} <= faulty <= {0, 1}
    assert pool.reset().env_id.tolist() == [0, 1, 2, 3]


def test_all_workers_at_once(make):
    pool = make()
    pool.reset(seed=0)
    with pytest.raises(errors.WorkerDied) as caught:
        pool.step([Misbehavior.SIGKILL] * 4)
    assert sorted(fault.env_id for fault in caught.value.faults) == [0, 1, 2, 3]
    assert_both_workers_usable(pool)


@pytest.mark.parametrize("call", ["reset", "get_attr", "set_attr", "call", "render"])
def test_a_dead_worker_is_noticed_by_every_call(make, call):
    calls: dict[str, Callable[[Pool], object]] = {
        "reset": lambda pool: pool.reset(seed=0),
        "get_attr": lambda pool: pool.get_attr("fail_in"),
        "set_attr": lambda pool: pool.set_attr("fail_in", ""),
        "call": lambda pool: pool.call("greet", "world"),
        "render": lambda pool: pool.render(0),
    }
    pool = make(render_mode="rgb_array")
    pool.reset(seed=0)
    pids = worker_pids(pool)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not alive(pids))
    # Told or mended at once: the pool goes on either way.
    with contextlib.suppress(errors.WorkerDied):
        calls[call](pool)
    assert_both_workers_usable(pool)


def test_the_remedy_for_a_dead_worker_is_a_reset(make):
    pool = make()
    pool.reset(seed=0)
    with pytest.raises(errors.WorkerDied):
        pool.step([Misbehavior.SIGKILL, STEP, STEP, STEP])
    message = (
        r"env 0 raised in get_attr\('fail_in'\).*: its worker process was killed .*; reset the env, which rebuilds it$"
    )
    with pytest.raises(errors.WorkerDied, match=message):
        pool.get_attr("fail_in")
    assert_both_workers_usable(pool)


def test_a_worker_that_dies_while_its_envs_are_made(make):
    here = os.getpid()

    class Dying(FaultyEnv):
        def __init__(self):
            super().__init__()
            if os.getpid() != here:
                os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(errors.WorkerDied) as caught:
        make(lambda: Dying())
    assert caught.value.signal == signal.SIGKILL


def test_the_fork_server_may_die_too():
    """Not with the fixture: the server that follows it stays for later pools, as the first did."""
    with envfleet.make_pool(MisbehavingEnv, num_envs=4, num_workers=2, backend="processes") as pool:
        pool.reset(seed=0)
        server = psutil.Process(worker_pids(pool)[0]).ppid()
        if server == os.getpid():
            pytest.skip("the workers have no server between them and this process")
        os.kill(server, signal.SIGKILL)
        assert wait_until(lambda: not is_alive(server))
        with contextlib.suppress(errors.WorkerDied):
            pool.step([STEP] * 4)
        assert_both_workers_usable(pool)
        with envfleet.make_pool(MisbehavingEnv, num_envs=4, num_workers=2, backend="processes") as fresh:
            assert_both_workers_usable(fresh)
        pids = worker_pids(pool)
    assert wait_until(lambda: not alive(pids))


def test_a_child_of_the_env_hides_no_death(make):
    """It holds copies of the worker's descriptors, so that nothing reads end of file from them."""
    pool = make()
    pool.reset(seed=0)
    child = int(pool.step(actions(Misbehavior.FORK_AND_STAY, 1)).info["child"][1])
    try:
        with pytest.raises(errors.WorkerDied) as caught:
            pool.step(actions(Misbehavior.SIGKILL, 1))
        assert caught.value.signal == signal.SIGKILL
        assert_both_workers_usable(pool)
        pool.close()
    finally:
        os.kill(child, signal.SIGKILL)


def test_close_waits_for_no_child_and_no_thread_of_an_env(make):
    class Careless(MisbehavingEnv):
        def close(self):
            """Leaves its threads running."""

    pool = make(lambda: Careless())
    pool.reset(seed=0)
    pool.step(actions(Misbehavior.LEAVE_THREAD, 1))
    child = int(pool.step(actions(Misbehavior.FORK_AND_STAY, 1)).info["child"][1])
    pids = worker_pids(pool)
    try:
        pool.close()
        assert wait_until(lambda: not alive(pids))
    finally:
        os.kill(child, signal.SIGKILL)


def test_an_env_that_closes_the_standard_streams(make):
    pool = make()
    pool.reset(seed=0)
    pool.step([Misbehavior.CLOSE_STREAMS, STEP, STEP, STEP])
    assert pool.step([STEP] * 4).obs[:, 1].tolist() == [2] * 4
    with pytest.raises(envfleet.EnvError, match="joint 3 exploded"):
        pool.step(actions(Misbehavior.RAISE, 1))
    assert_both_workers_usable(pool)


class ClosingEnv(MisbehavingEnv):
    """Closes every descriptor of its process, as a library that daemonizes may, in the step after `trigger` was set."""

    trigger = False

    def step(self, action):
        if self.trigger:
            os.closerange(3, 256)
        return *super().step(action)[:4], {"text": "which is no number"}


def test_an_env_that_closes_every_descriptor():
    with envfleet.make_pool(ClosingEnv, num_envs=2, num_workers=2) as pool:
        pool.reset(seed=0)
        pool.step([STEP] * 2)
        pool.set_attr("trigger", [True], [1])
        with pytest.raises(errors.WorkerDied, match="env 1"):
            pool.step([STEP] * 2)
        pool.reset(seed=0)  # in a new worker
        assert pool.step([STEP] * 2).info["text"].tolist() == ["which is no number"] * 2


# --- the observation of a restarted env ----------------------------------------------------------------


class TornEnv(HalfwayEnv):
    """Writes half of its observation into shared memory, as envs of ours do, and then it dies or hangs."""

    HANG = 4

    action_space = spaces.Discrete(5)

    def envfleet_observe_into(self, row: dict[str, np.ndarray]) -> None:
        self.row = row

    def step(self, action: int) -> Any:
        if action in (self.THROW, self.HANG):
            self._tear()
            time.sleep(60 if action == self.HANG else 0)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self.throw_at_reset:
            self._tear()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().reset(seed=seed, options=options)

    def _tear(self) -> None:
        self.row["first"][:] = -3
        self.row["second"][:1] = -3


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_a_row_that_a_worker_died_in_has_the_last_observation(mode, copy):
    with envfleet.make_pool(
        TornEnv, num_envs=5, num_workers=3, backend="processes", on_error="restart", max_restarts=10_000,
        autoreset_mode=mode, copy=copy,
    ) as pool:  # fmt: skip
        run_with_faults(pool, mode, num_steps=10)


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_a_row_of_an_env_that_exceeded_step_timeout_has_the_last_observation(mode):
    with envfleet.make_pool(
        TornEnv, num_envs=2, num_workers=2, backend="processes", on_error="restart", step_timeout=1.0,
        autoreset_mode=mode,
    ) as pool:  # fmt: skip
        deliveries = Deliveries(2)
        deliveries.record(range(2), pool.reset(seed=0))
        for action in (TornEnv.STEP, TornEnv.HANG, TornEnv.STEP):
            deliveries.check(pool.step([action, TornEnv.STEP]))
        assert deliveries.num_restarts == 1


def test_an_env_that_dies_before_its_first_row_shows_zeros():
    with envfleet.make_pool(
        [partial(TornEnv, throw_at_reset=first) for first in (True, False)], num_workers=2, backend="processes",
        on_error="restart", max_restarts=2,
    ) as pool:  # fmt: skip
        pool.async_reset()
        batch = pool.recv()
        assert batch.truncated.tolist() == [True, False]
        assert not batch.obs["first"][0].any()
        assert not batch.obs["second"][0].any()
        assert (batch.obs["first"][1] >= 100).all()


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_an_image_that_an_env_keeps_in_shared_memory_outlives_its_worker(mode, copy):
    """The stack of frames of the new env lies in the same row, which may be part of the batch."""
    pytest.importorskip("ale_py")
    with envfleet.make_pool(
        "Pong-v5", num_envs=2, num_workers=2, seed=0, on_error="restart", autoreset_mode=mode, copy=copy
    ) as pool:
        pool.reset()
        for _ in range(3):
            last = pool.step([2, 3]).obs[0].copy()
        assert last.any()
        pid = worker_pids(pool)[0]
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: not is_alive(pid))
        batch = pool.step([2, 3])
        assert batch.truncated.tolist() == [True, False]
        shown = batch.obs if batch.final is None else batch.final.obs
        np.testing.assert_array_equal(shown[0], last)
        np.testing.assert_array_equal(pool.observe()[1], batch.obs[1])
        first = pool.step([2, 3]).obs[0] if mode == "next_step" else batch.obs[0]
        assert (first[0] == first[-1]).all()  # one screen, repeated
        assert first.any()
