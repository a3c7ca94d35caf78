"""env-wrappers' samplers: their imports, signatures and example, and what was broken in them."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from itertools import islice

import gymnasium
import numpy as np
import pytest

import envfleet
from envfleet.compat.env_wrappers import DummyRunner, SubprocRunner

CLASSES = [DummyRunner, SubprocRunner]


def rand_traj_gen(env_id, seed, limit=None, **context_args):
    """As the original documents it: the first request is not looked at, later ones are limits."""
    env = gymnasium.make(env_id)
    env.action_space.seed(seed)
    yield "ready"
    while True:
        obs, _ = env.reset(seed=seed)
        trajectory = defaultdict(list, obs=[obs])
        for _ in range(limit or 1_000):
            obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            trajectory["obs"].append(obs)
            trajectory["r"].append(reward)
            if terminated or truncated:
                break
        new_limit = yield {key: np.stack(rows, axis=0) for key, rows in trajectory.items()}
        if new_limit is not None:
            limit = new_limit


@pytest.mark.parametrize("name", ["SubprocRunner", "DummyRunner"])
def test_the_originals_imports(env_wrappers_alias, name):
    from env_wrappers.samplers.dummy_runner import DummyRunner as Dummy
    from env_wrappers.samplers.subproc_runner import SubprocRunner as Subproc

    runner_class = {"SubprocRunner": Subproc, "DummyRunner": Dummy}[name]
    runner = runner_class([partial(rand_traj_gen, env_id="Pendulum-v1", seed=100 * rank) for rank in range(3)])
    for trajectory in islice(runner.trajs(), 4):
        assert trajectory["obs"].shape == (201, 3)
    # The documented generator takes what it is given, from its second trajectory on.
    *_, last = islice(runner.trajs(limit=5), 9)
    assert last["r"].shape == (5,)
    del runner


def echo(index, *args, **kwargs):
    request = yield "ready"
    while True:
        request = yield index, request, args, kwargs


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("context", [None, "spawn", "fork"])
def test_the_signature(cls, context):
    runner = cls([partial(echo, rank) for rank in range(2)], 1, 2, context=context, context_fn=None, color="red")
    index, request, args, kwargs = next(runner.trajs())
    assert (index in (0, 1), request, args, kwargs) == (True, None, (1, 2), {"color": "red"})
    assert next(runner.trajs("A"))[1] == ("A",)
    assert next(runner.trajs(limit=7))[1] == {"limit": 7}
    assert isinstance(next(runner.trajs(limit=7))[1], dict)
    assert next(runner.trajs("B", limit=7))[1] == ["B", {"limit": 7}]
    runner.close()
    runner.close()


@pytest.mark.parametrize("cls", CLASSES)
def test_context_fn_gets_a_manager(cls):
    runner = cls([partial(echo, 0)], context_fn=lambda manager: {"shared": manager.dict(a=1)}, other=2)
    _, _, _, kwargs = next(runner.trajs())
    assert dict(kwargs["shared"]) == {"a": 1}
    assert kwargs["other"] == 2
    runner.close()


def test_dummy_goes_round_robin():
    runner = DummyRunner([partial(echo, rank) for rank in range(3)])
    assert [index for index, *_ in islice(runner.trajs(), 7)] == [0, 1, 2, 0, 1, 2, 0]
    runner.close()


def failing(index):
    yield "ready"
    yield 1
    raise ValueError("in the worker")


@pytest.mark.parametrize("cls", CLASSES)
def test_errors_are_no_eof_errors(cls):
    runner = cls([partial(failing, 0)])
    stream = runner.trajs()
    assert next(stream) == 1
    with pytest.raises(envfleet.EnvError, match="in the worker"):
        next(stream)
    runner.close()


def test_a_named_request_stands_for_one_number_only(env_wrappers_alias):
    from envfleet.compat.env_wrappers.samplers import NamedRequest

    assert list(range(NamedRequest(limit=3))) == [0, 1, 2]
    with pytest.raises(TypeError, match="one named argument"):
        range(NamedRequest(limit=3, other=4))
    with pytest.raises(AttributeError):
        range(NamedRequest(limit="3"))


def unannounced(index, length):
    """As env-wrappers' own tests have them: the first yield is a trajectory already."""
    try:
        request = None
        for number in range(length):
            request = yield index, number, request
    finally:
        CLOSED.append(index)


CLOSED: list[int] = []


@pytest.mark.parametrize("cls", CLASSES)
def test_a_generator_that_does_not_say_ready(cls):
    runner = cls([partial(unannounced, 7, 3)])
    assert list(islice(runner.trajs("A"), 2)) == [(7, 0, None), (7, 1, ("A",))]
    runner.close()
    if cls is DummyRunner:
        assert CLOSED == [7]


def test_paths(env_wrappers_alias):
    from env_wrappers.samplers.path_gen import goal_preproc, path_gen

    runner = DummyRunner([partial(path_gen, "CartPole-v1", 100 * rank) for rank in range(2)])
    path = next(runner.trajs())
    assert path["obs"].shape[1:] == (4,)
    assert len(path["obs"]) == len(path["r"]) + 1 == len(path["a"]) + 1 == len(path["info"]) + 1
    assert path["r"].shape == path["done"].shape == (10,)
    assert next(runner.trajs(limit=3))["r"].shape == (3,)
    ended = next(runner.trajs(limit=500, policy=lambda obs: 0))
    assert ended["success"] is True
    assert ended["done"].tolist() == [False] * (len(ended["r"]) - 1) + [True]
    runner.close()
    assert goal_preproc(observation=1, achieved_goal=2, desired_goal=3, more=4) == (1, 2, 3)
    paths = path_gen("CartPole-v1", 5, policy=lambda value: int(value > 0), preproc=lambda obs: obs[2])
    assert next(paths) == "ready"
    first = gymnasium.make("CartPole-v1").reset(seed=5)[0]
    np.testing.assert_array_equal(paths.send(4)["obs"][0], first)
    paths.close()


class Goals(gymnasium.Env):
    """A goal env: Dict observations."""

    observation_space = gymnasium.spaces.Dict(
        {name: gymnasium.spaces.Box(-1, 1, (1,)) for name in ("observation", "achieved_goal", "desired_goal")}
    )
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), float(action), False, False, {}


def test_paths_of_a_goal_env():
    from envfleet.compat.env_wrappers.samplers import goal_preproc, path_gen

    paths = path_gen(Goals, 0, policy=lambda obs, achieved, desired: 2, preproc=goal_preproc, collect=["observation"])
    assert next(paths) == "ready"
    path = paths.send(None)
    assert path.keys() == {"observation", "r", "a", "done", "info"}
    assert path["a"].tolist() == [2] * 10
