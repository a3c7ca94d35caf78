"""What EnvPool's pools return: infos with attributes, array specs, asynchronous resets, the dm State."""

from __future__ import annotations

import copy
import importlib.util
import pickle

import gymnasium
import numpy as np
import pytest
from compat_probes import LivesEnv
from gymnasium import spaces

import envfleet
from envfleet.compat import envpool


def needs(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


class DeclaredEnv(gymnasium.Env):
    """Infos on some rows only, of which it declares two; observations in parts."""

    observation_space = spaces.Dict(
        {
            "arm": spaces.Dict({"end-effector": spaces.Box(-1, 1, (2,), np.float32)}),
            "class": spaces.Discrete(3),
            "word": spaces.Text(4),
        }
    )
    action_space = spaces.Discrete(2)
    info_space = spaces.Dict(
        {"hits": spaces.Box(0, 9, (2,), np.int64), "score": spaces.Box(-np.inf, np.inf, (), np.float32)}
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._obs(), {}

    def step(self, action):
        info = {"score": 1.5, "extra": 7} if action else {"hits": np.array([1, 2])}
        return self._obs(), 0.0, False, False, info

    def _obs(self):
        return {"arm": {"end-effector": np.zeros(2, np.float32)}, "class": 1, "word": "ab"}


def test_infos_have_their_keys_as_attributes():
    env = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=3)
    _, info = env.reset()
    assert isinstance(info, dict)
    assert info.env_id is info["env_id"]
    assert info.players.env_id is info["players"]["env_id"]
    assert "players" in dir(info)
    with pytest.raises(AttributeError, match="no key 'lives'; it has env_id, players, elapsed_step"):
        _ = info.lives
    for other in (copy.deepcopy(info), pickle.loads(pickle.dumps(info))):
        assert other.players.env_id.tolist() == [0, 1, 2]
    assert {**info}.keys() == info.keys()


def test_declared_infos_are_always_there_and_have_no_masks():
    env = envpool.make(DeclaredEnv, env_type="gymnasium", num_envs=2, backend="serial")
    _, info = env.reset()
    assert info.score.tolist() == [0, 0]
    assert info.hits.tolist() == [[0, 0], [0, 0]]
    info = env.step(np.array([1, 0]))[-1]
    assert (info.score.dtype, info.score.tolist()) == (np.float32, [1.5, 0])
    assert info.hits.tolist() == [[0, 0], [1, 2]]
    assert info["_extra"].tolist() == [True, False]  # nobody declared it: only the mask tells 0 from no value
    assert not {"_score", "_hits"} & set(info)
    env.close()


@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
def test_python_envs_declare_infos_on_every_backend(backend):
    spec = envfleet.make_spec(DeclaredEnv, backend=backend)
    assert [array.name for array in spec.info_arrays] == ["hits", "score"]
    with envfleet.make_pool(DeclaredEnv, num_envs=2, backend=backend) as pool:
        assert pool.spec.info_arrays == spec.info_arrays


class WrongEnv(LivesEnv):
    info_space = spaces.Discrete(2)


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_an_info_space_must_be_a_dict(backend):
    with pytest.raises(envfleet.ConfigError, match=r"info_space of WrongEnv expected a gymnasium\.spaces\.Dict"):
        envfleet.make_pool(WrongEnv, num_envs=2, backend=backend)


@pytest.mark.parametrize("env_type", ["gym", "gymnasium", "dm"])
def test_an_asynchronous_reset_returns_batch_size_rows(env_type):
    if env_type == "dm":
        pytest.importorskip("dm_env")
    env = envpool.make("CartPole-v1", env_type=env_type, num_envs=6, batch_size=2, gym_reset_return_info=True, seed=0)

    def ids_of(rows):
        return (rows.observation if env_type == "dm" else rows[-1]).env_id

    for _ in range(3):  # what is in flight is dropped by the next reset
        seen = [ids_of(env.reset())]
        assert len(seen[0]) == 2
        seen += [ids_of(env.recv(reset=True)) for _ in range(2)]
        assert sorted(np.concatenate(seen).tolist()) == list(range(6))
        rows = env.step(np.zeros(2, dtype=int), seen[0])
        assert len(ids_of(rows)) == 2
    env.close()


def test_recv_of_a_reset():
    env = envpool.make("CartPole-v1", env_type="gym", num_envs=2)
    env.async_reset()
    assert env.recv(True, False).shape == (2, 4)
    env.async_reset()
    _, info = env.recv(reset=True, return_info=True)
    assert info.env_id.tolist() == [0, 1]
    env.async_reset()
    assert len(env.recv()) == 4
    env = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=2)
    env.async_reset()
    assert len(env.recv(reset=True, return_info=False)) == 2


def test_whole_floats_are_actions_and_others_are_not():
    env = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=2)
    env.reset()
    env.step(np.ones(2))
    with pytest.raises(envfleet.ActionError):
        env.step(np.full(2, 0.5))


def test_array_specs():
    spec = envpool.make_spec("Taxi-v4", num_envs=3)
    state = spec.state_array_spec
    common = ["info:env_id", "info:players.env_id", "elapsed_step", "done", "reward", "discount", "step_type", "trunc"]
    assert list(state) == [*common, "obs", "info:prob", "info:action_mask"]
    assert (state["reward"].dtype, state["reward"].shape) == (np.float32, [-1])
    assert (state["info:action_mask"].shape, state["info:action_mask"].maximum) == ([6], 1)
    assert (state["obs"].minimum, state["obs"].maximum, state["obs"].shape) == (0, 499, [-1])
    actions = spec.action_array_spec
    assert list(actions) == ["env_id", "players.env_id", "action"]
    assert (actions["action"].dtype, actions["action"].shape, actions["action"].maximum) == (np.int32, [-1], 5)
    assert repr(actions["action"]).startswith("ArraySpec(shape=[-1]")
    cart = envpool.make_spec("CartPole-v1").state_array_spec["obs"]
    assert cart.maximum.shape == (4,)
    torque = envpool.make_spec("Pendulum-v1").action_array_spec["action"]
    assert (torque.shape, torque.minimum, torque.maximum) == ([-1, 1], -2.0, 2.0)


@needs("ale_py", "dm_env")
def test_array_specs_of_an_atari_game():
    import dm_env

    spec = envpool.make_spec("Breakout-v5")
    assert spec.state_array_spec["info:ram"].shape == [128]
    assert spec.state_array_spec["info:lives"].dtype == np.int32
    assert spec.observation_spec().obs.maximum == 255
    assert isinstance(spec.action_spec(), dm_env.specs.DiscreteArray)
    assert spec.observation_spec().ram.dtype == np.uint8


@needs("minigrid")
def test_the_time_limit_of_a_minigrid():
    assert envpool.make_spec("MiniGrid-Empty-5x5-v0").config.max_episode_steps == 100
    assert envpool.make_spec("MiniGrid-Empty-5x5-v0", max_episode_steps=7).config.max_episode_steps == 7


DM_TASKS = {
    "CartPole-v1": "dm_env",
    "Blackjack-v1": "dm_env",
    "Taxi-v4": "dm_env",
    "Pong-v5": "ale_py",
    "Basic-v1": "vizdoom",
    "Hopper-v4": "mujoco",
    "HalfCheetah-v4": "mujoco",
    "MiniGrid-Empty-5x5-v0": "minigrid",
    "walker-run": "dm_control",
}


@needs("dm_env", "tree")
@pytest.mark.parametrize("task_id", [*DM_TASKS, DeclaredEnv], ids=lambda task: str(getattr(task, "__name__", task)))
def test_the_dm_state_has_the_structure_of_its_spec(task_id):
    import tree

    package = DM_TASKS.get(task_id) if isinstance(task_id, str) else None
    if package is not None:
        pytest.importorskip(package)
    env = envpool.make_dm(task_id, num_envs=2)
    spec = env.observation_spec()
    rows = [env.reset(), env.step(np.stack([env.action_space.sample()] * 2)), env.reset(np.array([1]))]
    for time_step in rows:
        tree.assert_same_structure(spec, time_step.observation)
        assert not [name for name in time_step.observation._fields if name.startswith("_")]
        for want, got in zip(tree.flatten(spec), tree.flatten(time_step.observation), strict=True):
            assert got.shape[1:] == want.shape
            assert got.dtype == want.dtype or got.dtype == object
    tree.assert_same_structure(spec, envpool.make_spec(task_id).observation_spec())
    tree.assert_same_structure(spec, env.spec.observation_spec())
    env.close()


@needs("dm_env")
@pytest.mark.parametrize("env_type", ["gym", "gymnasium", "dm"])
def test_blackjack_has_one_array(env_type):
    env = envpool.make("Blackjack-v1", env_type=env_type, num_envs=3, seed=5, gym_reset_return_info=True)
    twin = envfleet.make("Blackjack-v1", num_envs=3, seed=5)
    assert env.observation_space == spaces.Box(0, 31, (3,), np.int32)
    assert env.spec.state_array_spec["obs"].shape == [3]
    hit = np.ones(3, np.int32)
    for ours, theirs in ((env.reset(), twin.reset()), (env.step(hit), twin.step(hit))):
        obs = ours.observation.obs if env_type == "dm" else ours[0]
        assert obs.dtype == np.int32
        np.testing.assert_array_equal(obs, np.stack(theirs[0], axis=-1))
    for own in (env, twin):
        own.close()


def test_fields_of_keys_that_are_no_names():
    env = envpool.make_dm(DeclaredEnv, num_envs=2, backend="serial")
    observation = env.step(np.array([1, 0])).observation
    assert observation._fields == ("env_id", "players", "elapsed_step", "hits", "score", "arm", "field_class", "word")
    assert observation.arm.end_effector.shape == (2, 2)
    assert observation.score.tolist() == [0, 0]  # the step before any reset is a reset
    assert env.step(np.array([1, 0])).observation.score.tolist() == [1.5, 0]
    env.close()
