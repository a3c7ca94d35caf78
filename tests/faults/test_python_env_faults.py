"""A Python env that misbehaves: what the caller gets, what becomes of the others, and that nothing is left."""

from __future__ import annotations

import gc
import pickle
import threading
import time
import warnings

import cloudpickle
import numpy as np
import pytest
from python_probes import FaultyEnv, JointError, SleepyEnv, SpaceEnv, Trouble, TroubleEnv
from traces import Traces, assert_nothing_left

import envfleet
from envfleet import CallOrderError, ConfigError, EnvError, Pool

BACKENDS = ["serial", "threads", "processes"]
STEP = Trouble.STEP


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


@pytest.fixture
def make(backend):
    """Pools of TroubleEnv, four of them on two workers; afterwards nothing of them may be left."""
    options = {"num_envs": 4, "backend": backend}
    if backend != "serial":
        options["num_workers"] = 2
    # What stays for later pools (a fork server, say) is there before the counting begins.
    envfleet.make_pool(TroubleEnv, **options).close()
    before, pools = Traces.now(), []

    def make(env=TroubleEnv, **more) -> Pool:
        pools.append(envfleet.make_pool(env, **{**options, **more}))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()
    pools.clear()
    assert_nothing_left(before)


def actions(trouble: Trouble, env_id: int = 2) -> list[int]:
    """That trouble for one env, plain steps for the others."""
    return [int(trouble if own == env_id else STEP) for own in range(4)]


def assert_usable(pool: Pool) -> None:
    """Reset, then step, as if nothing had been."""
    num_envs = pool.num_envs
    first = pool.reset(seed=3)
    assert first.obs[:, 1].tolist() == [0] * num_envs
    assert first.obs[:, 0].tolist() == [np.random.default_rng(3 + i).integers(0, 1_000_000) for i in range(num_envs)]
    pool.send([STEP] * num_envs, np.arange(num_envs, dtype=np.int32))
    for _ in range(num_envs // pool.config.batch_size):
        assert (pool.recv().obs[:, 1] == 1).all()


def assert_others_kept(error: EnvError, starts: np.ndarray) -> None:
    """Row 2 is zeros, the others are what their envs gave."""
    batch = error.batch
    assert batch.env_id.tolist() == [0, 1, 2, 3]
    assert batch.obs[:, 1].tolist() == [1, 1, 0, 1]
    assert batch.obs[[0, 1, 3], 0].tolist() == starts[[0, 1, 3]].tolist()
    assert batch.reward.tolist() == [1, 1, 0, 1]
    assert not batch.terminated.any()


RAISES = {
    Trouble.RAISE: "joint 3 exploded",
    Trouble.RAISE_UNPICKLABLE: "stuck at home",
    Trouble.RAISE_UNPRINTABLE: "Unprintable",
    Trouble.RAISE_AT_LENGTH: "long long long",
    Trouble.RECURSE: "recursion",
    Trouble.SYS_EXIT: "SystemExit",
}
ANSWERS_WRONGLY = {
    Trouble.WRONG_SHAPE: r"(?s)expected.*\(2,\).*got.*\(3,\)",
    Trouble.WRONG_DTYPE: r"(?s)expected.*int64.*got.*float64",
    Trouble.WRONG_STRUCTURE: r"(?s)expected.*got.*dict",
    Trouble.NO_OBSERVATION: r"(?s)expected.*got.*None",
    Trouble.SHORT_TUPLE: r"(?s)expected.*got.*3",
    Trouble.NO_TUPLE: r"(?s)expected.*got.*int",
    Trouble.BAD_REWARD: r"(?s)expected.*got.*(plenty|str)",
    Trouble.BAD_INFO: r"(?s)expected.*dict.*got.*list",
}
FAULTS = {**RAISES, **ANSWERS_WRONGLY}


@pytest.mark.parametrize(("trouble", "message"), FAULTS.items(), ids=[trouble.name for trouble in FAULTS])
def test_a_fault_in_step_names_the_env_and_keeps_the_other_rows(make, trouble, message):
    pool = make()
    starts = pool.reset(seed=0).obs[:, 0]
    with pytest.raises(EnvError, match=message) as caught:
        pool.step(actions(trouble))
    error = caught.value
    assert (error.env_id, error.method) == (2, "step")
    assert [fault.env_id for fault in error.faults] == [2]
    assert_others_kept(error, starts)
    with pytest.raises(CallOrderError, match="env 2 raised earlier"):
        pool.step([STEP] * 4)
    assert pool.step([STEP] * 3, [0, 1, 3]).obs[:, 1].tolist() == [2, 2, 2]
    assert_usable(pool)


@pytest.mark.parametrize(("trouble", "message"), FAULTS.items(), ids=[trouble.name for trouble in FAULTS])
def test_a_fault_is_restarted_on_request(make, trouble, message):
    pool = make(on_error="restart")
    pool.reset(seed=0)
    batch = pool.step(actions(trouble))
    assert batch.truncated.tolist() == [False, False, True, False]
    assert batch.info["_error"].tolist() == [False, False, True, False]
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(batch.info["error"][2])
    assert pool.step([STEP] * 4).elapsed_step.tolist() == [2, 2, 0, 2]
    assert pool.step([STEP] * 4).obs[:, 1].tolist() == [3, 3, 1, 3]
    assert_usable(pool)


@pytest.mark.parametrize("batch_size", [4, 2])
def test_faults_of_envs_that_were_sent(make, batch_size):
    pool = make(batch_size=batch_size)
    pool.reset(seed=0)
    pool.send(actions(Trouble.RAISE), [0, 1, 2, 3])
    faults, rows = [], []
    for _ in range(4 // batch_size):
        try:
            batch = pool.recv()
        except EnvError as error:
            faults += [fault.env_id for fault in error.faults]
            batch = error.batch
        rows += batch.env_id.tolist()
    assert faults == [2]
    assert sorted(rows) == [0, 1, 2, 3]
    assert_usable(pool)


def test_the_original_exception_and_its_traceback_come_along(make):
    pool = make()
    pool.reset(seed=0)
    with pytest.raises(EnvError) as caught:
        pool.step(actions(Trouble.RAISE))
    error = caught.value
    assert isinstance(error.__cause__, JointError)
    assert str(error.__cause__) == "joint 3 exploded"
    assert 'raise JointError("joint 3 exploded")' in error.env_traceback
    assert "python_probes.py" in error.env_traceback
    assert pickle.loads(pickle.dumps(error)).env_traceback == error.env_traceback


def test_an_exception_that_cannot_be_sent_still_has_its_traceback(make):
    pool = make()
    pool.reset(seed=0)
    with pytest.raises(EnvError) as caught:
        pool.step(actions(Trouble.RAISE_UNPICKLABLE))
    assert "_raise_unpicklable" in caught.value.env_traceback


def test_a_constructor_that_raises_leaves_nothing(make):
    for _ in range(3):
        with pytest.raises(EnvError, match="no licence for this simulator") as caught:
            make(FaultyEnv, env_kwargs={"fail_construction": True})
        assert caught.value.method == "__init__"


def test_the_constructor_of_one_env_that_raises(make):
    built, closed = [], []  # what happened in this process; a worker has copies of its own

    class Closing(FaultyEnv):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            built.append(id(self))

        def close(self):
            closed.append(id(self))

    kwargs = [{}, {}, {"fail_construction": True}, {}]
    with pytest.raises(EnvError, match="no licence for this simulator") as caught:
        make(Closing, env_kwargs=kwargs)
    assert (caught.value.env_id, caught.value.method) == (2, "__init__")
    assert sorted(closed) == sorted(built)


def test_a_factory_that_gives_no_env(make):
    with pytest.raises((EnvError, ConfigError), match=r"(?s)expected.*got"):
        make(lambda: 7)


def test_a_fault_in_reset(make):
    pool = make()
    pool.reset(seed=0)
    with pytest.raises(EnvError, match="trouble in reset") as caught:
        pool.reset([1, 3], options={"fail": True})
    assert caught.value.method == "reset"
    assert [fault.env_id for fault in caught.value.faults] == [1, 3]
    assert pool.step([STEP] * 2, [0, 2]).obs[:, 1].tolist() == [1, 1]
    assert pool.reset([1, 3]).obs[:, 1].tolist() == [0, 0]
    assert_usable(pool)


def test_a_reset_that_always_raises_is_not_tried_for_ever(make):
    pool = make(on_error="restart", max_restarts=3, env_kwargs={"fail_in": "reset"})
    with pytest.raises(EnvError, match="trouble in reset"):
        pool.reset()


def test_a_fault_in_render_harms_nobody(make):
    kwargs = [{}, {"fail_in": "render"}, {}, {}]
    pool = make(render_mode="rgb_array", env_kwargs=kwargs)
    pool.reset(seed=0)
    pool.step([STEP] * 4)
    with pytest.raises(EnvError, match="trouble in render") as caught:
        pool.render(1)
    assert (caught.value.env_id, caught.value.method) == (1, "render")
    assert pool.render(2).tolist() == [[[1] * 3] * 6] * 4
    assert pool.step([STEP] * 4).obs[:, 1].tolist() == [2, 2, 2, 2]


def test_a_fault_in_a_called_method_harms_nobody(make):
    pool = make()
    pool.reset(seed=0)
    assert pool.call("greet", "world", punctuation="?") == ("hello world?",) * 4
    with pytest.raises((EnvError, JointError), match="trouble in greet"):
        pool.call("greet", "nobody")
    with pytest.raises(AttributeError, match="no_such_thing"):
        pool.get_attr("no_such_thing")
    assert pool.step([STEP] * 4).obs[:, 1].tolist() == [1, 1, 1, 1]


def test_a_fault_in_close_does_not_keep_the_pool_open(make):
    pool = make(env_kwargs=[{}, {"fail_in": "close"}, {}, {}])
    pool.reset(seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it may be said, it must not be raised
        pool.close()
    assert pool.closed
    pool.close()


def test_observations_outside_the_bounds_are_passed_on(make):
    """check_env() tells the author; a run is not ended for it."""
    pool = make()
    pool.reset(seed=0)
    batch = pool.step(actions(Trouble.OUT_OF_BOUNDS))
    assert batch.obs[2].tolist() == [-7, 1]
    assert batch.faults == ()
    assert_usable(pool)


def test_an_env_that_prints_much(make, capfd):
    pool = make()
    pool.reset(seed=0)
    for count in range(1, 4):
        assert pool.step([Trouble.PRINT_MUCH] * 4).obs[:, 1].tolist() == [count] * 4
    assert_usable(pool)
    capfd.readouterr()


def test_infos_larger_than_any_pipe(make):
    pool = make()
    pool.reset(seed=0)
    batch = pool.step(actions(Trouble.HUGE_INFO))
    assert batch.info["_log"].tolist() == [False, False, True, False]
    assert len(batch.info["log"][2]) == 8_000_000
    assert_usable(pool)


def test_infos_that_change_their_shape_and_type(make):
    pool = make()
    pool.reset(seed=0)
    pool.step([STEP, STEP], [1, 3])
    for count in range(1, 6):
        batch = pool.step([Trouble.RAGGED_INFO] * 4)
        for row, own in enumerate((count, count + 1, count, count + 1)):
            assert batch.info["path"][row].tolist() == list(range(own))
            assert batch.info["changing"][row] == (own, f"step {own}", own / 2, None)[own % 4]
    assert_usable(pool)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # that fork and threads mix badly is the env's affair
def test_an_env_that_forks(make):
    pool = make()
    pool.reset(seed=0)
    for count in range(1, 3):
        batch = pool.step(actions(Trouble.FORK))
        assert batch.info["status"][2] == 7
        assert batch.obs[:, 1].tolist() == [count] * 4
    assert_usable(pool)


def test_an_env_that_starts_threads(make):
    pool = make()
    pool.reset(seed=0)
    assert pool.step([Trouble.START_THREADS] * 4).info["seen"].tolist() == [4] * 4
    pool.step([Trouble.LEAVE_THREAD] * 4)
    assert_usable(pool)
    pool.close()  # its envs' close() ends their threads


def test_an_env_that_uses_one_array_again_and_again(make):
    """TroubleEnv does: what was handed out must not change with it."""
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


def test_a_second_thread_is_told_that_the_pool_is_in_use(make):
    pool = make(SleepyEnv, num_envs=2)
    pool.reset()
    errors = []

    def intrude():
        time.sleep(0.1)  # until the first is inside
        try:
            pool.step(np.zeros(2, dtype=np.float32))
        except CallOrderError as error:
            errors.append(str(error))

    intruder = threading.Thread(target=intrude)
    intruder.start()
    assert pool.step(np.array([500, 500], dtype=np.float32)).obs.tolist() == [1, 1]
    intruder.join()
    assert "two threads" in errors[0]
    assert pool.step(np.zeros(2, dtype=np.float32)).obs.tolist() == [2, 2]


def test_close_from_another_thread_waits_for_the_call_inside(make):
    pool = make(SleepyEnv, num_envs=2)
    pool.reset()
    closer = threading.Timer(0.1, pool.close)
    closer.start()
    assert pool.step(np.array([400, 400], dtype=np.float32)).obs.tolist() == [1, 1]
    closer.join()
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


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_a_step_timeout_needs_processes(backend):
    with pytest.raises(ConfigError, match="step_timeout"):
        envfleet.make_pool(TroubleEnv, backend=backend, step_timeout=1.0)


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
        envfleet.make_pool(TroubleEnv, num_envs=4, **{"backend": backend, **options})
    assert_nothing_left(before)


def test_a_factory_that_cannot_be_pickled_is_named_before_anything_is_made():
    lock = threading.Lock()

    def factory():
        with lock:
            return TroubleEnv()

    with pytest.raises(TypeError):
        cloudpickle.dumps(factory)
    before = Traces.now()
    with pytest.raises(ConfigError, match="pickle"):
        envfleet.make_pool(factory, num_envs=2, backend="processes")
    assert_nothing_left(before)
    with envfleet.make_pool(factory, num_envs=2, backend="threads") as pool:
        assert_usable(pool)
