"""Tianshou's view, against Tianshou's own vector env and with its collectors and trainers."""

from __future__ import annotations

from contextlib import closing
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from support.python_probes import wait_at_gate

pytest.importorskip("tianshou")
torch = pytest.importorskip("torch")

from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy  # noqa: E402 (after importorskip)
from tianshou.algorithm.optim import AdamOptimizerFactory  # noqa: E402
from tianshou.data import AsyncCollector, Collector, VectorReplayBuffer  # noqa: E402
from tianshou.env import BaseVectorEnv, DummyVectorEnv, VectorEnvNormObs  # noqa: E402
from tianshou.trainer import OffPolicyTrainerParams  # noqa: E402
from tianshou.utils.net.common import Net  # noqa: E402

import envfleet  # noqa: E402
from envfleet.apis.tianshou import TianshouPool, make_vector_env  # noqa: E402

BACKENDS = ["native", "serial", "processes"]

# AsyncCollector says so whenever it is made.
extra_transitions = pytest.mark.filterwarnings("ignore:Using async setting may collect extra transitions:UserWarning")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


class Labelled(gymnasium.Env):
    """Dict observations, attributes, a gate in each step; a fragile one raises."""

    observation_space = spaces.Dict({"age": spaces.Discrete(100), "place": spaces.Box(-1, 1, (2,), np.float32)})
    action_space = spaces.Discrete(2)

    def __init__(self, gate=0, fragile=False):
        self.gate = gate
        self.fragile = fragile
        self.colour = "red"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return self._observe(), {"colour": self.colour}

    def step(self, action):
        if self.fragile:
            raise RuntimeError("asked to")
        if self.gate:
            wait_at_gate(self.gate)
        self.age += 1
        return self._observe(), float(action), self.age == 3, False, {"colour": self.colour}

    def _observe(self):
        return {"age": self.age, "place": np.full(2, self.age / 100, np.float32)}


class Pair(gymnasium.Env):
    observation_space = spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2)))
    action_space = spaces.Dict({"a": spaces.Discrete(2)})


class Bounded(gymnasium.Env):
    def __init__(self, high, size=1):
        self.observation_space = spaces.Dict({"place": spaces.Box(0, high, (size,), np.float32)})
        self.action_space = spaces.Box(-high, high, (1,), np.float32)
        self.high = high

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"place": np.zeros(1, np.float32)}, {}

    def step(self, action):
        return {"place": np.full(1, self.high, np.float32)}, float(action[0]), False, False, {}


class Recurrent(DiscreteQLearningPolicy):
    """With a state: AsyncCollector of Tianshou 2.0 fails with policies that have none."""

    def forward(self, batch, state=None, model=None):
        result = super().forward(batch, None, model)
        result.state = np.zeros((len(result.act), 1))
        return result


def policy_for(envs, kind=DiscreteQLearningPolicy):
    torch.manual_seed(0)
    observation_space, action_space = envs.observation_space[0], envs.action_space[0]
    model = Net(state_shape=observation_space.shape, action_shape=action_space.n, hidden_sizes=[16])
    return kind(model=model, action_space=action_space)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_collector_gathers_what_it_gathers_with_tianshous_own(backend):
    buffers = []
    for envs in (
        DummyVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(3)]),
        make_vector_env("CartPole-v1", num_envs=3, backend=backend),
    ):
        assert isinstance(envs, BaseVectorEnv)
        assert envs.seed(5) == [[5], [6], [7]]
        collector = Collector(policy_for(envs), envs, VectorReplayBuffer(600, 3))
        collector.reset()
        stats = [
            collector.collect(n_step=90),
            collector.collect(n_step=90, random=True),
            collector.collect(n_episode=4),
        ]
        buffers.append((collector.buffer, [(each.returns.tolist(), each.lens.tolist()) for each in stats]))
        collector.close()
        assert envs.is_closed
    (theirs, their_stats), (ours, our_stats) = buffers
    assert our_stats == their_stats
    for key in ("act", "rew", "terminated", "truncated", "done"):
        np.testing.assert_array_equal(ours[:][key], theirs[:][key])
    # Native CartPole stays with Gymnasium's to float32 precision.
    for key in ("obs", "obs_next"):
        np.testing.assert_allclose(ours[:][key], theirs[:][key], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(ours[:].info.env_id, theirs[:].info.env_id)


@extra_transitions
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_async_collector_with_wait_num(backend):
    envs = make_vector_env("CartPole-v1", num_envs=4, wait_num=2, backend=backend, seed=0)
    assert envs.is_async
    collector = AsyncCollector(policy_for(envs, Recurrent), envs, VectorReplayBuffer(2000, 4))
    collector.reset()
    assert collector.collect(n_step=200).n_collected_steps >= 200
    assert len(envs.waiting_id) == 2
    # In the middle of things: two envs are still in flight.
    collector.reset()
    stats = collector.collect(n_episode=6)
    assert stats.n_collected_episodes >= 6
    batch = collector.buffer[:]
    assert set(batch.info.env_id.tolist()) == {0, 1, 2, 3}
    # Each buffer holds its env's episodes without a gap.
    for env_id, part in enumerate(collector.buffer.buffers):
        rows = part[:]
        assert set(rows.info.env_id.tolist()) == {env_id}
        runs_on = ~rows.done[:-1]
        np.testing.assert_array_equal(rows.obs[1:][runs_on], rows.obs_next[:-1][runs_on])
        assert (rows.info.elapsed_step[1:][runs_on] == rows.info.elapsed_step[:-1][runs_on] + 1).all()
    collector.close()


def test_a_trainer_runs():
    training_envs, test_envs = (make_vector_env("CartPole-v1", num_envs=n, seed=0) for n in (4, 2))
    policy = policy_for(training_envs)
    collector = Collector(policy, training_envs, VectorReplayBuffer(1000, 4), exploration_noise=True)
    collector.reset()
    result = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3)).run_training(
        OffPolicyTrainerParams(
            training_collector=collector,
            test_collector=Collector(policy, test_envs),
            max_epochs=1,
            epoch_num_steps=200,
            collection_step_num_env_steps=40,
            update_step_num_gradient_steps_per_sample=0.1,
            test_step_num_episodes=2,
            batch_size=16,
            verbose=False,
            show_progress=False,
        )
    )
    assert result.best_score > 0


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_a_python_env_with_dict_observations(backend):
    theirs = DummyVectorEnv([Labelled] * 3)
    ours = make_vector_env(Labelled, num_envs=3, backend=backend)
    for envs in (theirs, ours):
        obs, infos = envs.reset()
        assert obs.shape == infos.shape == (3,)
        assert infos[1]["colour"] == "red"
        envs.set_env_attr("colour", "blue", [0, 2])
        assert envs.get_env_attr("colour") == ["blue", "red", "blue"]
        assert envs.get_env_attr("colour", 1) == ["red"]
        obs, reward, terminated, truncated, infos = envs.step(np.array([1, 0]), [2, 0])
        assert [info["env_id"] for info in infos] == [2, 0]
        assert [info["colour"] for info in infos] == ["blue", "blue"]
        assert [own["age"] for own in obs] == [1, 1]
        assert reward.tolist() == [1.0, 0.0]
        assert not (terminated | truncated).any()
        assert envs.action_space == [Labelled.action_space] * 3
        assert len(envs) == 3
    collector = Collector(policy_for(make_vector_env("CartPole-v1")), ours, VectorReplayBuffer(100, 3))
    collector.reset()
    assert collector.collect(n_step=30, random=True).n_collected_episodes == 9
    assert collector.buffer[:].obs.place.shape == (30, 2)
    ours.close()


def test_tensors_numbers_and_wrappers_are_taken():
    envs = make_vector_env("CartPole-v1", num_envs=2)
    obs, _ = envs.reset(1, seed=3)
    assert (obs[0] == gymnasium.make("CartPole-v1").reset(seed=4)[0]).all()
    envs.reset()
    assert envs.step(torch.tensor([0, 1]))[0].shape == (2, 4)
    assert envs.step(np.array([1]), 0)[0].shape == (1, 4)
    wrapped = VectorEnvNormObs(envs)
    assert wrapped.reset()[0].shape == (2, 4)
    assert wrapped.get_env_attr("gravity") == [9.8, 9.8]
    assert [own.n for own in wrapped.action_space] == [2, 2]


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_envs_whose_bounds_differ(backend):
    factories = [partial(Bounded, high) for high in (1, 2, 3)]
    results = []
    for envs in (DummyVectorEnv(factories), make_vector_env(factories, backend=backend)):
        envs.seed(3)
        envs.reset()
        actions = np.stack([space.sample() for space in envs.action_space])
        obs, rewards, *_ = envs.step(actions)
        places = [row["place"].tolist() for row in obs]
        results.append((envs.observation_space, envs.action_space, envs.get_env_attr("high"), places, rewards.tolist()))
        envs.close()
    assert results[0] == results[1]
    with closing(make_vector_env(factories, backend=backend, wrappers=None)) as envs:
        assert envs.action_space == results[0][1]


def test_an_ended_episode_waits_for_its_reset():
    envs = make_vector_env("CartPole-v1", num_envs=2, max_episode_steps=1, seed=0)
    envs.reset()
    assert envs.step(np.array([0, 0]))[3].all()
    with pytest.raises(envfleet.CallOrderError, match="has ended"):
        envs.step(np.array([0, 0]))
    envs.reset([0, 1])
    envs.step(np.array([0, 0]))


def test_a_timeout_gives_what_is_there(gate):
    gates = [{}, {}, {"gate": gate.number}]
    envs = make_vector_env(Labelled, num_envs=3, timeout=0.3, backend="processes", num_workers=3, env_kwargs=gates)
    envs.reset()
    infos = envs.step(np.array([0, 0, 0]))[4]
    assert {info["env_id"] for info in infos} <= {0, 1}
    seen = {info["env_id"] for info in infos}
    gate.open()
    while len(seen) < 3:
        seen |= {info["env_id"] for info in envs.step(None)[4]}
    assert envs.waiting_id == []
    assert envs.ready_id == [0, 1, 2]
    with pytest.raises(envfleet.CallOrderError, match="nothing in flight"):
        envs.step(None)
    envs.close()


def test_an_env_that_raises_loses_nobody_elses_row():
    kwargs = [{"fragile": env_id == 1} for env_id in range(3)]
    envs = make_vector_env(Labelled, num_envs=3, wait_num=2, backend="serial", env_kwargs=kwargs)
    envs.reset()
    with pytest.raises(envfleet.EnvError, match="env 1 raised"):
        envs.step(np.array([0, 0, 0]))
    assert sorted(info["env_id"] for info in envs.step(None)[4]) == [0, 2]
    obs, _ = envs.reset([1])
    assert obs[0]["age"] == 0


def test_a_reset_drops_a_row_that_an_exception_held_back():
    kwargs = [{"fragile": env_id == 1} for env_id in range(3)]
    envs = make_vector_env(Labelled, num_envs=3, wait_num=2, backend="serial", env_kwargs=kwargs)
    envs.reset()
    with pytest.raises(envfleet.EnvError, match="env 1 raised"):
        envs.step(np.array([0, 0, 0]))
    assert envs.ready_id == [0, 1]
    envs.reset([0])
    obs, *_, infos = envs.step(np.array([0]), [0])
    assert sorted((info["env_id"], row["age"]) for info, row in zip(infos, obs, strict=True)) == [(0, 1), (2, 1)]
    assert envs.waiting_id == []


def test_rendering():
    envs = make_vector_env("FrozenLake-v1", num_envs=2, render_mode="rgb_array")
    envs.reset()
    frames = envs.render()
    assert [frame.ndim for frame in frames] == [3, 3]


def test_what_does_not_fit_is_refused():
    for mode in ("next_step", "same_step"):
        with pytest.raises(envfleet.ConfigError, match="'disabled'"):
            make_vector_env("CartPole-v1", num_envs=2, autoreset_mode=mode)
    with pytest.raises(envfleet.ConfigError, match=r"Tuple.*FlattenObservation"):
        make_vector_env(Pair, num_envs=2, backend="serial")
    with pytest.raises(envfleet.ConfigError, match=r"expected the same spaces for all envs"):
        make_vector_env([partial(Bounded, 1, size) for size in (1, 2)], backend="serial")
    with pytest.raises(envfleet.ConfigError, match="wait_num expected an integer from 1 to 2, got 3"):
        make_vector_env("CartPole-v1", num_envs=2, wait_num=3)
    with pytest.raises(envfleet.ConfigError, match="timeout expected a number of seconds above 0"):
        make_vector_env("CartPole-v1", num_envs=2, timeout=0)
    with pytest.raises(envfleet.ConfigError, match="does not take batch_size; pass wait_num instead"):
        make_vector_env("CartPole-v1", num_envs=2, batch_size=1)
    pool = envfleet.make_pool("CartPole-v1", num_envs=4, batch_size=2, autoreset_mode="disabled")
    with pool, pytest.raises(envfleet.ConfigError, match="batch_size=1, got 2"):
        TianshouPool(pool, wait_num=2)
    envs = make_vector_env("CartPole-v1", num_envs=2)
    with pytest.raises(envfleet.ActionError, match="got None"):
        envs.step(None)
    with pytest.raises(envfleet.ConfigError, match="return_info"):
        envs.reset(return_info=True)
    envs.close()
    with pytest.raises(envfleet.PoolClosedError):
        envs.reset()
