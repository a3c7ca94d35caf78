"""One caller at a time, on whichever method of a pool; and close() from signal handlers, envs and other threads."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import envfleet
from envfleet import CallOrderError, Pool, PoolClosedError

PYTHON_BACKENDS = ["serial", "threads", "processes"]
BACKENDS = ["native", *PYTHON_BACKENDS]
LONG_MS = 1500.0  # of a native env, which nobody can wake up


class WaitingEnv(gymnasium.Env[Any, Any]):
    """Counts its steps; with an action above 0 a step waits until the file is there."""

    observation_space = spaces.Dict(count=spaces.Box(0, 1 << 30, (), np.int32))
    action_space = spaces.Box(0, 10_000, (), np.float32)
    render_mode = "rgb_array"
    hook: Callable[[], None] | None = None

    def __init__(self, path: Path) -> None:
        self.path, self.count = path, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return {"count": np.int32(0)}, {}

    def step(self, action: Any) -> Any:
        if action > 0:
            self.wait()
        self.count += 1
        return {"count": np.int32(self.count)}, float(self.count), False, False, {"text": str(self.count)}

    def wait(self) -> int:
        started = self.path.with_suffix(".started")
        started.touch()
        while not self.path.exists():
            time.sleep(0.001)
        return self.count

    def render(self) -> Any:
        return np.zeros((1, 1, 3), np.uint8)


class ClosingEnv(WaitingEnv):
    """Closes its own pool in its third step."""

    pools: list[Pool] = []  # noqa: RUF012 (one for all, as the test wants)

    def step(self, action: Any) -> Any:
        if self.count == 2 and self.pools:
            self.pools[0].close()
            assert self.pools[0].closed
        return super().step(action)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Who waits goes on when this is touched."""
    return tmp_path / "gate"


def make(backend: str, gate: Path, num_envs: int = 2, **options: Any) -> Pool:
    if backend == "native":
        return envfleet.make_pool("Sleepy-v0", num_envs=num_envs, num_threads=2, **options)
    return envfleet.make_pool(lambda: WaitingEnv(gate), num_envs=num_envs, num_workers=2, backend=backend, **options)


def slow(num_envs: int = 2) -> np.ndarray:
    return np.full(num_envs, LONG_MS, np.float32)


def quick(num_envs: int = 2) -> np.ndarray:
    return np.zeros(num_envs, np.float32)


def counts(batch: Any) -> list[int]:
    obs = batch.obs
    return (obs["count"] if isinstance(obs, dict) else obs).tolist()


def wait_for_start(backend: str, gate: Path) -> None:
    """Until a worker is inside an env, where that can be seen."""
    while backend != "native" and not gate.with_suffix(".started").exists():
        time.sleep(0.001)


@contextmanager
def on_alarm(handler: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Has the handler run by SIGALRM; gives what sends one soon, and then again until the handler has run."""
    ran = []

    def run(number: int, frame: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        ran.append(True)
        handler()

    before = signal.signal(signal.SIGALRM, run)
    try:
        yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# --- close() -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("call", ["step", "recv", "reset", "call"])
def test_close_in_a_signal_handler_ends_the_interrupted_call(backend, call, gate):
    """It returns while the call is still inside, and that ends what close() began. A warning would be an error."""
    if (backend, call) in {("native", "reset"), ("native", "call"), ("serial", "reset")}:
        pytest.skip("nothing in it waits")
    pool = make(backend, gate)
    pool.reset()
    seen = []

    def close() -> None:
        pool.close()
        seen.append((pool.closed, pool.executor.call_guard.is_ended))
        gate.touch()

    with on_alarm(close) as alarm:
        if call in ("recv", "reset"):
            pool.send(slow())
        waiting = {
            "step": lambda: pool.step(slow()),
            "recv": pool.recv,
            "reset": pool.reset,
            "call": lambda: pool.call("wait"),
        }
        alarm()
        with pytest.raises(PoolClosedError):
            waiting[call]()
    assert seen == [(True, False)]
    assert pool.executor.call_guard.is_ended
    with pytest.raises(PoolClosedError):
        pool.step(quick())
    pool.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_close_in_another_thread_comes_after_the_present_step(backend, gate):
    gate.touch()
    pool = make(backend, gate)
    pool.reset()
    num_steps = 0
    ends = []
    has_begun = threading.Event()
    actions = np.full(2, 20.0, np.float32)

    def loop() -> None:
        nonlocal num_steps
        try:
            while True:
                pool.step(actions)
                num_steps += 1
                has_begun.set()
        except BaseException as error:
            ends.append(error)

    thread = threading.Thread(target=loop)
    thread.start()
    assert has_begun.wait(60)
    before = num_steps
    pool.close()
    assert num_steps <= before + 2  # one that ended before close() was called, and the present one
    thread.join(60)
    assert [type(error) for error in ends] == [PoolClosedError]
    assert pool.executor.call_guard.is_ended


@pytest.mark.parametrize("backend", BACKENDS)
def test_close_in_two_threads_at_once(backend, gate):
    for _ in range(5):
        pool = make(backend, gate)
        pool.reset()
        threads = [threading.Thread(target=pool.close) for _ in range(4)]
        for thread in threads:
            thread.start()
        pool.close()
        assert pool.executor.call_guard.is_ended
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.parametrize("backend", ["serial", "threads"])
@pytest.mark.parametrize("call", ["step", "send"])
def test_an_env_may_close_its_pool(backend, call, gate):
    pool = envfleet.make_pool(lambda: ClosingEnv(gate), num_envs=4, num_workers=2, backend=backend)
    ClosingEnv.pools = [pool]
    try:
        pool.reset()
        pool.step(quick(4))
        pool.step(quick(4))
        step = pool.step if call == "step" else lambda actions: (pool.send(actions), pool.recv())
        with pytest.raises(PoolClosedError):
            step(quick(4))
        pool.close()
        assert pool.executor.call_guard.is_ended
    finally:
        ClosingEnv.pools = []


# --- a second caller -------------------------------------------------------------------------------------

PUBLIC_METHODS: dict[str, Callable[[Pool], Any]] = {
    "reset": lambda pool: pool.reset(),
    "reset some": lambda pool: pool.reset([0], seed=3),
    "step": lambda pool: pool.step(quick()),
    "step, to be converted": lambda pool: pool.step([0.0, 0.0]),
    "send": lambda pool: pool.send(quick()),
    "send, to be converted": lambda pool: pool.send([0.0, 0.0]),
    "recv": lambda pool: pool.recv(),
    "async_reset": lambda pool: pool.async_reset(),
    "get_state": lambda pool: pool.get_state(),
    "set_state": lambda pool: pool.set_state(b""),
    "observe": lambda pool: pool.observe(),
    "get_attr": lambda pool: pool.get_attr("count"),
    "set_attr": lambda pool: pool.set_attr("count", 3),
    "call": lambda pool: pool.call("render"),
    "render": lambda pool: pool.render(0),
    "render_all": lambda pool: pool.render_all(),
    "get_attrs": lambda pool: pool.get_attrs(0),
}


def answers_of(pool: Pool) -> dict[str, str]:
    """What each public method raises."""
    answers = {}
    for name, call in PUBLIC_METHODS.items():
        try:
            call(pool)
            answers[name] = "nothing"
        except BaseException as error:
            answers[name] = type(error).__name__
    return answers


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("call", ["step", "call"])
def test_a_second_thread_is_turned_away_by_every_method(backend, call, gate):
    if (backend, call) == ("native", "call"):
        pytest.skip("nothing in it waits")
    with make(backend, gate) as pool:
        pool.reset()
        thread = threading.Thread(target=lambda: pool.step(slow()) if call == "step" else pool.call("wait"))
        thread.start()
        wait_for_start(backend, gate)
        while backend == "native" and pool.num_in_flight == 0:
            time.sleep(0.001)
        answers = answers_of(pool)
        # For any thread.
        assert (pool.num_envs, pool.closed, len(pool.seeds), dict(pool.params_of(1))) == (2, False, 2, {})
        assert pool.num_in_flight == (2 if call == "step" else 0)
        assert len(pool.stats().envs) == 2
        gate.touch()
        thread.join(60)
        assert answers == dict.fromkeys(PUBLIC_METHODS, "CallOrderError")
        assert counts(pool.step(quick())) == ([2, 2] if call == "step" else [1, 1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_signal_handler_that_calls_the_pool_back_is_turned_away(backend, gate):
    with make(backend, gate) as pool:
        pool.reset()
        answers: dict[str, str] = {}

        stats = []

        def call_back() -> None:
            answers.update(answers_of(pool))
            stats.append(pool.stats())
            gate.touch()

        with on_alarm(call_back) as alarm:
            alarm()
            batch = pool.step(slow())
        assert answers == dict.fromkeys(PUBLIC_METHODS, "CallOrderError")
        assert [len(own.envs) for own in stats] == [2]
        assert counts(batch) == [1, 1]
        assert counts(pool.step(quick())) == [2, 2]


@pytest.mark.parametrize("backend", PYTHON_BACKENDS)
def test_threads_that_race_get_call_order_errors_and_nothing_else(backend, gate):
    """Rows with something in the mail: reading it is a part of the call."""
    with make(backend, gate) as pool:
        pool.reset()
        errors: set[str] = set()

        def work() -> None:
            num_calls = 0
            while num_calls < 300 and not errors:
                try:
                    if num_calls % 3 == 0:
                        pool.get_attr("count")
                    else:
                        pool.step(quick() if num_calls % 3 == 1 else [0.0, 0.0])
                    num_calls += 1
                except CallOrderError:
                    time.sleep(0)
                except BaseException as error:
                    errors.add(repr(error))

        threads = [threading.Thread(target=work) for _ in range(3)]
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)  # so that threads meet in the middle of a method
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(120)
        finally:
            sys.setswitchinterval(before)
        assert errors == set()
        pool.reset()
        assert counts(pool.step(quick())) == [1, 1]


# --- Ctrl-C between batches --------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", PYTHON_BACKENDS)
def test_a_call_that_was_interrupted_is_not_in_flight(backend, gate):
    with make(backend, gate) as pool:
        pool.reset()

        def interrupt() -> None:
            raise KeyboardInterrupt

        with on_alarm(interrupt) as alarm:
            alarm()
            with pytest.raises(KeyboardInterrupt):
                pool.call("wait")
        assert pool.num_in_flight == 0
        for call in (pool.recv, lambda: pool.get_attr("count")):
            with pytest.raises(CallOrderError, match=r"interrupted; reset\(\) all envs first"):
                call()
        gate.touch()
        pool.reset()
        assert pool.call("wait") == (0, 0)
        assert pool.get_attr("count") == (0, 0)
        assert counts(pool.step(quick())) == [1, 1]
        pool.stats()


def test_an_observation_that_was_interrupted_is_no_batch():
    """The first one, of which nobody knows how long it takes, is left to the threads."""
    with envfleet.make_pool("SlowObserve-v0", num_envs=2, num_threads=2) as pool:
        pool.reset()

        def interrupt() -> None:
            raise KeyboardInterrupt

        with on_alarm(interrupt) as alarm:
            alarm()
            with pytest.raises(KeyboardInterrupt):
                pool.observe()
        assert pool.num_in_flight == 0
        assert not pool.executor.in_flight().any()
        with pytest.raises(CallOrderError, match="nothing in flight"):
            pool.recv()
        assert pool.step(quick()).obs.tolist() == [1, 1]
        assert pool.observe().tolist() == [1, 1]
