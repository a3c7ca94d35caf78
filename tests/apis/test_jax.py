"""Pools inside XLA programs: the same rows as from Python, on the CPU here and on a GPU where there is one."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from support.python_probes import FaultyEnv

jax = pytest.importorskip("jax", reason='needs jax; run: pip install "envfleet[jax]"')

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

import envfleet  # noqa: E402
import envfleet.compat.envpool as envpool  # noqa: E402
from envfleet import (  # noqa: E402
    ActionError,
    CallOrderError,
    CompileError,
    ConfigError,
    EnvIdError,
    MissingExtraError,
    PoolClosedError,
)
from envfleet.apis.common import xla_library  # noqa: E402
from envfleet.apis.jax import JaxPool  # noqa: E402

HAS_GPU = any(device.platform == "gpu" for device in jax.devices())
NUM_ENVS = 5
BACKENDS = ["native", "serial", "threads", "processes"]
PROGRAM_ERROR = jax.errors.JaxRuntimeError


@pytest.fixture(
    autouse=True,
    params=["cpu", pytest.param("gpu", marks=pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device"))],
)
def device(request):
    """Where the programs of a test run."""
    with jax.default_device(jax.devices(request.param)[0]):
        yield request.param


def cartpole_actions(obs: Any) -> Any:
    return (obs[:, 2] > 0).astype(np.int32)


def assert_equal(traced: Any, arrays: Any) -> None:
    """The same values in the same structure; float64 and int64 may be narrowed."""
    if isinstance(arrays, dict):
        assert traced.keys() == arrays.keys()
        for key in arrays:
            assert_equal(traced[key], arrays[key])
    elif isinstance(arrays, tuple):
        assert len(traced) == len(arrays)
        for own, expected in zip(traced, arrays, strict=True):
            assert_equal(own, expected)
    else:
        np.testing.assert_array_equal(np.asarray(traced), np.asarray(arrays).astype(traced.dtype))


def scan_steps(envs: JaxPool, handle: Any, obs: Any, policy: Any, length: int) -> Any:
    @jax.jit
    def rollout(handle: Any, obs: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            handle, obs = carry
            handle, rows = envs.step(handle, policy(obs))
            return (handle, rows[0]), rows

        return lax.scan(step, (handle, obs), length=length)

    return rollout(handle, obs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_scan_returns_the_rows_of_the_pool(backend):
    with JaxPool("CartPole-v1", num_envs=NUM_ENVS, backend=backend, num_workers=2) as envs:
        handle, (obs, _) = envs.reset(seed=7)
        (_, last), rows = scan_steps(envs, handle, obs, cartpole_actions, 60)
        jax.block_until_ready(last)
    with envfleet.make("CartPole-v1", num_envs=NUM_ENVS, backend=backend, num_workers=2) as same:
        expected, _ = same.reset(seed=7)
        assert_equal(obs, expected)
        for t in range(60):
            expected, reward, terminated, truncated, info = same.step(cartpole_actions(expected))
            assert_equal(jax.tree.map(lambda column: column[t], rows[:4]), (expected, reward, terminated, truncated))  # noqa: B023
            assert_equal(rows[4]["elapsed_step"][t], info["elapsed_step"])
    assert_equal(last, expected)


class NestedEnv(gymnasium.Env[Any, Any]):
    """Nested observations and actions, a text, wide dtypes, and a declared info."""

    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (3, 5), np.uint8),
            "parts": spaces.Tuple([spaces.Box(-1, 1, (2,), np.float64), spaces.Discrete(100)]),
            "half": spaces.Box(-9, 9, (1,), np.float16),
            "text": spaces.Text(8),
        }
    )
    action_space = spaces.Dict({"move": spaces.Discrete(3), "push": spaces.Box(-0.1, 0.1, (2,), np.float64)})
    info_space = spaces.Dict({"count": spaces.Box(0, 100, (), np.int64)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._count = 0
        return self._obs(0), {"count": 0}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._count += 1
        obs = self._obs(int(action["move"]))
        return obs, float(action["push"].sum()), self._count == 5, False, {"count": self._count}

    def _obs(self, move: int) -> Any:
        image = self.np_random.integers(0, 256, (3, 5), dtype=np.uint8)
        parts = (np.array([self._count, move]) / 10, move)
        return {"image": image, "parts": parts, "half": np.full(1, move / 2, np.float16), "text": "step"}


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_nested_spaces_and_final_observations(mode):
    options: dict[str, Any] = {"num_envs": 3, "backend": "serial", "autoreset_mode": mode}
    # 0.1 in float32 is larger than the bound, and still that bound.
    actions = {"move": np.array([0, 1, 2]), "push": np.full((3, 2), 0.1)}
    with JaxPool(NestedEnv, **options) as envs, envfleet.make(NestedEnv, **options) as same:
        handle, (obs, info) = envs.reset(seed=1)
        expected, _ = same.reset(seed=1)
        _, rows = scan_steps(envs, handle, obs, lambda _: jax.tree.map(jnp.asarray, actions), 6)
        for t in range(6):
            expected, reward, terminated, truncated, info = same.step(actions)
            del expected["text"]
            now = jax.tree.map(lambda column: column[t], rows)  # noqa: B023
            assert_equal(now[:4], (expected, reward, terminated, truncated))
            assert_equal(now[4]["count"], info["count"])
            if mode == "same_step" and "final_obs" in info:
                for row in np.flatnonzero(info["_final_obs"]):
                    assert_equal(now[4]["final_obs"]["image"][row], info["final_obs"][row]["image"])
        assert rows[0]["parts"][0].dtype == np.float32
        assert ("final_obs" in rows[4]) == (mode == "same_step")


class LargeEnv(gymnasium.Env[Any, Any]):
    """Observations so large that they are not copied between the workers and the program."""

    observation_space = spaces.Box(0, 255, (64, 1024), np.uint8)
    action_space = spaces.Discrete(256)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._count = 0
        return self._obs(0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._count += 1
        return self._obs(int(action)), float(action), self._count == 7, False, {}

    def _obs(self, action: int) -> Any:
        obs = self.np_random.integers(0, 256, (64, 1024), dtype=np.uint8)
        obs[0, 0] = action
        return obs


@pytest.mark.parametrize(("backend", "copy"), [("threads", True), ("processes", True), ("threads", False)])
def test_large_rows_of_workers(backend, copy):
    options: dict[str, Any] = {"num_envs": NUM_ENVS, "backend": backend, "num_workers": 2, "copy": copy}
    with envfleet.make(LargeEnv, **options) as envs, envfleet.make(LargeEnv, **{**options, "copy": True}) as same:
        first, _ = envs.reset(seed=2)
        first = first.copy()
        expected, _ = same.reset(seed=2)
        assert_equal(first, expected)
        handle, _, _, step = envs.xla()
        actions = jnp.arange(10 * NUM_ENVS, dtype=jnp.int32).reshape(10, NUM_ENVS)
        rows_of = jax.jit(lambda handle: lax.scan(step, handle, actions))
        _, (obs, reward, *_) = jax.block_until_ready(rows_of(handle))
        for t in range(10):
            expected, expected_reward, *_ = same.step(np.asarray(actions[t]))
            assert_equal((obs[t], reward[t]), (expected, expected_reward))
        # Batches for Python still belong to the caller.
        if copy:
            held = envs.step(np.zeros(NUM_ENVS, dtype=int))[0]
            before = held.copy()
            envs.step(np.ones(NUM_ENVS, dtype=int))
            assert_equal(held, before)


def test_steps_between_slices_run_once():
    """Slices of 128 bytes and more, which XLA moves into a fusion with the call."""
    num_steps, num_envs = 12, 64
    actions = np.random.default_rng(0).integers(0, 2, (num_steps, num_envs)).astype(np.int32)
    with (
        JaxPool("CartPole-v1", num_envs=num_envs) as envs,
        envfleet.make("CartPole-v1", num_envs=num_envs) as same,
    ):
        handle, _ = envs.reset(seed=3)
        same.reset(seed=3)
        program = jax.jit(lambda handle, actions: lax.scan(envs.step, handle, actions))
        compiled = program.lower(handle, actions).compile()
        assert compiled.as_text().count('custom_call_target="envfleet_step"') == 1
        handle, (obs, reward, *_) = compiled(handle, jnp.asarray(actions))
        for t in range(num_steps):
            assert_equal((obs[t], reward[t]), same.step(actions[t])[:2])


@pytest.mark.parametrize("backend", ["native", "serial"])
def test_wide_dtypes_are_narrowed_as_jax_does_and_kept_with_x64(backend):
    env = "Faulty-v0" if backend == "native" else FaultyEnv
    wide = {False: (np.int32, np.float32), True: (np.int64, np.float64)}
    for is_wide, dtypes in wide.items():
        with jax.enable_x64(is_wide), JaxPool(env, num_envs=3, backend=backend) as envs:
            handle, (first, _) = envs.reset(seed=3)
            _, (obs, reward, *_) = envs.step(handle, jnp.zeros(3, jnp.int32))
            assert (obs.dtype, reward.dtype) == dtypes
            assert (first.dtype, first.shape) == (dtypes[0], (3, 2))
            with envfleet.make(env, num_envs=3, backend=backend) as same:
                same.reset(seed=3)
                assert_equal((obs, reward), same.step(np.zeros(3, dtype=int))[:2])


def test_float32_actions_for_a_native_space_of_float64():
    # A GPU machine may have jax and not the simulators.
    pytest.importorskip("dm_control", reason="needs dm_control: pip install envfleet[dm_control]")
    with JaxPool("cartpole-balance", num_envs=2) as envs, envfleet.make("cartpole-balance", num_envs=2) as same:
        handle, _ = envs.reset(seed=1)
        same.reset(seed=1)
        actions = np.array([[0.3], [1.0]], dtype=np.float32)
        _, (obs, reward, *_) = envs.step(handle, jnp.asarray(actions))
        assert_equal((obs, reward), same.step(actions.astype(np.float64))[:2])


# --- dialects -------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["gymnasium", "gym", "dm"])
@pytest.mark.parametrize("package", ["envfleet", "envpool"])
def test_xla_returns_what_the_dialect_returns(package, api):
    if package == "envpool":
        make = partial(envpool.make, env_type=api)
    else:
        make = {"gymnasium": envfleet.make, "gym": envfleet.make_gym, "dm": envfleet.make_dm}[api]
    envs, same = (make("FrozenLake-v1", num_envs=3, seed=5, max_episode_steps=4) for _ in range(2))
    envs.reset()
    same.reset()
    handle, recv, send, step = envs.xla()
    actions = np.array([0, 1, 2], dtype=np.int32)
    for t in range(6):
        if t % 2:
            handle, rows = recv(send(handle, actions))
        else:
            handle, rows = jax.jit(step)(handle, actions)
        expected = same.step(actions)
        if api == "dm":
            assert type(rows).__name__ == "TimeStep"
            assert_equal(rows.observation.obs, expected.observation.obs)
            assert_equal(tuple(rows)[:3], tuple(expected)[:3])
            assert_equal(rows.observation.elapsed_step, expected.observation.elapsed_step)
            continue
        assert_equal(rows[:-1], expected[:-1])
        shared = {key: value for key, value in expected[-1].items() if not key.startswith("_")}
        shared["players"] = rows[-1].get("players")
        assert_equal(rows[-1], {key: value for key, value in shared.items() if value is not None})
    envs.close()
    same.close()


def test_atari_through_envpools_names():
    pytest.importorskip("ale_py", reason="needs ale-py: pip install envfleet[atari]")
    envs, same = (
        envpool.make("Pong-v5", env_type="gym", num_envs=2, seed=1, episodic_life=True, reward_clip=True)
        for _ in range(2)
    )
    envs.reset()
    same.reset()
    handle, _, _, step = envs.xla()
    handle, (obs, reward, done, info) = jax.jit(step)(handle, jnp.array([2, 3]))
    expected = same.step(np.array([2, 3]))
    assert_equal((obs, reward, done), expected[:3])
    for key in ("lives", "reward", "terminated", "TimeLimit.truncated", "elapsed_step"):
        assert_equal(info[key], expected[3][key])
    envs.close()
    same.close()


def test_box_actions_are_clipped_under_envpools_name_and_refused_by_our_own():
    envs = envpool.make("Pendulum-v1", env_type="gymnasium", num_envs=2, seed=0)
    envs.reset()
    handle, _, _, step = envs.xla()
    step(handle, {"action": jnp.full((2, 1), 9.0), "env_id": jnp.arange(2)})
    with JaxPool(envs.pool) as own, pytest.raises(PROGRAM_ERROR, match=r"ActionError: step\(\) expected"):
        jax.block_until_ready(own.step(own.handle, jnp.full((2, 1), 9.0)))


# --- order ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["native", "threads"])
def test_an_asynchronous_pool_steps_every_env_in_its_own_order(backend):
    num_envs, batch_size, length = 6, 2, 60
    with JaxPool("CartPole-v1", num_envs=num_envs, batch_size=batch_size, backend=backend, num_workers=2) as envs:
        handle = envs.async_reset(seed=4)

        @jax.jit
        def run(handle: Any) -> Any:
            def body(handle: Any, _: Any) -> Any:
                handle, (obs, _, _, _, info) = envs.recv(handle)
                return envs.send(handle, cartpole_actions(obs), info["env_id"]), (obs, info["env_id"])

            return lax.scan(body, handle, length=length)

        handle, (obs, env_id) = run(handle)
        rows: dict[int, list[Any]] = {own: [] for own in range(num_envs)}
        for row, own in zip(np.asarray(obs).reshape(-1, 4), np.asarray(env_id).reshape(-1), strict=True):
            rows[int(own)].append(row)
        with envfleet.make("CartPole-v1", num_envs=num_envs, backend=backend, num_workers=2) as same:
            expected, _ = same.reset(seed=4)
            for t in range(max(map(len, rows.values()))):
                for own, seen in rows.items():
                    assert t >= len(seen) or np.array_equal(seen[t], expected[own])
                expected = same.step(cartpole_actions(expected))[0]
        # What is in flight is enough for one batch, and a step is a send and a recv.
        handle, (_, _, _, _, info) = envs.recv(handle)
        _, (obs, *_) = envs.step(handle, jnp.zeros(batch_size, jnp.int32), info["env_id"])
        assert obs.shape == (batch_size, 4)


def test_two_pools_in_one_program_and_some_envs_of_a_pool():
    with JaxPool("CartPole-v1", num_envs=2) as first, JaxPool(FaultyEnv, num_envs=3, backend="serial") as second:
        one, (obs, _) = first.reset(seed=0)
        two, _ = second.reset(seed=0)

        @jax.jit
        def run(one: Any, two: Any, obs: Any) -> Any:
            def body(_: Any, carry: Any) -> Any:
                one, two, obs, _, _ = carry
                one, (obs, *_) = first.step(one, cartpole_actions(obs))
                two, (_, reward, _, _, info) = second.step(two, jnp.zeros(2, jnp.int32), jnp.array([2, 0]))
                return one, two, obs, reward, info["env_id"]

            return lax.fori_loop(0, 10, body, (one, two, obs, jnp.zeros(2), jnp.zeros(2, jnp.int32)))

        *_, reward, env_id = run(one, two, obs)
        assert reward.tolist() == [10, 10]
        assert env_id.tolist() == [2, 0]


class JaxArrayLike:
    """An object that jax converts to an array, and numpy does not."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __jax_array__(self) -> Any:
        return self.array


ACTION_FORMS = {
    "list": lambda a, b: [a, b],
    "tuple": lambda a, b: (a, b),
    "with a number": lambda a, b: [a, 1],
    "with an array": lambda a, b: [a, np.array(1)],
    "array-like": lambda a, b: JaxArrayLike(jnp.stack([a, b])),
    "list of array-likes": lambda a, b: [JaxArrayLike(a), JaxArrayLike(b)],
}


@pytest.mark.parametrize("form", ACTION_FORMS.values(), ids=ACTION_FORMS.keys())
@pytest.mark.parametrize("jit", [True, False])
def test_actions_of_traced_values_and_objects_that_jax_converts(form, jit):
    with JaxPool("CartPole-v1", num_envs=2) as envs, envfleet.make_pool("CartPole-v1", num_envs=2) as twin:
        handle, _ = envs.reset(seed=0)
        twin.reset(seed=0)

        def step(handle: Any, a: Any, b: Any) -> Any:
            return envs.step(handle, form(a, b))

        _, (obs, *_) = (jax.jit(step) if jit else step)(handle, jnp.int32(0), jnp.int32(1))
        np.testing.assert_array_equal(np.asarray(obs), twin.step([0, 1]).obs)


def test_env_ids_of_traced_values():
    with JaxPool(FaultyEnv, num_envs=3, backend="serial") as envs:
        handle, _ = envs.reset(seed=0)
        step = jax.jit(lambda handle, one, other: envs.step(handle, [0, 0], [one, other]))
        _, (*_, info) = step(handle, 2, 0)
        assert info["env_id"].tolist() == [2, 0]


def test_float_actions_of_traced_values():
    with JaxPool("Pendulum-v1", num_envs=2) as envs, envfleet.make_pool("Pendulum-v1", num_envs=2) as twin:
        handle, _ = envs.reset(seed=0)
        twin.reset(seed=0)
        step = jax.jit(lambda handle, torque: envs.step(handle, [[torque], [0.5]]))
        _, (obs, *_) = step(handle, -0.5)
        np.testing.assert_array_equal(np.asarray(obs), twin.step(np.float32([[-0.5], [0.5]])).obs)


def test_calls_with_the_same_arguments_are_all_made():
    with JaxPool("CartPole-v1", num_envs=2) as envs:
        handle, _ = envs.reset(seed=0)

        @jax.jit
        def twice(handle: Any) -> Any:
            envs.step(handle, jnp.zeros(2, jnp.int32))
            return envs.step(handle, jnp.zeros(2, jnp.int32))[0]  # in either order: the handle is the same

        handle = twice(handle)
        assert envs.step(handle, jnp.zeros(2, jnp.int32))[1][4]["elapsed_step"].tolist() == [3, 3]


# --- errors ---------------------------------------------------------------------------------------


def test_wrong_arguments_are_refused_when_they_are_traced():
    with JaxPool("CartPole-v1", num_envs=3) as envs, JaxPool("Pendulum-v1", num_envs=3) as boxes:
        handle, _ = envs.reset(seed=0)
        with pytest.raises(ActionError, match=r"of shape \(3,\), got \(4,\)"):
            jax.jit(envs.step)(handle, jnp.zeros(4, jnp.int32))
        with pytest.raises(ActionError, match="of integers, got float32"):
            jax.jit(envs.send)(handle, jnp.zeros(3))
        with pytest.raises(ActionError, match="of float32, got int32"):
            jax.jit(boxes.step)(boxes.handle, jnp.zeros((3, 1), jnp.int32))
        with pytest.raises(EnvIdError, match="vector of at most 3 integers"):
            envs.step(handle, jnp.zeros(3, jnp.int32), jnp.zeros((1, 3), jnp.int32))
        with pytest.raises(CallOrderError, match="the handle first"):
            envs.step(jnp.zeros(3, jnp.int32), handle)
        assert envs.step(handle, jnp.zeros(3, jnp.int8))[1][4]["elapsed_step"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("actions", ["ab", {"a": 1}, None, [[0], [0, 1]]])
def test_actions_that_are_no_arrays_are_refused(actions):
    with JaxPool("CartPole-v1", num_envs=2) as envs:
        handle, _ = envs.reset(seed=0)
        with pytest.raises(ActionError, match="expected actions as an array of numbers, got"):
            envs.step(handle, actions)


@pytest.mark.parametrize("other", ["x", None, [0, 1], object()])
def test_actions_that_jax_cannot_convert_next_to_a_traced_value(other):
    with JaxPool("CartPole-v1", num_envs=2) as envs:
        handle, _ = envs.reset(seed=0)
        with pytest.raises(ActionError, match="expected actions as an array of numbers, got"):
            jax.jit(lambda handle, action: envs.step(handle, [action, other]))(handle, 0)


@pytest.mark.parametrize("large", [2**40, np.int64(2**40), np.array(2**40)])
def test_integers_that_int32_cannot_hold_next_to_a_traced_value(large):
    with JaxPool("CartPole-v1", num_envs=2) as envs:
        handle, _ = envs.reset(seed=0)
        with pytest.raises(ActionError, match="got integers that int32 cannot hold"):
            jax.jit(lambda handle, action: envs.step(handle, [action, large]))(handle, 0)


def test_integers_that_int32_cannot_hold_are_refused():
    """jax drops their upper half: 2**40 would become action 0 of env 0."""
    large = np.full(2, 2**40)
    with JaxPool("CartPole-v1", num_envs=2) as envs:
        handle, _ = envs.reset(seed=0)
        with pytest.raises(ActionError, match="got integers that int32 cannot hold"):
            envs.step(handle, large)
        with pytest.raises(EnvIdError, match="got integers that int32 cannot hold"):
            envs.step(handle, np.zeros(2, np.int32), large + np.arange(2))
        with jax.enable_x64(True):
            for unsigned in (large, large.astype(np.uint64)):
                with pytest.raises(PROGRAM_ERROR, match="ActionError"):
                    jax.block_until_ready(jax.jit(envs.step)(handle, unsigned))
            with pytest.raises(PROGRAM_ERROR, match="EnvIdError"):
                jax.block_until_ready(jax.jit(envs.step)(handle, np.zeros(2, np.int32), large + np.arange(2)))
        _, (_, _, _, _, info) = envs.step(envs.handle, np.zeros(2, np.int64))
        assert info["elapsed_step"].tolist() == [1, 1]


def test_a_traced_reset_is_refused():
    """It would run while it is traced, and never again."""
    with JaxPool("CartPole-v1", num_envs=2) as envs:
        for reset in (envs.reset, envs.async_reset):
            with pytest.raises(CallOrderError, match=r"reset\(\) expected to be called from Python"):
                jax.jit(reset)()


def test_xla_of_a_closed_pool():
    envs = envfleet.make("CartPole-v1", num_envs=2)
    envs.close()
    with pytest.raises(PoolClosedError):
        envs.xla()


@pytest.mark.parametrize("backend", ["native", "processes"])
def test_errors_end_the_program_with_the_pools_message(backend):
    env = "Faulty-v0" if backend == "native" else FaultyEnv

    def fails(program: Any, *arguments: Any) -> Any:
        return jax.block_until_ready(program(*arguments))

    with JaxPool(env, num_envs=3, backend=backend, num_workers=2) as envs:
        handle = envs.handle
        step = jax.jit(envs.step)
        with pytest.raises(PROGRAM_ERROR, match=r"CallOrderError: step\(\) expected envs that were reset"):
            fails(step, handle, jnp.zeros(3, jnp.int32))
        envs.reset(seed=0)
        with pytest.raises(PROGRAM_ERROR, match=r"ActionError: .*got 7 for env 1"):
            fails(step, handle, jnp.array([0, 7, 0]))
        with pytest.raises(PROGRAM_ERROR, match="EnvIdError"):
            fails(step, handle, jnp.zeros(2, jnp.int32), jnp.array([1, 1]))
        with pytest.raises(PROGRAM_ERROR, match=r"CallOrderError: recv\(\) has nothing in flight"):
            fails(jax.jit(envs.recv), handle)
        with pytest.raises(PROGRAM_ERROR, match=r"EnvError: env 1 raised in step\(\).*joint 3 exploded"):
            fails(step, handle, jnp.array([0, FaultyEnv.THROW, 0]))
        with pytest.raises(PROGRAM_ERROR, match="EnvError: env 2 raised"):
            fails(step, handle, jnp.array([0, FaultyEnv.THROW_NONSENSE]), jnp.array([0, 2]))
        # The pool goes on after a reset.
        handle, _ = envs.reset(seed=0)
        assert fails(step, handle, jnp.zeros(3, jnp.int32))[1][1].tolist() == [1, 1, 1]
    with pytest.raises(PROGRAM_ERROR, match="PoolClosedError: this pool is closed"):
        fails(step, handle, jnp.zeros(3, jnp.int32))


def test_an_asynchronous_batch_that_cannot_fill():
    with JaxPool("CartPole-v1", num_envs=4, batch_size=2) as envs:
        handle, _ = envs.reset(seed=0)
        with pytest.raises(PROGRAM_ERROR, match=r"CallOrderError: step\(\) expected at least batch_size=2"):
            jax.block_until_ready(envs.step(handle, jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32)))
        handle = jax.block_until_ready(envs.send(handle, jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32)))
        with pytest.raises(PROGRAM_ERROR, match=r"CallOrderError: recv\(\) expected at least batch_size=2"):
            jax.block_until_ready(envs.recv(handle))


@pytest.mark.parametrize("backend", ["native", "serial"])
def test_an_env_that_raises_is_rebuilt_on_request(backend):
    env = "Faulty-v0" if backend == "native" else FaultyEnv
    with JaxPool(env, num_envs=2, backend=backend, on_error="restart") as envs:
        handle, _ = envs.reset(seed=0)
        actions = jnp.array([[0, 0], [0, FaultyEnv.THROW], [0, 0]])
        _, (reward, truncated) = jax.jit(
            lambda handle: lax.scan(
                lambda handle, own: (lambda made: (made[0], (made[1][1], made[1][3])))(envs.step(handle, own)),
                handle,
                actions,
            )
        )(handle)
        assert reward[:, 0].tolist() == [1, 2, 3]
        assert truncated.tolist() == [[False, False], [False, True], [False, False]]


def test_another_pools_handle_is_refused():
    with JaxPool("CartPole-v1", num_envs=2) as envs, JaxPool("CartPole-v1", num_envs=2) as others:
        envs.reset(seed=0)
        handle, _ = others.reset(seed=0)
        with pytest.raises(PROGRAM_ERROR, match="this pool's own handle, got another pool's"):
            jax.block_until_ready(envs.step(handle, jnp.zeros(2, jnp.int32)))


def test_a_recv_of_fewer_rows_than_were_traced():
    with JaxPool("CartPole-v1", num_envs=3) as envs:
        handle, _ = envs.reset(seed=0)
        handle = envs.send(handle, jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32))
        with pytest.raises(PROGRAM_ERROR, match="expects that all envs were sent"):
            jax.block_until_ready(envs.recv(handle))


@pytest.mark.parametrize("backend", ["native", "serial"])
def test_a_program_outlives_its_pool(backend):
    envs = JaxPool("CartPole-v1", num_envs=2, backend=backend)
    handle, _ = envs.reset(seed=0)
    program = jax.jit(envs.step).lower(handle, jnp.zeros(2, jnp.int32)).compile()
    program(handle, jnp.zeros(2, jnp.int32))
    del envs
    jax.clear_caches()  # which hold the traced functions
    gc.collect()
    with pytest.raises(PROGRAM_ERROR, match="the pool of this computation is gone"):
        jax.block_until_ready(program(handle, jnp.zeros(2, jnp.int32)))


@pytest.mark.parametrize("backend", ["native", "threads"])
def test_a_pool_is_closed_while_a_program_steps_it(backend):
    envs = JaxPool("CartPole-v1", num_envs=2, backend=backend)
    handle, _ = envs.reset(seed=0)

    @jax.jit
    def endless(handle: Any) -> Any:
        return lax.while_loop(
            lambda carry: carry[1] >= 0,
            lambda carry: (lambda made: (made[0], made[1][4]["elapsed_step"].sum()))(
                envs.step(carry[0], jnp.zeros(2, jnp.int32))
            ),
            (handle, jnp.int32(0)),
        )

    errors: list[BaseException] = []

    def run() -> None:
        try:
            jax.block_until_ready(endless(handle))
        except PROGRAM_ERROR as error:
            errors.append(error)

    endless.lower(handle).compile()
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    envs.close()  # before its first step, or in the middle of one
    thread.join(60)
    assert "PoolClosedError" in str(errors[0])


# --- construction ---------------------------------------------------------------------------------


def test_what_cannot_be_traced_is_refused_early():
    class TextEnv(NestedEnv):
        observation_space = spaces.Text(4)

    with pytest.raises(ConfigError, match="observations of numbers, got Text"):
        JaxPool(TextEnv, backend="serial")
    with envfleet.make_pool("CartPole-v1") as pool, pytest.raises(ConfigError, match="without further options"):
        JaxPool(pool, num_envs=2)


def test_without_a_compiler_the_error_says_so(monkeypatch, tmp_path, device):
    if device == "gpu":
        pytest.skip("the same on every device")
    (tmp_path / "handlers.cc").write_text("")
    monkeypatch.setattr(xla_library, "installed_folder", lambda name: tmp_path)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CompileError, match=r"handlers for XLA could not be built.*CXX expected a compiler"):
        xla_library._load()


def test_headers_without_a_version(tmp_path):
    with pytest.raises(CompileError, match="expected XLA's headers"):
        xla_library.interface_version(tmp_path)
    header = tmp_path / "xla" / "ffi" / "api" / "c_api.h"
    header.parent.mkdir(parents=True)
    header.write_text("")
    with pytest.raises(CompileError, match="expected the version of XLA's interface"):
        xla_library.interface_version(tmp_path)
    assert issubclass(MissingExtraError, ImportError)


# --- long -----------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["native", "threads"])
def test_many_batches_bit_for_bit(backend):
    """A checksum over all rows of a long program, against the same pool stepped from Python."""
    num_batches = int(os.environ.get("ENVFLEET_TEST_SCALE", "1")) * (200_000 if backend == "native" else 10_000)
    num_envs = 64

    def mixed(total: Any, obs: Any, module: Any) -> Any:
        bits = obs.view(np.int32) if module is np else lax.bitcast_convert_type(obs, jnp.int32)
        return total * np.int32(31) + module.sum(bits, dtype=np.int32)

    with JaxPool("CartPole-v1", num_envs=num_envs, backend=backend, num_workers=2) as envs:
        handle, (obs, _) = envs.reset(seed=1)

        @jax.jit
        def run(handle: Any, obs: Any) -> Any:
            def body(_: Any, carry: Any) -> Any:
                handle, obs, total = carry
                handle, (obs, *_) = envs.step(handle, cartpole_actions(obs))
                return handle, obs, mixed(total, obs, jnp)

            return lax.fori_loop(0, num_batches, body, (handle, obs, jnp.int32(0)))[2]

        found = int(run(handle, obs))
    with envfleet.make("CartPole-v1", num_envs=num_envs, backend=backend, num_workers=2) as same:
        obs, _ = same.reset(seed=1)
        total = np.int32(0)
        with np.errstate(over="ignore"):
            for _ in range(num_batches):
                obs = same.step(cartpole_actions(obs))[0]
                total = mixed(total, obs, np)
    assert found == total


class NamesakeEnv(LargeEnv):
    """Declares an info under the name of one of the pool's."""

    info_space = spaces.Dict({"env_id": spaces.Box(0, 100, (), np.int64)})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"env_id": 7}


def test_ids_of_the_pool_take_precedence():
    with JaxPool(NamesakeEnv, num_envs=3, backend="serial") as envs:
        handle, _ = envs.reset(seed=0)
        space = envs.pool.spec.action_space
        actions = jnp.asarray(np.stack([space.sample() for _ in range(3)]))
        _, (*_, info) = jax.jit(envs.step)(handle, actions)
        assert info["env_id"].tolist() == [0, 1, 2]


class HalfInfos(gymnasium.Env[Any, Any]):
    """A float16 info and boolean actions."""

    observation_space = spaces.Box(0, 1, (2,), np.bool_)
    action_space = spaces.Box(0, 1, (2,), np.bool_)
    info_space = spaces.Dict({"half": spaces.Box(-1, 1, (2,), np.float16)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, bool), {"half": np.ones(2, np.float16)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.asarray(action), 1.0, False, False, {"half": np.ones(2, np.float16)}


def test_half_infos_and_boolean_actions():
    with JaxPool(HalfInfos, num_envs=2, backend="serial") as envs:
        handle, _ = envs.reset()
        actions = jnp.array([[True, False], [False, True]])
        _, (obs, *_, info) = jax.jit(envs.step)(handle, actions)
        assert np.array_equal(obs, actions)
        assert info["half"].tolist() == [[1, 1], [1, 1]]


class InterruptingEnv(HalfInfos):
    """Presses Ctrl-C in its tenth step."""

    _count = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._count += 1
        if self._count == 10:
            os.kill(os.getpid(), signal.SIGINT)
        return super().step(action)


def test_ctrl_c_in_a_program():
    """A KeyboardInterrupt reaches the caller, also if it handles the exception that jax raises for it."""
    with JaxPool(InterruptingEnv, num_envs=1, backend="serial") as envs:
        handle, _ = envs.reset()
        actions = jnp.zeros((1, 2), bool)
        run = jax.jit(lambda handle: jax.lax.fori_loop(0, 1000, lambda _, h: envs.step(h, actions)[0], handle))

        def try_again() -> None:
            for _ in range(3):
                try:
                    jax.block_until_ready(run(handle))
                except Exception:
                    time.sleep(0.01)

        with pytest.raises(KeyboardInterrupt):
            try_again()
        assert envs.pool.local_envs()[0]._count < 100
