"""AsyncVectorEnv: calls in two halves, their order, time limits, faults and ends."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector.async_vector_env import _async_worker
from support.gates import Gate
from support.traces import alive, wait_until
from vector.vector_probes import RaisingEnv, TellingEnv, WaitingEnv

import envfleet
from envfleet.vector import AsyncState, AsyncVectorEnv, SyncVectorEnv


@pytest.fixture
def envs() -> Any:
    with AsyncVectorEnv([TellingEnv] * 3) as made:
        yield made


def test_workers_are_as_many_as_cores_and_not_as_envs() -> None:
    with AsyncVectorEnv([TellingEnv] * 20, max_concurrency=2) as envs:
        pids = envs.call("process")
        assert len(set(pids)) == 2
        assert os.getpid() not in pids


@pytest.mark.parametrize("context", [None, "spawn", "fork", "forkserver"])
def test_every_context_is_taken(context: str | None) -> None:
    with AsyncVectorEnv([TellingEnv] * 2, True, True, context, False) as envs:
        envs.reset(seed=1)
        assert envs.step([0, 1])[1].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("vector_class", [AsyncVectorEnv, gymnasium.vector.AsyncVectorEnv])
def test_an_unknown_context_is_refused(vector_class: Any) -> None:
    with pytest.raises(ValueError, match="cannot find context for 'nope'"):
        vector_class([TellingEnv] * 2, context="nope")


@pytest.mark.parametrize("made", [AsyncVectorEnv, SyncVectorEnv])
@pytest.mark.parametrize("env_fns", [None, [], [TellingEnv, "CartPole-v1"]])
def test_what_builds_no_envs_is_refused(made: Any, env_fns: Any) -> None:
    with pytest.raises(envfleet.ConfigError, match="expected a list of functions that build an env, got"):
        made(env_fns)


def test_halves_give_what_the_whole_gives(envs: Any) -> None:
    with SyncVectorEnv([TellingEnv] * 3) as whole:
        envs.reset_async(seed=3)
        assert (envs.reset_wait()[0] == whole.reset(seed=3)[0]).all()
        envs.step_async([1, 2, 3])
        assert (envs.step_wait()[0] == whole.step([1, 2, 3])[0]).all()
        mask = np.array([True, False, True])
        envs.reset_async(seed=9, options={"reset_mask": mask})
        assert (envs.reset_wait(timeout=30)[0] == whole.reset(seed=9, options={"reset_mask": mask})[0]).all()
        envs.call_async("square", 5, plus=1)
        assert envs.call_wait(timeout=30) == (26, 26, 26)


@pytest.mark.parametrize("name", ["reset", "step", "call"])
def test_a_wait_without_its_start_is_refused(envs: Any, name: str) -> None:
    with pytest.raises(NoAsyncCallError, match=f"`{name}_wait` without any prior call to `{name}_async`"):
        getattr(envs, f"{name}_wait")()


@pytest.mark.parametrize("pending", ["reset", "step", "call"])
def test_a_pending_call_is_finished_first(envs: Any, pending: str) -> None:
    envs.reset(seed=1)
    {"reset": envs.reset_async, "step": lambda: envs.step_async([0, 0, 0]), "call": lambda: envs.call_async("length")}[
        pending
    ]()
    for call in (
        envs.reset,
        envs.reset_async,
        lambda: envs.step([0, 0, 0]),
        lambda: envs.step_async([0, 0, 0]),
        lambda: envs.call_async("length"),
        lambda: envs.set_attr("length", 1),
        envs.render,
    ):
        with pytest.raises(AlreadyPendingCallError, match=f"pending call to `{pending}`") as caught:
            call()
        assert caught.value.name == pending
    getattr(envs, f"{pending}_wait")()
    envs.step([0, 0, 0])


def test_a_step_that_timed_out_is_not_lost(gate: Gate) -> None:
    with AsyncVectorEnv([WaitingEnv] * 2) as envs:
        envs.reset(seed=1)
        envs.step_async(np.array([0, gate.number]))
        with pytest.raises(multiprocessing.TimeoutError, match="`step_wait` has timed out"):
            envs.step_wait(timeout=0.01)
        with pytest.raises(AlreadyPendingCallError, match="timed out is still running"):
            envs.step(np.zeros(2))
        gate.open()
        assert envs.step_wait()[4]["count"].tolist() == [1, 1]
        assert envs.step(np.zeros(2))[4]["count"].tolist() == [2, 2]


@pytest.mark.parametrize("vector_class", [AsyncVectorEnv, gymnasium.vector.AsyncVectorEnv])
def test_a_deadline_that_has_passed_is_a_timeout(vector_class: Any, gate: Gate) -> None:
    envs = vector_class([WaitingEnv] * 2)
    try:
        envs.reset(seed=1)
        envs.step_async(np.array([0, gate.number]))
        with pytest.raises(multiprocessing.TimeoutError, match="`step_wait` has timed out after -1"):
            envs.step_wait(timeout=-1)
        gate.open()
    finally:
        envs.close(terminate=True)


def test_a_wrong_timeout_does_not_end_the_call(envs: Any) -> None:
    envs.reset(seed=1)
    envs.step_async([0, 0, 0])
    with pytest.raises(ValueError, match="soon"):
        envs.step_wait(timeout="soon")
    assert envs.step_wait()[1].tolist() == [1.0, 1.0, 1.0]


def test_a_reset_drops_what_timed_out(gate: Gate) -> None:
    with AsyncVectorEnv([WaitingEnv] * 2) as envs:
        envs.reset(seed=1)
        envs.step_async(np.array([0, gate.number]))
        with pytest.raises(multiprocessing.TimeoutError):
            envs.step_wait(timeout=0.0)
        gate.open()
        envs.reset(seed=1)
        with Gate() as other:
            envs.call_async("wait", other.number)
            with pytest.raises(multiprocessing.TimeoutError):
                envs.call_wait(timeout=0.0)
            other.open()
            envs.reset(seed=1)
        assert envs.step(np.zeros(2))[4]["count"].tolist() == [1, 1]


def test_what_an_env_raises_is_raised_and_reset_mends_it() -> None:
    with AsyncVectorEnv([RaisingEnv] * 3) as envs:
        envs.reset(seed=1)
        with pytest.warns(match="ERROR") as told, pytest.raises(LookupError, match="action 4") as caught:
            envs.step([0, 4, 0])
        assert isinstance(caught.value.__cause__, envfleet.EnvError)
        assert caught.value.__cause__.env_id == 1
        assert len(told) == 3
        assert "LookupError: action 4" in str(told[1].message)
        with pytest.raises(envfleet.CallOrderError, match=r"envs \[1\] raised earlier"):
            envs.step([0, 0, 0])
        envs.reset(seed=1)
        envs.step([0, 0, 0])
        with pytest.warns(match="ERROR"), pytest.raises(KeyError, match="on request"):
            envs.call("raise_up")
        envs.step([0, 0, 0])


def test_a_worker_that_died_is_told_and_replaced() -> None:
    with AsyncVectorEnv([RaisingEnv] * 2, max_concurrency=2) as envs:
        envs.reset(seed=1)
        with pytest.warns(match="ERROR"), pytest.raises(envfleet.WorkerDied) as caught:
            envs.step([0, 3])
        assert caught.value.exit_code == 7
        envs.reset(seed=1)
        envs.step([0, 0])


def test_a_constructor_that_raises_is_what_the_caller_sees() -> None:
    def broken() -> Any:
        raise LookupError("no such map")

    with pytest.raises(LookupError, match="no such map"):
        AsyncVectorEnv([TellingEnv, broken])
    with pytest.raises(LookupError, match="no such map"):
        SyncVectorEnv([TellingEnv, broken])


def test_nothing_works_after_close(envs: Any) -> None:
    envs.close()
    envs.close()
    assert envs.closed
    for call in (envs.reset, lambda: envs.step([0, 0, 0]), envs.render, envs.step_wait, envs.call_wait):
        with pytest.raises(ClosedEnvironmentError):
            call()


@pytest.mark.parametrize("how", [{"terminate": True}, {"timeout": 0.01}])
def test_close_does_not_wait_for_a_slow_env(how: dict[str, Any], gate: Gate) -> None:
    envs = AsyncVectorEnv([WaitingEnv] * 2)
    envs.reset(seed=1)
    pids = set(envs.call("process"))
    envs.step_async(np.full(2, float(gate.number)))
    with pytest.warns(UserWarning, match="Calling `close` while waiting for a pending call to `step`"):
        envs.close(**how)
    assert wait_until(lambda: not alive(pids)), "workers outlive close()"


def test_methods_of_the_vector_env_are_not_called_by_name(envs: Any) -> None:
    with pytest.raises(ValueError, match="use `reset` directly"):
        envs.call("reset")


def test_a_custom_worker_gets_gymnasiums_own_class() -> None:
    envs = AsyncVectorEnv([TellingEnv] * 2, worker=_async_worker)
    try:
        assert isinstance(envs, gymnasium.vector.AsyncVectorEnv)
        envs.reset(seed=1)
    finally:
        envs.close()


def test_the_states_are_gymnasiums() -> None:
    assert AsyncState is gymnasium.vector.async_vector_env.AsyncState


class Raising(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        if seed == 1:
            raise ValueError("Error in reset")
        return self.observation_space.sample(), {}

    def step(self, action):
        if action >= 1:
            raise ValueError(f"Error in step with {action}")
        return self.observation_space.sample(), 0, False, False, {}


@pytest.mark.parametrize("vector_class", [gymnasium.vector.AsyncVectorEnv, AsyncVectorEnv], ids=["gymnasium", "ours"])
def test_what_an_env_raised_is_logged(vector_class):
    """As Gymnasium's test_async_vector_subenv_error asks, also of a step without a reset before it."""
    envs = vector_class([Raising] * 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        envs.reset(seed=[0, 0])
        assert not caught
        with pytest.raises(ValueError, match="Error in reset"):
            envs.reset(seed=[1, 0])
    envs.close()
    texts = [str(warning.message) for warning in caught]
    assert "Received the following error from Worker-0 - Shutting it down" in texts[0]
    assert 'in reset\n    raise ValueError("Error in reset")\nValueError: Error in reset' in texts[1]
    assert "ERROR: Raising the last exception back to the main process." in texts[2]
    assert len(texts) == 3

    envs = vector_class([Raising] * 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match="Error in step"):
            envs.step([0, 1, 2])
    envs.close()
    assert len(caught) == 5
