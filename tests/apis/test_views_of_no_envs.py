"""Every view that takes env ids takes none of them, too."""

from __future__ import annotations

import numpy as np
import pytest

import envfleet
from envfleet.compat import envpool

NO_IDS = [np.zeros(0, np.int32), np.array([]), []]
IDS = pytest.mark.parametrize("ids", NO_IDS, ids=["int32", "float64", "list"])


@IDS
@pytest.mark.parametrize("backend", ["native", "serial"])
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_gymnasium_and_gym(backend, mode, ids):
    with envfleet.make("CartPole-v1", num_envs=2, backend=backend, autoreset_mode=mode) as envs:
        envs.reset(seed=0)
        obs, info = envs.reset(ids)
        assert obs.shape == (0, 4)
        assert info["env_id"].shape == info["_elapsed_step"].shape == (0,)
        obs, reward, terminated, truncated, info = envs.step([], ids)
        assert (obs.shape, obs.dtype) == ((0, 4), np.float32)
        assert reward.shape == terminated.shape == truncated.shape == info["env_id"].shape == (0,)
        assert "final_obs" not in info
    with envfleet.make_gym("CartPole-v1", num_envs=2, backend=backend, autoreset_mode=mode) as envs:
        envs.reset(seed=0)
        obs, reward, done, info = envs.step([], ids)
        assert (reward.dtype, done.dtype) == (np.float32, np.bool_)
        assert reward.shape == done.shape == info["TimeLimit.truncated"].shape == (0,)


@IDS
@pytest.mark.parametrize("backend", ["native", "serial"])
def test_dm(backend, ids):
    with envfleet.make_dm("CartPole-v1", num_envs=2, backend=backend) as envs:
        envs.reset(seed=0)
        for step in (envs.reset(ids), envs.step([], ids)):
            assert step.observation.obs.shape == (0, 4)
            assert step.step_type.shape == step.discount.shape == step.reward.shape == (0,)


def test_infos_of_native_envs():
    """The columns that every row of such a call would have."""
    with envfleet.make("FrozenLake-v1", num_envs=2) as envs:
        _, info = envs.reset(seed=0)
        _, none = envs.reset([])
        assert none.keys() == info.keys()
        assert none["prob"].shape == (0,)
        assert none["prob"].dtype == info["prob"].dtype


@IDS
@pytest.mark.parametrize("env_type", ["gym", "gymnasium", "dm"])
def test_envpool(env_type, ids):
    """As TorchRL's MultiThreadedEnv calls it when no episode has ended."""
    envs = envpool.make("CartPole-v1", env_type=env_type, num_envs=2)
    envs.reset(ids)
    envs.reset()
    envs.reset(ids)
    step = envs.step(np.zeros(0, np.int64), ids)
    assert (step.reward if env_type == "dm" else step[1]).shape == (0,)
    envs.step(np.zeros(2, np.int64))
    envs.close()


@IDS
def test_pettingzoo(ids):
    pytest.importorskip("pettingzoo")
    from pettingzoo_probes import Lodge

    for layout in ("agents", "rows"):
        options = {"num_envs": 2, "backend": "serial"}
        with envfleet.make_pettingzoo(Lodge, layout=layout, **options) as envs:
            envs.reset(seed=0)
            assert len(envs.reset(ids)[1]["env_id"]) == 0
            actions = {} if layout == "agents" else []
            assert len(envs.step(actions, ids)[4]["env_id"]) == 0


@IDS
@pytest.mark.parametrize("wait_num", [None, 1])
def test_tianshou(wait_num, ids):
    pytest.importorskip("tianshou")
    from envfleet.apis.tianshou import make_vector_env

    envs = make_vector_env("CartPole-v1", num_envs=2, wait_num=wait_num)
    envs.reset()
    obs, infos = envs.reset(ids)
    assert obs.shape == (0, 4)
    assert infos.shape == (0,)
    obs, reward, terminated, truncated, infos = envs.step(np.zeros(0, np.int64), ids)
    assert obs.shape == (0, 4)
    assert reward.shape == terminated.shape == truncated.shape == infos.shape == (0,)
    assert len(envs.step(np.zeros(2, np.int64), [0, 1])[1]) == (wait_num or 2)
    envs.close()


def test_wrappers():
    """Statistics of other envs stay as they are."""
    from envfleet.wrappers import NormalizeObservation, RecordEpisodeStatistics

    envs = NormalizeObservation(RecordEpisodeStatistics(envfleet.make("CartPole-v1", num_envs=2)))
    envs.reset(seed=0)
    assert envs.reset([])[0].shape == (0, 4)
    assert envs.step([], [])[0].shape == (0, 4)
    assert envs.step([0, 1])[0].shape == (2, 4)
    envs.close()


def test_torchrl():
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchrl")
    from envfleet.apis.torchrl import AsyncEnvFleetEnv, EnvFleetEnv

    env = EnvFleetEnv("CartPole-v1", num_envs=2)
    rows = env.rand_action(env.reset())
    rows.set("_step", torch.zeros(2, dtype=torch.bool))
    assert env.step(rows).batch_size == torch.Size([2])
    rows = env.reset()
    rows.set("_reset", torch.zeros(2, 1, dtype=torch.bool))
    assert (env.reset(rows)["observation"] == rows["observation"]).all()
    env.close()
    fleet = AsyncEnvFleetEnv("CartPole-v1", num_envs=2, batch_size=1)
    rows = fleet.reset()
    rows.set("action", fleet.action_spec_of(2).rand()["action"])
    fleet.send(rows[:0])
    fleet.send(rows)
    assert len(fleet.recv()[0]) == 1
    fleet.close()
