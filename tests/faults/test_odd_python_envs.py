"""A Python env that does what it may, but unlike others: prints, forks, threads, infos of any size, shared arrays."""

from __future__ import annotations

import os
import sys
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
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


class ReusingEnv(gymnasium.Env):
    """Episodes of three steps. Observations of variable size, and what infos hold, are always the same objects."""

    observation_space = spaces.Sequence(spaces.Box(-9, 9, (1,), np.float32))
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.count = np.zeros(1, np.float32)
        self.state = np.zeros(2000)  # too large for a column of infos
        self.log: list[int] = []

    def reset(self, *, seed=None, options=None):
        self.count[:] = 0
        self.state[:] = 0
        self.log.clear()
        return (self.count,), {}

    def step(self, action):
        self.count += 1
        self.state += 1
        self.log.append(len(self.log) + 1)
        ended = bool(self.count[0] == 3)
        return (self.count,), 1.0, ended, False, {"state": self.state, "nested": {"log": self.log}}


@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
def test_objects_that_an_env_uses_again(backend):
    """Neither later steps nor the reset of same-step mode change what was handed out."""
    with envfleet.make_pool(ReusingEnv, num_envs=2, backend=backend, autoreset_mode="same_step") as pool:
        batches = [pool.reset(seed=0), *(pool.step([0, 0]) for _ in range(3))]
    assert [[row[0].item() for row in batch.obs] for batch in batches] == [[0, 0], [1, 1], [2, 2], [0, 0]]
    assert [batch.info["state"][0][0] for batch in batches[1:3]] == [1, 2]
    assert [batch.info["nested"]["log"][0] for batch in batches[1:3]] == [[1], [1, 2]]
    final = batches[3].final
    assert [row[0].item() for row in final.obs] == [3, 3]
    assert [final.info["state"][1][0], final.info["nested"]["log"][1]] == [3, [1, 2, 3]]


class SelfContainingEnv(MisbehavingEnv):
    def step(self, action):
        log: list[object] = [1]
        log += [log, log, (log, log)]
        pairs: tuple[object, ...] = ()
        for _ in range(50):
            pairs = (pairs, pairs)
        return *super().step(action)[:4], {"log": log, "pairs": pairs}


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_a_list_that_contains_itself_several_times(backend):
    with envfleet.make_pool(SelfContainingEnv, num_envs=2, backend=backend) as pool:
        pool.reset(seed=0)
        info = pool.step([STEP] * 2).info
    log, pairs = info["log"][1], info["pairs"][1]
    assert log[0] == 1
    assert log[1] is log[2] is log[3][0] is log
    assert pairs[0] is pairs[1]


class Bomb:
    """Unpickling it ends the process."""

    def __reduce__(self):
        return sys.exit, (3,)


class BombEnv(MisbehavingEnv):
    def step(self, action):
        return *super().step(action)[:4], {"bomb": Bomb()}


def test_infos_that_exit_when_they_are_unpickled():
    with envfleet.make_pool(BombEnv, num_envs=2, backend="processes") as pool:
        pool.reset(seed=0)
        with pytest.raises(EnvError, match="cannot be unpickled here: SystemExit"):
            pool.step([STEP] * 2)
        pool.reset()


@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
def test_an_env_without_a_usable_step(backend, tmp_path):
    class Unfinished(MisbehavingEnv):
        @property
        def step(self):
            raise RuntimeError("no step yet")

        def close(self):
            (tmp_path / f"closed-{id(self)}").touch()

    with pytest.raises(EnvError, match=r"env 0 raised in __init__\(\): no step yet"):
        envfleet.make_pool(Unfinished, num_envs=1, backend=backend)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("reward", ["1.5", b"2", 1 + 2j, np.complex64(1)], ids=repr)
def test_rewards_that_only_float_would_take(make, reward):
    class Odd(MisbehavingEnv):
        def step(self, action):
            obs, _, *rest = super().step(action)
            return obs, reward, *rest

    pool = make(Odd)
    pool.reset(seed=0)
    with pytest.raises(EnvError, match="expected a numeric reward, got"):
        pool.step([STEP] * 4)


class BigEndianEnv(gymnasium.Env):
    observation_space = spaces.Box(-9, 9, (2,), np.dtype(">f4"))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.full(2, 3, ">f4"), {}

    def step(self, action):
        return np.zeros(2, ">f4"), 0.0, False, False, {}


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_states_of_observations_in_another_byte_order(backend):
    with envfleet.make_pool(BigEndianEnv, num_envs=2, backend=backend) as pool:
        pool.reset(seed=0)
        state = pool.get_state()
        pool.step([0, 0])
        pool.set_state(state)
        assert pool.observe().tolist() == [[3, 3]] * 2


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
