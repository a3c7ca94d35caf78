"""What crashes, hangs or slips through elsewhere is an exception here, and no env has moved."""

from __future__ import annotations

import contextlib
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces

import envfleet
from envfleet import (
    ActionError,
    CallOrderError,
    ConfigError,
    EnvIdError,
    PoolClosedError,
    StateError,
)
from envfleet.core.validation import check_actions


def test_an_env_that_writes_another_dtype_than_declared_is_told_so():
    with pytest.raises(envfleet.EnvError, match=r"env 0 raised in reset\(\).*does not match spec\(\)"):
        envfleet.make("Confused-v0").reset()


GOOD = np.array([0, 1, 0], dtype=np.int64)


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([0, 1], r"expected actions of shape \(3,\), got \(2,\); pass one row per env"),
        ([0, 1, 0, 1], r"got \(4,\)"),
        (GOOD.reshape(3, 1), r"got \(3, 1\)"),
        (0, r"got \(\)"),
        (np.array([0.0, 1.0, 0.0]), r"expected integer actions for Discrete\(2\), got dtype float64"),
        (np.array([np.nan, 1.0, 0.0]), r"expected integer actions"),
        (np.array([True, False, True]), r"got dtype bool"),
        (["a", "b", "c"], r"got dtype <U1"),
        ([0, 1, None], r"got dtype object"),
        (None, r"got \(\)"),
        ([0, 1, 2], r"Discrete\(2\) \(from 0 to 1\), got 2 for env 2"),
        ([0, -1, 0], r"got -1 for env 1"),
        (np.array([0, 2**40, 0]), r"got 1099511627776 for env 1"),
        (np.array([0, 2**63, 0], dtype=np.uint64), r"for env 1"),
        ([[0], [0, 1], [0]], r"expected actions as an array"),
    ],
    ids=str,
)
def test_discrete_actions(actions, message):
    envs = envfleet.make("CartPole-v1", num_envs=3)
    twin = envfleet.make("CartPole-v1", num_envs=3)
    envs.reset(seed=0)
    twin.reset(seed=0)
    for call in (envs.step, envs.send):
        with pytest.raises(ActionError, match=message):
            call(actions)
    # Nobody has moved.
    np.testing.assert_array_equal(envs.step(GOOD)[0], twin.step(GOOD)[0])


@pytest.mark.parametrize(
    "dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, ">i4"]
)
def test_integers_of_every_width_are_taken(dtype):
    envs, twin = envfleet.make("CartPole-v1", num_envs=3), envfleet.make("CartPole-v1", num_envs=3)
    envs.reset(seed=0)
    twin.reset(seed=0)
    np.testing.assert_array_equal(envs.step(GOOD.astype(dtype))[0], twin.step(GOOD)[0])
    backwards = GOOD.astype(dtype)[::-1]  # not contiguous
    np.testing.assert_array_equal(envs.step(backwards)[0], twin.step(GOOD[::-1].copy())[0])
    np.testing.assert_array_equal(envs.step(list(GOOD))[0], twin.step(tuple(GOOD))[0])


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([np.nan, 1.0], r"no NaN\), got nan for env 0.*pass a number"),  # np.clip keeps NaN
        ([1.0, np.inf], r"got inf for env 1"),
        ([1.0, 10000.5], r"here from -16777215\.0 to 10000\.0.*got 10000\.5 for env 1.*clip"),
        ([1.0, -2e7], r"got -20000000\.0 for env 1.*clip"),
        ([1.0, 1e5], r"for env 1"),
        ([1 + 2j, 0], r"expected actions of dtype float32, got complex128"),
        ([[1.0], [2.0]], r"expected actions of shape \(2,\)"),
    ],
    ids=str,
)
def test_box_actions(actions, message):
    envs = envfleet.make("Sleepy-v0", num_envs=2)
    envs.reset()
    with pytest.raises(ActionError, match=message):
        envs.step(actions)
    assert envs.step(np.zeros(2))[0].tolist() == [1, 1]
    assert envs.step(np.zeros(2, dtype=np.int32))[0].tolist() == [2, 2]


def test_multi_discrete_and_multi_binary_actions():
    envs = envfleet.make("Sink-v0", num_envs=1)
    envs.reset()
    for actions, message in [([[0, 4]], "here from 0 to 3.*got 4"), ([[-1, 0]], "got -1"), ([[0]], r"\(1, 2\)")]:
        with pytest.raises(ActionError, match=message):
            envs.step(actions)
    lamps = envfleet.make("Lamp-v0", num_envs=1)
    lamps.reset()
    with pytest.raises(ActionError, match="got 2"):
        lamps.step([[0, 2]])
    assert lamps.step([[1, 0]])[0][0].tolist() == [1]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([3], r"from 0 to 2, got 3 in row 0"),
        ([-1], r"got -1"),
        ([0, 0], r"each env once, got env 0 2 times"),
        ([0.0], r"expected integer env ids, got dtype float64"),
        ([[0]], r"shape \(1, 1\)"),
        ("a", r"env ids"),
        ([2**40], r"got 1099511627776"),
    ],
    ids=str,
)
def test_env_ids(ids, message):
    envs = envfleet.make("Faulty-v0", num_envs=3)
    envs.reset(seed=0)
    actions = np.zeros(max(1, np.size(ids)), dtype=np.int64)
    for call in (envs.step, envs.send):
        with pytest.raises(EnvIdError, match=message):
            call(actions, ids)
    with pytest.raises(EnvIdError, match=message):
        envs.reset(ids)
    assert envs.step([0, 0, 0])[0][:, 1].tolist() == [1, 1, 1]


class LateError(Exception):
    """What a signal handler raises."""


class Interrupted:
    """Actions that a signal interrupts while they are converted."""

    def __array__(self, dtype=None, copy=None):
        signal.raise_signal(signal.SIGUSR1)
        return GOOD


@pytest.mark.parametrize("exception", [LateError, TimeoutError])
@pytest.mark.parametrize(
    "call",
    [
        lambda pool: pool.step(Interrupted()),
        lambda pool: pool.step(GOOD, Interrupted()),
        lambda pool: check_actions("step()", {"a": Interrupted()}, spaces.Dict(a=spaces.Discrete(2)), 3, None),
    ],
    ids=["actions", "env ids", "nested actions"],
)
def test_an_exception_of_a_signal_handler_is_not_about_the_input(call, exception):
    def handler(*_):
        raise exception("time is up")

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with envfleet.make_pool("CartPole-v1", num_envs=3) as pool:
            pool.reset(seed=0)
            with pytest.raises(exception, match="time is up"):
                call(pool)
            assert len(pool.step(GOOD)) == 3
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("error", [RuntimeError("requires grad"), TypeError("on a GPU"), KeyError("a")])
def test_arrays_of_other_libraries_that_cannot_be_converted(error):
    class Tensor:
        def __array__(self, dtype=None, copy=None):
            raise error

    with envfleet.make_pool("CartPole-v1", num_envs=3) as pool:
        pool.reset(seed=0)
        with pytest.raises(ActionError, match=f"expected actions as an array, got Tensor: .*{error.args[0]}"):
            pool.step(Tensor())


def test_a_seed_that_is_passed_as_env_ids():
    pool = envfleet.make_pool("CartPole-v1", num_envs=2)
    with pytest.raises(EnvIdError, match=r"env ids of shape \(rows,\).*write reset\(seed=\.\.\.\)"):
        pool.reset(7)


def test_call_order():
    envs = envfleet.make("CartPole-v1", num_envs=4, batch_size=2)
    with pytest.raises(CallOrderError, match="nothing in flight"):
        envs.recv()
    with pytest.raises(CallOrderError, match="was not; call reset"):
        envs.send([0], [1])
    envs.async_reset()
    for _ in range(50):
        with pytest.raises(CallOrderError, match="got 4 in flight"):
            envs.async_reset()
    with pytest.raises(EnvIdError, match="expected env ids"):
        envs.send([0, 0])
    with pytest.raises(EnvIdError, match="env 0, which is in flight"):
        envs.send([0, 0], [0, 1])
    envs.recv()
    envs.recv()
    with pytest.raises(CallOrderError, match="nothing in flight"):
        envs.recv()
    for timeout in (-1, "x", float("nan"), 10**400):
        with pytest.raises(ConfigError, match="timeout expected seconds"):
            envs.recv(timeout=timeout)


def test_a_step_of_an_async_pool_that_could_not_come_back_sends_nothing():
    envs = envfleet.make("Faulty-v0", num_envs=4, batch_size=3)
    envs.reset(seed=0)
    with pytest.raises(CallOrderError, match="at least batch_size=3"):
        envs.step([0], [0])
    with pytest.raises(ConfigError, match="timeout"):
        envs.step([0, 0, 0], [0, 1, 2], timeout=-1)
    assert envs.pool.num_in_flight == 0
    assert sorted(envs.step([0, 0, 0], [0, 1, 2])[0][:, 1].tolist()) == [1, 1, 1]


@pytest.mark.parametrize("call", ["step", "step_objects"])
@pytest.mark.parametrize("ids", [[[0], [1, 2]], [[0, 1]], [0.0, 1.0], [0, 0], [0, 4], "01", {0, 1}], ids=str)
def test_wrong_env_ids_of_an_asynchronous_step_send_nothing(call, ids):
    with envfleet.make_pool("CartPole-v1", num_envs=4, batch_size=2, backend="threads") as pool:
        pool.reset(seed=0)
        with pytest.raises(EnvIdError, match=rf"^{call}\(\) expected"):
            getattr(pool, call)([0, 0], ids)
        assert pool.num_in_flight == 0


def test_a_masked_reset_beside_envs_in_flight_moves_nobody():
    envs = envfleet.make("Sleepy-v0", num_envs=3, batch_size=1, num_threads=1)
    envs.reset()
    envs.send(np.array([100], dtype=np.float32), [0])
    with pytest.raises(CallOrderError, match="reset_mask"):
        envs.reset(options={"reset_mask": np.array([False, True, True])})
    assert envs.recv()[4]["env_id"].tolist() == [0]


@pytest.mark.parametrize("mask", [[False, True, True], np.array([0, 1, 1]), np.array([False, True])], ids=str)
def test_a_wrong_reset_mask_is_told_with_the_right_one(mask):
    with envfleet.make("CartPole-v1", num_envs=3) as envs:
        envs.reset(seed=0)
        with pytest.raises(
            ConfigError, match=r"bool array of shape \(3,\), got .*; pass np\.array\(mask, dtype=bool\)"
        ):
            envs.reset(options={"reset_mask": mask})


def test_a_step_with_a_timeout_while_a_batch_is_in_flight_is_told_so():
    envs = envfleet.make("Sleepy-v0", num_envs=2, num_threads=2)
    envs.reset()
    envs.send(np.array([100, 1], dtype=np.float32))
    for actions, ids in ((np.zeros(2, dtype=np.float32), None), ("garbage", None), ([0.0], [1])):
        for timeout in (None, 2.0):
            with pytest.raises(CallOrderError, match="in flight"):
                envs.step(actions, ids, timeout=timeout)
    assert envs.recv()[0].tolist() == [1, 1]


def test_everything_after_close_says_so():
    envs = envfleet.make("CartPole-v1", num_envs=2)
    envs.reset()
    envs.close()
    envs.close()
    assert envs.closed
    other = envfleet.make("CartPole-v1")
    assert not other.closed
    other.pool.close()
    assert other.closed
    calls = [
        envs.reset,
        lambda: envs.step([0, 0]),
        lambda: envs.send([0, 0]),
        envs.recv,
        envs.async_reset,
        envs.get_state,
        lambda: envs.get_attr("gravity"),
        lambda: envs.set_attr("gravity", 1.0),
        lambda: envs.render_env(0),
    ]
    for call in calls:
        with pytest.raises(PoolClosedError):
            call()


def test_states_that_do_not_fit():
    envs = envfleet.make("CartPole-v1", num_envs=2)
    envs.reset(seed=0)
    saved = envs.get_state()
    with pytest.raises(StateError, match="expected a PoolState"):
        envs.set_state("x")
    with pytest.raises(StateError, match="2 x CartPole-v1, got one of 2 x CartPole-v0"):
        envs.set_state(envfleet.make("CartPole-v0", num_envs=2).get_state())
    broken = replace(saved, states=(saved.states[0], saved.states[1][:-1]))
    expected = envs.get_state()
    with pytest.raises(StateError, match=r"env 1 .* shorter"):
        envs.set_state(broken)
    assert envs.get_state() == expected
    for damaged in (
        b"",
        b"garbage",
        replace(saved, states=()),
        replace(saved, seeds=()),
        replace(saved, states=("a", "b")),
    ):
        with pytest.raises(StateError):
            envs.set_state(damaged)
    phase = bytearray(saved.states[1])
    phase[44] = 77  # behind the generator (40 bytes) and elapsed_step (4)
    with pytest.raises(StateError, match="phase"):
        envs.set_state(replace(saved, states=(saved.states[0], bytes(phase))))
    assert envs.get_state() == expected
    with pytest.raises(StateError, match=r"'g', 1\.0.*'g', 5\.0"):
        envfleet.make("Pendulum-v1", g=1.0).set_state(envfleet.make("Pendulum-v1", g=5.0).get_state())
    with pytest.raises(StateError, match="cannot be saved"):
        envfleet.make("Sleepy-v0").get_state()


def test_env_ids_of_single_envs_are_checked_too():
    envs = envfleet.make("CartPole-v1", num_envs=2, render_mode="rgb_array")
    envs.reset()
    for env_id in (2, -1, 10**6, 0.5, "x"):
        for call in (envs.render_env, envs.pool.render, envs.pool.get_attrs, envs.pool.params_of):
            with pytest.raises(EnvIdError):
                call(env_id)
    for call in ("get_state", "render", "get_fields"):
        with pytest.raises(IndexError):
            getattr(envs.pool.executor._native, call)(2)


def test_misaligned_and_strided_arrays_are_taken():
    envs, twin = envfleet.make("CartPole-v1", num_envs=3), envfleet.make("CartPole-v1", num_envs=3)
    envs.reset(seed=0)
    twin.reset(seed=0)
    raw = np.zeros(3 * 8 + 1, dtype=np.uint8)
    actions = raw[1:].view(np.int64)
    actions[:] = GOOD
    ids = np.zeros(3 * 4 + 1, dtype=np.uint8)[1:].view(np.int32)
    ids[:] = [2, 0, 1]
    assert not actions.flags.aligned
    np.testing.assert_array_equal(envs.step(actions)[0], twin.step(GOOD)[0])
    np.testing.assert_array_equal(envs.step(actions, ids)[0], twin.step(GOOD, [2, 0, 1])[0])
    np.testing.assert_array_equal(envs.reset(ids, seed=4)[0], twin.reset([2, 0, 1], seed=4)[0])


def test_attributes():
    envs = envfleet.make("CartPole-v1", num_envs=2)
    envs.reset(seed=0)
    envs.set_attr("gravity", [9.8, 1.6])
    assert envs.get_attr("gravity") == (9.8, 1.6)
    obs = [envs.step([0, 0])[0] for _ in range(5)][-1]
    assert not np.array_equal(obs[0], obs[1])
    with pytest.raises(AttributeError, match=r"no attribute 'gravty'.*'gravity'"):
        envs.get_attr("gravty")
    with pytest.raises(AttributeError, match="that can be set"):
        envs.set_attr("gravty", 1.0)
    for name, value in (("gravty", None), (3, 1.0)):
        with pytest.raises(AttributeError, match=f"no attribute {name!r} that can be set"):
            envs.set_attr(name, value)
    with pytest.raises(ConfigError, match=r"fits gravity of env 0, got None; pass a number or an array$"):
        envs.set_attr("gravity", None)
    with pytest.raises(ConfigError, match="2 values"):
        envs.set_attr("gravity", [1.0])
    with pytest.raises(ConfigError, match="expected 4 values, got 3"):
        envs.set_attr("state", [np.zeros(3), np.zeros(3)])
    for values in ([1.0, "x"], [1.0, None]):
        with pytest.raises(ConfigError, match="expected a value that fits gravity of env 1"):
            envs.set_attr("gravity", values)
        assert envs.get_attr("gravity") == (9.8, 1.6)  # env 0 is as it was
    lake = envfleet.make("FrozenLake-v1")
    with pytest.raises(ConfigError, match="expected values of dtype int32, got float64"):
        lake.set_attr("s", 1.9)
    cliff = envfleet.make("CliffWalking-v1")
    cliff.reset()
    cliff.set_attr("s", 10**6)
    with pytest.raises(envfleet.EnvError, match="a tile of the map"):
        cliff.step([0])


@pytest.mark.parametrize(
    ("env_id", "name", "value", "error"),
    [
        ("CartPole-v1", "state", np.array([np.inf, 0, 0, 0]), OverflowError),
        ("CartPole-v1", "state", np.array([np.nan, 0, 0, 0]), ValueError),
        ("Taxi-v4", "s", -1, AssertionError),
    ],
)
def test_attributes_that_cannot_be_drawn(env_id, name, value, error):
    """Of native envs, which Gymnasium's own code draws."""
    pytest.importorskip("pygame")
    with envfleet.make(env_id, num_envs=2, render_mode="rgb_array") as envs:
        envs.reset(seed=0)
        envs.pool.set_attr(name, [value], [1])
        with pytest.raises(envfleet.EnvError, match=rf"env 1 raised in render\(\): {error.__name__}") as caught:
            envs.render()
        assert isinstance(caught.value.__cause__, error)
        assert "Traceback" in caught.value.env_traceback
        envs.reset(seed=0)
        assert len(envs.render()) == 2


@pytest.mark.parametrize("bad", [0, 20_000, 39_999])
def test_a_bad_action_in_a_batch_that_all_threads_check_moves_no_env(bad):
    """Beyond 256 KiB of actions, each thread checks those of its own envs."""
    num_envs = 40_000
    actions = np.ones(num_envs, dtype=np.int64)
    wrong = actions.copy()
    wrong[bad] = 2
    with (
        envfleet.make_pool("CartPole-v1", num_envs=num_envs, num_threads=2) as pool,
        envfleet.make_pool("CartPole-v1", num_envs=num_envs, num_threads=1) as other,
    ):
        pool.reset(seed=0)
        other.reset(seed=0)
        for _ in range(20):
            with pytest.raises(envfleet.ActionError, match=rf"got 2 for env {bad}\b"):
                pool.step(wrong)
            batch, expected = pool.step(actions), other.step(actions)
            np.testing.assert_array_equal(batch.obs, expected.obs)
            np.testing.assert_array_equal(batch.elapsed_step, expected.elapsed_step)


@pytest.mark.parametrize("num_envs", [4096, 40_000])
def test_actions_that_another_thread_changes_during_a_step_are_harmless(num_envs):
    """Threads of the pool read the caller's array after it was checked; FrozenLake looks actions up in a table."""
    with envfleet.make_pool("FrozenLake-v1", num_envs=num_envs, num_threads=2) as pool:
        pool.reset(seed=0)
        actions = np.zeros(num_envs, dtype=np.int64)
        stop = threading.Event()

        def change() -> None:
            while not stop.is_set():
                actions[-8:] = 10**12
                actions[-8:] = 1

        thread = threading.Thread(target=change)
        thread.start()
        try:
            num_steps = 0
            for _ in range(3000 * 4096 // num_envs):
                with contextlib.suppress(envfleet.ActionError):
                    batch = pool.step(actions)
                    num_steps += 1
                    assert (batch.obs >= 0).all()
                    assert (batch.obs < 16).all()
        finally:
            stop.set()
            thread.join()
        actions[:] = 1
        assert len(pool.step(actions)) == num_envs
    assert num_steps > 0
