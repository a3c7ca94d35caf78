"""Stable-Baselines3 on top of pools: its wrappers, its algorithms, its evaluation."""

from __future__ import annotations

import traceback

import numpy as np
import pytest
from sb3_probes import Probe
from support.failing_env import always_failing_env
from support.python_probes import HalfwayEnv

from envfleet import EnvError

torch = pytest.importorskip("torch")
pytest.importorskip("stable_baselines3")

from stable_baselines3 import A2C, DQN, PPO, SAC  # noqa: E402 (after importorskip)
from stable_baselines3.common import vec_env as sb3  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402

from envfleet.apis.sb3 import DummyVecEnv, SubprocVecEnv, make_vec_env  # noqa: E402

torch.set_num_threads(1)


@pytest.mark.parametrize("make", [make_vec_env, SubprocVecEnv, DummyVecEnv])
def test_an_env_that_raises_in_learn_shows_its_traceback(make):
    if make is make_vec_env:
        envs = make_vec_env(always_failing_env, n_envs=2, backend="processes")
    else:
        envs = make([always_failing_env] * 2)
    with pytest.raises((EnvError, KeyError)) as caught:
        PPO("MlpPolicy", envs, n_steps=8, batch_size=8, device="cpu").learn(16)
    text = "".join(traceback.format_exception(caught.value))
    assert text.count("raise KeyError(name)") == 1
    assert text.count("in look_up\n") == 1
    assert text.count('self.look_up("step")') == 1
    envs.close()


@pytest.mark.parametrize("backend", ["native", "processes"])
def test_sb3s_wrappers_around_a_pool(backend):
    envs = make_vec_env("CartPole-v1", n_envs=2, seed=0, backend=backend)
    envs = sb3.VecFrameStack(sb3.VecNormalize(sb3.VecCheckNan(envs, raise_exception=True)), n_stack=3)
    assert envs.reset().shape == (2, 12)
    ended = None
    for _ in range(30):
        _, _, dones, infos = envs.step(np.zeros(2, int))
        if dones.any():
            ended = infos[int(dones.argmax())]
    assert ended is not None
    assert ended["terminal_observation"].shape == (12,)
    assert ended["episode"]["l"] < 30
    envs.close()


@pytest.mark.parametrize(
    ("algorithm", "env", "options"),
    [
        (PPO, "CartPole-v1", {"n_steps": 32, "batch_size": 32, "n_epochs": 1}),
        (A2C, "FrozenLake-v1", {}),
        (DQN, "CartPole-v1", {"learning_starts": 40}),
        (SAC, "Pendulum-v1", {"learning_starts": 40, "batch_size": 8}),
        (PPO, "Pendulum-v1", {"n_steps": 32, "batch_size": 32, "n_epochs": 1}),
    ],
)
def test_algorithms_learn_on_native_pools(algorithm, env, options):
    envs = make_vec_env(env, n_envs=4, seed=0)
    model = algorithm("MlpPolicy", envs, seed=0, device="cpu", **options).learn(160)
    assert model.num_timesteps >= 160
    envs.close()


def test_a_dict_env_learns_on_processes_and_is_evaluated():
    envs = make_vec_env(Probe, n_envs=2, seed=0, is_dict=True, length=6, raises=False, num_workers=1)
    model = PPO("MultiInputPolicy", envs, n_steps=16, batch_size=16, n_epochs=1, device="cpu").learn(64)
    mean, _ = evaluate_policy(model, envs, n_eval_episodes=2)  # warns, which is an error here, without a Monitor
    assert np.isfinite(mean)
    assert model.ep_info_buffer[0]["l"] == 6
    envs.close()


def test_training_is_the_same_with_every_vec_env():
    weights = []
    for cls in (sb3.DummyVecEnv, DummyVecEnv, SubprocVecEnv, None):
        envs = make_vec_env("CartPole-v1", n_envs=2, seed=3, vec_env_cls=cls, **({} if cls else {"backend": "serial"}))
        model = PPO("MlpPolicy", envs, n_steps=32, batch_size=32, n_epochs=1, seed=3, device="cpu").learn(64)
        weights.append(model.policy.action_net.weight.detach().numpy().copy())
        envs.close()
    for other in weights[1:]:
        np.testing.assert_array_equal(other, weights[0])


class RolloutReader(BaseCallback):
    """Compares the rewards of a rollout with what PPO should have made of rows of restarted envs."""

    def __init__(self):
        super().__init__()
        self.failed, self.dones = [], []

    def _on_step(self):
        self.failed.append([info.get("error") is not None for info in self.locals["infos"]])
        self.dones.append(self.locals["dones"])
        return True

    def _on_rollout_end(self):
        buffer = self.model.rollout_buffer
        failed, dones = np.array(self.failed), np.array(self.dones)
        assert failed.sum() > 5
        assert dones[failed].all()
        # No reward, and the value of the last observation: that at which the action was chosen.
        obs = {key: torch.as_tensor(column[failed]) for key, column in buffer.observations.items()}
        assert all((column >= 100).all() for column in obs.values())
        with torch.no_grad():
            values = self.model.policy.predict_values(obs).numpy().ravel()
        np.testing.assert_allclose(buffer.rewards[failed], self.model.gamma * values, rtol=1e-5)
        assert (buffer.rewards[~failed & ~dones] == 1).all()


@pytest.mark.parametrize("backend", ["native", "serial", "processes"])
def test_ppo_bootstraps_a_restarted_env_from_its_last_observation(backend):
    env = "Halfway-v0" if backend == "native" else HalfwayEnv
    envs = make_vec_env(env, n_envs=4, seed=0, backend=backend, on_error="restart", max_restarts=1000)
    model = PPO("MultiInputPolicy", envs, n_steps=32, batch_size=64, n_epochs=1, device="cpu", seed=0)
    model.learn(128, callback=RolloutReader())
    envs.close()
