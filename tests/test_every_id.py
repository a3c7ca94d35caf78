"""Whatever takes an env id takes every id that envfleet.make() takes: one of each family of simulators."""

from __future__ import annotations

import importlib.util

import pytest

from envfleet.cli import main
from envfleet.testing import check_env

NEEDS = {
    "Pong-v5": "ale_py",
    "ALE/Breakout-v5": "ale_py",
    "walker-run": "dm_control",
    "VizdoomBasic-v1": "vizdoom",
    "MiniGrid-Empty-5x5-v0": "minigrid",
}


def simulated(*ids):
    return [
        pytest.param(
            env_id,
            marks=pytest.mark.skipif(importlib.util.find_spec(NEEDS[env_id]) is None, reason=f"needs {NEEDS[env_id]}"),
        )
        for env_id in ids or NEEDS
    ]


@pytest.mark.parametrize("env_id", simulated())
def test_sb3(env_id):
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.monitor import Monitor

    from envfleet.apis.sb3 import make_vec_env

    wrapper = None
    if env_id.startswith("MiniGrid"):  # SB3 has no tensors for its texts
        wrapper = pytest.importorskip("minigrid.wrappers").ImgObsWrapper
    envs = make_vec_env(env_id, n_envs=2, seed=0, backend="serial", wrapper_class=wrapper, max_episode_steps=3)
    assert envs.env_is_wrapped(Monitor) == [True, True]
    envs.reset()
    for _ in range(3):
        _, _, dones, infos = envs.step([envs.action_space.sample() for _ in range(2)])
    assert dones.all()
    assert [info["episode"]["l"] for info in infos] == [3, 3]
    envs.close()


@pytest.mark.parametrize("env_id", simulated("walker-run"))
def test_sb3_with_a_class_of_its_own(env_id):
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.vec_env import DummyVecEnv

    from envfleet.apis.sb3 import make_vec_env

    envs = make_vec_env(env_id, n_envs=2, vec_env_cls=DummyVecEnv)
    assert isinstance(envs, DummyVecEnv)
    envs.reset()
    envs.close()


@pytest.mark.parametrize("env_id", simulated("Pong-v5", "MiniGrid-Empty-5x5-v0"))
def test_check_env(env_id):
    check_env(env_id, num_steps=5).raise_on_error()


@pytest.mark.parametrize("env_id", simulated("Pong-v5", "walker-run"))
def test_rllib_tianshou_and_torchrl(env_id):
    from envfleet.apis.rllib import vector_entry_point

    with vector_entry_point(env_id, backend="serial")({"num_envs": 2}) as envs:
        envs.reset(seed=0)
    if importlib.util.find_spec("tianshou"):
        from envfleet.apis.tianshou import make_vector_env

        vector_env = make_vector_env(env_id, num_envs=2, backend="serial")
        vector_env.reset()
        vector_env.close()
    if importlib.util.find_spec("torchrl"):
        from envfleet.apis.torchrl import EnvFleetEnv
        from envfleet.compat.torchrl import MultiThreadedEnv

        for env in (EnvFleetEnv(env_id, 2, backend="serial"), MultiThreadedEnv(2, env_id)):
            env.rand_step(env.reset())
            env.close()


@pytest.mark.parametrize("env_id", simulated("Pong-v5"))
def test_the_command_line(env_id, capsys):
    assert main(["run", env_id, "--num-envs", "2", "--steps", "4", "--backend", "serial"]) == 0
    assert env_id in capsys.readouterr().out
