"""gymnasium.make_vec() and Gymnasium's vector wrappers on envfleet's vector environments."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import vector as wrappers

import envfleet
from envfleet.apis.gymnasium import GymnasiumPool
from envfleet.vector import AsyncVectorEnv, SyncVectorEnv


@pytest.fixture
def registered() -> Iterator[None]:
    ids = {"Fleet/CartPole-v1": {"task_id": "CartPole-v1"}, "Fleet/Pendulum-v1": {"task_id": "Pendulum-v1"}}
    for env_id, kwargs in ids.items():
        gymnasium.register(id=env_id, vector_entry_point="envfleet:make_gymnasium", kwargs=kwargs)
    yield
    for env_id in ids:
        del gymnasium.registry[env_id]


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("options", [{}, {"backend": "serial"}, {"backend": "processes", "num_workers": 2}])
def test_make_vec_reaches_a_pool(options: dict[str, Any]) -> None:
    envs = gymnasium.make_vec("Fleet/CartPole-v1", num_envs=4, vectorization_mode="vector_entry_point", **options)
    assert isinstance(envs.unwrapped, GymnasiumPool)
    assert envs.num_envs == 4
    assert envs.spec is not None
    assert envs.spec.id == "Fleet/CartPole-v1"
    obs, _ = envs.reset(seed=0)
    assert (obs[3] == gymnasium.make("CartPole-v1").reset(seed=3)[0]).all()
    envs.step(np.zeros(4, int))
    envs.close()


@pytest.mark.usefixtures("registered")
def test_a_vector_entry_point_is_the_default_way() -> None:
    envs = gymnasium.make_vec("Fleet/Pendulum-v1", num_envs=2, g=5.0)
    assert isinstance(envs.unwrapped, GymnasiumPool)
    assert envs.unwrapped.config["g"] == 5.0
    envs.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "cheetah-run", "Pong-v5"])
@pytest.mark.parametrize("options", [{}, {"backend": "native"}, {"num_envs": 2}])
def test_ids_of_make_vec_are_explained(env_id: str, options: dict[str, Any]) -> None:
    for task in (f"envfleet/{env_id}", [f"envfleet/{env_id}"] * 2):
        with pytest.raises(envfleet.UnknownEnvError, match=f"got 'envfleet/{env_id}'; use '{env_id}'"):
            envfleet.make(task, **options)


def test_ids_of_make_vec_are_not_suggested() -> None:
    with pytest.raises(envfleet.UnknownEnvError, match="did you mean cheetah-run") as raised:
        envfleet.make("dm_control/cheetah-run-v0")
    assert "envfleet/" not in str(raised.value)


@pytest.mark.usefixtures("registered")
def test_an_id_for_make_vec_alone_is_explained() -> None:
    with pytest.raises(envfleet.ConfigError, match=r"got none; make it with gymnasium.make_vec\('Fleet/CartPole-v1'\)"):
        envfleet.make("Fleet/CartPole-v1")


KINDS = {
    "sync": SyncVectorEnv,
    "async": AsyncVectorEnv,
    "pool": lambda env_fns: envfleet.make(env_fns, backend="serial"),
}


@pytest.fixture(params=KINDS)
def four_cart_poles(request: pytest.FixtureRequest) -> Iterator[Any]:
    make_env = partial(gymnasium.make, "CartPole-v1", render_mode="rgb_array")
    envs = KINDS[request.param]([make_env] * 4)
    yield envs
    envs.close()


def test_record_episode_statistics(four_cart_poles: Any) -> None:
    envs = wrappers.RecordEpisodeStatistics(four_cart_poles)
    envs.reset(seed=0)
    for _ in range(30):
        envs.step(np.ones(4, int))
    assert envs.episode_count > 0
    assert all(length > 5 for length in envs.length_queue)


def test_normalize_observation(four_cart_poles: Any) -> None:
    envs = wrappers.NormalizeObservation(four_cart_poles)
    envs.reset(seed=0)
    rng = np.random.default_rng(0)
    rows = [envs.step(rng.integers(0, 2, 4))[0] for _ in range(300)]
    assert np.abs(np.concatenate(rows[100:]).mean(axis=0)).max() < 1


def test_record_video(four_cart_poles: Any, tmp_path: Path) -> None:
    pytest.importorskip("moviepy")
    envs = wrappers.RecordVideo(
        four_cart_poles, str(tmp_path / "videos"), step_trigger=lambda step: step == 1, video_length=3
    )
    envs.reset(seed=0)
    for _ in range(5):
        envs.step(np.ones(4, int))
    assert list(tmp_path.glob("videos/*.mp4"))


def test_render_gives_a_frame_of_each_env(four_cart_poles: Any) -> None:
    four_cart_poles.reset(seed=0)
    frames = four_cart_poles.render()
    assert isinstance(frames, tuple)
    assert [frame.shape for frame in frames] == [(400, 600, 3)] * 4
