"""pufferlib.vector's API on pools. tests/compat/scripts/pufferlib_differential.py compares it with PufferLib itself."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
from compat_probes import PictureBook
from pufferlib_probes import Broken, Nested, Walkers, native_class

import envfleet
from envfleet.compat import pufferlib_vector as vector
from envfleet.compat.pufferlib_vector import APIUsageError, GymnasiumPufferEnv, PettingZooPufferEnv, PufferEnv

Counters = native_class(PufferEnv)
cartpole = partial(gymnasium.make, "CartPole-v1")


def rows_of(envs, num_steps, seed=5):
    """The rows of num_steps recv() calls, by agent."""
    by_agent = {}
    envs.async_reset(seed=seed)
    for _ in range(num_steps):
        obs, rewards, terminals, truncations, _, ids, masks = envs.recv()
        for row, agent in enumerate(ids):
            one = (obs[row].tolist(), rewards[row], terminals[row], truncations[row], masks[row])
            by_agent.setdefault(int(agent), []).append(one)
        envs.send(ids.astype(np.int64) % 2)  # decided by the agent alone, so the same in any order
    envs.recv()
    envs.close()
    return by_agent


@pytest.mark.parametrize("options", [{}, {"batch_size": 2}, {"batch_size": 2, "zero_copy": False}])
@pytest.mark.parametrize("make_env", [cartpole, Walkers], ids=["gymnasium", "pettingzoo"])
def test_plain_creators_give_the_same_rows_on_every_backend(make_env, options):
    expected = rows_of(vector.make(make_env, backend=vector.Serial, num_envs=4), 30)
    envs = vector.make(make_env, backend="Multiprocessing", num_envs=4, num_workers=2, **options)
    assert envs.num_agents == len(expected)
    found = rows_of(envs, 30)
    for agent, rows in found.items():
        count = min(len(rows), len(expected[agent]))
        assert rows[:count] == expected[agent][:count]


def test_rows_of_gymnasiums_envs():
    envs = vector.make(cartpole, backend=vector.Serial, num_envs=2)
    assert (envs.num_agents, envs.agents_per_batch, envs.num_envs, envs.num_environments) == (2, 2, 2, 2)
    assert envs.single_observation_space.shape == (4,)
    assert envs.observation_space.shape == (2, 4)
    assert envs.action_space == gymnasium.spaces.MultiDiscrete([2, 2])
    assert isinstance(envs.driver_env, GymnasiumPufferEnv)
    twins = [cartpole() for _ in range(2)]
    obs, infos = envs.reset(seed=3)
    np.testing.assert_array_equal(obs, [twin.reset(seed=3 + i)[0] for i, twin in enumerate(twins)])
    assert infos == [{}, {}]
    kept = obs.copy()
    done = [False, False]
    for _ in range(40):
        rows, rewards, terminals, truncations, infos = envs.step([1, 0])
        assert (rewards.dtype, terminals.dtype, truncations.dtype) == (np.float32, np.bool_, np.bool_)
        for i, twin in enumerate(twins):
            if done[i]:  # the step after an end resets, and its action counts for nothing
                expected, reward, done[i] = twin.reset()[0], 0.0, False
            else:
                expected, reward, done[i], _, _ = twin.step([1, 0][i])
            np.testing.assert_array_equal(rows[i], expected)
            assert (rewards[i], terminals[i]) == (reward, done[i])
    np.testing.assert_array_equal(obs, kept)  # unlike PufferLib's, arrays that were handed out do not change
    envs.close()
    envs.close()


def test_batches_are_contiguous_and_come_in_turn():
    envs = vector.make(cartpole, backend=vector.Multiprocessing, num_envs=4, num_workers=2, batch_size=2)
    envs.async_reset(seed=0)
    seen = []
    for _ in range(5):
        seen.append(envs.recv()[5].tolist())
        envs.send(np.zeros(2, dtype=np.int32))
    assert seen == [[0, 1], [2, 3], [0, 1], [2, 3], [0, 1]]
    envs.async_reset(seed=1)  # with steps in flight
    obs = envs.recv()[0]
    np.testing.assert_array_equal(obs[1], cartpole().reset(seed=2)[0])
    envs.close()


def test_structured_spaces_are_flattened_and_unpacked():
    env = GymnasiumPufferEnv(env_creator=Nested)
    assert env.single_observation_space.dtype == np.uint8
    assert env.single_action_space == gymnasium.spaces.MultiDiscrete([3, 2])
    observations, _ = env.reset(seed=4)
    twin = Nested()
    expected, _ = twin.reset(seed=4)
    record = observations.view(env.emulated["emulated_observation_dtype"])[0, 0]
    np.testing.assert_array_equal(record["place"], expected["place"])
    assert record["parts"]["f0"] == expected["parts"][0]
    np.testing.assert_array_equal(record["parts"]["f1"], expected["parts"][1])
    _, reward, *_ = env.step(np.array([2, 1]))
    assert reward == env.rewards[0] == 12
    lone = GymnasiumPufferEnv(gymnasium.make("FrozenLake-v1"))
    assert (lone.single_observation_space.shape, lone.single_observation_space.dtype) == ((1,), np.int32)
    assert lone.reset(seed=0)[0].tolist() == [[0]]


def test_old_gym_envs_too():
    envs = vector.make(PictureBook, env_kwargs={"length": 2}, backend="Serial", num_envs=2)
    envs.reset()
    assert envs.step([0, 1])[1].tolist() == [0.5, 0.5]
    *_, terminals, _, infos = envs.step([0, 1])
    assert terminals.all()
    assert infos == [{"count": 2}, {"count": 2}]
    envs.close()


def test_native_envs():
    alone = vector.make(Counters, env_kwargs={"length": 3})
    assert isinstance(alone, Counters)
    alone.async_reset(9)
    assert alone.recv()[0][:, 1].tolist() == [9, 9, 9]
    envs = vector.make(Counters, [4], backend="Multiprocessing", num_envs=2, num_workers=2, seed=20)
    assert (envs.num_agents, envs.emulated) == (6, False)
    envs.async_reset(seed=30)
    obs, _, _, _, infos, ids, masks = envs.recv()
    assert obs[:, 1].tolist() == [30] * 3 + [31] * 3
    assert (infos, ids.tolist(), masks.all()) == ([], [0, 1, 2, 3, 4, 5], True)
    for _ in range(2):
        envs.send(np.tile([2, 1], (6, 1)))
        _, rewards, terminals, _, infos, _, _ = envs.recv()
    assert rewards.tolist() == [12] * 6
    assert terminals.tolist() == [False, False, True] * 2
    assert infos == [{"ended": 1}, {"ended": 1}]
    envs.close()


def test_creators_and_arguments_of_each_env():
    creators = [Counters, partial(Counters, 5)]
    envs = vector.make(creators, env_args=[[2], []], env_kwargs=[{}, {}], backend=vector.Serial, num_envs=2)
    envs.reset()
    terminals = envs.step(np.zeros((6, 2), dtype=int))[2]
    assert terminals.tolist() == [False, True, True, False, False, False]
    envs.close()


def test_agents_that_leave():
    env = PettingZooPufferEnv(env_creator=Walkers)
    env.reset(seed=0)
    for _ in range(2):
        env.step(np.array([1, 2, 3]))
    assert env.terminals.tolist() == [True, False, False]
    env.step(np.array([1, 2, 3]))
    assert (env.masks.tolist(), env.rewards.tolist()) == ([False, True, True], [0, 2, 3])
    assert not env.done


def test_an_env_that_raises_is_an_exception():
    envs = vector.make(Broken, backend=vector.Multiprocessing, num_envs=2, num_workers=2)
    envs.reset()
    still = np.zeros((2, 2), dtype=int)
    envs.step(still)
    envs.step(still)
    with pytest.raises(envfleet.EnvError, match="the env broke"):
        envs.step(still)
    assert envs.reset()[0].shape == (2, envs.single_observation_space.shape[0])
    envs.close()


def test_an_env_that_raises_can_be_restarted():
    envs = vector.make(Broken, backend=vector.Serial, num_envs=1, on_error="restart")
    envs.reset()
    still = np.zeros((1, 2), dtype=int)
    envs.step(still)
    last = envs.step(still)[0].copy()
    obs, rewards, terminals, truncations, infos = envs.step(still)
    assert (terminals.tolist(), truncations.tolist()) == ([False], [True])
    assert obs.tolist() == last.tolist()
    assert last.any()
    assert rewards.tolist() == [0]
    assert "the env broke" in str(infos)
    envs.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_envs": 0}, "num_envs"),
        ({"num_envs": 1.5}, "num_envs"),
        ({"backend": "Threads"}, "backend expected"),
        ({"num_workers": 3}, "num_workers expected a divisor"),
        ({"num_workers": 2, "batch_size": 3}, "batch_size expected a multiple of the 2 envs"),
        ({"batch_size": 3}, "batch_size expected a divisor"),
        ({"batch_size": 9}, "batch_size expected a number from 1"),
        ({"env_kwargs": [{}]}, "env_kwargs as dicts"),
        ({"backend": PufferEnv}, "num_envs expected 1"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(APIUsageError, match=message):
        vector.make(cartpole, **{"backend": vector.Multiprocessing, "num_envs": 4, **options})


def test_more_that_is_refused():
    with pytest.raises(APIUsageError, match="creator of PufferEnvs"):
        vector.make(cartpole)
    with pytest.raises(APIUsageError, match="list of num_envs=3, got 2"):
        vector.make([cartpole] * 2, backend="Serial", num_envs=3)
    with pytest.raises(envfleet.ConfigError, match="no_such_option"):
        vector.make(cartpole, backend="Serial", num_envs=2, no_such_option=1)
    with pytest.raises(APIUsageError, match="single_observation_space"):
        PufferEnv()
    envs = vector.make(cartpole, backend="Serial", num_envs=2)
    with pytest.raises(APIUsageError, match="async_reset"):
        envs.recv()
    envs.async_reset()
    with pytest.raises(APIUsageError, match=r"expected recv\(\)"):
        envs.send([0, 0])
    envs.recv()
    with pytest.raises(APIUsageError, match="expected actions of shape"):
        envs.send([0, 0, 0])
    with pytest.raises(envfleet.ActionError):
        envs.send([0, 7])
    envs.send([0, 1])
    envs.close()


def test_batch_sizes_in_words():
    envs = vector.make(cartpole, backend="Multiprocessing", num_envs=2, num_workers="auto", batch_size="auto")
    assert (envs.agents_per_batch, envs.num_agents) == (1, 2)
    envs.close()
    serial = vector.make(cartpole, backend="Serial", num_envs=4, num_workers=2, batch_size=2)
    assert (serial.agents_per_batch, serial.num_agents) == (2, 2)
    serial.close()
