"""Native ids without a class of Gymnasium's, on Python backends and under wrappers."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import envfleet
from envfleet.compat import envpool


@pytest.mark.parametrize("env_id", ["NChain-v0", "Pendulum-v0", "Ant-v3", "Pusher-v4"])
def test_rollouts_on_a_python_backend_equal_the_native_ones(env_id: str) -> None:
    if env_id[-1] != "0":
        pytest.importorskip("mujoco")
    with (
        envfleet.make(env_id, num_envs=2, max_episode_steps=5) as native,
        envfleet.make(env_id, num_envs=2, max_episode_steps=5, backend="serial") as envs,
    ):
        assert (native.spec.backend, envs.spec.backend) == ("native", "serial")
        assert envs.single_observation_space == native.single_observation_space
        np.testing.assert_array_equal(envs.reset(seed=3)[0], native.reset(seed=3)[0])
        native.action_space.seed(0)
        for _ in range(8):
            actions = native.action_space.sample()
            *rows, info = envs.step(actions)
            *expected, infos = native.step(actions)
            for own, other in zip(rows, expected, strict=True):
                np.testing.assert_array_equal(own, other)
            assert set(info) == set(infos)


def test_they_take_wrappers_and_keep_their_time_limit() -> None:
    wrap = [lambda env: gymnasium.wrappers.RecordEpisodeStatistics(env)]
    with envfleet.make("NChain-v0", num_envs=2, wrappers=wrap, backend="serial", max_episode_steps=3) as envs:
        envs.reset(seed=0)
        for _ in range(3):
            _, _, _, truncated, info = envs.step(np.zeros(2, int))
        assert truncated.all()
        assert info["episode"]["l"].tolist() == [3, 3]
    assert envfleet.make_spec("NChain-v0", backend="processes").max_episode_steps == 1000


def test_envpool_takes_from_pixels() -> None:
    pytest.importorskip("mujoco")
    options = {"from_pixels": True, "frame_stack": 3, "render_width": 32, "render_height": 24}
    assert envpool.make_spec("Hopper-v3", **options).observation_space.shape == (9, 24, 32)
    assert envpool.make_spec("Hopper-v3", from_pixels=False).observation_space.shape == (11,)
