"""EnvFleetEnv's rollouts, resets and seeds against Gymnasium's envs one by one."""

from __future__ import annotations

from contextlib import closing

import gymnasium
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchrl")

from support.info_env import RAISE, CountingEnv  # noqa: E402 (after importorskip)
from support.torchrl_probes import MODES, acting, assert_like_gymnasium, fixed_actions  # noqa: E402
from torchrl.envs import GymEnv, check_env_specs  # noqa: E402 (after importorskip)
from torchrl.envs.utils import step_mdp  # noqa: E402

import envfleet  # noqa: E402
from envfleet import ActionError, EnvError  # noqa: E402
from envfleet.apis.torchrl import EnvFleetEnv  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


# --- rollouts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", ["native", "serial", "processes"])
def test_rollouts_are_gymnasiums(mode, backend):
    actions = fixed_actions(60, 3, 2)
    env = EnvFleetEnv("CartPole-v1", 3, categorical_action_encoding=True, autoreset_mode=mode, backend=backend)
    env.set_seed(5)
    data = env.rollout(60, acting(actions), break_when_any_done=False)
    assert data["next", "done"].any()
    assert_like_gymnasium(data, "CartPole-v1", actions, seed=5)
    env.close()


@pytest.mark.parametrize("mode", MODES)
def test_one_hot_actions(mode):
    actions = fixed_actions(40, 2, 2)
    env = EnvFleetEnv("CartPole-v1", 2, autoreset_mode=mode, seed=7)
    encoded = torch.nn.functional.one_hot(actions, 2)
    data = env.rollout(40, acting(encoded.bool()), break_when_any_done=False)
    assert_like_gymnasium(data, "CartPole-v1", actions, seed=7)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ([[0, 0], [1, 0]], "got -1 for env 0"),  # argmax would make action 0 of it
        ([[1, 0], [1, 1]], "got -1 for env 1"),
        ([1, 0], r"'action' of shape \(2, 2\) \(one-hot\), got \(2,\)"),
        ([[1, 0, 0], [1, 0, 0]], r"'action' of shape \(2, 2\) \(one-hot\), got \(2, 3\)"),
    ],
)
def test_actions_that_are_not_one_hot_are_refused(action, message):
    with closing(EnvFleetEnv("CartPole-v1", 2, seed=7)) as env:
        rows = env.reset()
        with pytest.raises(ActionError, match=message):
            env.step(rows.clone().set("action", torch.tensor(action)))
        # As a straight-through estimator returns them.
        rows["action"] = torch.tensor([[1.0, 1e-8], [-1e-8, 1.0]])
        assert (env.step(rows)["next", "observation"] != rows["observation"]).any()


@pytest.mark.parametrize("mode", MODES)
def test_no_reset_is_lost_or_doubled(mode):
    """rollouts that stop at the first end, and reset() between them, draw each env's own episodes in turn."""
    env = EnvFleetEnv("CartPole-v1", 1, categorical_action_encoding=True, autoreset_mode=mode)
    env.set_seed(3)
    starts = [env.rollout(500, lambda td: td.set("action", torch.ones(1, dtype=torch.int64))) for _ in range(3)]
    reference = gymnasium.make("CartPole-v1")
    for k, data in enumerate(starts):
        obs, _ = reference.reset(seed=3 if k == 0 else None)
        np.testing.assert_array_equal(data["observation"][0, 0].numpy(), obs)
        assert data["next", "done"][0, -1]
    reference.close()


@pytest.mark.parametrize("mode", MODES)
def test_break_when_all_done_leaves_ended_envs_alone(mode):
    env = EnvFleetEnv("CartPole-v1", 4, autoreset_mode=mode, seed=0)
    data = env.rollout(500, break_when_any_done=False, break_when_all_done=True)
    done = data["next", "done"][..., 0]
    assert done[:, -1].all()
    for i in range(4):
        first = int(done[i].nonzero()[0])
        assert (data["next", "observation"][i, first:] == data["next", "observation"][i, first]).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("frame_skip", [2, 5])
def test_frame_skip_sums_rewards_and_stops_at_ends(mode, frame_skip):
    actions = fixed_actions(20, 3, 2)
    env = EnvFleetEnv(
        "CartPole-v1", 3, categorical_action_encoding=True, autoreset_mode=mode, frame_skip=frame_skip, seed=1
    )
    check_env_specs(env)
    env.set_seed(1)
    data = env.rollout(20, acting(actions), break_when_any_done=False)
    assert data["next", "done"].any()
    assert set(data["next", "reward"].unique().tolist()) - {float(frame_skip)}
    assert_like_gymnasium(data, "CartPole-v1", actions, seed=1, frame_skip=frame_skip)


# --- resets and seeds ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_partial_reset_by_mask(mode):
    env = EnvFleetEnv("CartPole-v1", 4, autoreset_mode=mode, seed=0)
    data = step_mdp(env.rand_step(env.reset()))
    before = data["observation"].clone()
    mask = torch.tensor([True, False, True, False])
    after = env.reset(data.set("_reset", mask.unsqueeze(-1)))
    assert (after["observation"][~mask] == before[~mask]).all()
    assert (after["observation"][mask] != before[mask]).any(-1).all()
    env.step(env.rand_action(after))


def test_set_seed_acts_in_place():
    env = EnvFleetEnv("CartPole-v1", 3)
    pool = env.pool
    actions = torch.nn.functional.one_hot(fixed_actions(30, 3, 2), 2)
    first, second = [], []
    for out in (first, second):
        assert env.set_seed(11) == GymEnv("CartPole-v1").set_seed(11)
        out.append(env.rollout(30, acting(actions), break_when_any_done=False))
    assert (first[0] == second[0]).all()
    assert env.pool is pool
    assert env.set_seed(4, static_seed=True) == 4
    with pytest.raises(envfleet.SeedError):
        env.set_seed(-1)


def test_set_seed_waits_for_each_envs_reset():
    env = EnvFleetEnv("CartPole-v1", 2, seed=0)
    data = env.reset()
    env.set_seed(20)
    for env_id in (1, 0):
        data = env.reset(data.set("_reset", torch.arange(2) == env_id))
    for env_id in (0, 1):
        expected, _ = gymnasium.make("CartPole-v1").reset(seed=20 + env_id)
        np.testing.assert_array_equal(data["observation"][env_id].numpy(), expected)


def test_reset_takes_seed_and_options():
    env = EnvFleetEnv("CartPole-v1", 2)
    obs = env.reset(seed=9, options={"low": 0.01, "high": 0.02})["observation"]
    expected, _ = gymnasium.make("CartPole-v1").reset(seed=9, options={"low": 0.01, "high": 0.02})
    np.testing.assert_array_equal(obs[0].numpy(), expected)


def test_reset_after_a_step_that_raised():
    """An env that was stepped on into its next episode is reset, although another env raised in that step."""
    env = EnvFleetEnv(CountingEnv, 2, backend="serial", categorical_action_encoding=True)
    rows = env.reset()
    for _ in range(3):
        env.step(rows.set("action", torch.tensor([0, 0])))
    with pytest.raises(EnvError):
        env.step(rows.set("action", torch.tensor([0, RAISE])))
    assert env.reset()["observation"].flatten().tolist() == [0, 0]
    env.close()
