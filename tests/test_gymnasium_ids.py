"""envfleet's ids in Gymnasium's registry, and specs that travel as JSON."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode

import envfleet
from envfleet.apis.gymnasium import GymnasiumPool
from envfleet.making.builders import registered_envs


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_make_vec_takes_native_ids():
    envs = gymnasium.make_vec("envfleet/CartPole-v1", num_envs=4)
    assert isinstance(envs, GymnasiumPool)
    assert (envs.num_envs, envs.pool.spec.backend) == (4, "native")
    assert envs.pool.config.max_episode_steps == 500
    obs, _ = envs.reset(seed=0)
    alone = gymnasium.make("CartPole-v1").reset(seed=3)[0]
    assert (obs[3] == alone).all()
    assert envs.spec.id == "envfleet/CartPole-v1"
    again = gymnasium.make_vec(envs.spec)
    assert (again.num_envs, again.pool.spec.id) == (4, "CartPole-v1")
    for own in (envs, again):
        own.close()


def test_options_reach_the_pool():
    envs = gymnasium.make_vec(
        "envfleet/CartPole-v1", num_envs=2, autoreset_mode="same_step", max_episode_steps=7, sutton_barto_reward=True
    )
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert envs.pool.config.max_episode_steps == 7
    assert envs.config["sutton_barto_reward"]
    envs.close()


def test_families_are_there():
    ids = [env_id for env_id in envfleet.list_all_envs() if "/" not in env_id]
    assert len(ids) > 1000
    assert all(f"envfleet/{env_id}" in gymnasium.registry for env_id in ids)
    pytest.importorskip("dm_control")
    envs = gymnasium.make_vec("envfleet/walker-run", num_envs=1)
    envs.reset(seed=0)
    envs.close()


def test_gymnasiums_own_ids_stay():
    assert gymnasium.spec("CartPole-v1").entry_point.startswith("gymnasium.")
    assert b"envfleet/" not in registered_envs()  # workers register them themselves


def test_registered_ids_join():
    envfleet.register("Registered-v0", "CartPole-v1", max_episode_steps=9)
    envs = gymnasium.make_vec("envfleet/Registered-v0", num_envs=1)
    assert envs.pool.config.max_episode_steps == 9
    envs.close()


def test_an_id_without_the_namespace_is_refused_before_and_after_the_import():
    with pytest.raises(envfleet.ConfigError, match="write 'envfleet:envfleet/CartPole-v1'"):
        gymnasium.make_vec("envfleet:CartPole-v1", num_envs=2)
    with pytest.raises(envfleet.ConfigError):
        gymnasium.make("envfleet:CartPole-v1")
    assert gymnasium.make_vec("envfleet:envfleet/CartPole-v1").pool.num_envs == 1
    first = "import gymnasium; gymnasium.make_vec('envfleet:{}', num_envs=2)"
    assert "write 'envfleet:envfleet/CartPole-v1'" in run(first.format("CartPole-v1")).stderr
    result = run(first.format("envfleet/CartPole-v1"))
    assert result.returncode == 0, result.stderr


def test_the_plug_in_entry_point():
    """Gymnasium before 1.0 calls it in a namespace of its name; later ones have no plug-ins."""
    from importlib.metadata import entry_points

    (point,) = entry_points(group="gymnasium.envs", name="envfleet")
    del gymnasium.registry["envfleet/CartPole-v1"]
    point.load()()
    assert "envfleet/CartPole-v1" in gymnasium.registry


@pytest.mark.parametrize("options", [{"sutton_barto_reward": True}, {"backend": "serial"}], ids=["native", "python"])
def test_specs_travel_as_json(options):
    envs = envfleet.make("CartPole-v1", num_envs=2, **options)
    text = envs.spec.to_json()
    spec = EnvSpec.from_json(text)
    assert spec.to_json() == text
    assert (spec.id, spec.max_episode_steps, spec.reward_threshold) == ("CartPole-v1", 500, 475)
    again = gymnasium.make_vec(spec, num_envs=3)
    assert isinstance(again, GymnasiumPool)
    assert again.pool.params_of(0).get("sutton_barto_reward", False) == options.get("sutton_barto_reward", False)
    for own in (envs, again):
        own.close()


def test_a_class_has_no_json():
    envs = envfleet.make(type(gymnasium.make("CartPole-v1").unwrapped), num_envs=1)
    with pytest.raises(ValueError, match="expected an env id"):
        envs.spec.to_json()
    envs.close()


def test_attributes_that_every_env_has():
    envs = envfleet.make("CartPole-v1", num_envs=2, render_mode="rgb_array")
    envs.reset(seed=0)
    one = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    assert [metadata["render_fps"] for metadata in envs.get_attr("metadata")] == [one.metadata["render_fps"]] * 2
    first, second = envs.get_attr("unwrapped")
    assert first.unwrapped is first
    assert first.gravity == one.unwrapped.gravity
    second.gravity = 5.0
    assert envs.get_attr("gravity") == (9.8, 5.0)
    assert second.spec.id == "CartPole-v1"
    assert isinstance(second.np_random, np.random.Generator)
    assert repr(second) == "<env 1 of CartPole-v1>"
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = second.colour
    pytest.importorskip("pygame")
    assert first.render().shape == (400, 600, 3)
    envs.close()
