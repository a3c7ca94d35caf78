"""Faults at odd moments and in odd places: inside our own code, in letters, in constructors, at exit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from typing import Any, NoReturn

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import envfleet
from envfleet import EnvError, UnknownEnvError, WorkerDied

BACKENDS = ["serial", "threads", "processes"]


class Counting(gymnasium.Env):
    """obs [n, 0]; trouble says what goes wrong at the third step of env 0."""

    observation_space: Any = spaces.Box(-1000, 1000, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, trouble: str = "") -> None:
        self.trouble, self.count = trouble, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        if self.trouble == "rebinds step":
            self.step = self.other_step
        return self.obs(), {}

    def obs(self) -> Any:
        return np.array([self.count, 0], np.float32)

    def step(self, action):
        self.count += 1
        if self.count == 3 and self.trouble == "interrupt":
            raise KeyboardInterrupt
        info: dict[Any, Any] = {"letter": Unreadable()} if self.count == 3 and self.trouble == "letter" else {}
        if self.trouble == "odd keys":
            info = {1: 2.0, "env_id": 77, "_count": self.count, "final_obs": np.zeros(2), "error": "mine"}
        return self.obs(), float(self.count), False, False, info

    def other_step(self, action):
        return self.obs(), 42.0, False, False, {}


class Interrupted(Counting):
    """Ctrl-C comes while the row is being written, not while the env runs."""

    observation_space = spaces.Dict(a=spaces.Box(-1, 1, (2,), np.float32))

    def obs(self) -> Any:
        return {"a": _RaisesWhenRead() if self.count == 3 else np.zeros(2, np.float32)}


class _RaisesWhenRead:
    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise KeyboardInterrupt


def _raise() -> NoReturn:
    raise ValueError("boom in loads")


class Unreadable:
    """Can be pickled, not unpickled."""

    def __reduce__(self) -> Any:
        return _raise, ()


def no_actions(count: int) -> np.ndarray:
    return np.zeros(count, dtype=np.int64)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("env", [Interrupted, lambda: Counting("interrupt")], ids=["in our code", "in the env"])
def test_an_interrupt_completes_its_row(backend, env):
    """In the caller's thread it is the caller's; elsewhere it is a fault of that env. The pool goes on."""
    with envfleet.make_pool(env, num_envs=2, num_workers=1, backend=backend) as pool:
        pool.reset()
        pool.step(no_actions(2))
        pool.step(no_actions(2))
        with pytest.raises(KeyboardInterrupt if backend == "serial" else EnvError):
            pool.step(no_actions(2))
        for _ in range(2):
            try:
                pool.reset()
                break
            except KeyboardInterrupt:  # that of the second env, whose step was still to come
                continue
        assert pool.step(no_actions(2)).reward.tolist() == [1, 1]


def test_a_letter_that_cannot_be_read_is_its_envs_fault():
    envs = [lambda: Counting("letter"), Counting]
    with envfleet.make_pool(envs, num_workers=1, backend="processes") as pool:
        pool.reset()
        pool.step(no_actions(2))
        pool.step(no_actions(2))
        with pytest.raises(EnvError, match=r"env 0 .*cannot be unpickled here.*boom in loads") as caught:
            pool.step(no_actions(2))
        assert caught.value.batch.reward[1] == 3
        pool.reset([0])
        assert pool.step(no_actions(2)).reward.tolist() == [1, 4]


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_that_are_in_the_way(backend):
    """What is not a str, and what the pool says itself, harms nobody; on_error leaves others' errors alone."""
    envs = envfleet.make([lambda: Counting("odd keys"), Counting], backend=backend)
    envs.reset()
    for _ in range(4):
        *_, info = envs.step(no_actions(2))
        assert info["env_id"].tolist() == [0, 1]
        assert info[1][0] == 2.0
        assert info["_error"].tolist() == [True, False]
        assert info["final_obs"].dtype == object
    envs.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_env_may_bind_another_step_in_its_reset(backend):
    with envfleet.make_pool(lambda: Counting("rebinds step"), num_envs=2, backend=backend) as pool:
        pool.reset()
        assert pool.step(no_actions(2)).reward.tolist() == [42, 42]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_exception_of_a_constructor_comes_along(backend):
    with pytest.raises(EnvError, match="division by zero") as caught:
        envfleet.make_pool(lambda: 1 / 0, num_envs=2, backend=backend)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_interrupt_that_a_constructor_raises_itself_is_reported():
    """Ctrl-C does not reach a worker, so it is the env's own exception."""

    def interrupt() -> NoReturn:
        raise KeyboardInterrupt("from the simulator")

    with pytest.raises(EnvError, match=r"env 1 raised in __init__\(\): KeyboardInterrupt: from") as caught:
        envfleet.make([Counting, interrupt], num_workers=1, backend="processes")
    assert isinstance(caught.value.__cause__, KeyboardInterrupt)
    assert "in interrupt" in caught.value.env_traceback


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_constructor_that_fails_once_is_tried_again(backend, tmp_path):
    """With on_error="restart"; the other envs' rows are kept."""
    mark = tmp_path / "failed"

    class Moody(Counting):
        def __init__(self) -> None:
            super().__init__()
            if mark.exists() and mark.read_text() == "fail":
                mark.write_text("failed")
                raise RuntimeError("the server is busy")

        def step(self, action):
            if self.count == 1 and not mark.exists():
                mark.write_text("fail")
                raise RuntimeError("lost the connection")
            return super().step(action)

    with envfleet.make_pool(Moody, num_envs=2, num_workers=1, backend=backend, on_error="restart") as pool:
        pool.reset()
        pool.step(no_actions(2))
        batch = pool.step(no_actions(2))
        assert batch.truncated.tolist() == [True, False]
        assert batch.reward.tolist() == [0, 2]
        assert mark.read_text() == "failed"


def test_each_of_several_ids_keeps_its_own_time_limit():
    for name, limit in (("Short-v0", 3), ("Long-v0", 5)):
        if name not in gymnasium.registry:
            gymnasium.register(name, Counting, max_episode_steps=limit)
    with envfleet.make_pool(["Short-v0", "Long-v0", Counting], backend="serial") as pool:
        pool.reset()
        ends = [pool.step(no_actions(3)).truncated.tolist() for _ in range(5)]
    assert ends[2] == [True, False, False]
    assert ends[4] == [False, True, False]
    with pytest.raises(UnknownEnvError, match="Nope-v0"):
        envfleet.make_pool(["Short-v0", "Nope-v0"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_goes_on_in_a_pool_that_was_never_reset(backend):
    """Through the next autoresets: neither a seed that waits nor old observations get in between."""
    options: dict[str, Any] = {"num_envs": 2, "backend": backend, "max_episode_steps": 5}
    with envfleet.make_pool("CartPole-v1", **options) as one, envfleet.make_pool("CartPole-v1", **options) as other:
        one.reset(seed=0)
        one.step(no_actions(2))
        other.set_state(one.get_state())
        np.testing.assert_array_equal(one.observe(), other.observe())
        for _ in range(20):
            np.testing.assert_array_equal(one.step(no_actions(2)).obs, other.step(no_actions(2)).obs)


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120, check=False
    )


def test_a_thread_that_comes_back_at_exit_does_not_crash():
    result = run("""
        import time, envfleet, gymnasium, numpy as np
        class Slow(gymnasium.Env):
            observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)
            def reset(self, *, seed=None, options=None): return 0, {}
            def step(self, action):
                time.sleep(5.08)  # close() waits for 5 s
                return 0, 0.0, False, False, {}
        pool = envfleet.make_pool(Slow, num_envs=8, num_workers=8, backend="threads")
        pool.reset()
        pool.send(np.zeros(8, dtype=np.int64))
        time.sleep(0.05)
    """)
    assert result.returncode == 0, result.stderr


def test_deaths_are_noticed_when_sigchld_is_blocked():
    assert signal.SIGCHLD
    result = run("""
        import os, signal, envfleet, gymnasium, numpy as np
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        class Dies(gymnasium.Env):
            observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)
            def reset(self, *, seed=None, options=None): return 0, {}
            def step(self, action): os.kill(os.getpid(), 9)
        pool = envfleet.make_pool(Dies, num_envs=2, num_workers=1, backend="processes")
        pool.reset()
        try:
            pool.step(np.zeros(2, dtype=np.int64), timeout=60)
        except envfleet.WorkerDied as error:
            print("noticed", error.signal)
    """)
    assert result.stdout == "noticed 9\n", result.stderr


@pytest.mark.parametrize("start_method", ["forkserver", "spawn", "fork"])
def test_no_exit_code_is_invented_when_sigchld_is_ignored(start_method):
    class Ends(Counting):
        def step(self, action):
            os._exit(5)

    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with envfleet.make(Ends, num_envs=1, backend="processes", start_method=start_method) as envs:
            envs.reset(seed=0)
            with pytest.raises(WorkerDied) as caught:
                envs.step([1])
    finally:
        signal.signal(signal.SIGCHLD, before)
    # A forked worker is a child of this process, whose exit code the kernel then does not keep.
    is_known = start_method != "fork"
    assert (caught.value.exit_code, caught.value.signal) == (5 if is_known else None, None)
    assert ("ended with exit code 5" if is_known else "ended with an unknown exit code (SIGCHLD is ignored") in str(
        caught.value
    )


def test_what_the_main_module_defines_reaches_the_workers():
    """Ids that it registered, by class and by name, spaces, values and exceptions of its own."""
    result = run("""
        import envfleet, gymnasium, numpy as np
        class Space(gymnasium.spaces.Box): pass
        class Value: number = 3
        class Misbehavior(Exception): pass
        class Mine(gymnasium.Env):
            observation_space, action_space = Space(-1, 1, (1,), np.float32), gymnasium.spaces.Discrete(2)
            def reset(self, *, seed=None, options=None):
                self.number = options["value"].number if options else 0
                return np.zeros(1, np.float32), {}
            def step(self, action): raise Misbehavior("q")
            def use(self, value): return value.number
        gymnasium.register("Mine-v0", Mine)
        gymnasium.register("Named-v0", "__main__:Mine")
        for env in (lambda: gymnasium.make("Mine-v0"), "Mine-v0", "Named-v0", lambda: gymnasium.make("Named-v0")):
            pool = envfleet.make_pool(env, num_envs=2, num_workers=1, backend="processes")
            pool.reset(options={"value": Value()})
            assert pool.get_attr("number") == (3, 3)
            assert pool.call("use", Value()) == (3, 3)
            pool.set_attr("number", Value())
            try:
                pool.step(np.zeros(2, dtype=np.int64))
            except envfleet.EnvError as error:
                print(type(error.__cause__).__name__)
            pool.close()
    """)
    assert result.stdout == "Misbehavior\n" * 4, result.stderr
