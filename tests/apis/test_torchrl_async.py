"""AsyncEnvFleetEnv and AsyncCollector: transitions in the order of their completion."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchrl")

from support.info_env import CountingEnv  # noqa: E402 (after importorskip)
from support.python_probes import FaultyEnv  # noqa: E402
from support.torchrl_probes import assert_like_gymnasium, collectors_warn, fixed_actions  # noqa: E402
from tensordict import TensorDict  # noqa: E402

import envfleet  # noqa: E402
from envfleet import ConfigError, EnvIdError  # noqa: E402
from envfleet.apis.torchrl import AsyncCollector, AsyncEnvFleetEnv  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def test_async_transitions_are_gymnasiums():
    """Whatever the order of completion, each env's transitions are those it would make alone."""
    num_steps = 40
    table = fixed_actions(1000, 6, 2)
    env = AsyncEnvFleetEnv("CartPole-v1", 6, 2, categorical_action_encoding=True)
    env.set_seed(5)
    rows = env.reset()
    assert rows.shape == (6,)
    counts = torch.zeros(6, dtype=torch.int64)
    seen = [[] for _ in range(6)]

    def act(td):
        index = td["env_index"]
        td["action"] = table[counts[index], index]
        counts[index] += 1
        return td

    env.send(act(rows))
    while min(map(len, seen)) < num_steps:
        transitions, rows = env.recv()
        assert transitions.shape == rows.shape == (2,)
        for k, env_id in enumerate(transitions["env_index"].tolist()):
            seen[env_id].append(transitions[k])
        env.send(act(rows))
    data = torch.stack([torch.stack(own[:num_steps]) for own in seen])
    assert data["next", "done"].any()
    assert_like_gymnasium(data, "CartPole-v1", table[:num_steps], seed=5)
    env.close()


@collectors_warn
@pytest.mark.parametrize("categorical", [False, True])
def test_async_collector(categorical):
    from torchrl.collectors.utils import split_trajectories

    env = AsyncEnvFleetEnv("CartPole-v1", 8, 4, categorical_action_encoding=categorical)
    with AsyncCollector(env, frames_per_batch=128, total_frames=384) as collector:
        collector.set_seed(0)
        batches = list(collector)
    assert [data.shape for data in batches] == [(128,)] * 3
    data = torch.cat(batches)
    assert env.action_spec["action"].shape[1:] == data["action"].shape[1:]
    for trajectory in data["collector", "traj_ids"].unique():
        own = data[data["collector", "traj_ids"] == trajectory]
        assert own["env_index"].unique().numel() == 1
        assert (own["observation"][1:] == own["next", "observation"][:-1]).all()
        assert not own["next", "done"][:-1].any()
        assert not own["done"].any()
    assert split_trajectories(batches[0])["collector", "mask"].sum() == 128


def test_async_collector_keeps_what_the_policy_writes():
    def policy(td):
        obs = td["observation"]
        return TensorDict({"action": obs[:, :1], "value": obs.sum(-1)}, [len(td)])

    env = AsyncEnvFleetEnv("Pendulum-v1", 5, 2)  # no whole number of batches
    data = AsyncCollector(env, policy, frames_per_batch=20).next()
    assert torch.allclose(data["value"], data["observation"].sum(-1))
    assert (data["action"] == data["observation"][:, :1]).all()
    env.close()


@pytest.mark.parametrize("culprit", ["env", "policy"])
def test_async_collector_starts_over_after_an_exception(culprit):
    choices = iter([FaultyEnv.STEP, FaultyEnv.STEP, FaultyEnv.THROW])

    def policy(rows):
        action = next(choices, FaultyEnv.STEP)
        if culprit == "policy" and action == FaultyEnv.THROW:
            raise ZeroDivisionError("asked for")
        return rows.set("action", torch.full(rows.shape, action))

    env = AsyncEnvFleetEnv(FaultyEnv, 4, 2, backend="serial", categorical_action_encoding=True)
    with AsyncCollector(env, policy, frames_per_batch=8) as collector:
        with pytest.raises(envfleet.EnvError if culprit == "env" else ZeroDivisionError):
            collector.next()
        data = collector.next()
        # Each trajectory from its first step on, without a gap; the count is the second number.
        for trajectory in data["collector", "traj_ids"].unique():
            own = data[data["collector", "traj_ids"] == trajectory]
            assert own["observation"][:, 1].tolist() == list(range(len(own)))


def test_async_misuse():
    env = AsyncEnvFleetEnv("CartPole-v1", 4, 2)
    with pytest.raises(envfleet.CallOrderError, match="nothing in flight"):
        env.recv()
    with pytest.raises(envfleet.EnvIdError, match="env_index"):
        env.send(env.reset().exclude("env_index"))
    with pytest.raises(envfleet.ConfigError, match="multiple of the env's batch_size=2, got 5; pass 6"):
        AsyncCollector(env, frames_per_batch=5)
    with pytest.raises(envfleet.ConfigError, match="expected autoreset_mode 'same_step', got 'disabled'"):
        AsyncEnvFleetEnv("CartPole-v1", 4, 2, autoreset_mode="disabled")
    env.close()
    with pytest.raises(envfleet.PoolClosedError):
        env.reset()


@pytest.mark.parametrize("index", [[0.6, 1.9], [True, False], [2**32 + 2, 2**32 + 3]])
def test_wrong_env_index(index):
    with AsyncEnvFleetEnv(CountingEnv, 4, 2, backend="serial", categorical_action_encoding=True) as envs:
        rows = envs.reset()[:2].clone().set("action", torch.zeros(2, dtype=torch.int64))
        with pytest.raises(EnvIdError, match="env ids"):
            envs.send(rows.set("env_index", torch.tensor(index)))
        assert envs.pool.num_in_flight == 0


def test_rows_with_other_keys():
    """A row that is sent without a key must not come back with the value of an earlier row."""
    with AsyncEnvFleetEnv(CountingEnv, 4, 2, backend="serial", categorical_action_encoding=True) as envs:
        rows = envs.reset().set("action", torch.zeros(4, dtype=torch.int64)).set("logp", torch.ones(4))
        envs.send(rows)
        transitions, following = envs.recv()
        assert transitions.get("logp").tolist() == [1, 1]
        following = following.set("action", torch.zeros(2, dtype=torch.int64))
        with pytest.raises(ConfigError, match="with the keys of those in flight"):
            envs.send(following)
        envs.recv()
        envs.send(following)
        transitions, _ = envs.recv()
        assert transitions.get("logp", None) is None
