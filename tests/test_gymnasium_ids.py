"""envfleet's ids in Gymnasium's registry, and specs that travel as JSON."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import envfleet
from envfleet.apis.gymnasium import GymnasiumPool
from envfleet.building.native_env import SingleNativeEnv
from envfleet.building.registry import family_of
from envfleet.executors.registered_envs import registered_envs


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


NATIVE_IDS = ["CartPole-v1", "FrozenLake-v1", "Taxi-v4", "NChain-v0", "Catch-v0", "MiniGrid-Empty-5x5-v0", "Ant-v5"]


def skip_without_package(env_id):
    package = family_of(env_id).package
    if package:
        pytest.importorskip(package)


@pytest.mark.parametrize("env_id", NATIVE_IDS)
def test_gymnasium_makes_one_native_env(env_id):
    skip_without_package(env_id)
    env = gymnasium.make(f"envfleet/{env_id}")
    assert isinstance(env.unwrapped, SingleNativeEnv)
    with envfleet.make(env_id, num_envs=1) as envs:
        assert (env.spec.id, env.spec.max_episode_steps) == (f"envfleet/{env_id}", envs.spec.max_episode_steps)
        assert env.spec.reward_threshold == envs.spec.reward_threshold
        assert env.observation_space == envs.single_observation_space
        pairs = [(env.reset(seed=5)[0], envs.reset(seed=5)[0])]
        env.action_space.seed(0)
        ended = False
        while not ended and len(pairs) < 1100:
            action = env.action_space.sample()
            obs, reward, terminated, truncated, _ = env.step(action)
            rows = envs.step(np.asarray(action)[np.newaxis])
            pairs.append((obs, rows[0]))
            assert (reward, terminated, truncated) == tuple(column[0] for column in rows[1:4])
            ended = terminated or truncated
        for own, row in pairs:
            for leaf, other in zip(*([*x.values()] if isinstance(x, dict) else [x] for x in (own, row)), strict=True):
                np.testing.assert_array_equal(leaf, other[0])
    env.close()


def test_one_native_env_passes_gymnasiums_checker_and_renders(monkeypatch):
    pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setattr("envfleet.core.rendering._USER_DRIVER", "dummy")
    env = gymnasium.make("envfleet/FrozenLake-v1", render_mode="rgb_array")
    check_env(env.unwrapped)
    env.reset(seed=0)
    frame = env.render()
    assert (frame.shape, frame.dtype) == ((256, 256, 3), np.uint8)
    shown = gymnasium.make("envfleet/FrozenLake-v1", render_mode="human")
    shown.reset(seed=0)
    surface = sys.modules["pygame"].display.get_surface()
    assert (np.swapaxes(sys.modules["pygame"].surfarray.array3d(surface), 0, 1) == frame).all()
    assert shown.render() is None
    for own in (env, shown):
        own.close()


def test_the_time_limit_of_one_native_env():
    def length(env_id="MiniGrid-Empty-5x5-v0", action=0, **options):
        env = gymnasium.make(f"envfleet/{env_id}", **options)
        env.reset(seed=0)
        for step in range(1, 202):
            *_, truncated, _ = env.step(action)
            if truncated:
                return step
        return None

    assert (length(), length(max_episode_steps=7)) == (100, 7)
    pendulum = ("Pendulum-v1", np.zeros(1, np.float32))
    assert (length(*pendulum), length(*pendulum, max_episode_steps=-1)) == (200, None)
    assert (length(max_steps=30), length(max_steps=150, max_episode_steps=120)) == (30, 120)
    envs = gymnasium.make_vec("envfleet/MiniGrid-Empty-5x5-v0", num_envs=2, max_steps=30)
    assert envs.pool.config.max_episode_steps == 30
    envs.close()


def test_one_env_is_not_several():
    with pytest.raises(envfleet.ConfigError, match=r"gymnasium\.make_vec\('envfleet/CartPole-v1', num_envs=3\)"):
        gymnasium.make("envfleet/CartPole-v1", num_envs=3)


def test_attributes_of_one_native_env():
    env = gymnasium.make("envfleet/CartPole-v1").unwrapped
    env.reset(seed=0)
    env.gravity = 5.0
    assert (env.gravity, env.length) == (5.0, 0.5)
    twin = gymnasium.make("envfleet/CartPole-v1").unwrapped
    twin.reset(seed=0)
    for _ in range(2):  # the first step changes the speed, the second the place
        own, other = env.step(1)[0], twin.step(1)[0]
    assert (own != other).any()
    env.note = "of this object"
    assert env.note == "of this object"
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = env.colour


def test_gymnasiums_own_vector_envs_take_native_ids():
    envs = gymnasium.make_vec("envfleet/CartPole-v1", num_envs=3, vectorization_mode="sync")
    assert type(envs) is SyncVectorEnv
    own = envfleet.make("CartPole-v1", num_envs=3)
    np.testing.assert_array_equal(envs.reset(seed=0)[0], own.reset(seed=0)[0])
    for one in (envs, own):
        one.close()


def test_compiled_and_python_ids_are_single_envs_too(tmp_path):
    source = tmp_path / "probe.cc"
    source.write_text(PROBE)
    envfleet.compile(source)
    env = gymnasium.make("envfleet/PublishedProbe-v0", start=3.5)
    assert env.reset()[0].tolist() == [3.5]
    assert [env.step(0)[3] for _ in range(4)] == [False, False, False, True]
    pytest.importorskip("ale_py")
    pong = gymnasium.make("envfleet/Pong-v5", max_episode_steps=3, stack_num=2)
    assert pong.reset(seed=0)[0].shape == (2, 84, 84)
    assert [pong.step(0)[3] for _ in range(3)] == [False, False, True]
    assert gymnasium.spec("envfleet/Pong-v5").max_episode_steps == 27000
    pong.close()


PROBE = """
#include "envfleet/env.h"

struct PublishedProbe {
  static void spec(const envfleet::Config&, envfleet::Spec& spec) {
    spec.observation(envfleet::box<float>({1}, 0, 10));
    spec.action(envfleet::discrete(2));
    spec.max_episode_steps(4);
  }
  static envfleet::Params params() { return {{"start", 1.0, "the observation"}}; }
  explicit PublishedProbe(const envfleet::Config& config) : start(config.real("start")) {}
  void reset(envfleet::Rng&, envfleet::Out& out) { *out.obs<float>() = static_cast<float>(start); }
  void step(int, envfleet::Out& out) { *out.obs<float>() = static_cast<float>(start); }
  double start;
};

ENVFLEET_ENV("PublishedProbe-v0", PublishedProbe)
"""


def test_a_published_spec_travels_as_json():
    spec = EnvSpec.from_json(gymnasium.spec("envfleet/CartPole-v1").to_json())
    assert (spec.max_episode_steps, spec.reward_threshold) == (500, 475)
    assert isinstance(gymnasium.make(spec).unwrapped, SingleNativeEnv)


def test_a_published_spec_can_be_changed():
    published = gymnasium.spec("envfleet/CartPole-v1")
    changed = dataclasses.replace(published, max_episode_steps=7)
    assert (changed.max_episode_steps, changed.reward_threshold) == (7, 475)
    changed.max_episode_steps = None
    assert changed.max_episode_steps is None
    assert published.max_episode_steps == 500


def test_make_takes_ids_without_the_namespace():
    with pytest.raises(envfleet.UnknownEnvError, match="use 'CartPole-v1'"):
        envfleet.make("envfleet/CartPole-v1")


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


def test_a_module_prefix_imports_envfleet():
    result = run("import gymnasium; gymnasium.make_vec('envfleet:envfleet/CartPole-v1', num_envs=2).pool.close()")
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
