"""MultiThreadedEnv and its wrapper: TorchRL's documented interface, without a module called envpool."""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchrl")

from support.torchrl_probes import collectors_warn  # noqa: E402
from tensordict import TensorDict  # noqa: E402 (after importorskip)
from torchrl.data import Bounded, Categorical, OneHot  # noqa: E402
from torchrl.envs import EnvBase, check_env_specs  # noqa: E402

import envfleet  # noqa: E402
from envfleet.compat import envpool  # noqa: E402
from envfleet.compat.torchrl import MultiThreadedEnv, MultiThreadedEnvWrapper  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1"])
def test_the_documented_interface(name):
    env = MultiThreadedEnv(num_workers=3, env_name=name)
    assert isinstance(env, EnvBase)
    assert (env.num_workers, env.env_name, env.batch_size) == (3, name, torch.Size([3]))
    assert env.lib is MultiThreadedEnvWrapper.lib is envpool
    assert "envpool" not in sys.modules
    assert repr(env) == f"MultiThreadedEnv(env={name}, num_workers=3, device=None)"
    assert set(env.obs.keys()) == set(env.observation_spec.keys())
    assert not env.obs["observation"].any()
    check_env_specs(env)
    first = env.reset()
    assert (env.obs["observation"] == first["observation"]).all()
    data = env.rand_step()
    assert (env.obs["observation"] == data["next", "observation"]).all()
    assert data["next", "reward"].shape == data["next", "done"].shape == (3,)
    assert env.rollout(5).shape == (3, 5)
    env.close()


def test_encodings():
    """Indices unless one-hot vectors are asked for: so TorchRL's class does, though its page says otherwise."""
    assert isinstance(MultiThreadedEnv(2, "CartPole-v1").action_spec, Categorical)
    assert isinstance(MultiThreadedEnv(2, "CartPole-v1", categorical_action_encoding=True).action_spec, Categorical)
    env = MultiThreadedEnv(2, "CartPole-v1", categorical_action_encoding=False, device="cpu")
    assert isinstance(env.action_spec, OneHot)
    assert repr(env) == "MultiThreadedEnv(env=CartPole-v1, num_workers=2, device=cpu)"
    assert env.rollout(3).device == torch.device("cpu")
    assert isinstance(MultiThreadedEnv(2, "Pendulum-v1").action_spec, Bounded)


@pytest.mark.parametrize("name", ["Blackjack-v1", "FrozenLake-v1", "Taxi-v3"])
def test_toy_text_has_the_arrays_of_envpool(name):
    env = MultiThreadedEnv(2, name)
    spec = env.observation_spec["observation"]
    assert (spec.shape, spec.dtype) == ((2, 3) if name == "Blackjack-v1" else (2,), torch.int32)
    check_env_specs(env)
    assert env.rollout(20, break_when_any_done=False)["next", "observation"].dtype == torch.int32
    one_hot = MultiThreadedEnv(2, name, categorical_action_encoding=False)
    check_env_specs(one_hot)
    # A pool in another dialect keeps its own spaces.
    plain = MultiThreadedEnvWrapper(envfleet.make(name, num_envs=2))
    check_env_specs(plain)
    assert torch.int32 not in {leaf.dtype for leaf in plain.observation_spec.values(True, True)}
    for own in (env, one_hot, plain):
        own.close()


def test_arguments():
    env = MultiThreadedEnv(2, "CartPole-v1", create_env_kwargs={"max_episode_steps": 8, "seed": 5}, frame_skip=4)
    alone = np.stack([gymnasium.make("CartPole-v1").reset(seed=5 + i)[0] for i in range(2)])
    assert (env.reset()["observation"].numpy() == alone).all()
    data = env.rollout(10)
    assert data.shape == (2, 2)
    assert data["next", "reward"].tolist() == [[4.0, 4.0], [4.0, 4.0]]
    assert data["next", "truncated"].tolist() == [[False, True], [False, True]]
    for backend in ("native", "serial"):
        env = MultiThreadedEnv(2, "CartPole-v1", create_env_kwargs={"backend": backend}, disable_env_checker=False)
        env.rollout(2)
        env.close()
    with pytest.raises(envfleet.ConfigError, match="create_env_kwargs expected a dict"):
        MultiThreadedEnv(2, "CartPole-v1", create_env_kwargs=[])
    with pytest.raises(TypeError):
        MultiThreadedEnv(2, "CartPole-v1", tiles=3)


def test_a_game_of_atari():
    pytest.importorskip("ale_py")
    env = MultiThreadedEnv(2, "ALE/Pong-v5", create_env_kwargs={"stack_num": 2, "img_height": 42, "img_width": 42})
    assert env.env_name == "Pong-v5"
    assert env.reset()["observation"].shape == (2, 2, 42, 42)
    env.close()


def test_steps_come_before_resets_and_actions_are_clipped():
    env = MultiThreadedEnv(3, "Pendulum-v1", create_env_kwargs={"seed": 0})
    data = env.step(TensorDict({"action": torch.full((3, 1), 7.0)}, batch_size=[3]))
    alone = gymnasium.make("Pendulum-v1")
    alone.reset(seed=2)
    expected = alone.step(np.array([2.0], np.float32))[0]
    np.testing.assert_allclose(data["next", "observation"][2], expected, rtol=1e-6)
    with pytest.raises(RuntimeError):
        env.step(TensorDict({"action": torch.zeros((3, 1))}, batch_size=[2]))
    mask = torch.tensor([False, False, False])
    env.reset(TensorDict({"_reset": mask}, batch_size=[3]))


def test_every_row_is_a_true_transition():
    env = MultiThreadedEnv(2, "CartPole-v1", create_env_kwargs={"max_episode_steps": 5})
    data = env.rollout(20, break_when_any_done=False)
    assert data["next", "reward"].min() == 1
    going = ~data["next", "done"][:, :-1]
    assert (data["observation"][:, 1:][going] == data["next", "observation"][:, :-1][going]).all()
    assert (data["observation"][:, 1:][~going].abs() <= 0.05).all()


def test_seeds():
    env, other = (MultiThreadedEnv(3, "CartPole-v1") for _ in range(2))
    for own in (env, other):
        own.set_seed(100)
    assert (env.reset()["observation"] == other.reset()["observation"]).all()
    other.set_seed(110)
    assert (env.reset()["observation"] != other.reset()["observation"]).any()


@pytest.mark.parametrize(
    "make",
    [
        lambda: envpool.make("CartPole-v1", env_type="gym", num_envs=2, gym_reset_return_info=True),
        lambda: envpool.make("CartPole-v1", env_type="gymnasium", num_envs=2),
        lambda: envfleet.make("CartPole-v1", num_envs=2, autoreset_mode="same_step"),
        lambda: envfleet.make_gym("CartPole-v1", num_envs=2),
        lambda: envfleet.make_pool("CartPole-v1", num_envs=2, autoreset_mode="disabled"),
    ],
    ids=["gym", "gymnasium", "envfleet", "make_gym", "pool"],
)
def test_wrapped_pools(make):
    env = MultiThreadedEnvWrapper(env=make())
    assert repr(env) == "MultiThreadedEnvWrapper(num_workers=2, device=None)"
    check_env_specs(env)
    data = env.rollout(60, break_when_any_done=False)
    assert data["next", "done"].any()
    assert data["next", "reward"].min() == 1


def test_closing():
    """Pools in EnvPool's dialect open again, by their name and wrapped."""
    for env in (MultiThreadedEnv(2, "Pendulum-v1"), MultiThreadedEnvWrapper(envpool.make("Pendulum-v1", num_envs=2))):
        env.reset()
        assert not env.is_closed
        env.close()
        assert env.is_closed
        env.reset()
        assert not env.is_closed
        env.rand_step()
        env.close()


def test_what_is_no_pool():
    with pytest.raises(TypeError, match="expected env as a pool"):
        MultiThreadedEnvWrapper(object())
    with pytest.raises(envfleet.ConfigError, match="all envs in each step"):
        MultiThreadedEnvWrapper(envpool.make("CartPole-v1", num_envs=4, batch_size=2))


@collectors_warn
def test_collector():
    from torchrl.collectors import Collector

    env = MultiThreadedEnv(2, "CartPole-v1")
    collector = Collector(env, frames_per_batch=40, total_frames=80)
    assert [data.shape for data in collector] == [(2, 20), (2, 20)]
    collector.shutdown()
