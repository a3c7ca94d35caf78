"""Asynchronous batches and the two halves of a synchronous step."""

from __future__ import annotations

import numpy as np
import pytest
from support.gates import Gate

from envfleet import CallOrderError, EnvError, EnvIdError, Pool, PoolClosedError, RecvTimeout


def collect(pool: Pool, actions_of, num_steps: int) -> dict[int, list]:
    """The rows of every env, in its own order, after num_steps steps of each."""
    rows: dict[int, list] = {env_id: [] for env_id in range(pool.num_envs)}
    pool.async_reset(seed=4)
    left = pool.num_envs
    while left:
        batch = pool.recv()
        again = []
        for row, env_id in enumerate(batch.env_id.tolist()):
            rows[env_id].append((batch.obs[row].tolist(), batch.reward[row], bool(batch.terminated[row])))
            if len(rows[env_id]) <= num_steps:
                again.append(env_id)
            else:
                left -= 1
        if again:
            actions = [actions_of(env_id, len(rows[env_id]) - 1) for env_id in again]
            pool.send(np.array(actions), np.array(again, dtype=np.int32))
        # The tail: fewer envs in flight than a batch holds can never fill one.
        if pool.num_in_flight < pool.config.batch_size:
            break
    return rows


@pytest.mark.ray_core(num_envs=9, batch_size=4, num_threads=5)
@pytest.mark.parametrize(("num_envs", "batch_size", "num_threads"), [(8, 3, 1), (8, 1, 2), (9, 4, 5), (64, 16, 2)])
def test_async_rollouts_equal_synchronous_ones(make, num_envs, batch_size, num_threads):
    """Reassembled by env_id, whatever the batch size, the threads and the timing."""
    table = np.random.default_rng(0).integers(0, 2, (num_envs, 61))
    pool = make("CartPole-v1", num_envs=num_envs, batch_size=batch_size, num_threads=num_threads)
    rows = collect(pool, lambda env_id, k: table[env_id, k], 60)
    twin = make("CartPole-v1", num_envs=num_envs, num_threads=1)
    batches = [twin.reset(seed=4), *(twin.step(table[:, k]) for k in range(60))]
    compared = 0
    for env_id, own in rows.items():
        compared += len(own)
        for k, row in enumerate(own):
            batch = batches[k]
            assert row == (batch.obs[env_id].tolist(), batch.reward[env_id], bool(batch.terminated[env_id]))
    # Not of each env: whose thread or process the system lets run is not for us to say.
    assert compared > 30 * num_envs


@pytest.mark.ray_core
def test_first_finished_comes_first(make):
    pool = make("Sleepy-v0", num_envs=4, batch_size=1, num_threads=4)
    pool.reset()
    with Gate() as zero, Gate() as one, Gate() as three:
        actions = np.array([zero.action, one.action, 2, three.action], dtype=np.float32)
        pool.send(actions, np.arange(4, dtype=np.int32))
        assert pool.recv().env_id.tolist() == [2]
        for gate, env_id in ((three, 3), (one, 1), (zero, 0)):
            gate.open()
            assert pool.recv().env_id.tolist() == [env_id]


def test_a_slow_env_holds_up_no_batch_of_others(make, gate):
    pool = make("Sleepy-v0", num_envs=3, batch_size=2, num_threads=3)
    pool.reset()
    pool.send(np.array([gate.action, 1, 1], dtype=np.float32), np.arange(3, dtype=np.int32))
    for _ in range(5):
        batch = pool.recv()
        assert sorted(batch.env_id.tolist()) == [1, 2]
        pool.send(np.array([1, 1], dtype=np.float32), batch.env_id)
    gate.open()


@pytest.mark.ray_core
def test_a_timeout_loses_nothing(make, gate):
    pool = make("Sleepy-v0", num_envs=2, num_threads=2)
    pool.reset()
    with pytest.raises(RecvTimeout, match=r"0\.01"):
        pool.step(np.array([gate.action, 1], dtype=np.float32), timeout=0.01)
    with pytest.raises(CallOrderError, match="in flight"):
        pool.step(np.zeros(2, dtype=np.float32))
    with pytest.raises(RecvTimeout):
        pool.recv(timeout=0.0)
    gate.open()
    assert pool.recv().obs.tolist() == [1, 1]
    assert pool.step(np.zeros(2, dtype=np.float32)).obs.tolist() == [2, 2]


def test_a_timeout_holds_for_an_env_that_was_quick_before(make, gate):
    pool = make("Sleepy-v0", num_envs=2, num_threads=2)
    pool.reset()
    for _ in range(50):  # so that the next step is expected to be quick too
        pool.step(np.zeros(2, dtype=np.float32))
    with pytest.raises(RecvTimeout):
        pool.step(np.array([gate.action, 1], dtype=np.float32), timeout=0.01)
    gate.open()
    assert pool.recv().obs.tolist() == [51, 51]


def test_an_async_timeout_loses_nothing(make, gate):
    pool = make("Sleepy-v0", num_envs=3, batch_size=2, num_threads=1)
    pool.reset()
    pool.send(np.array([gate.action, gate.action, 1], dtype=np.float32), np.arange(3, dtype=np.int32))
    with pytest.raises(RecvTimeout):
        pool.recv(timeout=0.01)
    gate.open()
    assert len(pool.recv().env_id) == 2
    with pytest.raises(CallOrderError, match="batch_size=2"):
        pool.recv()


@pytest.mark.ray_core
def test_send_and_recv_of_a_synchronous_pool(make):
    pool = make("Faulty-v0", num_envs=3)
    pool.async_reset(seed=1)
    first = pool.recv()
    assert first.env_id.tolist() == [0, 1, 2]
    pool.send([0, 0, 0])
    with pytest.raises(CallOrderError, match="recv"):
        pool.send([0, 0, 0])
    assert pool.recv().obs[:, 1].tolist() == [1, 1, 1]
    with pytest.raises(CallOrderError, match="nothing in flight"):
        pool.recv()
    pool.send([0], [2])
    assert pool.recv().env_id.tolist() == [2]


@pytest.mark.ray_core
def test_reset_drops_what_is_in_flight(make):
    for batch_size in (2, 4):
        pool = make("Sleepy-v0", num_envs=4, batch_size=batch_size, num_threads=2)
        pool.reset()
        pool.send(np.array([50, 1, 1, 1], dtype=np.float32), np.arange(4, dtype=np.int32))
        batch = pool.reset()
        assert batch.env_id.tolist() == [0, 1, 2, 3]
        assert batch.obs.tolist() == [0, 0, 0, 0]
        assert pool.num_in_flight == 0


@pytest.mark.ray_core
def test_pending_rows_are_dropped_before_an_asynchronous_reset(make):
    for batch_size in (2, 4):
        pool = make("Sleepy-v0", num_envs=4, batch_size=batch_size, num_threads=2)
        pool.drop_pending()  # nothing is in flight
        pool.reset()
        pool.send(np.ones(4, dtype=np.float32), np.arange(4, dtype=np.int32))
        pool.drop_pending()
        assert pool.num_in_flight == 0
        pool.async_reset()
        received = [pool.recv() for _ in range(4 // batch_size)]
        assert sorted(np.concatenate([batch.env_id for batch in received]).tolist()) == [0, 1, 2, 3]
        assert not np.concatenate([batch.obs for batch in received]).any()


def test_dropping_pending_rows_may_run_out_of_time(make, gate):
    pool = make("Sleepy-v0", num_envs=2, num_threads=2)
    pool.reset()
    pool.send(np.array([gate.action, 1], dtype=np.float32))
    with pytest.raises(RecvTimeout, match=r"drop_pending\(\) waited 0\.01 s"):
        pool.drop_pending(timeout=0.01)
    gate.open()
    pool.drop_pending()
    assert pool.step(np.zeros(2, dtype=np.float32)).obs.tolist() == [2, 2]


def test_idle_envs_of_an_async_pool_may_be_reset_while_others_run(make):
    pool = make("Sleepy-v0", num_envs=3, batch_size=1, num_threads=2)
    pool.reset()
    pool.send(np.array([150], dtype=np.float32), [1])
    assert pool.reset([2, 0]).env_id.tolist() == [2, 0]
    with pytest.raises(EnvIdError, match="env 1, which is in flight"):
        pool.reset([1])
    assert pool.recv().env_id.tolist() == [1]


def test_async_step_is_send_and_recv(make):
    pool = make("CartPole-v1", num_envs=6, batch_size=2)
    pool.async_reset(seed=0)
    batch = pool.recv()
    for _ in range(50):
        batch = pool.step(np.zeros(2, dtype=np.int64), batch.env_id)
        assert len(batch) == 2
    with pytest.raises(EnvIdError, match="env_id"):
        pool.step(np.zeros(2, dtype=np.int64))


@pytest.mark.ray_core(batch_size=2)
@pytest.mark.parametrize("batch_size", [4, 2])
def test_a_late_reset_is_received_before_anything_else(make, batch_size, gate):
    pool = make("SlowReset-v0", num_envs=4, batch_size=batch_size, num_threads=2)
    pool.reset()

    def hold_the_next_reset(gate):
        pool.send(np.full(4, gate.action, dtype=np.float32), np.arange(4, dtype=np.int32))
        for _ in range(4 // batch_size):
            pool.recv()

    hold_the_next_reset(gate)
    with pytest.raises(RecvTimeout):
        pool.reset([2, 0], timeout=0.01)
    with pytest.raises(CallOrderError, match="in flight"):
        pool.reset([3])
    gate.open()
    assert pool.recv().env_id.tolist() == [2, 0]
    assert pool.reset([3]).env_id.tolist() == [3]
    with Gate() as second:
        hold_the_next_reset(second)
        with pytest.raises(RecvTimeout):
            pool.reset(timeout=0.01)
        second.open()
        assert pool.reset().env_id.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("batch_size", [2, 4])
def test_faults_of_envs_that_were_quick_come_with_recv(make, batch_size):
    """Native envs that are known to be quick run inside send(): it must not raise for them, and no row is lost."""
    pool = make("Faulty-v0", num_envs=4, batch_size=batch_size, num_threads=2)
    pool.reset(seed=0)
    ids = np.arange(4, dtype=np.int32)
    for _ in range(30):  # so that the next step is expected to be quick too
        pool.send([0, 0, 0, 0], ids)
        for _ in range(4 // batch_size):
            pool.recv()
    pool.send([0, 1, 0, 2], ids)  # envs 1 and 3 raise
    assert pool.num_in_flight == 4
    counts, failed = {}, []
    for _ in range(4 // batch_size):
        try:
            batch = pool.recv(timeout=60)
        except EnvError as error:
            failed += [fault.env_id for fault in error.faults]
            batch = error.batch
        counts.update(zip(batch.env_id.tolist(), batch.obs[:, 1].tolist(), strict=True))
    assert sorted(failed) == [1, 3]
    assert counts == {0: 31, 1: 0, 2: 31, 3: 0}
    assert pool.num_in_flight == 0
    with pytest.raises(CallOrderError, match="raised earlier"):
        pool.send([0, 0], [0, 1])
    assert sorted(pool.reset([1, 3]).env_id.tolist()) == [1, 3]
    pool.send([0, 0, 0, 0], ids)
    pool.close()  # with rows that were not received
    with pytest.raises(PoolClosedError):
        pool.recv(timeout=60)
