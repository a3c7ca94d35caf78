"""The light gym: its version, its wrappers in the dialect before 0.26, pictures in any size."""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
import pytest
from compat_probes import PictureBook
from gymnasium import spaces

import envfleet
from envfleet.compat import gym_stand_in


@pytest.fixture
def gym():
    if gym_stand_in.is_available("gym"):
        pytest.skip("gym is installed")
    gym_stand_in.install()
    yield sys.modules["gym"]
    gym_stand_in.uninstall()


def test_the_version_is_that_of_the_dialect(gym):
    assert gym.__version__ == "0.25.2"
    env = gym.make("CartPole-v1")
    assert isinstance(env.reset(), np.ndarray)
    assert len(env.step(0)) == 4


def test_reset_takes_the_keywords_of_that_version(gym):
    env = gym.make("CartPole-v1")
    first = env.reset(seed=3)
    obs, info = gym.wrappers.FlattenObservation(env).reset(seed=3, return_info=True, options={})
    np.testing.assert_array_equal(first, obs)
    assert info == {}
    env.seed(3)
    np.testing.assert_array_equal(first, env.reset())
    env.close()


def test_an_env_that_calls_reset_of_its_base(gym):
    class Dice(gym.Env):
        observation_space = gym.spaces.Discrete(100)
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed=None, return_info=False, options=None):
            super().reset(seed=seed)
            obs = int(self.np_random.integers(100))
            return (obs, {}) if return_info else obs

        def step(self, action):
            return 0, 1.0, False, {}

    env = Dice()
    assert env.reset(seed=7) == env.reset(seed=7)
    with envfleet.make(Dice, num_envs=2, backend="serial") as envs:
        assert envs.reset(seed=7)[0].tolist() == [env.reset(seed=7), env.reset(seed=8)]
        assert envs.step([0, 1])[1].tolist() == [1.0, 1.0]


def test_attributes_of_the_env_and_its_wrappers(gym):
    env = gym.make("CartPole-v1")
    assert (env.gravity, env._max_episode_steps) == (9.8, 500)
    with pytest.raises(AttributeError, match="no_such_attribute"):
        env.no_such_attribute  # noqa: B018
    env.close()


def test_names_that_scripts_call_at_their_top(gym, monkeypatch):
    monkeypatch.setattr(gymnasium.logger, "min_level", gymnasium.logger.min_level)
    gym.logger.set_level(gym.logger.ERROR)
    assert gymnasium.logger.min_level == 40
    assert gym.spec("CartPole-v1").max_episode_steps == 500
    assert "CartPole-v1" in gym.envs.registry
    assert gym.utils.EzPickle is gymnasium.utils.EzPickle
    with pytest.raises(AttributeError, match=r"module 'gym.vector' is envfleet's stand-in.*pip install gym"):
        gym.vector.SyncVectorEnv  # noqa: B018


@pytest.mark.parametrize("env_id", ["Taxi-v3", "CliffWalking-v0", "Pendulum-v0"])
def test_ids_that_gymnasium_dropped(gym, env_id):
    env = gym.make(env_id)
    assert env.reset() in env.observation_space
    assert env.spec.id == env_id
    assert len(env.step(env.action_space.sample())) == 4
    env.close()


def test_wrappers_can_be_imported_as_gyms_can(gym):
    from gym.wrappers import RecordEpisodeStatistics, TimeLimit
    from gym.wrappers.normalize import NormalizeObservation, NormalizeReward
    from gym.wrappers.time_limit import TimeLimit as Same

    assert Same is TimeLimit
    assert issubclass(RecordEpisodeStatistics, gym.Wrapper)
    assert gym.wrappers.NormalizeObservation is NormalizeObservation
    assert gym.wrappers.NormalizeReward is NormalizeReward
    with pytest.raises(AttributeError, match="pip install gym"):
        gym.no_such_thing  # noqa: B018


def test_pictures_in_the_size_that_is_asked_for(gym):
    pytest.importorskip("pygame")
    env = gym.make("CartPole-v1")
    env.reset()
    assert env.render("rgb_array").shape == (400, 600, 3)
    assert env.render("rgb_array", width=84, height=84).shape == (84, 84, 3)
    assert env.render(mode="rgb_array", width=30).shape == (400, 30, 3)


def test_episode_statistics(gym):
    env = gym.wrappers.RecordEpisodeStatistics(PictureBook(length=3), deque_size=1)
    for episode in range(2):
        env.reset()
        for count in (1, 2, 3):
            _, _, done, info = env.step(0)
            assert ("episode" in info) == done == (count == 3)
        assert (info["episode"]["r"], info["episode"]["l"], info["count"]) == (1.5, 3, 3)
        assert env.episode_count == episode + 1
    assert (list(env.return_queue), list(env.length_queue)) == ([1.5], [3])
    with pytest.raises(envfleet.CallOrderError, match="reset"):
        gym.wrappers.RecordEpisodeStatistics(PictureBook()).step(0)


class Columns(PictureBook):
    """Two PictureBooks that say that they are a vector env."""

    num_envs, is_vector_env = 2, True

    def step(self, action):
        self.count += 1
        done = np.array([self.count == 2, False])
        return np.zeros((2, 2)), np.array([1.0, 2.0]), done, {}


def test_episode_statistics_of_a_vector_env(gym):
    env = gym.wrappers.RecordEpisodeStatistics(Columns())
    env.reset()
    assert "episode" not in env.step(np.zeros(2))[3]
    *_, info = env.step(np.zeros(2))
    assert info["_episode"].tolist() == [True, False]
    assert info["episode"]["r"].tolist() == [2.0, 0.0]
    assert info["episode"]["l"].tolist() == [2, 0]
    env.step(np.zeros(2))
    assert env.episode_lengths.tolist() == [1, 3]


def test_time_limit(gym):
    env = gym.wrappers.TimeLimit(PictureBook(length=5), 2)
    env.reset()
    assert env.step(0)[2] is False
    _, _, done, info = env.step(0)
    assert (done, info["TimeLimit.truncated"]) == (True, True)
    both = gym.wrappers.TimeLimit(PictureBook(length=2), 2)
    both.reset()
    both.step(0)
    assert both.step(0)[3]["TimeLimit.truncated"] is False
    with pytest.raises(envfleet.ConfigError, match="max_episode_steps"):
        gym.wrappers.TimeLimit(PictureBook(), None)


def test_order_enforcing(gym):
    env = gym.wrappers.OrderEnforcing(PictureBook())
    for call in (lambda: env.step(0), lambda: env.render("rgb_array")):
        with pytest.raises(envfleet.CallOrderError, match="reset"):
            call()
    env.reset()
    env.step(0)
    assert env.render("rgb_array").shape == (16, 32, 3)


def test_actions(gym):
    class Echo(PictureBook):
        action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)

        def step(self, action):
            return np.asarray(action), 0.0, False, {}

    clipped = gym.wrappers.ClipAction(Echo())
    assert clipped.step(np.array([7.0]))[0].tolist() == [2.0]
    rescaled = gym.wrappers.RescaleAction(Echo(), 0.0, 1.0)
    assert rescaled.action_space == spaces.Box(0, 1, (1,), np.float32)
    assert [rescaled.step(np.array([x]))[0].tolist() for x in (0.0, 0.5, 1.0)] == [[-2.0], [0.0], [2.0]]
    with pytest.raises(envfleet.ConfigError, match="Box action_space"):
        gym.wrappers.ClipAction(PictureBook())


def test_observations(gym):
    doubled = gym.wrappers.TransformObservation(PictureBook(), lambda obs: 2 * obs)
    doubled.reset()
    assert doubled.step(1)[0].tolist() == [2.0, 2.0]
    stacked = gym.wrappers.FrameStack(PictureBook(), 3)
    first = stacked.reset()
    assert stacked.observation_space.shape == first.shape == (3, 2)
    assert (first[0] == first[2]).all()
    stacked.step(0)
    assert stacked.step(1)[0][1:].tolist() == [[1, 0], [2, 1]]

    class Nested(PictureBook):
        observation_space = spaces.Dict({"a": spaces.Box(0, 1, (2,)), "b": spaces.Discrete(3)})

        def reset(self):
            return {"a": np.ones(2, dtype=np.float32), "b": 1}

    flat = gym.wrappers.FlattenObservation(Nested())
    assert flat.reset().tolist() == [1, 1, 0, 1, 0]
    assert flat.observation_space.shape == (5,)
    assert gym.wrappers.FilterObservation(Nested(), ["b"]).reset() == {"b": 1}
    with pytest.raises(envfleet.ConfigError, match="filter_keys"):
        gym.wrappers.FilterObservation(Nested(), ["c"])


def test_pictures_as_observations(gym):
    picture = np.random.default_rng(0).integers(0, 256, (8, 6, 3)).astype(np.uint8)

    class Screen(PictureBook):
        observation_space = spaces.Box(0, 255, (8, 6, 3), np.uint8)

        def reset(self):
            return picture

    gray = gym.wrappers.GrayScaleObservation(Screen())
    cv2 = pytest.importorskip("cv2")
    np.testing.assert_allclose(gray.reset(), cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY), atol=1)  # its fixed point
    assert gray.observation_space.shape == (8, 6)
    assert gym.wrappers.GrayScaleObservation(Screen(), keep_dim=True).reset().shape == (8, 6, 1)
    small = gym.wrappers.ResizeObservation(Screen(), (4, 3))
    np.testing.assert_allclose(small.reset(), cv2.resize(picture, (3, 4), interpolation=cv2.INTER_AREA), atol=1)
    assert small.observation_space.shape == (4, 3, 3)
    assert gym.wrappers.ResizeObservation(gray, 4).reset().shape == (4, 4)


def test_normalisation_is_gymnasiums(gym):
    """The same running mean and variance over the same episode; Gymnasium's sums are float32."""
    ours = gym.wrappers.NormalizeObservation(gym.make("Pendulum-v1"))
    theirs = gymnasium.wrappers.NormalizeObservation(gymnasium.make("Pendulum-v1"))
    ours.seed(3)
    np.testing.assert_allclose(ours.reset(), theirs.reset(seed=3)[0], rtol=1e-3)
    for _ in range(20):
        np.testing.assert_allclose(ours.step(np.ones(1))[0], theirs.step(np.ones(1))[0], rtol=1e-3)
    ours = gym.wrappers.NormalizeReward(gym.make("Pendulum-v1"))
    ours.seed(3)
    ours.reset()
    returns, seen = 0.0, []
    for _ in range(20):
        _, reward, _, _ = ours.step(np.ones(1))
        raw = reward * np.sqrt(ours.return_rms.var + ours.epsilon)
        returns = returns * 0.99 + raw
        seen.append(returns)
    np.testing.assert_allclose(ours.return_rms.var, np.var(seen), rtol=1e-3)
    scaled = gym.wrappers.TransformReward(PictureBook(), lambda reward: reward - 1)
    scaled.reset()
    assert scaled.step(0)[1] == -0.5


def test_videos(gym, tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    env = gym.wrappers.RecordVideo(PictureBook(length=3), str(tmp_path / "videos"), lambda episode: episode == 1)
    for _ in range(3):
        env.reset()
        while not env.step(0)[2]:
            pass
    env.close = lambda: None  # PictureBook has none
    assert [path.name for path in (tmp_path / "videos").iterdir()] == ["rl-video-episode-1.mp4"]
    assert not env.recording
    with pytest.raises(envfleet.ConfigError, match="got both"):
        gym.wrappers.RecordVideo(PictureBook(), "videos", lambda _: True, lambda _: True)


def test_torchrl_tells_gymnasiums_envs_from_gyms(gym):
    """It looks at the class of the action space to choose between 4-tuples and 5-tuples."""
    assert not isinstance(gymnasium.make("CartPole-v1").action_space, gym.spaces.space.Space)
    assert isinstance(gymnasium.make("CartPole-v1").action_space, gym.Space)
    assert isinstance(gym.spaces.Discrete(2), gym.spaces.Space)
