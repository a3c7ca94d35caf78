"""A caller who misuses a pool of Python envs: bad actions and options, a second thread, a closed pool."""

from __future__ import annotations

import copy
import gc
import threading

import cloudpickle
import numpy as np
import pytest
from misbehaving_pools import STEP, assert_usable, misbehaving_pools, on_two_workers
from support.faulty_env import MisbehavingEnv
from support.gates import close_when_reached
from support.python_probes import SleepyEnv
from support.space_env import SpaceEnv
from support.traces import Traces, assert_nothing_left

import envfleet
from envfleet import CallOrderError, ConfigError

BACKENDS = ["serial", "threads", "processes"]


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


@pytest.fixture
def make(backend):
    with misbehaving_pools(**on_two_workers(backend)) as make:
        yield make


def test_bad_actions_move_nobody(make):
    pool = make()
    pool.reset(seed=0)
    for bad in ([0, 0, 0], [0, 0, 0, 99], [0, 0, 0, 0.5], [[0], [0], [0], [0]], None, "0000"):
        with pytest.raises(envfleet.ActionError):
            pool.step(bad)
    assert pool.step([STEP] * 4).obs[:, 1].tolist() == [1] * 4


@pytest.mark.parametrize("kind", ["boxes", "text", "graph", "sequence", "one_of", "deep"])
def test_bad_structured_actions_move_nobody(make, kind):
    pool = make(SpaceEnv, env_kwargs={"kind": kind})
    pool.reset(seed=0)
    for bad in (None, 7, [object()] * 4, {"no": "such"}, np.zeros(4)):
        with pytest.raises(envfleet.ActionError):
            pool.step(bad)
    assert pool.num_in_flight == 0
    assert pool.reset().elapsed_step.tolist() == [0] * 4


def test_envs_of_different_spaces_are_refused(make):
    with pytest.raises(ConfigError, match="same spaces"):
        make([lambda: SpaceEnv("discrete"), lambda: SpaceEnv("text")], num_envs=2)


def test_a_second_thread_is_told_that_the_pool_is_in_use(make, gate):
    pool = make(SleepyEnv, num_envs=2)
    pool.reset()
    errors = []

    def intrude():
        gate.wait_until_reached()
        try:
            pool.step(np.zeros(2, dtype=np.float32))
        except CallOrderError as error:
            errors.append(str(error))
        gate.open()

    intruder = threading.Thread(target=intrude)
    intruder.start()
    assert pool.step(np.array([gate.action, gate.action], dtype=np.float32)).obs.tolist() == [1, 1]
    intruder.join()
    assert "two threads" in errors[0]
    assert pool.step(np.zeros(2, dtype=np.float32)).obs.tolist() == [2, 2]


def test_close_from_another_thread_waits_for_the_call_inside(make, gate):
    pool = make(SleepyEnv, num_envs=2)
    pool.reset()
    threads = close_when_reached(pool, gate)
    assert pool.step(np.array([gate.action, gate.action], dtype=np.float32)).obs.tolist() == [1, 1]
    for thread in threads:
        thread.join()
    with pytest.raises(envfleet.PoolClosedError):
        pool.step(np.zeros(2, dtype=np.float32))


@pytest.mark.parametrize("in_flight", [False, True])
def test_a_pool_that_is_dropped_is_closed(make, backend, in_flight):
    before = Traces.now()
    pool = envfleet.make_pool(SleepyEnv, num_envs=4, batch_size=2, backend=backend)
    pool.reset()
    if in_flight:
        pool.send(np.full(4, 20, dtype=np.float32), np.arange(4, dtype=np.int32))
    del pool
    gc.collect()
    assert_nothing_left(before)


def test_use_after_close(make):
    pool = make()
    pool.reset(seed=0)
    pool.send([STEP] * 4)
    pool.close()
    pool.close()
    for call in (
        pool.reset,
        pool.recv,
        pool.async_reset,
        pool.observe,
        lambda: pool.step([STEP] * 4),
        lambda: pool.send([STEP] * 4),
        lambda: pool.render(0),
        lambda: pool.call("greet", "world"),
    ):
        with pytest.raises(envfleet.PoolClosedError):
            call()


def test_a_pool_cannot_be_copied(make):
    pool = make()
    for copy_of in (cloudpickle.dumps, copy.deepcopy, copy.copy):
        with pytest.raises(TypeError, match=r"a pool cannot be pickled or copied: .*get_state\(\)"):
            copy_of(pool)
    with pytest.raises(TypeError, match="a pool cannot be pickled or copied"):
        copy.deepcopy(envfleet.make("CartPole-v1"))
    assert_usable(pool)


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_a_step_timeout_needs_processes(backend):
    with pytest.raises(ConfigError, match="step_timeout"):
        envfleet.make_pool(MisbehavingEnv, backend=backend, step_timeout=1.0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": -1},
        {"num_workers": 1.5},
        {"step_timeout": -1.0},
        {"step_timeout": "soon"},
        {"start_method": "teleport"},
        {"wrappers": 7},
        {"env_kwargs": [{}]},
        {"env_kwargs": 7},
        {"backend": "quantum"},
    ],
    ids=str,
)
def test_bad_options_are_refused_before_anything_is_made(backend, options):
    before = Traces.now()
    with pytest.raises(ConfigError, match=next(iter(options))):
        envfleet.make_pool(MisbehavingEnv, num_envs=4, **{"backend": backend, **options})
    assert_nothing_left(before)


def test_a_factory_that_cannot_be_pickled_is_named_before_anything_is_made():
    lock = threading.Lock()

    def factory():
        with lock:
            return MisbehavingEnv()

    with pytest.raises(TypeError):
        cloudpickle.dumps(factory)
    before = Traces.now()
    with pytest.raises(ConfigError, match="pickle"):
        envfleet.make_pool(factory, num_envs=2, backend="processes")
    assert_nothing_left(before)
    with envfleet.make_pool(factory, num_envs=2, backend="threads") as pool:
        assert_usable(pool)
