"""TorchPool with several groups: rows, errors and call order are those of one pool."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

torch = pytest.importorskip("torch")

from support.gates import Gate  # noqa: E402
from support.python_probes import SleepyEnv  # noqa: E402
from support.script_runs import run_script  # noqa: E402

from envfleet import (  # noqa: E402
    CallOrderError,
    ConfigError,
    EnvError,
    PoolClosedError,
    RecvTimeout,
    SeedError,
)
from envfleet.apis.torch import TorchPool  # noqa: E402
from envfleet.core.spaces import row_getter  # noqa: E402

STEP, END, FAIL = range(3)
NUM_ENVS = 4


class FaultyEnv(gymnasium.Env[Any, Any]):
    """END ends the episode, FAIL raises. reset(options={"fail": numbers}) raises in the envs with these numbers."""

    observation_space: spaces.Space[Any] = spaces.Box(0, 100, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, number: int) -> None:
        self._number = number
        self._count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if self._number in (options or {}).get("fail", ()):
            raise ValueError("no reset")
        self._count = 0
        return self._obs(), {"start": self._number}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == FAIL:
            raise ValueError("no step")
        self._count += 1
        info = {"last": {"name": str(self._count)}} if action == END else {}
        return self._obs(), self._count / 3, bool(action == END), False, info

    def _obs(self) -> Any:
        return np.array([self._number, self._count], np.float32)


class NestedFaultyEnv(FaultyEnv):
    """Observations in a tuple: numbers, a text, and a sequence."""

    observation_space = spaces.Tuple(
        [
            spaces.Box(0, 100, (2,), np.float32),
            spaces.Text(8),
            spaces.Dict({"parts": spaces.Sequence(spaces.Discrete(100))}),
        ]
    )

    def _obs(self) -> Any:
        return super()._obs(), f"n{self._number}", {"parts": (self._number,) * (self._count % 2 + 1)}


def make(env: Any = FaultyEnv, num_groups: int = 2, **options: Any) -> TorchPool:
    factories = [functools.partial(env, number) for number in range(NUM_ENVS)]
    return TorchPool(factories, "cpu", num_groups=num_groups, backend="serial", seed=5, **options)


def actions_of(*actions: float) -> Any:
    return torch.tensor(actions)


def assert_same(value: Any, expected: Any) -> None:
    """The same values of the same types, in the same structure."""
    assert type(value) is type(expected), (value, expected)
    if isinstance(expected, dict):
        assert value.keys() == expected.keys()
        for key, own in expected.items():
            assert_same(value[key], own)
    elif isinstance(expected, tuple):
        assert len(value) == len(expected)
        for own, other in zip(value, expected, strict=True):
            assert_same(own, other)
    elif isinstance(expected, (np.ndarray, torch.Tensor)):
        assert (value.dtype, value.shape) == (expected.dtype, expected.shape)
        if value.dtype == object:
            assert_same(tuple(value.tolist()), tuple(expected.tolist()))
        else:
            assert value.tolist() == expected.tolist()
    else:
        assert value == expected


def assert_same_errors(error: EnvError, expected: EnvError) -> None:
    assert type(error) is type(expected)
    assert str(error) == str(expected)
    assert [(fault.env_id, fault.method) for fault in error.faults] == [
        (fault.env_id, fault.method) for fault in expected.faults
    ]
    assert repr(error.__cause__) == repr(expected.__cause__)
    assert (error.batch is None) == (expected.batch is None)


def assert_same_batches(batch: Any, expected: Any, space: Any) -> None:
    for name in ("obs", "reward", "terminated", "truncated", "env_id", "elapsed_step", "info"):
        assert_same(getattr(batch, name), getattr(expected, name))
    assert [fault.env_id for fault in batch.faults] == [fault.env_id for fault in expected.faults]
    assert (batch.final is None) == (expected.final is None)
    if expected.final is not None:
        ended = np.flatnonzero(expected.terminated | expected.truncated).tolist()
        take = row_getter(space)
        for row in ended:
            assert_same(take(batch.final.obs, row), take(expected.final.obs, row))
        assert batch.final.elapsed_step[ended].tolist() == expected.final.elapsed_step[ended].tolist()
        assert_same(batch.final.info, expected.final.info)


def errors_of(call: Any, *pools: TorchPool) -> list[EnvError]:
    errors = []
    for envs in pools:
        with pytest.raises(EnvError) as caught:
            call(envs)
        errors.append(caught.value)
    return errors


# --- envs that raise --------------------------------------------------------------------------------


@pytest.mark.parametrize("env", [FaultyEnv, NestedFaultyEnv])
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize(
    "actions",
    [(STEP, END, END, FAIL), (FAIL, END, STEP, END), (FAIL, END, FAIL, END), (END, END, FAIL, FAIL)],
)
def test_errors_of_a_step_are_those_of_one_pool(env: Any, mode: str, actions: Any) -> None:
    """Rows of all envs, their final rows, and every fault, with ids of the whole pool."""
    with make(env, autoreset_mode=mode) as envs, make(env, 1, autoreset_mode=mode) as whole:
        for pool in (envs, whole):
            pool.reset()
            pool.step(actions_of(STEP, STEP, STEP, STEP))
        error, expected = errors_of(lambda pool: pool.step(actions_of(*actions)), envs, whole)
        assert_same_errors(error, expected)
        assert_same_batches(error.batch, expected.batch, env.observation_space)
        assert_same(envs.reset(), whole.reset())
        assert_same(envs.step(actions_of(STEP, END, STEP, STEP))[:4], whole.step(actions_of(STEP, END, STEP, STEP))[:4])


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("numbers", [(3,), (0,), (1, 2)])
def test_errors_of_a_reset_are_those_of_one_pool(mode: str, numbers: Any) -> None:
    with make(autoreset_mode=mode) as envs, make(num_groups=1, autoreset_mode=mode) as whole:
        error, expected = errors_of(lambda pool: pool.reset(options={"fail": numbers}), envs, whole)
        assert_same_errors(error, expected)
        assert_same_batches(error.batch, expected.batch, FaultyEnv.observation_space)
        assert_same(envs.reset(), whole.reset())


def test_spent_restarts_keep_their_remedy() -> None:
    options = {"on_error": "restart", "max_restarts": 1}
    with make(**options) as envs, make(num_groups=1, **options) as whole:
        for pool in (envs, whole):
            pool.reset()
            pool.step(actions_of(STEP, STEP, STEP, FAIL))
            pool.step(actions_of(STEP, STEP, STEP, STEP))
        error, expected = errors_of(lambda pool: pool.step(actions_of(STEP, STEP, STEP, FAIL)), envs, whole)
        assert "env 3 raised" in str(error)
        assert "already restarted max_restarts=1 times; fix the env" in str(error)
        assert_same_errors(error, expected)


def test_an_env_that_was_restarted_is_not_among_the_faults_of_another_group() -> None:
    with make(on_error="restart", max_restarts=1) as envs:
        envs.reset()
        envs.step(actions_of(STEP, STEP, STEP, FAIL))
        envs.step(actions_of(STEP, STEP, STEP, STEP))
        with pytest.raises(EnvError, match="env 3 raised") as caught:
            envs.step(actions_of(FAIL, STEP, STEP, FAIL))
        assert [fault.env_id for fault in caught.value.faults] == [3]
        assert caught.value.env_id == 3
        batch = caught.value.batch
        assert batch is not None
        assert batch.truncated.tolist() == [True, False, False, False]
        assert "no step" in batch.info["error"][0]


class OnceRebuiltEnv(FaultyEnv):
    """After FAIL: is built once more, then raises in its reset and in its constructor."""

    num_builds_left = -1  # no limit

    def __init__(self, number: int) -> None:
        if self.num_builds_left == 0:
            raise RuntimeError("no builds left")
        type(self).num_builds_left -= 1
        super().__init__(number)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if self.num_builds_left == 0:
            raise ValueError("no reset")
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == FAIL:
            type(self).num_builds_left = 1
        return super().step(action)


@pytest.mark.parametrize("num_groups", [1, 2])
def test_an_env_that_is_not_rebuilt_for_its_first_row(num_groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OnceRebuiltEnv, "num_builds_left", -1)
    options = {"autoreset_mode": "same_step", "on_error": "restart", "max_restarts": 2}
    with make(OnceRebuiltEnv, num_groups, **options) as envs:
        envs.reset()
        with pytest.raises(EnvError, match=r"env 3 raised in __init__\(\).*constructor must not raise") as caught:
            envs.step(actions_of(STEP, STEP, STEP, FAIL))
        batch = caught.value.batch
        assert batch is not None
        assert batch.env_id.tolist() == [0, 1, 2, 3]
        assert batch.elapsed_step[:3].tolist() == [1, 1, 1]


class BlockedEnv(FaultyEnv):
    """Env 3 cannot be built while this file exists."""

    def __init__(self, number: int, path: Path) -> None:
        super().__init__(number)
        if number == 3 and path.exists():
            raise RuntimeError("blocked")


def test_a_reset_that_cannot_rebuild_an_env(tmp_path: Path) -> None:
    """The rows of the other groups are kept; the group of the env has none."""
    path = tmp_path / "blocked"
    factories = [functools.partial(BlockedEnv, number, path) for number in range(NUM_ENVS)]
    with TorchPool(factories, "cpu", num_groups=2, backend="serial") as envs:
        envs.reset()
        with pytest.raises(EnvError, match="env 3"):
            envs.step(actions_of(STEP, STEP, STEP, FAIL))
        path.touch()
        with pytest.raises(EnvError, match=r"env 3 raised in __init__\(\).*must not raise") as caught:
            envs.reset()
        assert caught.value.batch is not None
        assert caught.value.batch.env_id.tolist() == [0, 1]
        path.unlink()
        assert envs.reset()[0].tolist() == [[0, 0], [1, 0], [2, 0], [3, 0]]


def test_a_broken_env_is_named_by_its_id_in_the_whole_pool() -> None:
    with make() as envs:
        with pytest.raises(CallOrderError, match=r"env 0 must be reset first.*reset\(\)"):
            envs.step(actions_of(STEP, STEP, STEP, STEP))
        envs.reset()
        with pytest.raises(EnvError):
            envs.step(actions_of(STEP, STEP, STEP, FAIL))
        with pytest.raises(CallOrderError, match=r"env 3 must be reset.*groups\[1\]\.reset\(\[1\]\)") as caught:
            envs.step(actions_of(STEP, STEP, STEP, STEP))
        assert "env_id=" not in str(caught.value)
        envs.groups[1].reset([1])
        assert envs.step(actions_of(STEP, STEP, STEP, STEP))[4]["elapsed_step"].tolist() == [2, 2, 2, 1]


# --- infos --------------------------------------------------------------------------------------------

INFOS: list[dict[str, Any]] = [
    {},
    {"k": {"x": 1.0}},
    {"k": 2.0},
    {"k": 3},
    {"k": 2**60 + 1},
    {"k": "text"},
    {"k": np.asarray("abc")},
    {"k": np.asarray("longer")},
    {"k": np.arange(3)},
    {"k": np.arange(3) / 2},
    {"k": np.zeros((2, 2), np.uint8)},
    {"k": {"x": "other", "y": np.float32(1.5)}},
    {"k": True},
    {"k": None},
    {"_k": 1},
    {"k": np.array([1, "a"], dtype=object)},
]


class InfoEnv(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(len(INFOS))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 0.0, False, False, INFOS[action]


@pytest.mark.parametrize("info_tensors", [False, True])
def test_infos_are_those_of_one_pool(info_tensors: bool) -> None:
    """Of every pair of kinds, in groups of one env and of two."""
    options = {"backend": "serial", "info_tensors": info_tensors}
    kinds = range(len(INFOS))
    for num_envs in (2, 4):
        with (
            TorchPool(InfoEnv, "cpu", num_envs=num_envs, num_groups=2, **options) as envs,
            TorchPool(InfoEnv, "cpu", num_envs=num_envs, **options) as whole,
        ):
            envs.reset()
            whole.reset()
            for one in kinds:
                for other in kinds:
                    actions = actions_of(one, other) if num_envs == 2 else actions_of(one, 0, one, other)
                    assert_same(envs.step(actions)[4], whole.step(actions)[4])


@pytest.mark.parametrize("env", [FaultyEnv, NestedFaultyEnv])
@pytest.mark.parametrize("info_tensors", [False, True])
def test_final_observations_are_those_of_one_pool(env: Any, info_tensors: bool) -> None:
    options = {"autoreset_mode": "same_step", "info_tensors": info_tensors}
    with make(env, **options) as envs, make(env, 1, **options) as whole:
        assert_same(envs.reset()[0], whole.reset()[0])
        for actions in (actions_of(END, STEP, STEP, END), actions_of(STEP, STEP, END, END)):
            step, expected = envs.step(actions), whole.step(actions)
            assert_same(step[:4], expected[:4])
            assert_same(step[4]["_final_obs"], expected[4]["_final_obs"])
            take = row_getter(env.observation_space)
            for row in np.flatnonzero(expected[4]["_final_obs"].numpy()).tolist():
                assert_same(take(step[4]["final_obs"], row), take(expected[4]["final_obs"], row))


# --- call order -----------------------------------------------------------------------------------------


def sleepy(num_groups: int = 2, **options: Any) -> TorchPool:
    envs = TorchPool(SleepyEnv, "cpu", num_envs=4, num_groups=num_groups, backend="threads", **options)
    envs.reset()
    return envs


def counts_of(step: Any) -> Any:
    return step[0].tolist()


def test_a_refused_reset_keeps_the_step_that_is_pending(gate: Gate) -> None:
    with sleepy() as envs:
        with pytest.raises(RecvTimeout, match=r"step\(\) did not finish within 0\.01 s"):
            envs.step(actions_of(0, 0, 0, gate.action), timeout=0.01)
        with pytest.raises(RecvTimeout, match=r"recv\(\) got no batch within 0 s; the next recv\(\) returns"):
            envs.recv(timeout=0)
        with pytest.raises(SeedError):
            envs.reset(seed=-1)
        with pytest.raises(ConfigError, match="options as a dict"):
            envs.reset(options=7)  # type: ignore[arg-type]
        with pytest.raises(CallOrderError, match=r"recv\(\) it first"):
            envs.step(actions_of(0, 0, 0, 0))
        gate.open()
        assert counts_of(envs.recv()) == [1, 1, 1, 1]
        assert counts_of(envs.step(actions_of(0, 0, 0, 0))) == [2, 2, 2, 2]


def test_a_reset_drops_the_step_that_is_pending(gate: Gate) -> None:
    with sleepy() as envs:
        with pytest.raises(RecvTimeout):
            envs.step(actions_of(0, 0, 0, gate.action), timeout=0.01)
        gate.open()
        assert envs.reset()[0].tolist() == [0, 0, 0, 0]
        with pytest.raises(CallOrderError, match=r"recv\(\) expected a step\(\)"):
            envs.recv()
        assert counts_of(envs.step(actions_of(0, 0, 0, 0))) == [1, 1, 1, 1]


def test_rows_of_a_group_are_not_taken_for_a_step() -> None:
    with sleepy() as envs:
        envs.groups[0].send(actions_of(0.0, 0.0))
        with pytest.raises(CallOrderError, match=r"recv\(\) expected a step\(\).*envs\.groups"):
            envs.recv()
        with pytest.raises(CallOrderError, match=r"envs 0 to 1 in flight; .*envs\.groups\[0\]\.recv\(\)"):
            envs.step(actions_of(0, 0, 0, 0))
        assert counts_of(envs.groups[0].recv()) == [1, 1]
        assert counts_of(envs.step(actions_of(0, 0, 0, 0))) == [2, 2, 1, 1]


def test_rows_that_a_group_has_received_itself(gate: Gate) -> None:
    with sleepy() as envs:
        with pytest.raises(RecvTimeout):
            envs.step(actions_of(gate.action, 0, 0, 0), timeout=0.01)
        gate.open()
        assert counts_of(envs.groups[0].recv()) == [1, 1]
        with pytest.raises(CallOrderError, match=r"envs 0 to 1: .*; call step\(\) or reset\(\)"):
            envs.recv()
        assert counts_of(envs.step(actions_of(0, 0, 0, 0))) == [2, 2, 2, 2]


def test_a_second_thread_is_refused(gate: Gate) -> None:
    with sleepy() as envs:
        rows: list[Any] = []
        thread = threading.Thread(target=lambda: rows.append(envs.step(actions_of(0, 0, gate.action, 0))))
        thread.start()
        gate.wait_until_reached()
        for call in (envs.recv, envs.reset, lambda: envs.step(actions_of(0, 0, 0, 0))):
            with pytest.raises(CallOrderError):
                call()
        gate.open()
        thread.join()
        assert counts_of(rows[0]) == [1, 1, 1, 1]


def test_calls_after_close(gate: Gate) -> None:
    with sleepy() as envs:
        with pytest.raises(RecvTimeout):
            envs.step(actions_of(0, 0, gate.action, 0), timeout=0.01)
        gate.open()
    for call in (envs.recv, envs.reset, lambda: envs.step(actions_of(0, 0, 0, 0))):
        with pytest.raises(PoolClosedError):
            call()
    with sleepy() as envs:
        pass
    with pytest.raises(PoolClosedError):
        envs.recv()


SLEEPY_GROUPS = """\
import os, signal, threading
import torch
from envfleet import CallOrderError
from envfleet.apis.torch import TorchPool
from support.gates import Gate
from support.python_probes import SleepyEnv

envs = TorchPool(SleepyEnv, "cpu", num_envs=4, num_groups=2, backend="threads")
envs.reset()
"""


@pytest.mark.parametrize("position", [0, 3])
def test_an_interrupted_step_that_finishes_in_time_is_done_by_all_groups(tmp_path: Path, position: int) -> None:
    code = f"""
        with Gate() as gate:
            def handle(*arguments):
                gate.open()
                signal.default_int_handler(*arguments)
            signal.signal(signal.SIGINT, handle)
            actions = torch.zeros(4)
            actions[{position}] = gate.action
            thread = gate.interrupt_when_reached()
            try:
                envs.step(actions)
            except KeyboardInterrupt:
                print("interrupted")
            thread.join()
        print(envs.step(torch.zeros(4))[0].tolist())
        envs.close()
    """
    result = run_script(tmp_path, code, prelude=SLEEPY_GROUPS)
    assert (result.returncode, result.stdout, result.stderr) == (0, "interrupted\n[2, 2, 2, 2]\n", "")


@pytest.mark.parametrize("position", [0, 3])
def test_an_interrupted_step_that_does_not_finish_needs_a_reset_of_all_groups(tmp_path: Path, position: int) -> None:
    code = f"""
        with Gate() as gate:
            def handle(*arguments):
                threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
                signal.signal(signal.SIGINT, signal.default_int_handler)
                signal.default_int_handler(*arguments)
            signal.signal(signal.SIGINT, handle)
            actions = torch.zeros(4)
            actions[{position}] = gate.action
            gate.interrupt_when_reached()
            try:
                envs.step(actions)
            except KeyboardInterrupt as error:
                print("twice", isinstance(error.__context__, KeyboardInterrupt))
            for call in (envs.recv, lambda: envs.step(torch.zeros(4))):
                try:
                    call()
                except CallOrderError as error:
                    print(error)
            gate.open()
        print(envs.reset()[0].tolist(), envs.step(torch.zeros(4))[0].tolist())
        envs.close()
    """
    result = run_script(tmp_path, code, prelude=SLEEPY_GROUPS)
    refusal = "expected groups whose last call ended, got some that were interrupted; reset() all envs first\n"
    expected = f"twice True\n{refusal * 2}[0, 0, 0, 0] [1, 1, 1, 1]\n"
    assert (result.returncode, result.stdout, result.stderr) == (0, expected, "")


# --- options --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_envs", "num_groups"), [(np.int64(4), 2), (4, np.int64(2)), (np.uint8(4), np.int32(2))])
def test_counts_may_be_numpy_integers(num_envs: Any, num_groups: Any) -> None:
    with TorchPool("CartPole-v1", "cpu", num_envs=num_envs, num_groups=num_groups) as envs:
        assert [group.num_envs for group in envs.groups] == [2, 2]
        assert type(envs.num_envs) is int


@pytest.mark.parametrize("num_groups", [True, 2.0, "2", None, 0, -1, 5, np.int64(5)])
def test_wrong_numbers_of_groups_are_refused(num_groups: Any) -> None:
    with pytest.raises(ConfigError, match=r"num_groups expected an integer from 1 to num_envs=4"):
        TorchPool("CartPole-v1", "cpu", num_envs=4, num_groups=num_groups)


def test_options_that_do_not_fit_groups_are_refused() -> None:
    for batch_size in (2, np.int64(2)):
        with pytest.raises(ConfigError, match="num_groups=2 expected no batch_size"):
            TorchPool("CartPole-v1", "cpu", num_envs=4, num_groups=2, batch_size=batch_size)
    with pytest.raises(ConfigError, match=r"num_groups expected an integer from 1 to num_envs=1, got 2"):
        TorchPool("CartPole-v1", "cpu", num_envs=None, num_groups=2)
    for num_envs in (True, 2.0):
        with pytest.raises(ConfigError, match="num_envs expected an integer"):
            TorchPool("CartPole-v1", "cpu", num_envs=num_envs, num_groups=2)


def test_static_tensors_of_all_groups():
    """The same tensors from every call, as a CUDA graph needs them, with the values of a pool without groups."""
    options: dict[str, Any] = {"num_envs": 6, "seed": 0, "autoreset_mode": "same_step"}
    with (
        TorchPool("CartPole-v1", "cpu", num_groups=2, static_shapes=True, **options) as envs,
        TorchPool("CartPole-v1", "cpu", **options) as reference,
    ):
        first, _ = envs.reset()
        assert torch.equal(first, reference.reset()[0])
        tensors = None
        for _ in range(30):
            actions = torch.zeros(6, dtype=torch.int64)
            obs, reward, terminated, truncated, info = envs.step(actions)
            expected = reference.step(actions)
            for own, other in zip((obs, reward, terminated, truncated), expected[:4], strict=True):
                assert torch.equal(own, other)
            ended = terminated | truncated  # no other row of final_obs has a meaning
            assert torch.equal(info["final_obs"][ended], expected[4]["final_obs"][ended])
            addresses = [own.data_ptr() for own in (obs, reward, terminated, truncated, info["final_obs"])]
            assert tensors in (None, addresses)
            tensors = addresses
        assert first.data_ptr() == obs.data_ptr()
        assert info["mask"].all()
