"""Pools of the native MuJoCo envs: states, async batches, parameters. What the envs compute is in tests/oracle."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from mujoco_rollouts import actions_for, rows_of

import envfleet
from envfleet import ConfigError, StateError
from envfleet.envs.mujoco_plugin import asset_folder
from envfleet.families.mujoco import IDS

pytest.importorskip("mujoco")


@pytest.mark.parametrize("env_id", IDS)
def test_states_go_back_bit_for_bit_and_into_another_pool(env_id: str) -> None:
    pool = envfleet.make_pool(env_id, num_envs=2, max_episode_steps=15)
    pool.reset(seed=1)
    before, after = np.split(actions_for(pool, 30), 2)
    rows_of(pool, before[:7])
    states = pool.get_state()
    expected = rows_of(pool, after)
    pool.set_state(states)
    pool.get_attrs(0)  # to read is to change nothing
    assert rows_of(pool, after) == expected
    other = envfleet.make_pool(env_id, num_envs=2, max_episode_steps=15)
    other.reset(seed=99)
    other.set_state(states)
    assert rows_of(other, after) == expected
    pool.close()
    other.close()


def test_a_state_of_another_model_is_refused() -> None:
    ant, hopper = envfleet.make_pool("Ant-v5"), envfleet.make_pool("Hopper-v5")
    ant.reset(seed=0)
    hopper.reset(seed=0)
    with pytest.raises(StateError):
        hopper.set_state(ant.get_state())
    ant.close()
    hopper.close()


def test_async_batches_hold_the_rows_of_synchronous_ones() -> None:
    num_envs = 6
    twin = envfleet.make_pool("Ant-v5", num_envs=num_envs, max_episode_steps=12)
    actions = actions_for(twin, 40)
    batches = [twin.reset(seed=4), *(twin.step(own) for own in actions)]
    pool = envfleet.make_pool("Ant-v5", num_envs=num_envs, batch_size=2, num_threads=2, max_episode_steps=12)
    pool.async_reset(seed=4)
    count = [0] * num_envs
    for _ in range(60):
        batch = pool.recv()
        for row, env_id in enumerate(batch.env_id.tolist()):
            own = batches[count[env_id]]
            np.testing.assert_array_equal(batch.obs[row], own.obs[env_id])
            assert batch.reward[row] == own.reward[env_id]
            count[env_id] += 1
        pool.send(np.array([actions[count[i] - 1][i] for i in batch.env_id.tolist()]), batch.env_id)
    assert sum(count) == 120
    pool.close()
    twin.close()


def test_disabled_autoreset_and_parameters_of_each_env() -> None:
    pool = envfleet.make_pool(
        "InvertedPendulum-v5", num_envs=3, autoreset_mode=AutoresetMode.DISABLED, reset_noise_scale=[0.0, 0.1, 0.0]
    )
    obs = pool.reset(seed=0).obs
    assert (obs[[0, 2]] == 0).all()
    assert (obs[1] != 0).all()
    pool.close()
    with pytest.raises(ConfigError, match="the same spaces for all envs, env 1 has other spaces than env 0"):
        envfleet.make_pool("Ant-v5", num_envs=2, include_cfrc_ext_in_observation=[True, False])


def test_without_post_constraint_there_are_no_contact_forces() -> None:
    with_forces, without = (envfleet.make_pool("Ant-v5", post_constraint=own) for own in (True, False))
    for pool in (with_forces, without):
        pool.reset(seed=0)
    actions = actions_for(without, 40)
    obs, obs_without = (np.array([pool.step(own).obs[0] for own in actions]) for pool in (with_forces, without))
    assert obs[:, 27:].any()
    assert not obs_without[:, 27:].any()
    np.testing.assert_array_equal(obs[:, :27], obs_without[:, :27])
    with_forces.close()
    without.close()


@pytest.mark.parametrize(
    ("env_id", "params", "message"),
    [
        ("Ant-v5", {"xml_file": "/nowhere/ant.xml"}, "/nowhere/ant.xml, which is not there"),
        ("Ant-v5", {"xml_file": "spider.xml"}, "assets/spider.xml, which is not there"),
        ("Ant-v5", {"xml_file": str(asset_folder())}, "which is a folder"),
        ("Pusher-v5", {"xml_file": "ant.xml"}, "ant.xml expected a body named tips_arm, got none"),
        (
            "Hopper-v5",
            {"xml_file": "inverted_pendulum.xml"},
            "at least 3 positions, 1 velocities and an actuator, got 2",
        ),
        ("Ant-v5", {"main_body": "head"}, "expected a body named head, got none"),
        ("Ant-v5", {"main_body": 99}, "main_body expected a number below 14, got 99"),
        ("Ant-v5", {"healthy_z_range": (0, 1, 2)}, r"healthy_z_range expected a pair \(low, high\), got 3 numbers"),
        ("Ant-v5", {"frame_skip": 0}, "frame_skip expected at least 1, got 0"),
        ("Ant-v5", {"reset_noise_scale": -1.0}, "reset_noise_scale expected a finite number >= 0, got -1"),
        ("Ant-v5", {"healty_reward": 1.0}, "did you mean 'healthy_reward'"),
        ("Ant-v4", {"frame_skip": 2}, "unknown option 'frame_skip'"),
        ("Ant-v5", {"default_camera_config": 3}, "expected a dict of numbers and arrays, got int: 3"),
        (
            "Ant-v5",
            {"default_camera_config": {"distance": object()}},
            "expected a dict of numbers and arrays, got dict",
        ),
        # MuJoCo would end the process when it draws.
        ("Ant-v5", {"camera_id": 99}, r"camera_id expected -1 \(the free one\) or a number below 1.*got 99"),
        ("Ant-v4", {"camera_id": -3}, "got -3"),
        (
            "Ant-v5",
            {"camera_id": 0, "camera_name": "track"},
            "camera_id and camera_name expected one of the two, got both",
        ),
        ("Ant-v5", {"width": 0}, "width expected 1 to 16777216, got 0"),
        ("Ant-v5", {"height": -480}, "height expected 1 to 16777216, got -480"),
        # Only what Gymnasium takes None for is its default then.
        ("Ant-v5", {"healthy_reward": None}, "expected a number for healthy_reward, got NoneType: None"),
        ("Ant-v5", {"xml_file": None}, "expected a string .* for xml_file, got NoneType: None"),
        ("Ant-v5", {"xml_file": "/tmp/\udcff.xml"}, "expected a string .UTF-8, no NUL. for xml_file"),
        (
            "Ant-v5",
            {"healthy_z_range": [(0, 1), (0,)]},
            r"healthy_z_range expected a pair \(low, high\), got 1 numbers",
        ),
        ("Ant-v5", {"healthy_reward": 10**400}, "expected a number for healthy_reward, got int: 1000"),
    ],
)
def test_wrong_parameters_say_what_was_expected(env_id: str, params: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        envfleet.make(env_id, num_envs=2, **params)


def test_a_field_that_was_read_leaves_a_later_state_as_it_was_saved():
    with envfleet.make_pool("Reacher-v5", num_envs=1, seed=0) as pool:
        pool.reset()
        actions = np.full((1, 2), 0.5, dtype=np.float32)
        pool.step(actions)
        saved = pool.get_state()
        pool.step(actions)
        pool.get_attr("qpos")
        pool.set_state(saved)
        assert pool.get_state() == saved
