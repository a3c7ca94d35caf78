"""Connections: the same rows as through Ray, and nothing lost or stepped twice when one breaks."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time

import numpy as np
import pytest
from ray_probes import BigActionEnv, LargeEnv, LargeSleepyEnv, UnpackableEnv
from support.python_probes import FaultyEnv, SleepyEnv

import envfleet
from envfleet import ConfigError, Pool, RayConfig, WorkerDied
from envfleet.core.errors import RecvTimeout
from envfleet.executors.ray.connection import (
    HELLO_BYTES,
    SECRET_BYTES,
    STOP_SERVING,
    CallerConnection,
    ConnectionLostError,
    Listener,
    connect_all,
)
from envfleet.executors.ray.supervisor import Connections

ray = pytest.importorskip("ray")

STEP = FaultyEnv.STEP
SECRET = bytes(range(SECRET_BYTES))


@pytest.fixture
def make(make_direct):
    return make_direct


def connections_of(pool: Pool) -> list[CallerConnection | None]:
    return [worker.connection for worker in pool.executor._workers]


def break_connection(pool: Pool, worker: int) -> None:
    connections_of(pool)[worker]._socket.shutdown(socket.SHUT_RDWR)


def test_both_ways_give_the_same_rows(make):
    options = {"num_workers": 2, "num_envs": 6, "seed": 7}
    direct, by_ray = make(SleepyEnv, **options), make(SleepyEnv, **options, ray=RayConfig(direct=False))
    assert None not in connections_of(direct)
    assert connections_of(by_ray) == [None, None]
    np.testing.assert_array_equal(direct.reset().obs, by_ray.reset().obs)
    for step in range(5):
        actions = np.full(6, step % 3, dtype=np.float32)
        one, other = direct.step(actions), by_ray.step(actions)
        np.testing.assert_array_equal(one.obs, other.obs)
        np.testing.assert_array_equal(one.elapsed_step, other.elapsed_step)
        # Between steps the actor listens to Ray.
        assert direct.get_attr("spec") == by_ray.get_attr("spec")


@pytest.mark.parametrize("when", ["while idle", "while pending"])
def test_a_connection_that_breaks_costs_nothing_but_speed(make, when):
    """What was pending is sent again through Ray, and an env that has stepped is not stepped again."""
    pool = make(SleepyEnv, num_workers=2, num_envs=4, batch_size=3)
    pool.reset()
    ids = np.arange(4, dtype=np.int32)
    counts = np.zeros(4, dtype=int)
    before = connections_of(pool)
    for turn in range(4):
        pool.send(np.full(4, 300 if turn == 1 else 1, dtype=np.float32), ids)
        if turn == 1 and when == "while pending":
            break_connection(pool, 1)
        batch = pool.recv()
        counts[batch.env_id] += 1
        pool.send(np.ones(2, dtype=np.float32), batch.env_id[:2])
        for _ in range(1):
            batch = pool.recv()
            counts[batch.env_id] += 1
        if turn == 1 and when == "while idle":
            break_connection(pool, 1)
    assert connections_of(pool)[0] is before[0]
    assert connections_of(pool)[1] is not before[1]
    assert pool.stats().num_steps == 24
    assert [stats.num_steps for stats in pool.stats().envs] == counts.tolist()


def test_a_broken_connection_keeps_the_rows_exact(make):
    pool, twin = make(FaultyEnv, num_workers=2, num_envs=4), envfleet.make_pool(FaultyEnv, num_envs=4, backend="serial")
    np.testing.assert_array_equal(pool.reset(seed=3).obs, twin.reset(seed=3).obs)
    for step in range(12):
        if step in (3, 7):
            break_connection(pool, step // 4)
        np.testing.assert_array_equal(pool.step([STEP] * 4).obs, twin.step([STEP] * 4).obs)
    twin.close()


@pytest.mark.parametrize("batch_size", [4, 2])
def test_a_lost_connection_is_made_again_without_a_reset(make, batch_size):
    pool = make(FaultyEnv, num_workers=2, num_envs=4, batch_size=batch_size)
    pool.reset(seed=0)
    before = connections_of(pool)
    break_connection(pool, 1)
    num_steps = 0
    while connections_of(pool)[1] in (None, before[1]):  # the timeout of the test ends this
        ids = pool.step([STEP] * 4, np.arange(4)).env_id if batch_size == 4 else stepped(pool)
        num_steps += len(ids)
    assert connections_of(pool)[0] is before[0]
    assert pool.stats().num_steps == num_steps


def stepped(pool: Pool) -> np.ndarray:
    """The envs of an asynchronous pool that it has stepped once each."""
    pool.send([STEP] * 4, np.arange(4, dtype=np.int32))
    return np.concatenate([pool.recv().env_id, pool.recv().env_id])


def test_rows_larger_than_any_buffer_neither_block_the_worker_nor_the_caller(make):
    """16 MB wait to be read while the same worker is asked something else, and while more is sent to it."""
    pool = make(LargeEnv, num_workers=1, num_envs=6, batch_size=2)
    pool.reset(seed=0)
    pool.send([STEP] * 4, [0, 1, 2, 3])
    assert pool.stats().num_steps == 4
    pool.send([STEP], [4])
    seen = []
    for _ in range(2):
        batch = pool.recv()
        seen += batch.env_id.tolist()
        assert batch.obs[:, -1].tolist() == [1, 1]
    assert seen == [0, 1, 2, 3]


def test_a_broken_connection_of_a_busy_worker_delays_no_other(make):
    pool = make(SleepyEnv, num_workers=2, num_envs=2, batch_size=1, step_timeout=30)
    pool.reset()
    pool.send(np.array([4000, 1], dtype=np.float32), np.arange(2, dtype=np.int32))
    break_connection(pool, 0)
    assert pool.recv().env_id.tolist() == [1]
    with pytest.raises(RecvTimeout):
        pool.recv(timeout=0.2)
    assert pool.recv().env_id.tolist() == [0]
    # It is there again after a reset.
    pool.reset()
    assert None not in connections_of(pool)


def test_a_worker_that_responds_while_no_call_waits_is_not_overdue(make):
    """Its reply fits into no buffer, so that most of it is still to come when step_timeout is over."""
    pool = make(LargeSleepyEnv, num_workers=2, num_envs=16, step_timeout=4.0)
    pool.reset()
    pool.send(np.ones(16, dtype=np.float32))
    time.sleep(5.0)  # the subject, not a wait for anything
    assert pool.recv().obs[:, 0].tolist() == [1] * 16


def test_ctrl_c_while_the_worker_takes_its_time_to_listen(make):
    """In stats(), which asks a worker that has not read all of its requests yet."""
    pool = make(BigActionEnv, num_workers=1, num_envs=4, batch_size=1)
    pool.reset()

    def send(milliseconds: int, env_id: int) -> None:
        actions = np.zeros((1, 2_000_000), dtype=np.float32)
        actions[0, 0] = milliseconds
        pool.send(actions, [env_id])

    send(600, 0)
    send(1, 1)
    send(1, 2)
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        [pool.stats() for _ in range(1000)]
    assert pool.reset().obs.tolist() == [0] * 4
    send(1, 3)
    assert pool.recv().env_id.tolist() == [3]


def test_what_fails_after_its_envs_stepped_is_not_done_again(make):
    pool = make(UnpackableEnv, num_workers=2, num_envs=2)
    pool.reset(seed=0)
    with pytest.raises(WorkerDied, match=r"env 0 raised in step\(\).*the request was started, and failed"):
        pool.step([UnpackableEnv.THROW, STEP])
    pool.reset([0])
    assert pool.step([STEP] * 2).obs[:, 1].tolist() == [1, 2]


def test_where_ray_encrypts_nothing_travels_in_the_open(make, monkeypatch):
    pool = make(FaultyEnv, num_workers=1, num_envs=1, ray=RayConfig(direct=False))
    monkeypatch.setenv("RAY_USE_TLS", "1")
    Connections(ray, True).connect(pool.executor._workers)
    assert connections_of(pool) == [None]


def test_an_odd_option_is_refused():
    with pytest.raises(ConfigError, match="direct expected"):
        envfleet.make_pool(FaultyEnv, backend="ray", num_workers=1, ray=RayConfig(direct="maybe"))
    with pytest.raises(ConfigError, match="expected backend='ray'"):
        envfleet.make_pool(FaultyEnv, backend="serial", ray=RayConfig(direct=False))


# --- the two ends by themselves ------------------------------------------------------------------


def test_a_client_without_the_secret_is_rejected():
    listener = Listener("127.0.0.1", SECRET)
    accepted = []
    thread = threading.Thread(target=lambda: accepted.append(listener.accept()))
    thread.start()
    with socket.create_connection(listener.address) as stranger:
        stranger.sendall(bytes(HELLO_BYTES))
        assert stranger.recv(1) == b""
    connection = connect_all({"actor": (listener.address, SECRET)}, 5.0)["actor"]
    thread.join()
    connection.send(5, b"request")
    assert accepted[0].recv() == (5, b"request")
    accepted[0].send(5, [b"re", b""], [b"ply"])
    while not connection.received:
        connection.pump()
    assert list(connection.received) == [(5, b"reply")]
    # One caller, and no other after it.
    assert connect_all({"actor": (listener.address, SECRET)}, 1.0) == {}
    connection.close()
    with pytest.raises(ConnectionLostError):
        accepted[0].recv()
    accepted[0].close()


def test_frames_of_all_sizes_arrive_whole_and_in_order():
    listener = Listener("127.0.0.1", SECRET)
    caller = connect_all({0: (listener.address, SECRET)}, 5.0)[0]
    actor = listener.accept()
    sizes = [0, 1, 100_000, 131_056, 131_057, 5_000_000, 3, 40_000_000, 17]
    frames = {number: os.urandom(size) for number, size in enumerate(sizes)}

    def echo() -> None:
        while (frame := actor.recv())[0] != STOP_SERVING:
            half = len(frame[1]) // 2
            actor.send(frame[0], [bytes(frame[1][:half])], [bytes(frame[1][half:])] + [b""] * 100)

    thread = threading.Thread(target=echo)
    thread.start()
    for number, data in frames.items():
        caller.send(number, data)
    caller.send(STOP_SERVING, b"")
    assert caller.flush(30.0)
    thread.join()
    while len(caller.received) < len(frames):
        caller.pump()
    assert [number for number, _ in caller.received] == list(frames)
    assert all(bytes(data) == frames[number] for number, data in caller.received)
    actor.close()
    while not caller.is_lost:
        caller.pump()


def test_a_closed_listener_is_not_connected_to():
    listener = Listener("127.0.0.1", SECRET)
    listener.close()
    assert connect_all({0: (listener.address, SECRET)}, 5.0) == {}
