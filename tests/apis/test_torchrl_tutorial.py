"""TorchRL's PPO tutorial with EnvFleetEnv in GymEnv's place: one env for the collector and for evaluation."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchrl")

from support.torchrl_probes import MODES, collectors_warn  # noqa: E402
from tensordict.nn import TensorDictModule  # noqa: E402 (after importorskip)
from tensordict.nn.distributions import NormalParamExtractor  # noqa: E402
from torch import nn  # noqa: E402
from torchrl.data.replay_buffers import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement  # noqa: E402
from torchrl.envs import (  # noqa: E402
    Compose,
    DoubleToFloat,
    ExplorationType,
    ObservationNorm,
    StepCounter,
    TransformedEnv,
    check_env_specs,
    set_exploration_type,
)
from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator  # noqa: E402
from torchrl.objectives import ClipPPOLoss  # noqa: E402
from torchrl.objectives.value import GAE  # noqa: E402

import envfleet  # noqa: E402
from envfleet.apis.torchrl import EnvFleetEnv  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@collectors_warn
@pytest.mark.filterwarnings("ignore:The env passed to Collector is missing transforms:FutureWarning")
@pytest.mark.parametrize("mode", MODES)
def test_ppo_tutorial(mode):
    from torchrl.collectors import Collector  # SyncDataCollector in releases before 0.14

    torch.manual_seed(0)
    base_env = EnvFleetEnv("Pendulum-v1", num_envs=2, autoreset_mode=mode, max_episode_steps=12, seed=0)
    env = TransformedEnv(base_env, Compose(ObservationNorm(in_keys=["observation"]), DoubleToFloat(), StepCounter()))
    env.transform[0].init_stats(num_iter=20, reduce_dim=(0, 1), cat_dim=1)
    check_env_specs(env)
    assert env.rollout(3).shape == (2, 3)

    size = env.action_spec.shape[-1]
    actor_net = nn.Sequential(nn.LazyLinear(16), nn.Tanh(), nn.LazyLinear(2 * size), NormalParamExtractor())
    policy = ProbabilisticActor(
        module=TensorDictModule(actor_net, in_keys=["observation"], out_keys=["loc", "scale"]),
        spec=env.action_spec,
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": env.action_spec.space.low[0], "high": env.action_spec.space.high[0]},
        return_log_prob=True,
    )
    value = ValueOperator(module=nn.Sequential(nn.LazyLinear(16), nn.Tanh(), nn.LazyLinear(1)), in_keys=["observation"])
    policy(env.reset())
    value(env.reset())

    collector = Collector(env, policy, frames_per_batch=20, total_frames=80, split_trajs=False, device="cpu")
    buffer = ReplayBuffer(storage=LazyTensorStorage(max_size=20), sampler=SamplerWithoutReplacement())
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=value, average_gae=True)
    loss_module = ClipPPOLoss(actor_network=policy, critic_network=value, clip_epsilon=0.2, entropy_coeff=1e-4)
    optim = torch.optim.Adam(loss_module.parameters(), 3e-4)
    num_batches = 0
    for data in collector:
        advantage(data)
        buffer.extend(data.reshape(-1).cpu())
        losses = loss_module(buffer.sample(10))
        loss = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
        loss.backward()
        optim.step()
        optim.zero_grad()
        with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
            evaluation = env.rollout(1000, policy)  # on the collector's env, to the episodes' end
        assert evaluation.shape == (2, 12)
        assert evaluation["next", "done"][:, -1].all()
        num_batches += 1
    assert num_batches == 4

    collector.shutdown()
    assert env.is_closed
    evaluation = env.rollout(1000, policy)
    assert evaluation.shape == (2, 12)
    assert not env.is_closed
    env.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_step_after_an_end_starts_the_next_episode(mode):
    """What a collector does whose env was used for a rollout in between."""
    env = EnvFleetEnv("Pendulum-v1", 2, autoreset_mode=mode, max_episode_steps=2, seed=0)
    data = env.rollout(10)
    assert data["next", "done"].sum() == 2
    for length in (1, 2, 1):
        data = env.rand_step(env.rand_action())
        assert data["next", "done"].all() == (length == 2)
    assert env.pool.stats().num_steps == 5 * 2


def test_an_env_that_was_closed_opens_again_with_its_seed():
    env = EnvFleetEnv("CartPole-v1", 2, seed=3)
    first = env.reset()["observation"].clone()
    env.close()
    assert env.is_closed
    with pytest.raises(envfleet.PoolClosedError):
        env.rand_step(env.rand_action())
    partial = env.fake_tensordict().set("_reset", torch.tensor([[True], [False]]))
    assert (env.reset(partial)["observation"][0] == first[0]).all()  # of row 1 TorchRL keeps what it was given
    assert not env.is_closed
    env.rand_step(env.rand_action())
    env.close()


def test_a_pool_that_was_passed_in_stays_closed():
    env = EnvFleetEnv(envfleet.make_pool("CartPole-v1", num_envs=2, autoreset_mode="same_step"))
    env.reset()
    env.close()
    with pytest.raises(envfleet.PoolClosedError, match="make a new one"):
        env.reset()
