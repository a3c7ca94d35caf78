"""The Gymnasium view: a true VectorEnv, checked against Gymnasium's own SyncVectorEnv."""

from __future__ import annotations

import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import vector as wrappers

import envfleet

MODES = list(AutoresetMode)
IDS = ["CartPole-v1", "Taxi-v4", "Blackjack-v1", "FrozenLake-v1", "Pendulum-v1"]


def gymnasium_sync(env_id: str, num_envs: int, mode: AutoresetMode, **kwargs) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: gymnasium.make(env_id, **kwargs)] * num_envs, autoreset_mode=mode)


def assert_same(ours, theirs, path=""):
    """Equal up to float32, whatever the nesting; object arrays element by element."""
    if isinstance(theirs, dict):
        for key in theirs:
            assert_same(ours[key], theirs[key], f"{path}/{key}")
    elif isinstance(theirs, tuple):
        for i, (own, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(own, other, f"{path}/{i}")
    elif isinstance(theirs, np.ndarray) and theirs.dtype == object:
        for i, (own, other) in enumerate(zip(ours, theirs, strict=True)):
            if other is None:
                assert own is None, path
            else:
                assert_same(own, other, f"{path}/{i}")
    else:
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6, err_msg=path)


def test_it_is_a_vector_env_with_gymnasiums_spaces():
    for env_id in IDS:
        ours = envfleet.make(env_id, num_envs=3)
        theirs = gymnasium_sync(env_id, 3, AutoresetMode.NEXT_STEP)
        assert isinstance(ours, VectorEnv)
        assert ours.single_observation_space == theirs.single_observation_space
        assert ours.single_action_space == theirs.single_action_space
        assert ours.observation_space == theirs.observation_space
        assert ours.action_space == theirs.action_space
        assert ours.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        assert ours.autoreset_mode is AutoresetMode.NEXT_STEP
        assert ours.spec.id == env_id
        assert ours.unwrapped is ours
        assert repr(ours) == f"GymnasiumPool({env_id}, num_envs=3)"
        theirs.close()


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_everything_a_step_returns_equals_sync_vector_env(env_id, mode):
    """Observations, rewards, flags and infos with their masks, final_obs and final_info included."""
    num_envs = 4
    ours = envfleet.make(env_id, num_envs=num_envs, autoreset_mode=mode)
    theirs = gymnasium_sync(env_id, num_envs, mode)
    theirs.action_space.seed(1)
    assert_same(ours.reset(seed=3), theirs.reset(seed=3))
    num_ends = 0
    for _ in range(250):
        actions = theirs.action_space.sample()
        got, want = ours.step(actions), theirs.step(actions)
        for own, other, dtype in zip(got[1:4], want[1:4], (np.float64, np.bool_, np.bool_), strict=True):
            assert own.dtype == other.dtype == dtype
        theirs_info = {key: value for key, value in want[4].items() if key.lstrip("_") != "prob"}
        assert_same(got[:4], want[:4])
        assert_same(got[4], theirs_info)
        ends = got[2] | got[3]
        num_ends += int(ends.sum())
        if mode is AutoresetMode.DISABLED and ends.any():
            options = {"reset_mask": ends}
            assert_same(ours.reset(options=options), theirs.reset(options=dict(options)))
            assert list(options) == ["reset_mask"]  # the caller's dict is left as it was
    assert num_ends > 2
    ours.close()
    theirs.close()


def test_masks_of_keys_that_resets_do_not_have():
    envs = envfleet.make("Faulty-v0", num_envs=2)
    _, info = envs.reset(seed=0)
    assert "last_action" not in info
    assert "_last_action" not in info
    assert info["_total"].tolist() == [True, True]
    *_, info = envs.step([4, 0])
    assert info["_last_action"].tolist() == [True, True]
    assert info["last_action"].tolist() == [4, 0]
    *_, info = envs.step([0, 0])
    assert info["_last_action"].tolist() == [False, True]


def test_errors_of_restarted_envs_are_in_the_info():
    envs = envfleet.make("Faulty-v0", num_envs=2, on_error="restart")
    envs.reset(seed=0)
    _, _, _, truncated, info = envs.step([0, 1])
    assert truncated.tolist() == [False, True]
    assert info["_error"].tolist() == [False, True]
    assert "joint 3 exploded" in info["error"][1]


def test_reset_of_some_envs():
    envs = envfleet.make("CartPole-v1", num_envs=4)
    first, _ = envs.reset(seed=0)
    envs.step([0, 0, 1, 1])
    obs, info = envs.reset(np.array([3, 1]), seed=0)
    assert info["env_id"].tolist() == [3, 1]
    np.testing.assert_array_equal(obs, first[[3, 1]])


@pytest.mark.parametrize(
    "wrap",
    [
        wrappers.RecordEpisodeStatistics,
        wrappers.NormalizeObservation,
        wrappers.NormalizeReward,
        lambda envs: wrappers.ClipReward(envs, 0.0, 0.5),
        lambda envs: wrappers.TransformObservation(envs, lambda obs: obs * 2),
        wrappers.DictInfoToList,
        wrappers.FlattenObservation,
    ],
    ids=lambda wrap: getattr(wrap, "__name__", "lambda"),
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium's own, on unbounded spaces
def test_gymnasiums_vector_wrappers_wrap_it(wrap):
    envs = wrap(envfleet.make("CartPole-v1", num_envs=3))
    envs.reset(seed=0)
    for _ in range(60):
        envs.step(np.zeros(3, dtype=np.int64))
    envs.close()


def test_clip_action_takes_what_a_gaussian_policy_draws():
    envs = wrappers.ClipAction(envfleet.make("Pendulum-v1", num_envs=2))
    twin = envfleet.make("Pendulum-v1", num_envs=2)
    envs.reset(seed=0)
    twin.reset(seed=0)
    got = envs.step(np.array([[7.0], [-9.0]], dtype=np.float32))
    np.testing.assert_array_equal(got[0], twin.step(np.array([[2.0], [-2.0]], dtype=np.float32))[0])


def test_episode_statistics_of_gymnasium_agree_with_the_rewards():
    envs = wrappers.RecordEpisodeStatistics(envfleet.make("CartPole-v1", num_envs=3))
    envs.reset(seed=0)
    lengths = []
    for _ in range(100):
        *_, info = envs.step(np.ones(3, dtype=np.int64))
        if "episode" in info:
            lengths += info["episode"]["l"][info["_episode"]].tolist()
    assert lengths
    assert all(8 <= length <= 12 for length in lengths)


def test_video_of_gymnasiums_wrapper(tmp_path):
    envs = envfleet.make("CartPole-v1", num_envs=2, render_mode="rgb_array")
    envs.reset(seed=0)
    frames = envs.render()
    assert [frame.shape for frame in frames] == [(400, 600, 3)] * 2
    alone = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    alone.reset(seed=1)
    np.testing.assert_array_equal(frames[1], alone.render())
    with pytest.raises(envfleet.ConfigError, match="render_mode='rgb_array' at make"):
        envfleet.make("CartPole-v1").render()


def test_pictures_of_envs_that_draw_themselves_or_not():
    lamps = envfleet.make("Lamp-v0", num_envs=1, render_mode="rgb_array")
    lamps.reset(seed=0)
    lamps.step([[1, 0]])
    assert lamps.render()[0].tolist() == [[[255] * 3] * 6] * 4
    with pytest.raises(envfleet.ConfigError, match="expected an env with a renderer, Sink-v0 has none"):
        envfleet.make("Sink-v0", render_mode="rgb_array").render()


def test_attributes_and_calls():
    envs = envfleet.make("CartPole-v1", num_envs=2, render_mode="rgb_array")
    envs.reset(seed=5)
    assert envs.get_attr("render_mode") == ("rgb_array", "rgb_array")
    assert envs.call("length") == (0.5, 0.5)
    assert len(envs.call("render")) == 2
    assert envs.np_random_seed == (5, 6)
    expected = np.random.default_rng(5)
    expected.uniform(size=4)
    assert envs.np_random[0].random() == expected.random()


def test_spec_and_config_pickle():
    envs = envfleet.make("FrozenLake-v1", num_envs=3, is_slippery=False, seed=4)
    spec = pickle.loads(pickle.dumps(envs.spec))
    assert spec.config == envs.config
    assert (spec.config["num_envs"], spec.config["is_slippery"], spec.config["seed"]) == (3, False, 4)
    assert spec.observation_space == envs.single_observation_space
    state = pickle.dumps(envs.get_state())
    envs.set_state(state)
    assert envfleet.make_spec("Pendulum-v1", g=9.81).config["g"] == 9.81
    assert envfleet.make_spec("CartPole-v1").reward_threshold == 475.0


def test_envpools_names():
    envs = envfleet.make("CartPole-v1", env_type="gymnasium", num_envs=4, batch_size=2)
    assert (len(envs), envs.is_async) == (4, True)
    assert envs.all_env_ids.tolist() == [0, 1, 2, 3]
    assert envs.all_env_ids.dtype == np.int32
    envs.async_reset()
    *_, info = envs.recv()
    assert info["env_id"].dtype == np.int32
    envs.send(np.zeros(2, dtype=np.int64), info["env_id"])
    assert "CartPole-v1" in envfleet.list_all_envs()


def test_gymnasiums_make_vec_takes_the_spec():
    spec = envfleet.make("FrozenLake-v1", is_slippery=False).spec
    envs = gymnasium.make_vec(spec, num_envs=3)
    assert isinstance(envs.unwrapped, envfleet.apis.gymnasium.GymnasiumPool)
    assert (envs.num_envs, envs.unwrapped.config["is_slippery"]) == (3, False)
    envs.reset(seed=0)
    assert envfleet.make(task_id="CartPole-v1", env_type="gymnasium", num_envs=2).num_envs == 2


def test_exceptions_pickle():
    error = pickle.loads(pickle.dumps(envfleet.MissingExtraError("rich", "cli", "this")))
    assert (error.package, error.extra) == ("rich", "cli")
    assert 'pip install "envfleet[cli]"' in str(error)


def test_register_gives_an_env_a_new_name():
    envfleet.register("Icy-v0", "FrozenLake-v1", max_episode_steps=7, is_slippery=True)
    assert envfleet.make_spec("Icy-v0").max_episode_steps == 7
    envfleet.register("Solid-v0", "Icy-v0", is_slippery=False)
    envs = envfleet.make("Solid-v0", num_envs=2)
    assert envs.config["is_slippery"] is False
    envs.reset(seed=0)
    for _ in range(6):
        *_, truncated, _ = envs.step([0, 0])
        assert not truncated.any()
    assert envs.step([0, 0])[3].all()
    assert "Icy-v0" in envfleet.list_all_envs()
    envfleet.register("Icy-v0", "FrozenLake-v1", max_episode_steps=7, is_slippery=True)  # the same: nothing to say
    with pytest.warns(UserWarning, match="overrides 'Icy-v0'"):
        envfleet.register("Icy-v0", "FrozenLake-v1", max_episode_steps=8, is_slippery=True)
    assert envfleet.make_spec("Icy-v0").max_episode_steps == 8
    for bad in (
        ("CartPole-v1", "Taxi-v4", {}),
        ("", "Taxi-v4", {}),
        ("my env!", "Taxi-v4", {}),
        ("X-v0", "Taxi-v4", {"rainy": True}),
        ("X-v0", "Taxi-v4", {"max_episode_steps": -5}),
        ("X-v0", "Taxi-v4", {"max_episode_steps": "5"}),
    ):
        with pytest.raises(envfleet.ConfigError):
            envfleet.register(bad[0], bad[1], **bad[2])
