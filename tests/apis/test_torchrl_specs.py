"""EnvFleetEnv against TorchRL's own check of specs; the options, pools and spaces that it takes and refuses."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

torch = pytest.importorskip("torch")
pytest.importorskip("torchrl")

from support.torchrl_probes import MODES, Nested  # noqa: E402
from torchrl.envs import GymEnv, check_env_specs  # noqa: E402 (after importorskip)

import envfleet  # noqa: E402
from envfleet.apis.torchrl import EnvFleetEnv  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


# --- specs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("categorical", [False, True])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Blackjack-v1", "Catch-v0"])
def test_check_env_specs(env_id, categorical, mode):
    env = EnvFleetEnv(env_id, 3, categorical_action_encoding=categorical, autoreset_mode=mode)
    assert env.batch_size == (3,)
    check_env_specs(env)
    env.close()


@pytest.mark.parametrize("categorical", [False, True])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_specs_are_gym_envs(env_id, categorical):
    theirs = GymEnv(env_id, categorical_action_encoding=categorical)
    ours = EnvFleetEnv(env_id, 3, categorical_action_encoding=categorical)
    for name in ("action_spec", "observation_spec", "reward_spec", "full_done_spec"):
        assert getattr(ours, name) == getattr(theirs, name).expand(3, *getattr(theirs, name).shape)
    assert set(ours.rollout(4).keys(True)) == set(theirs.rollout(4).keys(True))


@pytest.mark.parametrize("categorical", [False, True])
def test_nested_spaces(categorical):
    env = EnvFleetEnv(Nested, 2, backend="serial", categorical_action_encoding=categorical)
    check_env_specs(env)
    assert set(env.action_keys) == {("action", "turn"), ("action", "push")}
    data = env.rollout(7, break_when_any_done=False)
    assert data["inner", "pixels"][0, :, 0, 0].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert data["next", "inner", "pixels"][0, :, 0, 0].tolist() == [1, 2, 3, 1, 2, 3, 1]
    assert data["pair", "0"].shape == (2, 7, 1)
    assert data["next", "bits"][1, 4].tolist() == [1, 0, 1]
    # The die shows the turn: both start above or below 0.
    turn, die = data["action", "turn"], data["next", "inner", "die"]
    if not categorical:
        turn, die = turn.argmax(-1), die.argmax(-1)
        assert data["pair", "1"][0, 0].tolist() == [0, 1, 0, 0, 1]
    assert (turn == die).all()
    np.testing.assert_array_equal(data["next", "reward"][..., 0], data["action", "push"][..., 0])


def test_a_box_of_numbers_is_bounded_as_the_space_is():
    spec = EnvFleetEnv("Pendulum-v1", 2).action_spec
    assert spec.space.low.tolist() == [[-2], [-2]]
    assert spec.space.high.tolist() == [[2], [2]]


def test_device():
    env = EnvFleetEnv("CartPole-v1", 2, device="cpu")
    assert env.device == torch.device("cpu")
    assert env.rollout(3).device == torch.device("cpu")
    assert env.action_spec.device == torch.device("cpu")
    assert EnvFleetEnv("CartPole-v1", 2).to("cpu").rollout(3).device == torch.device("cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda():
    env = EnvFleetEnv("CartPole-v1", 2, device="cuda")
    check_env_specs(env)
    assert env.rollout(3)["next", "observation"].is_cuda


# --- options ------------------------------------------------------------------------------------------


def test_create_env_kwargs_act():
    env = EnvFleetEnv("FrozenLake-v1", 2, create_env_kwargs={"is_slippery": False, "map_name": "8x8"})
    assert env.observation_spec["observation"].shape == (2, 64)
    env = EnvFleetEnv("CartPole-v1", create_env_kwargs={"num_envs": 3, "max_episode_steps": 4})
    assert env.rollout(10, break_when_any_done=False)["next", "truncated"][:, 3].all()


def test_env_checker_acts():
    class Sloppy(Nested):
        def step(self, action):
            return *super().step(action)[:4], {"x": 1}

        def _obs(self):
            return {**super()._obs(), "pair": (np.array(7, np.float32), np.array([1, 2]))}

    EnvFleetEnv(Sloppy, 1, backend="serial").reset()
    with pytest.warns(UserWarning, match="not within the observation space"):
        EnvFleetEnv(Sloppy, 1, backend="serial", disable_env_checker=False).reset()
    env = EnvFleetEnv("CartPole-v1", 1, disable_env_checker=False)
    assert env.pool.spec.backend == "native"


# --- pools --------------------------------------------------------------------------------------------


def test_a_pool_that_was_passed_in():
    envs = envfleet.make("CartPole-v1", num_envs=3, autoreset_mode="disabled")
    env = EnvFleetEnv(envs)
    assert env.pool is envs.pool
    env.rollout(3)
    del env
    envs.reset()
    EnvFleetEnv(envs.pool, 3).close()
    assert envs.closed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"autoreset_mode": "next_step"}, "expected autoreset_mode 'same_step' or 'disabled', got 'next_step'"),
        ({"batch_size": 2}, "use AsyncEnvFleetEnv for smaller batches"),
        ({"copy": False}, "copy=True"),
        ({"frame_skip": 0}, "frame_skip expected an integer from 1"),
        ({"create_env_kwargs": 3}, "create_env_kwargs expected a dict"),
    ],
)
def test_refused_options(options, message):
    with pytest.raises(envfleet.ConfigError, match=message):
        EnvFleetEnv("CartPole-v1", 4, **options)


def test_refused_beside_a_pool():
    pool = envfleet.make_pool("CartPole-v1", num_envs=2, autoreset_mode="disabled")
    with pytest.raises(envfleet.ConfigError, match="no options together with a pool, got max_episode_steps"):
        EnvFleetEnv(pool, max_episode_steps=3)
    with pytest.raises(envfleet.ConfigError, match="num_envs expected 2"):
        EnvFleetEnv(pool, 3)
    assert not pool.closed


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(3), r"observations of Box, .* got Text.*wrapper"),
        (spaces.Dict(a=spaces.Sequence(spaces.Discrete(2))), r"observations\['a'\] of Box"),
        (spaces.Box(0, 9, (2,), np.uint16), "dtype that torch supports"),
        (spaces.Dict(reward=spaces.Discrete(2)), "observation keys other than .* got 'reward'"),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), "one-dimensional MultiDiscrete"),
    ],
)
def test_refused_spaces(space, message):
    class Odd(Nested):
        observation_space = space

    with pytest.raises(envfleet.ConfigError, match=message):
        EnvFleetEnv(Odd, 1, backend="serial")


def test_an_action_that_is_missing():
    env = EnvFleetEnv("CartPole-v1", 2)
    with pytest.raises(envfleet.ActionError, match="expected a tensordict with 'action'"):
        env.step(env.reset())
