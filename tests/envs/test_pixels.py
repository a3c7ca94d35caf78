"""Pixel observations of MuJoCo and dm_control envs: EnvPool's from_pixels=True."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import envfleet
from envfleet.core.errors import ConfigError, EnvError

pytest.importorskip("mujoco")
SIZE = {"render_width": 64, "render_height": 48}


def make(env_id: str, num_envs: int = 2, **options: Any) -> Any:
    """Skips where nothing can be drawn."""
    if not env_id[0].isupper():
        pytest.importorskip("dm_control")
    envs = envfleet.make(env_id, num_envs=num_envs, from_pixels=True, **{**SIZE, **options})
    try:
        envs.reset(seed=0)
    except EnvError as error:
        envs.close()
        if "cannot render" in str(error):
            pytest.skip(f"nothing to draw with here: {error}")
        raise
    return envs


def actions_of(envs: Any, num_steps: int) -> list[np.ndarray]:
    space, rng = envs.single_action_space, np.random.default_rng(3)
    return [rng.uniform(space.low, space.high, envs.action_space.shape).astype(space.dtype) for _ in range(num_steps)]


@pytest.mark.parametrize("env_id", ["Hopper-v5", "CheetahRun-v1"])
def test_observations_are_the_pictures_of_render(env_id: str) -> None:
    with make(env_id, backend="serial") as envs:
        assert envs.single_observation_space.shape == (3, 48, 64)
        assert envs.single_observation_space.dtype == np.uint8
        obs, _ = envs.reset(seed=0)
        assert (obs[0] != obs[1]).any()
        for actions in actions_of(envs, 3):
            for row, frame in zip(obs, envs.render(), strict=True):
                np.testing.assert_array_equal(np.moveaxis(row, 0, 2), frame)
            before, (obs, *_) = obs, envs.step(actions)
            assert (obs != before).any()


def test_several_envs_run_on_processes() -> None:
    assert envfleet.make_spec("Walker2d-v2", num_envs=2, from_pixels=True).backend == "processes"


@pytest.mark.parametrize("env_id", ["Walker2d-v2", "walker-run"])
def test_frames_are_stacked_and_the_first_fills_the_stack(env_id: str) -> None:
    with make(env_id, frame_stack=3, max_episode_steps=4, backend="serial") as envs:
        obs, _ = envs.reset(seed=0)
        assert obs.shape == (2, 9, 48, 64)
        np.testing.assert_array_equal(obs[:, :3], obs[:, 3:6])
        np.testing.assert_array_equal(obs[:, 3:6], obs[:, 6:])
        for step, actions in enumerate(actions_of(envs, 5)):
            before, (obs, _, _, truncated, _) = obs, envs.step(actions)
            if step < 4:
                np.testing.assert_array_equal(obs[:, :6], before[:, 3:])
                assert truncated.all() == (step == 3)
            else:  # the next episode begins with a stack of its own
                np.testing.assert_array_equal(obs[:, :3], obs[:, 6:])


@pytest.mark.parametrize("env_id", ["Ant-v4", "reacher-easy"])
def test_the_same_seed_gives_the_same_pictures_on_every_backend(env_id: str) -> None:
    """However many envs share a renderer, and whichever of them drew first."""

    def rollout(**options: Any) -> list[Any]:
        with make(env_id, num_envs=3, **options) as envs:
            first = envs.reset(seed=5)[0]
            return [first, *(part for actions in actions_of(envs, 2) for part in envs.step(actions)[:2])]

    expected = rollout(backend="serial")
    processes, threads = {"backend": "processes", "num_workers": 2}, {"backend": "threads", "num_workers": 3}
    # A worker process takes seconds to import dm_control.
    for options in (processes, threads) if env_id == "Ant-v4" else (threads,):
        for own, other in zip(rollout(**options), expected, strict=True):
            np.testing.assert_array_equal(own, other, err_msg=str(options))


def test_rewards_and_infos_are_those_of_the_native_env() -> None:
    with make("Humanoid-v3", healthy_reward=2.0, backend="serial") as envs:
        native = envfleet.make("Humanoid-v3", num_envs=2, healthy_reward=2.0)
        assert envs.spec.max_episode_steps == native.spec.max_episode_steps == 1000
        envs.reset(seed=1)
        native.reset(seed=1)
        for actions in actions_of(envs, 2):
            _, reward, terminated, _, info = envs.step(actions)
            _, expected, ended, _, infos = native.step(actions)
            np.testing.assert_array_equal(reward, expected)
            np.testing.assert_array_equal(terminated, ended)
            assert {key for key in info if not key.startswith("_")} == {key for key in infos if not key.startswith("_")}
            np.testing.assert_array_equal(info["reward_impact"], infos["reward_impact"])
        native.close()


def test_dm_control_pictures_equal_its_own() -> None:
    with make("cartpole-swingup", backend="serial", render_camera_id=1) as envs:
        obs, _ = envs.reset(seed=2)
        from dm_control import suite

        own = suite.load("cartpole", "swingup", task_kwargs={"random": 2})
        own.reset()
        np.testing.assert_array_equal(np.moveaxis(obs[0], 0, 2), own.physics.render(48, 64, camera_id=1))


@pytest.mark.parametrize("env_id", ["Hopper-v4", "hopper-stand"])
def test_envs_of_a_worker_share_one_gl_context(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib
    import os

    make(env_id, num_envs=1).close()  # skips where nothing can be drawn
    backend = importlib.import_module(f"mujoco.{os.environ.get('MUJOCO_GL', 'egl')}")
    made: list[Any] = []
    original = backend.GLContext.__init__
    monkeypatch.setattr(
        backend.GLContext, "__init__", lambda self, *args: (made.append(self), original(self, *args))[1]
    )
    with make(env_id, num_envs=5, backend="serial") as envs:
        envs.step(actions_of(envs, 1)[0])
        assert len(made) == 1


@pytest.mark.soak
@pytest.mark.timeout(1200)  # a frame takes a tenth of a second without a GPU
@pytest.mark.parametrize("env_id", ["Hopper-v5", "cheetah-run"])
def test_256_envs_on_processes(env_id: str) -> None:
    with make(env_id, num_envs=256, num_workers=2, frame_stack=2) as envs:
        assert envs.spec.backend == "processes"
        obs, *_ = envs.step(actions_of(envs, 1)[0])
        assert obs.shape == (256, 6, 48, 64)
        assert (obs[:, 3:] != obs[:, :3]).any(axis=(1, 2, 3)).all(), "an env's frame did not change"
        assert len({frame.tobytes() for frame in obs}) == 256


def test_two_pools_draw_in_turn_in_one_thread() -> None:
    with (
        make("Hopper-v4", backend="serial") as hopper,
        make("HalfCheetah-v4", backend="serial") as cheetah,
        make("cheetah-run", backend="serial") as other,
    ):
        for _ in range(2):
            first = [envs.reset(seed=4)[0] for envs in (hopper, cheetah, other)]
            again = [envs.reset(seed=4)[0] for envs in (hopper, cheetah, other)]
            for one, two in zip(first, again, strict=True):
                np.testing.assert_array_equal(one, two)
                assert one.std() > 1


def test_bad_sizes_and_backends_are_refused() -> None:
    for options, message in (
        ({"render_width": 0}, "render_width expected an integer from 1"),
        ({"frame_stack": 0}, "frame_stack expected an integer from 1"),
        ({"render_camera_id": -2}, "render_camera_id expected an integer from -1"),
        ({"height": 64}, "render_height and render_width, got height"),
        ({"backend": "native"}, "leave backend out"),
        ({"from_pixels": "yes"}, "from_pixels expected True or False"),
    ):
        with pytest.raises(ConfigError, match=message):
            envfleet.make("Hopper-v4", **{"from_pixels": True, **options})


def test_from_pixels_false_is_the_native_env() -> None:
    with envfleet.make("Hopper-v4", from_pixels=False) as envs:
        assert envs.spec.backend == "native"
        assert envs.single_observation_space.shape == (11,)


def test_make_spec() -> None:
    spec = envfleet.make_spec("Swimmer-v3", from_pixels=True, frame_stack=2, **SIZE)
    assert spec.observation_space.shape == (6, 48, 64)
    assert spec.max_episode_steps == 1000
