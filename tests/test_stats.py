"""pool.stats() against a ledger that the test keeps from the batches."""

from __future__ import annotations

import threading
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from support.subjects import SUBJECTS

import envfleet
from envfleet import Batch, ConfigError, EnvError, EnvStats, Pool, PoolStats
from envfleet.core.statistics import StatsHistory

NUM_ENVS = 9
MODES = ("next_step", "same_step", "disabled")
STEP, THROW, THROW_AT_RESET, END = 0, 1, 3, 4


class Ledger:
    """What a caller sees of each env: its steps, its resets, and its episodes as (return, length)."""

    def __init__(self) -> None:
        self.steps = [0] * NUM_ENVS
        self.resets = [0] * NUM_ENVS
        self.episodes: list[list[tuple[float, int]]] = [[] for _ in range(NUM_ENVS)]
        self._returns = [0.0] * NUM_ENVS

    def reset(self, batch: Batch) -> None:
        for env_id in batch.env_id:
            self._begin(env_id)

    def step(self, batch: Batch) -> None:
        """Rows of steps; autoresets among them show by their elapsed_step."""
        broken = {fault.env_id for fault in batch.faults}
        for row, env_id in enumerate(batch.env_id):
            if env_id in broken:
                self._returns[env_id] = 0.0
                continue
            has_ended = bool(batch.terminated[row] or batch.truncated[row])
            if batch.elapsed_step[row] == 0 and not has_ended:
                self._begin(env_id)
                continue
            self.steps[env_id] += 1
            self._returns[env_id] += batch.reward[row]
            if has_ended:
                lengths = batch.elapsed_step if batch.final is None else batch.final.elapsed_step
                self.episodes[env_id].append((self._returns[env_id], int(lengths[row])))
                if batch.final is not None:
                    self._begin(env_id)

    @property
    def num_steps(self) -> int:
        return sum(self.steps)

    def _begin(self, env_id: int) -> None:
        self.resets[env_id] += 1
        self._returns[env_id] = 0.0

    def check(self, pool: Pool) -> None:
        stats = pool.stats()
        assert [env.num_steps for env in stats.envs] == self.steps
        assert [env.num_resets for env in stats.envs] == self.resets
        for env, episodes in zip(stats.envs, self.episodes, strict=True):
            returns, lengths = [own for own, _ in episodes], [own for _, own in episodes]
            assert env.num_episodes == len(episodes)
            assert (env.return_sum, env.length_sum) == (sum(returns), sum(lengths))
            assert (env.return_min, env.return_max) == (min(returns, default=0), max(returns, default=0))
            assert (env.length_min, env.length_max) == (min(lengths, default=0), max(lengths, default=0))
        assert stats.num_steps == sum(self.steps)
        assert stats.num_episodes == sum(len(own) for own in self.episodes)


@pytest.fixture(params=["native", "serial", "threads"])
def make(request):
    pools = []

    def make(env_id: str, **options: Any) -> Pool:
        pools.append(SUBJECTS[request.param](env_id, num_envs=NUM_ENVS, seed=3, **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def actions_of(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.integers(0, 2, count)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_batches_of_all_and_of_some_envs(make, mode, num_threads):
    pool = make("CartPole-v1", autoreset_mode=mode, num_threads=num_threads)
    ledger, rng = Ledger(), np.random.default_rng(0)
    ledger.check(pool)
    ledger.reset(pool.reset())
    for turn in range(300):
        batch = pool.step(actions_of(rng, NUM_ENVS))
        ledger.step(batch)
        some = np.sort(rng.permutation(NUM_ENVS)[: 1 + turn % NUM_ENVS]).astype(np.int32)
        if mode == "disabled":
            ended = np.flatnonzero(batch.terminated | batch.truncated).astype(np.int32)
            if len(ended):
                ledger.reset(pool.reset(ended))
        elif turn % 5 == 2:
            ledger.step(pool.step(actions_of(rng, len(some)), some))
        if turn % 11 == 7:
            # In the middle of an episode or just after its end.
            ledger.reset(pool.reset(some))
        if turn % 50 == 0:
            ledger.check(pool)
    ledger.check(pool)
    assert pool.stats().num_episodes > 50


@pytest.mark.parametrize("mode", MODES[:2])
def test_asynchronous_batches(make, mode):
    pool = make("CartPole-v1", autoreset_mode=mode, batch_size=3, num_threads=2)
    ledger, rng = Ledger(), np.random.default_rng(0)
    pool.async_reset()
    for _ in range(NUM_ENVS // 3):
        ledger.reset(pool.recv())
    pool.send(actions_of(rng, NUM_ENVS))
    last = 0
    for _ in range(400):
        batch = pool.recv()
        ledger.step(batch)
        pool.send(actions_of(rng, 3), batch.env_id)
        # Counted when they are run, so that there may be more than were received.
        seen = pool.stats().num_steps
        assert seen >= max(last, sum(ledger.steps))
        last = seen
    while pool.num_in_flight:
        ledger.step(pool.recv())
    ledger.check(pool)
    assert pool.stats().num_episodes > 20


def test_a_step_in_two_halves(make):
    pool = make("CartPole-v1")
    ledger, rng = Ledger(), np.random.default_rng(0)
    ledger.reset(pool.reset())
    for _ in range(50):
        pool.send(actions_of(rng, NUM_ENVS))
        assert pool.stats().num_steps >= sum(ledger.steps)
        ledger.step(pool.recv())
        ledger.check(pool)


@pytest.mark.parametrize("mode", MODES)
def test_an_env_that_raised_loses_its_episode(make, mode):
    pool = make("Faulty-v0", autoreset_mode=mode, length=4)
    ledger, rng = Ledger(), np.random.default_rng(0)
    ledger.reset(pool.reset())
    idle = np.zeros(NUM_ENVS, dtype=np.bool_)
    for turn in range(60):
        actions = np.full(NUM_ENVS, STEP)
        actions[rng.integers(NUM_ENVS)] = THROW if turn % 3 else STEP
        # Throws in the autoreset, too; in same_step mode that is the step's own fault, and the backends differ in it.
        actions[rng.integers(NUM_ENVS)] = THROW_AT_RESET if turn % 10 == 5 and mode == "next_step" else STEP
        try:
            batch = pool.step(actions)
            broken = []
        except EnvError as error:
            batch = error.batch
            broken = [fault.env_id for fault in batch.faults]
        ledger.step(batch)
        ledger.check(pool)
        idle[:] = (batch.terminated | batch.truncated) if mode == "disabled" else False
        idle[broken] = True
        if idle.any():
            ledger.reset(pool.reset(np.flatnonzero(idle).astype(np.int32)))
    ledger.check(pool)
    assert pool.stats().num_episodes > 20


def test_a_restarted_env_goes_on_with_a_reset(make):
    pool = make("Faulty-v0", on_error="restart", max_restarts=100)
    pool.reset()
    for _ in range(3):
        pool.step([STEP] * NUM_ENVS)
    pool.step([THROW] + [STEP] * (NUM_ENVS - 1))
    pool.step([STEP] * NUM_ENVS)
    first, second = pool.stats().envs[:2]
    assert (first.num_steps, first.num_resets, first.num_episodes) == (3, 2, 0)
    assert (second.num_steps, second.num_resets, second.num_episodes) == (5, 1, 0)
    pool.step([END] * NUM_ENVS)
    first, second = pool.stats().envs[:2]
    assert (first.return_sum, first.length_sum) == (1, 1)
    assert (second.return_sum, second.length_sum) == (1 + 2 + 3 + 4 + 5 + 6, 6)


def test_a_reset_that_raises_is_none(make):
    pool = make("Faulty-v0")
    pool.reset()
    pool.step([THROW_AT_RESET] + [STEP] * (NUM_ENVS - 1))
    with pytest.raises(EnvError):
        pool.reset()
    assert [env.num_resets for env in pool.stats().envs] == [1] + [2] * (NUM_ENVS - 1)
    pool.reset()
    assert [env.num_resets for env in pool.stats().envs] == [2] + [3] * (NUM_ENVS - 1)


def test_a_state_that_has_ended_begins_with_a_reset():
    """States that go back and forth: after each, what is due is as it was saved."""
    with SUBJECTS["native"]("Faulty-v0", num_envs=1, seed=3) as pool:
        pool.reset()
        running = pool.get_state()
        pool.step([END])
        ended = pool.get_state()
        pool.set_state(running)
        pool.step([STEP])
        pool.set_state(ended)
        assert pool.step([STEP]).elapsed_step[0] == 0
        (env,) = pool.stats().envs
        assert (env.num_steps, env.num_resets, env.num_episodes) == (2, 2, 1)


@pytest.mark.parametrize("backend", SUBJECTS)
@pytest.mark.parametrize("batch_size", [9, 3])
def test_a_logger_reads_from_its_own_thread_while_the_pool_steps(backend, batch_size):
    """Whatever it reads is of whole episodes: each step of CartPole has the reward 1."""
    seen: list[PoolStats] = []
    errors: list[BaseException] = []
    has_ended = threading.Event()

    def log() -> None:
        try:
            while not has_ended.is_set():
                seen.append(pool.stats())
        except BaseException as error:
            errors.append(error)

    ledger, rng = Ledger(), np.random.default_rng(0)
    with SUBJECTS[backend]("CartPole-v1", num_envs=NUM_ENVS, batch_size=batch_size, seed=3, num_threads=2) as pool:
        logger = threading.Thread(target=log)
        logger.start()
        try:
            pool.async_reset()
            for _ in range(NUM_ENVS // batch_size):
                ledger.reset(pool.recv())
            pool.send(actions_of(rng, NUM_ENVS))
            # Ray's actors send what they have counted every second.
            while ledger.num_steps < 2000 or (not errors and len({own.num_episodes for own in seen}) < 3):
                batch = pool.recv()
                ledger.step(batch)
                pool.send(actions_of(rng, len(batch)), batch.env_id)
            while pool.num_in_flight:
                ledger.step(pool.recv())
        finally:
            has_ended.set()
            logger.join()
        ledger.check(pool)
    assert not errors
    for stats in seen:
        assert [own.return_sum for own in stats.envs] == [own.length_sum for own in stats.envs]
        assert all(own.length_sum <= own.num_steps for own in stats.envs)
    for name in ("num_steps", "num_episodes"):
        values = [getattr(own, name) for own in seen]
        assert values == sorted(values)
        assert values[-1] <= getattr(pool.stats(), name)


@pytest.mark.parametrize("backend", SUBJECTS)
def test_the_statistics_of_a_period(backend):
    with SUBJECTS[backend]("CartPole-v1", num_envs=NUM_ENVS, seed=3, num_threads=2) as pool:
        rng = np.random.default_rng(0)
        pool.reset()
        earlier = pool.stats()
        parts: list[PoolStats] = []
        for _ in range(4):
            returns: list[int] = []
            before = earlier
            for _ in range(60):
                batch = pool.step(actions_of(rng, NUM_ENVS))
                returns += batch.elapsed_step[batch.terminated | batch.truncated].tolist()
            now = pool.stats()
            part, earlier = now.since(before), now
            assert part.num_episodes == len(returns)
            assert (part.return_mean, part.length_mean) == (np.mean(returns), np.mean(returns))
            # The extremes are those of the period, or unknown.
            for name, extreme in (("min", min(returns)), ("max", max(returns))):
                assert getattr(part, f"return_{name}") in (extreme, pytest.approx(np.nan, nan_ok=True))
                assert getattr(part, f"length_{name}") in (extreme, 0)
            assert "nan" not in str(part)
            parts.append(part)
        assert not np.isnan(parts[0].return_min)  # no episode had ended before
        assert sum(part.num_steps for part in parts) == earlier.num_steps
        assert [sum(env.num_resets for env in part.envs) for part in parts] != [0] * 4
        if backend != "native":
            assert earlier.since(before).step_us > 0
            assert 0 <= earlier.since(before).workers[0].busy_share <= 1
        nothing = earlier.since(earlier)
        assert (nothing.num_steps, nothing.num_episodes, nothing.step_us) == (0, 0, 0)
    assert pool.stats().num_steps == earlier.num_steps  # after close() as well


def test_a_period_needs_statistics_of_the_same_pool():
    stats = PoolStats((EnvStats(), EnvStats()))
    with pytest.raises(ConfigError, match="statistics of the same 2 envs, got those of 1; keep what"):
        stats.since(PoolStats((EnvStats(),)))
    with pytest.raises(ConfigError, match="got float: "):
        stats.since(1.5)


def test_counts_of_a_worker_that_arrive_late_are_dropped():
    def counted(num_steps: int) -> PoolStats:
        return PoolStats((EnvStats(num_steps=num_steps, num_resets=1),))

    history = StatsHistory([range(1)])
    history.update(0, counted(5), age_ns=200)  # the answer to stats()
    history.update(0, counted(3), age_ns=100)  # of a response that was sent before it and received after it
    assert history.total().num_steps == 5
    history.keep(0)
    history.update(0, counted(1), age_ns=50)  # of the worker that was started instead
    assert history.total().num_steps == 6


def test_extremes_of_a_period():
    before = EnvStats(5, 1, 2, 8.0, 3.0, 5.0, 8, 3, 5, slowest_ns=7)
    after = EnvStats(9, 1, 4, 14.0, 1.0, 5.0, 14, 1, 5, slowest_ns=7)
    part = PoolStats((after,)).since(PoolStats((before,)))
    assert (part.return_mean, part.return_min, part.length_min) == (3, 1, 1)
    assert (np.isnan(part.return_max), part.length_max, part.envs[0].slowest_ns) == (True, 0, 0)
    assert str(part) == "4 steps, 2 episodes\nreturn 3, length 3"
    first = PoolStats((after,)).since(PoolStats((EnvStats(),)))
    assert first == PoolStats((after,))


def test_native_and_serial_tell_the_same():
    told = []
    for backend in ("native", "serial"):
        with SUBJECTS[backend]("CartPole-v1", num_envs=NUM_ENVS, seed=3) as pool:
            rng = np.random.default_rng(0)
            pool.reset()
            for _ in range(200):
                pool.step(actions_of(rng, NUM_ENVS))
            told.append([{**asdict(env), "busy_ns": 0, "slowest_ns": 0} for env in pool.stats().envs])
    assert told[0] == told[1]


def test_text_before_and_after_the_first_episode():
    with envfleet.make_pool("CartPole-v1", num_envs=2, seed=0) as pool:
        pool.reset()
        assert str(pool.stats()) == "0 steps, 0 episodes"
        while not pool.stats().num_episodes:
            pool.step(np.ones(2, dtype=np.int64))
        assert "return 8 (from 8 to 8), length 8" in str(pool.stats())
        assert "nan" not in str(pool.stats())


def test_repr_of_a_pool():
    with envfleet.make_pool("CartPole-v1", num_envs=4, batch_size=2) as pool:
        assert repr(pool) == "<Pool of CartPole-v1: num_envs=4, batch_size=2, backend=native>"
    assert repr(pool) == "<Pool of CartPole-v1: num_envs=4, batch_size=2, backend=native, closed>"
