"""A Python env that does what it may, but unlike others: prints, forks, threads, infos of any size, shared arrays."""

from __future__ import annotations

import os
from functools import partial

import numpy as np
import pytest
from misbehaving_pools import STEP, actions, assert_usable, misbehaving_pools, on_two_workers
from support.faulty_env import MisbehavingEnv, Misbehavior
from support.space_env import SpaceEnv

import envfleet
from envfleet import EnvError, EnvfleetError
from envfleet.executors.python.layout import anonymous_memory


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


class ForkingEnv(MisbehavingEnv):
    """Forks in one of its methods, and both processes return from it."""

    def __init__(self, fork_in: str, raises: bool = False) -> None:
        super().__init__()
        self._fork_in, self._raises = fork_in, raises
        self._fork_once("__init__")

    def _fork_once(self, method: str) -> None:
        if method == self._fork_in and os.fork() == 0 and self._raises:
            raise RuntimeError("in the child")

    def reset(self, **keywords):
        self._fork_once("reset")
        return super().reset(**keywords)

    def step(self, action):
        self._fork_once("step")
        return super().step(action)

    def poke(self):
        self._fork_once("poke")
        return os.getpid()

    def close(self):
        super().close()
        self._fork_once("close")


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("method", ["__init__", "reset", "step", "poke", "close"])
def test_a_child_that_returns_from_an_env_ends(method, raises, capfd):
    """Two processes would serve the requests of one worker and write its rows."""
    with envfleet.make_pool(
        ForkingEnv, num_envs=4, num_workers=2, backend="processes", fork_in=method, raises=raises
    ) as pool:
        pids = pool.executor.worker_pids
        for seed in (0, None):
            assert pool.reset(seed=seed).elapsed_step.tolist() == [0] * 4
            for count in range(1, 4):
                assert pool.step([STEP] * 4).elapsed_step.tolist() == [count] * 4
                assert pool.call("poke") == (pids[0], pids[0], pids[1], pids[1])
    stderr = capfd.readouterr().err
    assert "Traceback" not in stderr


class LoggedForkingEnv(ForkingEnv):
    """Logs its calls, and waits for its child: whatever that child calls is in the log before the method returns."""

    def __init__(self, log: str, fork_in: str, raises: bool = False, fails: bool = False) -> None:
        self._log = log
        super().__init__(fork_in, raises)
        if fails:
            raise RuntimeError("in the constructor")

    def _fork_once(self, method: str) -> None:
        with open(self._log, "a") as log:
            log.write(f"{method} {os.getpid()}\n")
        if method != self._fork_in:
            return
        child = os.fork()
        if child != 0:
            os.waitpid(child, 0)
        elif self._raises:
            raise RuntimeError("in the child")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # of an env on a thread
@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize(
    ("backend", "method"), [("processes", "__init__"), ("processes", "close"), ("threads", "close")]
)
def test_a_child_calls_no_other_env(backend, method, raises, tmp_path):
    """Each of the others would fork too, and the number of processes would double with every env."""
    log = tmp_path / "log"
    with envfleet.make_pool(
        LoggedForkingEnv, num_envs=5, num_workers=1, backend=backend, log=str(log), fork_in=method, raises=raises
    ) as pool:
        pid = pool.executor.worker_pids[0] if backend == "processes" else os.getpid()
    assert log.read_text().splitlines() == [f"__init__ {pid}"] * 5 + [f"close {pid}"] * 5


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_child_closes_no_other_env_of_a_pool_that_cannot_be_made(num_workers, tmp_path):
    """With two workers, the envs of the first are closed because the second could not build its last one."""
    log = tmp_path / "log"
    factories = [partial(LoggedForkingEnv, str(log), "close", fails=env_id == 5) for env_id in range(6)]
    with pytest.raises(EnvError, match="env 5 raised in __init__"):
        envfleet.make_pool(factories, num_workers=num_workers, backend="processes")
    methods = [line.split()[0] for line in log.read_text().splitlines()]
    assert (methods.count("__init__"), methods.count("close")) == (6, 5)


def test_a_child_builds_no_env(tmp_path):
    """Forked in the close() of an env that is replaced."""
    log = tmp_path / "log"
    with envfleet.make_pool(
        LoggedForkingEnv, num_envs=2, num_workers=1, backend="processes", log=str(log), fork_in="close"
    ) as pool:
        (pid,) = pool.executor.worker_pids
        pool.reset(seed=0)
        with pytest.raises(EnvError):
            pool.step([STEP, Misbehavior.RAISE])
        pool.reset()
    calls = [line for line in log.read_text().splitlines() if not line.startswith(("reset", "step"))]
    assert calls == [f"__init__ {pid}"] * 2 + [f"close {pid}", f"__init__ {pid}"] + [f"close {pid}"] * 2


@pytest.mark.parametrize("is_final", [False, True])
def test_infos_that_contain_themselves(make, is_final):
    class RecursiveInfos(MisbehavingEnv):
        def step(self, action):
            obs, reward, _, _, _ = super().step(STEP)
            info = {"plain": 1}
            if action == 3:
                info["self"] = info["again"] = info
            if action == 2:
                for _ in range(5000):
                    info = {"inner": info}
            return obs, reward, is_final, False, info

    pool = make(RecursiveInfos, autoreset_mode="same_step" if is_final else "next_step")
    for action in (2, 3):
        pool.reset(seed=0)
        with pytest.raises(EnvError, match="got one that is deeper or contains itself") as caught:
            pool.step([0, 0, action, 0])
        assert [fault.env_id for fault in caught.value.faults] == [2]
        assert caught.value.batch.reward.tolist() == [1, 1, 0, 1]
    assert_usable(make())


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


def test_results_that_cannot_be_pickled():
    class GeneratorEnv(MisbehavingEnv):
        def numbers(self):
            return (number for number in range(3))

    with envfleet.make_pool(GeneratorEnv, num_envs=2, backend="processes") as pool:
        with pytest.raises(EnvError, match="expected a result that can be pickled, got value that cannot"):
            pool.call("numbers")
        assert_usable(pool)


def test_rows_that_do_not_fit_into_memory():
    with pytest.raises(EnvfleetError, match=r"expected [0-9]+ bytes of memory .*got .*; use fewer envs"):
        anonymous_memory(2**62)
