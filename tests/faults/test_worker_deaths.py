"""A worker process that dies or is stuck: WorkerDied, the rows of the others, and a pool that goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import warnings
from collections.abc import Callable

import numpy as np
import psutil
import pytest
from python_probes import FaultyEnv, SleepyEnv, Trouble, TroubleEnv
from traces import Traces, alive, assert_nothing_left, is_alive, wait_until

import envfleet
from envfleet import Pool, RecvTimeout, errors

STEP = Trouble.STEP
START_METHODS = ["forkserver", "spawn", "fork"]
# CPython says that fork() and threads mix badly; pytest's own timeout thread is one.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def make():
    """Pools of four envs on two workers: 0 and 1 on the first, 2 and 3 on the second. Nothing of them is left."""
    envfleet.make_pool(TroubleEnv, num_envs=4, num_workers=2, backend="processes").close()
    before, pools = Traces.now(), []

    def make(env=TroubleEnv, **options) -> Pool:
        options = {"num_envs": 4, "num_workers": 2, **options}
        pools.append(envfleet.make_pool(env, backend="processes", **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()
    pools.clear()
    assert_nothing_left(before)


def actions(trouble: Trouble, env_id: int = 1) -> list[int]:
    return [int(trouble if own == env_id else STEP) for own in range(4)]


def worker_pids(pool: Pool) -> list[int]:
    return [int(pid) for pid in pool.executor.worker_pids]


def assert_usable(pool: Pool) -> None:
    first = pool.reset(seed=3)
    assert first.obs[:, 1].tolist() == [0] * 4
    assert first.obs[:, 0].tolist() == [np.random.default_rng(3 + i).integers(0, 1_000_000) for i in range(4)]
    for count in (1, 2):
        assert pool.step([STEP] * 4).obs[:, 1].tolist() == [count] * 4
    assert len(alive(worker_pids(pool))) == 2


def assert_second_worker_kept(error: Exception, count: int = 1) -> None:
    """The first worker died with env 1: what the second did is there, and env 0's row is zeros or right."""
    assert isinstance(error, errors.WorkerDied)
    faulty = {fault.env_id for fault in error.faults}
    assert {1} <= faulty <= {0, 1}
    counts = error.batch.obs[:, 1].tolist()
    assert counts == [0 if 0 in faulty else count, 0, count, count]


DEATHS = {
    Trouble.OS_EXIT: (3, None),
    Trouble.SEGFAULT: (None, signal.SIGSEGV),
    Trouble.ABORT: (None, signal.SIGABRT),
    Trouble.SIGKILL: (None, signal.SIGKILL),
    Trouble.ALLOCATE: (None, signal.SIGKILL),
}


@pytest.mark.parametrize("trouble", DEATHS, ids=lambda trouble: trouble.name)
def test_an_env_that_ends_its_process(make, trouble):
    exit_code, signal_number = DEATHS[trouble]
    pool = make()
    pool.reset(seed=0)
    dead = worker_pids(pool)[0]
    with pytest.raises(errors.WorkerDied, match=r"env \d") as caught:
        pool.step(actions(trouble))
    error = caught.value
    assert (error.exit_code, error.signal) == (exit_code, signal_number)
    assert_second_worker_kept(error)
    assert wait_until(lambda: not psutil.pid_exists(dead)), "a zombie was left"
    # The second worker goes on before the first is replaced.
    assert pool.step([STEP] * 2, [2, 3]).obs[:, 1].tolist() == [2, 2]
    assert_usable(pool)


@pytest.mark.parametrize("start_method", START_METHODS)
def test_every_start_method_knows_how_a_worker_ended(make, start_method):
    pool = make(start_method=start_method)
    for trouble in (Trouble.SIGKILL, Trouble.OS_EXIT):
        pool.reset(seed=0)
        with pytest.raises(errors.WorkerDied) as caught:
            pool.step(actions(trouble))
        assert (caught.value.exit_code, caught.value.signal) == DEATHS[trouble]
        assert_second_worker_kept(caught.value)
    assert_usable(pool)


def test_rows_that_were_finished_before_the_death_are_kept(make):
    pool = make()
    starts = pool.reset(seed=0).obs[:, 0]
    with pytest.raises(errors.WorkerDied) as caught:
        pool.step(actions(Trouble.SLEEP_THEN_SIGKILL))
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


def test_a_worker_killed_while_the_caller_waits(make):
    pool = make(SleepyEnv)
    pool.reset()
    killer = threading.Timer(0.2, os.kill, (worker_pids(pool)[0], signal.SIGKILL))
    killer.start()
    with pytest.raises(errors.WorkerDied) as caught:
        pool.step(np.array([1, 9000, 1, 1], dtype=np.float32))
    killer.join()
    assert caught.value.signal == signal.SIGKILL
    assert caught.value.batch.obs.tolist() == [1, 0, 1, 1]
    assert pool.reset().obs.tolist() == [0] * 4


def test_an_asynchronous_pool_gives_the_rows_of_the_others(make):
    pool = make(batch_size=2)
    pool.reset(seed=0)
    pool.send(actions(Trouble.SIGKILL), [0, 1, 2, 3])
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
        pool.step([Trouble.SIGKILL] * 4)
    assert sorted(fault.env_id for fault in caught.value.faults) == [0, 1, 2, 3]
    assert_usable(pool)


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
    assert_usable(pool)


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
    with envfleet.make_pool(TroubleEnv, num_envs=4, num_workers=2, backend="processes") as pool:
        pool.reset(seed=0)
        server = psutil.Process(worker_pids(pool)[0]).ppid()
        if server == os.getpid():
            pytest.skip("the workers have no server between them and this process")
        os.kill(server, signal.SIGKILL)
        assert wait_until(lambda: not is_alive(server))
        with contextlib.suppress(errors.WorkerDied):
            pool.step([STEP] * 4)
        assert_usable(pool)
        with envfleet.make_pool(TroubleEnv, num_envs=4, num_workers=2, backend="processes") as fresh:
            assert_usable(fresh)
        pids = worker_pids(pool)
    assert wait_until(lambda: not alive(pids))


# --- stuck, not dead --------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [Trouble.SLEEP, Trouble.SIGSTOP], ids=lambda trouble: trouble.name)
def test_a_stuck_env_is_ended_by_the_step_timeout(make, trouble):
    """A late answer (that of SLEEP comes after 3 s) never shows up in a later batch."""
    pool = make(step_timeout=0.5)
    pool.reset(seed=0)
    stuck = worker_pids(pool)[0]
    with pytest.raises(errors.WorkerDied, match="step_timeout") as caught:
        pool.step(actions(trouble))
    assert_second_worker_kept(caught.value)
    assert not is_alive(stuck)
    assert_usable(pool)


def test_the_step_timeout_bounds_asynchronous_steps_too(make):
    pool = make(batch_size=2, step_timeout=0.5)
    pool.reset(seed=0)
    pool.send(actions(Trouble.SIGSTOP), [0, 1, 2, 3])
    rows, messages = [], []
    for _ in range(2):
        try:
            rows += pool.recv(timeout=30).env_id.tolist()
        except errors.WorkerDied as error:
            messages.append(str(error))
            rows += error.batch.env_id.tolist()
    assert sorted(rows) == [0, 1, 2, 3]
    assert messages
    assert all("step_timeout" in message for message in messages)
    pool.reset()


def test_the_step_timeout_leaves_idle_workers_alone(make):
    pool = make(step_timeout=0.3)
    pool.reset(seed=0)
    before = worker_pids(pool)
    threading.Event().wait(0.8)  # longer than a step may take, with nothing to do
    assert pool.step([STEP] * 4).obs[:, 1].tolist() == [1] * 4
    assert worker_pids(pool) == before


def test_the_step_timeout_with_restart_goes_on(make):
    pool = make(step_timeout=0.5, on_error="restart")
    pool.reset(seed=0)
    batch = pool.step(actions(Trouble.SIGSTOP))
    assert batch.truncated[1]
    assert "step_timeout" in batch.info["error"][1]
    assert not batch.truncated[[2, 3]].any()
    batch = pool.step([STEP] * 4)
    assert batch.elapsed_step[1:].tolist() == [0, 2, 2]
    assert_usable(pool)


def test_a_stopped_worker_that_goes_on_in_time_is_only_late(make):
    pool = make(SleepyEnv)
    pool.reset()
    stopped = worker_pids(pool)[0]
    os.kill(stopped, signal.SIGSTOP)
    with pytest.raises(RecvTimeout):
        pool.step(np.zeros(4, dtype=np.float32), timeout=0.2)
    os.kill(stopped, signal.SIGCONT)
    assert pool.recv().obs.tolist() == [1] * 4


def test_close_ends_a_stopped_worker(make):
    pool = make()
    pool.reset(seed=0)
    pids = worker_pids(pool)
    os.kill(pids[0], signal.SIGSTOP)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # that it had to be killed may be said
        pool.close()
    assert wait_until(lambda: not alive(pids))


# --- what envs do to their process ---------------------------------------------------------------


def test_a_child_of_the_env_hides_no_death(make):
    """It holds copies of the worker's descriptors, so that nothing reads end of file from them."""
    pool = make()
    pool.reset(seed=0)
    child = int(pool.step(actions(Trouble.FORK_AND_STAY)).info["child"][1])
    try:
        with pytest.raises(errors.WorkerDied) as caught:
            pool.step(actions(Trouble.SIGKILL))
        assert caught.value.signal == signal.SIGKILL
        assert_usable(pool)
        pool.close()
    finally:
        os.kill(child, signal.SIGKILL)


def test_close_waits_for_no_child_and_no_thread_of_an_env(make):
    class Careless(TroubleEnv):
        def close(self):
            """Leaves its threads running."""

    pool = make(lambda: Careless())
    pool.reset(seed=0)
    pool.step(actions(Trouble.LEAVE_THREAD))
    child = int(pool.step(actions(Trouble.FORK_AND_STAY)).info["child"][1])
    pids = worker_pids(pool)
    try:
        pool.close()
        assert wait_until(lambda: not alive(pids))
    finally:
        os.kill(child, signal.SIGKILL)


def test_an_env_that_closes_the_standard_streams(make):
    pool = make()
    pool.reset(seed=0)
    pool.step([Trouble.CLOSE_STREAMS, STEP, STEP, STEP])
    assert pool.step([STEP] * 4).obs[:, 1].tolist() == [2] * 4
    with pytest.raises(envfleet.EnvError, match="joint 3 exploded"):
        pool.step(actions(Trouble.RAISE))
    assert_usable(pool)


# --- a long run ------------------------------------------------------------------------------------


class Ledger:
    """Holds every row against the one before it: +1 within an episode, 0 after its end."""

    def __init__(self, num_envs: int) -> None:
        self.num_rows = np.zeros(num_envs, dtype=np.int64)
        self.num_errors = 0
        self._elapsed = np.zeros(num_envs, dtype=np.int64)
        self._ended = np.zeros(num_envs, dtype=bool)

    def enter(self, batch: envfleet.Batch) -> None:
        has_error = batch.info.get("_error", np.zeros(len(batch), dtype=bool))
        assert len(set(batch.env_id.tolist())) == len(batch)
        for row, env_id in enumerate(batch.env_id.tolist()):
            self.num_rows[env_id] += 1
            ended = bool(batch.terminated[row] or batch.truncated[row])
            if has_error[row]:
                self.num_errors += 1
                assert batch.truncated[row]
            else:
                expected = 0 if self._ended[env_id] else self._elapsed[env_id] + 1
                assert batch.elapsed_step[row] == expected, f"env {env_id}, its row {self.num_rows[env_id]}"
                assert batch.obs[row, 1] == expected
                # An episode of FaultyEnv(length=50) ends by itself.
                assert bool(batch.terminated[row]) == (expected == 50)
            self._elapsed[env_id], self._ended[env_id] = batch.elapsed_step[row], ended


def long_run(make, num_steps: int, batch_size: int) -> None:
    num_envs, rng = 8, np.random.default_rng(0)
    pool = make(
        FaultyEnv,
        num_envs=num_envs,
        batch_size=batch_size,
        num_workers=4,
        length=50,
        on_error="restart",
        max_restarts=10**9,
    )
    first = pool.reset(seed=0)
    assert first.elapsed_step.tolist() == [0] * num_envs
    ledger, num_kills, stop = Ledger(num_envs), 0, threading.Event()

    def kill_one(number: float) -> None:
        pids = worker_pids(pool)
        pid = pids[int(number * len(pids))]
        # Not one that is being replaced: its number may belong to somebody else by now.
        if pid > 0 and pid in {child.pid for child in psutil.Process().children(recursive=True)}:
            with contextlib.suppress(ProcessLookupError):  # it was gone between the look and the shot
                os.kill(pid, signal.SIGKILL)

    def kill_at_random() -> None:
        own = np.random.default_rng(1)
        while not stop.wait(float(own.uniform(0.02, 0.2))):
            kill_one(float(own.random()))

    killer = threading.Thread(target=kill_at_random, daemon=True)
    killer.start()
    try:
        pool.send(np.zeros(num_envs, dtype=np.int64), np.arange(num_envs, dtype=np.int32))
        for step in range(num_steps):
            batch = pool.recv(timeout=60)
            ledger.enter(batch)
            if rng.random() < 0.005:
                kill_one(float(rng.random()))  # between two steps, beside those in the midst of one
                num_kills += 1
            if step < num_steps - 1:
                pool.send(np.zeros(len(batch), dtype=np.int64), batch.env_id)
    finally:
        stop.set()
        killer.join()
    assert ledger.num_rows.sum() == num_steps * batch_size
    # Most kills are seen: one may meet a worker that was killed a moment ago.
    assert ledger.num_errors >= num_kills // 2 > 0


@pytest.mark.parametrize("batch_size", [8, 3])
def test_a_run_goes_on_while_workers_are_killed_at_random(make, batch_size):
    long_run(make, 3000, batch_size)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("batch_size", [8, 3])
def test_a_long_run_goes_on_while_workers_are_killed_at_random(make, batch_size):
    long_run(make, 100_000, batch_size)
