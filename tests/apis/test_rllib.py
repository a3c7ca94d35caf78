"""RLlib's env creator: next-step autoreset in its EnvRunner, and a few iterations of PPO."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import envfleet
from envfleet.apis import rllib
from envfleet.apis.gymnasium import GymnasiumPool

ENV_RUNNER = {"gym_env_vectorize_mode": "vector_entry_point", "num_env_runners": 0}

# Every EnvRunner of a process registers its env with Gymnasium under this one name.
with_ray = pytest.mark.filterwarnings("ignore:.*Overriding environment rllib-single-agent-env-v0:UserWarning")


def test_the_creator_makes_a_pool():
    create = rllib.vector_entry_point("CartPole-v1", max_episode_steps=7)
    envs = create({"num_envs": 5, "seed": 3})
    assert isinstance(envs, GymnasiumPool)
    assert (envs.num_envs, envs.autoreset_mode) == (5, AutoresetMode.NEXT_STEP)
    assert envs.pool.config.max_episode_steps == 7
    assert envs.pool.seeds == (3, 4, 5, 6, 7)
    envs.close()


def test_what_rllib_cannot_do_is_refused():
    for mode in ("same_step", "disabled"):
        with pytest.raises(envfleet.ConfigError, match="RLlib expected autoreset_mode 'next_step'"):
            rllib.vector_entry_point("CartPole-v1", autoreset_mode=mode)
    with pytest.raises(envfleet.ConfigError, match="num_envs_per_env_runner"):
        rllib.vector_entry_point("CartPole-v1", num_envs=4)
    with pytest.raises(envfleet.ConfigError, match="does not support batch_size"):
        rllib.vector_entry_point("CartPole-v1", batch_size=4)
    create = rllib.vector_entry_point("CartPole-v1")
    with pytest.raises(envfleet.ConfigError, match='gym_env_vectorize_mode="vector_entry_point"'):
        create({})
    with pytest.raises(envfleet.ConfigError, match="'next_step'"):
        create({"num_envs": 2, "autoreset_mode": "same_step"})


@with_ray
@pytest.mark.parametrize("backend", ["native", "processes"])
def test_an_env_runner_gathers_whole_episodes(backend):
    pytest.importorskip("ray.rllib.algorithms.ppo", exc_type=ImportError)
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

    rllib.register("fleet-whole", "CartPole-v1", backend=backend)
    config = PPOConfig().environment("fleet-whole").env_runners(num_envs_per_env_runner=4, **ENV_RUNNER)
    runner = SingleAgentEnvRunner(config=config.debugging(seed=0))
    assert isinstance(runner.env.unwrapped, GymnasiumPool)
    episodes = runner.sample(num_episodes=12, random_actions=True)
    limit = gymnasium.make("CartPole-v1").unwrapped.theta_threshold_radians
    assert len(episodes) >= 12
    for episode in episodes:
        # One reward of 1 a step: a reset row in it, which has 0, would show.
        assert episode.get_return() == len(episode)
        angles = episode.get_observations()[:, 2]
        assert np.abs(episode.get_observations(0)).max() <= 0.05
        assert (np.abs(angles[:-1]) <= limit).all()
        assert episode.is_terminated
    runner.stop()


@with_ray
def test_ppo_trains_on_a_pool():
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.rllib.algorithms.ppo", exc_type=ImportError)
    from ray.rllib.algorithms.ppo import PPOConfig

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        rllib.register("fleet-ppo", "CartPole-v1", num_threads=1)
        config = (
            PPOConfig()
            .environment("fleet-ppo")
            .env_runners(num_envs_per_env_runner=8, **ENV_RUNNER)
            .training(train_batch_size_per_learner=256, minibatch_size=128, num_epochs=1)
        )
        algorithm = config.build_algo()
        for _ in range(2):
            result = algorithm.train()
        assert result["env_runners"]["num_env_steps_sampled_lifetime"] >= 512
        assert 8 < result["env_runners"]["episode_return_mean"] < 500
        algorithm.stop()
    finally:
        ray.shutdown()
