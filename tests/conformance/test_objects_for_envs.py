"""Arguments and actions that executors hand to Python envs as objects, unchanged; native envs refuse them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from support.subjects import PYTHON_BACKENDS

import envfleet
from envfleet import Batch, CallOrderError, ConfigError, EnvError
from envfleet.core.backends import local_backends


class EchoEnv(gymnasium.Env[Any, Any]):
    """Returns in its infos what it was called with."""

    observation_space = spaces.Discrete(1000)
    action_space: spaces.Space[Any] = spaces.Discrete(3)

    def __init__(self) -> None:
        self.count = 0

    def reset(self, **arguments: Any) -> Any:
        if "raise" in arguments:
            raise LookupError(arguments["raise"])
        self.count = 0
        return 0, {"arguments": [arguments]}  # a list: a dict would become columns

    def step(self, action: Any) -> Any:
        if action == "raise":
            raise LookupError("asked to")
        self.count += 1
        return self.count, 1.0, action == "end", False, {"action": [action]}


class NestedEchoEnv(EchoEnv):
    """The same with an action space of several columns."""

    action_space = spaces.Dict(move=spaces.Discrete(3), say=spaces.Text(5))


def arguments_in(batch: Batch) -> list[Any]:
    return [None if own is None else own[0] for own in batch.info["arguments"]]


@pytest.fixture(params=PYTHON_BACKENDS)
def make(request):
    pools = []

    def make(env=EchoEnv, num_envs=3, **options):
        pools.append(envfleet.make_pool(env, num_envs=num_envs, backend=request.param, **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def test_one_table_names_every_python_backend():
    assert tuple(backend.name for backend in local_backends() if backend.runs_python_envs) == PYTHON_BACKENDS


def test_each_env_gets_its_own_reset_arguments_and_nothing_else(make):
    pool = make()
    arguments = [{"seed": None, "options": None}, {}, {"seed": 5, "level": {"depth": (1, 2)}}]
    assert arguments_in(pool.reset(arguments=arguments)) == arguments
    some = pool.reset([2, 0], arguments=[{"a": 1}, {"b": 2}])
    assert arguments_in(some) == [{"a": 1}, {"b": 2}]
    # They hold for one reset.
    assert arguments_in(pool.reset()) == [{}] * 3
    pool.async_reset(arguments=arguments)
    assert arguments_in(pool.recv()) == arguments


def test_reset_arguments_take_the_place_of_the_seed_of_the_pool(make):
    pool = make()
    first = pool.reset(arguments=[{}] * 3)
    assert arguments_in(first) == [{}] * 3
    assert arguments_in(pool.reset()) == [{}] * 3


def test_envs_that_are_not_to_be_seeded_get_the_seeds_of_reset_alone(make):
    pool = make(seed_envs=False)
    assert arguments_in(pool.reset()) == [{}] * 3
    assert arguments_in(pool.reset(seed=[3, None, 4])) == [{"seed": 3}, {}, {"seed": 4}]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda pool: pool.reset(arguments=[{}] * 2), "expected 3 mappings of reset arguments.*got 2"),
        (lambda pool: pool.reset([0], arguments=[{}] * 3), "expected 1 mapping.*got 3"),
        (lambda pool: pool.reset(arguments=[{}, {}, None]), "expected a mapping.*got NoneType for env 2"),
        (lambda pool: pool.reset(arguments=[{}] * 3, seed=1), "arguments or seed and options, got both"),
        (lambda pool: pool.async_reset(arguments=[{}] * 3, options={"a": 1}), "arguments or seed and options"),
    ],
)
def test_wrong_reset_arguments_reset_no_env(make, call, match):
    pool = make()
    pool.reset()
    pool.step([1, 1, 1])
    with pytest.raises(ConfigError, match=match):
        call(pool)
    assert pool.step([1, 1, 1]).obs.tolist() == [2, 2, 2]


def test_an_env_that_refuses_its_arguments_is_named(make):
    pool = make()
    with pytest.raises(EnvError, match=r"env 1 .*LookupError") as raised:
        pool.reset(arguments=[{}, {"raise": "so"}, {}])
    assert arguments_in(raised.value.batch) == [{}, None, {}]
    assert pool.reset().obs.tolist() == [0, 0, 0]


@pytest.mark.parametrize("env", [EchoEnv, NestedEchoEnv])
def test_object_actions_reach_the_envs_as_they_are(make, env):
    pool = make(env)
    pool.reset()
    actions: list[Any] = [2.5, "text", {"any": [1, None]}]
    assert [own[0] for own in pool.step_objects(actions).info["action"]] == actions
    assert [own[0] for own in pool.step_objects(["x", (1,)], [2, 0]).info["action"]] == ["x", (1,)]
    pool.send_objects(actions)
    assert [own[0] for own in pool.recv().info["action"]] == actions


def test_a_plain_step_after_object_actions_uses_its_own_actions(make):
    pool = make()
    pool.reset(options={"a": 1})
    pool.step_objects(["x"] * 3)
    assert [own[0] for own in pool.step([0, 1, 2]).info["action"]] == [0, 1, 2]


def test_object_actions_follow_the_order_of_calls(make):
    pool = make()
    with pytest.raises(CallOrderError, match="reset"):
        pool.step_objects(["x"] * 3)
    pool.reset()
    with pytest.raises(envfleet.ActionError, match="expected 3 actions, one per env, got 2"):
        pool.step_objects(["x"] * 2)
    with pytest.raises(envfleet.EnvIdError):
        pool.step_objects(["x"], [3])
    pool.send_objects(["x"] * 3)
    with pytest.raises(CallOrderError):
        pool.send_objects(["x"] * 3)
    assert pool.recv().obs.tolist() == [1, 1, 1]
    with pytest.raises(EnvError, match=r"env 2 .*asked to"):
        pool.step_objects(["x", "x", "raise"])


def test_object_actions_on_an_asynchronous_pool(make):
    pool = make(num_envs=4, batch_size=2)
    pool.async_reset()
    batch = pool.recv()
    for _ in range(6):
        pool.send_objects([f"to {env_id}" for env_id in batch.env_id], batch.env_id)
        batch = pool.recv()
        told = batch.info.get("action")
        if told is not None:
            for env_id, own in zip(batch.env_id, told, strict=True):
                assert own is None or own[0] == f"to {env_id}"


def test_marked_envs_are_stepped_as_they_are(make):
    pool = make(autoreset_mode="disabled")
    pool.mark_running()
    assert pool.step_objects(["x", "x", "end"]).terminated.tolist() == [False, False, True]
    with pytest.raises(CallOrderError):
        pool.step_objects(["x"] * 3)
    pool.mark_running([2])
    assert pool.step_objects(["x"] * 3).obs.tolist() == [2, 2, 2]
    with pytest.raises(EnvError):
        pool.step_objects(["raise", "x", "x"])
    pool.mark_running([0])
    assert pool.step_objects(["x"] * 3).obs.tolist() == [3, 4, 4]


def _count_plus(env: Any, number: int, *, times: int = 1) -> Any:
    return (env.unwrapped.count + number) * times


def test_functions_are_called_with_each_env(make):
    pool = make()
    pool.reset()
    pool.step([1, 1], [0, 1])
    assert pool.apply(_count_plus, 10, times=2) == (22, 22, 20)
    assert pool.apply(_count_plus, 10, env_ids=[2]) == (10,)
    assert pool.apply(setattr, "label", "here", env_ids=[1]) == (None,)
    assert pool.get_attr("label", [1]) == ("here",)
    with pytest.raises(EnvError, match=r"env 0 .*TypeError"):
        pool.apply(_count_plus)


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_envs_of_this_process_can_be_had(backend):
    with envfleet.make_pool(EchoEnv, num_envs=2, num_workers=2, backend=backend) as pool:
        envs = pool.local_envs()
        pool.reset()
        pool.step([1, 1])
        assert [env.unwrapped.count for env in envs] == [1, 1]


def test_envs_of_other_processes_cannot_be_had():
    with (
        envfleet.make_pool(EchoEnv, num_envs=2, backend="processes") as pool,
        pytest.raises(ConfigError, match=r"expected envs of this process.*call.*get_attr"),
    ):
        pool.local_envs()


def test_native_envs_take_no_objects():
    with envfleet.make_pool("CartPole-v1", num_envs=2, backend="native") as pool:
        pool.reset(seed=0)
        before = pool.observe()
        for call, what in (
            (lambda: pool.reset(arguments=[{}] * 2), "reset arguments per env"),
            (lambda: pool.async_reset(arguments=[{}] * 2), "reset arguments per env"),
            (lambda: pool.step_objects([0, 0]), "actions as Python objects"),
            (lambda: pool.send_objects([0, 0]), "actions as Python objects"),
            (lambda: pool.mark_running(), "envs that are stepped without a reset"),
            (lambda: pool.apply(_count_plus, 1), "functions of an env"),
            (lambda: pool.local_envs(), "expected envs of this process"),
        ):
            with pytest.raises(ConfigError, match=what):
                call()
        np.testing.assert_array_equal(pool.observe(), before)
