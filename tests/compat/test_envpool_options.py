"""EnvPool's options, infos and dtypes of single tasks, against those of EnvPool 1.2.7.

envpool_tasks.json holds envpool.make_spec(task_id).config and the info keys of its state_array_spec.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

import envfleet
from envfleet.compat import envpool

TASKS = json.loads((Path(__file__).parent / "envpool_tasks.json").read_text())
# Named in the table of docs/from_envpool.md.
MISSING_INFOS = {"HumanoidStandup": {"reward_alive"}, "Pusher": {"reward_near"}}


def needs(*packages):
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {missing}")


def skip_without_extra(task_id):
    package = envfleet.building.registry.family_of(task_id).package
    if package:
        pytest.importorskip(package)


@pytest.mark.parametrize("task_id", TASKS)
def test_a_config_has_envpools_keys_and_values(task_id):
    skip_without_extra(task_id)
    config = envpool.make_spec(task_id).config
    expected = TASKS[task_id]["config"]
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize("task_id", TASKS)
def test_envpools_defaults_can_be_passed(task_id):
    skip_without_extra(task_id)
    as_given = envpool.make_spec(task_id, **TASKS[task_id]["config"])
    without = envpool.make_spec(task_id)
    own = {name: value for name, value in as_given.config_dict().items() if name not in ("xml_file", "xml_stamp")}
    assert own == {name: without.config_dict()[name] for name in own}  # a given xml_file is shown as its full path
    assert as_given.observation_space == without.observation_space


@pytest.mark.parametrize("task_id", TASKS)
def test_infos_have_envpools_keys(task_id):
    skip_without_extra(task_id)
    expected = set(TASKS[task_id]["info"]) - MISSING_INFOS.get(task_id.rpartition("-v")[0], set())
    spec = envpool.make_spec(task_id)
    assert {f"info:{name}" for name in expected} <= set(spec.state_array_spec)


@needs("mujoco")
@pytest.mark.parametrize(
    ("task_id", "options", "expected"),
    [
        ("Hopper-v4", {"healthy_z_min": 0.5}, {"healthy_z_range": [0.5, np.inf], "healthy_z_min": 0.5}),
        ("Walker2d-v5", {"healthy_z_min": 0.5, "healthy_z_max": 3}, {"healthy_z_range": [0.5, 3.0]}),
        ("Ant-v4", {"use_contact_force": True}, {"use_contact_forces": True, "use_contact_force": True}),
        ("Ant-v3", {"contact_force_max": 2.0}, {"contact_force_range": [-1.0, 2.0], "contact_force_max": 2.0}),
        ("Humanoid-v5", {"contact_cost_max": 3.0}, {"contact_cost_range": [-np.inf, 3.0]}),
        ("HumanoidStandup-v5", {"contact_cost_max": 3.0}, {"impact_cost_range": [-np.inf, 3.0]}),
        ("Pusher-v5", {"near_cost_weight": 0.7}, {"reward_near_weight": 0.7, "near_cost_weight": 0.7}),
        ("Reacher-v5", {"ctrl_cost_weight": 0.7}, {"reward_control_weight": 0.7, "ctrl_cost_weight": 0.7}),
        ("Hopper-v3", {"frame_skip": 8}, {"frame_skip": 8}),
        ("Ant-v5", {"forward_reward_weight": 2.0}, {"forward_reward_weight": 2.0}),
    ],
)
def test_options_under_envpools_names_reach_the_env(task_id, options, expected):
    env = envpool.make_gymnasium(task_id, num_envs=1, **options)
    assert {name: env.config[name] for name in expected} == expected
    env.close()


@needs("mujoco")
@pytest.mark.parametrize(
    ("task_id", "options", "message"),
    [
        ("Ant-v4", {"frame_skip": 2}, r"Ant-v4 expected frame_skip=5, .* got 2; leave it out"),
        ("Ant-v4", {"forward_reward_weight": 2.0}, r"expected forward_reward_weight=1.0"),
        ("Ant-v5", {"legacy_healthy_reward": True}, r"expected legacy_healthy_reward=False"),
        ("Hopper-v4", {"frame_stack": 2}, r"expected frame_stack=1"),
        ("Hopper-v4", {"healthy_z_min": 0.5, "healthy_z_range": (0.5, 1)}, r"or EnvPool's healthy_z_min, got both"),
        ("Hopper-v4", {"frame_skipp": 4}, r"unknown option 'frame_skipp'"),
    ],
)
def test_what_the_env_cannot_do_is_refused(task_id, options, message):
    with pytest.raises(envfleet.ConfigError, match=message):
        envpool.make_gymnasium(task_id, num_envs=1, **options)


@needs("mujoco", "dm_control")
def test_frame_skip_of_dm_control_counts_physics_steps():
    spec = envpool.make_spec("BallInCupCatch-v1", frame_skip=10)
    assert (spec.config.frame_skip, spec.env_spec.config["frame_skip"]) == (10, 1)
    with pytest.raises(envfleet.ConfigError, match=r"expected frame_skip=10, .* got 1;"):
        envpool.make_spec("BallInCupCatch-v1", frame_skip=1)


@needs("mujoco")
def test_frame_stack_is_for_pixels():
    spec = envpool.make_spec("Hopper-v4", from_pixels=True, frame_stack=3, render_width=16, render_height=16)
    assert spec.observation_space.shape == (9, 16, 16)
    assert spec.config.frame_stack == 3


def test_the_board_of_catch():
    env = envpool.make_gymnasium("Catch-v0", num_envs=2, height=8, width=4)
    assert env.reset()[0].shape == (2, 8, 4)
    assert (env.config["height"], env.config["rows"], env.config["width"]) == (8, 8, 4)
    env.close()


@needs("vizdoom")
@pytest.mark.parametrize(("options", "stack_num"), [({}, 4), ({"stack_num": 2}, 2)])
def test_the_config_of_vizdoom_has_every_option(options, stack_num):
    config = envpool.make_spec("Basic-v1", **options).config
    assert (config.stack_num, config.frame_skip, config.img_height, config.weapon_duration) == (stack_num, 4, 84, 5)


@needs("mujoco")
@pytest.mark.parametrize(
    ("task_id", "key", "source"),
    [
        ("Ant-v4", "reward_contact", None),
        ("Humanoid-v4", "reward_impact", None),
        ("HalfCheetah-v5", "reward_run", "reward_forward"),
        ("Swimmer-v5", "reward_fwd", "reward_forward"),
        ("Humanoid-v5", "reward_alive", "reward_survive"),
    ],
)
@pytest.mark.parametrize("env_type", ["gymnasium", "dm"])
def test_infos_under_envpools_names(task_id, key, source, env_type):
    if env_type == "dm":
        pytest.importorskip("dm_env")
    env = envpool.make(task_id, env_type, num_envs=3)
    env.reset()
    result = env.step(np.full((3, *env.action_space.shape), 0.1, np.float32))
    info = result.observation if env_type == "dm" else result[-1]
    own = getattr(info, key)
    assert (own.dtype, own.shape) == (np.float64, (3,))
    np.testing.assert_array_equal(own, np.zeros(3) if source is None else getattr(info, source))
    assert (own != 0).all() == (source is not None)
    env.close()


@needs("mujoco")
def test_the_contact_cost_of_ant():
    env = envpool.make_gymnasium("Ant-v4", num_envs=1, use_contact_force=True)
    env.reset()
    costs = [env.step(np.zeros((1, 8), np.float32))[-1].reward_contact[0] for _ in range(20)]
    assert min(costs) < 0  # the ant falls on its feet
    env.close()


@pytest.mark.parametrize("task_id", ["Taxi-v3", "FrozenLake-v1", "CliffWalking-v1", "NChain-v0"])
def test_discrete_observations_are_int32(task_id):
    env = envpool.make_gymnasium(task_id, num_envs=2)
    spec = env.spec.state_array_spec["obs"]
    assert (spec.dtype, spec.shape) == (np.int32, [-1])
    obs, _ = env.reset()
    assert (obs.dtype, obs.shape) == (np.int32, (2,))
    assert isinstance(env.observation_space, spaces.Discrete)
    assert env.observation_space.dtype == np.int32
    assert obs[0] in env.observation_space
    assert env.observation_space.sample() in env.observation_space
    assert env.step(np.zeros(2, np.int32))[0].dtype == np.int32
    env.close()


def test_discrete_observations_of_dm_are_int32():
    pytest.importorskip("dm_env")
    env = envpool.make_dm("Taxi-v3", num_envs=2)
    assert env.observation_spec().obs.dtype == env.reset().observation.obs.dtype == np.int32
    env.close()


@needs("minigrid", "dm_env")
@pytest.mark.parametrize("env_type", ["gymnasium", "dm"])
def test_discrete_parts_of_observations_are_int32(env_type):
    env = envpool.make("MiniGrid-Empty-5x5-v0", env_type, num_envs=2)
    first = env.reset()
    direction = first.observation.direction if env_type == "dm" else first[0]["direction"]
    assert direction.dtype == env.spec.state_array_spec["obs:direction"].dtype == np.int32
    env.close()


def test_observations_of_python_envs_keep_their_dtype():
    env = envpool.make_gymnasium(Huge, num_envs=1, backend="serial")
    assert env.observation_space.dtype == np.int64
    assert env.reset()[0].tolist() == [2**40]
    env.close()


class Huge(envfleet.compat.gym_stand_in.Env):
    observation_space = spaces.Discrete(2**41)
    action_space = spaces.Discrete(2)

    def reset(self):
        return 2**40

    def step(self, action):
        return 2**40, 0.0, False, {}


@pytest.mark.parametrize("make", [envpool.make, envpool.make_spec])
@pytest.mark.parametrize(
    ("env", "name"), [(Huge, "Huge"), (lambda: Huge(), "<lambda>")], ids=["class without __init__", "lambda"]
)
def test_a_misspelt_option_of_the_pool_is_named(make, env, name):
    with pytest.raises(envfleet.ConfigError, match=f"^{name} got the unknown option 'num_worker'; did you mean 'num_w"):
        make(env, num_worker=2)


def test_a_constructor_that_calls_another_wrongly_is_not_to_blame():
    with pytest.raises(envfleet.EnvError, match="takes no arguments"):
        envpool.make(lambda size: Huge(size), size=2)


def test_flags_may_be_0_and_1_as_in_envpool():
    pytest.importorskip("ale_py")
    config = envpool.make_spec("Pong-v5", reward_clip=1, episodic_life=0).config
    assert (config.reward_clip, config.episodic_life) == (True, False)
