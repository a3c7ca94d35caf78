"""envfleet.apis.torchrl against TorchRL's own checks, and against Gymnasium's envs one by one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

torch = pytest.importorskip("torch")
pytest.importorskip("torchrl")

from tensordict import TensorDict  # noqa: E402 (after importorskip)
from torchrl.envs import GymEnv, GymWrapper, RewardSum, StepCounter, TransformedEnv, check_env_specs  # noqa: E402
from torchrl.envs.utils import step_mdp  # noqa: E402

import envfleet  # noqa: E402
from envfleet.apis.torchrl import AsyncCollector, AsyncEnvFleetEnv, EnvFleetEnv  # noqa: E402

ROOT = Path(__file__).parents[2]
MODES = ["same_step", "disabled"]
# torchrl.collectors warns of its own classes when it is imported.
collectors_warn = pytest.mark.filterwarnings("ignore:Creating .* which inherits from WeightUpdaterBase")


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Nested(gymnasium.Env):
    """Every kind of space that tensors hold; ends after three steps and tells its last action."""

    observation_space = spaces.Dict(
        {
            "inner": spaces.Dict({"pixels": spaces.Box(0, 255, (2, 2), np.uint8), "die": spaces.Discrete(6, start=1)}),
            "pair": spaces.Tuple((spaces.Box(-1, 1, (), np.float32), spaces.MultiDiscrete([2, 3]))),
            "bits": spaces.MultiBinary(3),
        }
    )
    action_space = spaces.Dict({"turn": spaces.Discrete(3, start=-1), "push": spaces.Box(-1, 1, (2,), np.float32)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        self.turn = -1
        return self._obs(), {}

    def step(self, action):
        assert action in self.action_space
        self.count += 1
        self.turn = int(action["turn"])
        return self._obs(), float(action["push"][0]), self.count == 3, False, {}

    def _obs(self):
        return {
            "inner": {"pixels": np.full((2, 2), self.count, np.uint8), "die": np.int64(self.turn + 2)},
            "pair": (np.array(self.count / 4, np.float32), np.array([1, 2])),
            "bits": np.array([1, 0, 1], np.int8),
        }


def fixed_actions(num_steps, num_envs, count):
    return torch.from_numpy(np.random.default_rng(0).integers(count, size=(num_steps, num_envs)))


def acting(actions):
    """A policy that takes the rows of actions one after the other."""
    rows = iter(actions)
    return lambda td: td.set("action", next(rows))


def alone(env_id, seed, actions, frame_skip=1):
    """The same steps in Gymnasium's own env: (obs, next obs, reward, terminated, truncated) of each."""
    env = gymnasium.make(env_id)
    obs, _ = env.reset(seed=seed)
    rows = []
    for action in actions:
        total = 0.0
        for _ in range(frame_skip):
            following, reward, terminated, truncated, _ = env.step(int(action))
            total += reward
            if terminated or truncated:
                break
        rows.append((obs, following, total, terminated, truncated))
        obs = env.reset()[0] if terminated or truncated else following
    env.close()
    return [np.array(column) for column in zip(*rows, strict=True)]


def assert_like_gymnasium(data, env_id, actions, seed, frame_skip=1):
    for i in range(len(data)):
        obs, following, reward, terminated, truncated = alone(env_id, seed + i, actions[:, i], frame_skip)
        np.testing.assert_array_equal(data["observation"][i].numpy(), obs)
        np.testing.assert_array_equal(data["next", "observation"][i].numpy(), following)
        np.testing.assert_array_equal(data["next", "reward"][i, :, 0].numpy(), reward.astype(np.float32))
        np.testing.assert_array_equal(data["next", "terminated"][i, :, 0].numpy(), terminated)
        np.testing.assert_array_equal(data["next", "truncated"][i, :, 0].numpy(), truncated)
        np.testing.assert_array_equal(data["next", "done"][i, :, 0].numpy(), terminated | truncated)


# --- specs -------------------------------------------------------------------------------------


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


# --- rollouts ----------------------------------------------------------------------------------


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


# --- resets and seeds --------------------------------------------------------------------------


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


@pytest.mark.parametrize("mode", MODES)
def test_a_step_after_an_end_is_refused(mode):
    env = EnvFleetEnv("Blackjack-v1", 2, categorical_action_encoding=True, autoreset_mode=mode, seed=0)
    data = env.reset().set("action", torch.tensor([0, 0]))  # stick: the game is over
    data = step_mdp(env.step(data)).set("action", torch.tensor([0, 0]))
    with pytest.raises(envfleet.CallOrderError, match="has ended"):
        env.step(data)
    env.step(env.reset().set("action", torch.tensor([1, 1])))


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


# --- TorchRL's parts ---------------------------------------------------------------------------


def test_transforms():
    env = TransformedEnv(EnvFleetEnv("CartPole-v1", 3, seed=0), StepCounter(max_steps=5))
    env.append_transform(RewardSum())
    check_env_specs(env)
    data = env.rollout(12, break_when_any_done=False)
    assert data["next", "step_count"].max() == 5
    assert data["next", "episode_reward"].max() == 5


@collectors_warn
def test_collector():
    from torchrl.collectors import Collector

    collector = Collector(EnvFleetEnv("CartPole-v1", 4, seed=0), frames_per_batch=80, total_frames=160)
    batches = list(collector)
    collector.shutdown()
    assert [data.shape for data in batches] == [(4, 20), (4, 20)]
    data = torch.cat(batches, 1)
    going = ~data["next", "done"][:, :-1, 0]
    assert (data["observation"][:, 1:][going] == data["next", "observation"][:, :-1][going]).all()
    assert (data["collector", "traj_ids"][:, 1:][going] == data["collector", "traj_ids"][:, :-1][going]).all()


def test_step_and_maybe_reset():
    env = EnvFleetEnv("CartPole-v1", 4, seed=0)
    data = env.reset()
    for _ in range(60):
        done, data = env.step_and_maybe_reset(env.rand_action(data))
        ended = done["next", "done"][..., 0]
        assert not data["done"].any()
        assert (data["observation"][~ended] == done["next", "observation"][~ended]).all()
        assert (data["observation"][ended].abs() <= 0.05).all()


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


def test_gradients_stay_out_of_the_envs():
    env = EnvFleetEnv("Pendulum-v1", 2)
    action = torch.zeros((2, 1), requires_grad=True)
    assert not env.step(env.reset().set("action", action * 1))["next", "observation"].requires_grad


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


# --- pools -------------------------------------------------------------------------------------


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
        ({"batch_size": 2}, "AsyncEnvFleetEnv takes fewer"),
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
    with pytest.raises(envfleet.ConfigError, match="no options beside a pool, got max_episode_steps"):
        EnvFleetEnv(pool, max_episode_steps=3)
    with pytest.raises(envfleet.ConfigError, match="num_envs expected 2"):
        EnvFleetEnv(pool, 3)
    assert not pool.closed


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(3), r"observations of Box, .* got Text.*wrapper"),
        (spaces.Dict(a=spaces.Sequence(spaces.Discrete(2))), r"observations\['a'\] of Box"),
        (spaces.Box(0, 9, (2,), np.uint16), "dtype that torch computes with"),
        (spaces.Dict(reward=spaces.Discrete(2)), "observation keys other than .* got 'reward'"),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), "one dimension"),
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


# --- asynchronous ------------------------------------------------------------------------------


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


# --- stock TorchRL -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_stock_gym_wrapper(env_id, mode):
    env = GymWrapper(envfleet.make(env_id, num_envs=3, autoreset_mode=mode))
    check_env_specs(env)
    data = env.rollout(60, break_when_any_done=False)
    assert data.shape == (3, 60)
    going = ~data["next", "done"][:, :-1, 0]
    assert (data["observation"][:, 1:][going] == data["next", "observation"][:, :-1][going]).all()


def test_stock_gym_wrapper_refuses_next_step_and_the_page_says_so():
    with pytest.raises(RuntimeError, match="SAME_STEP or DISABLED"):
        GymWrapper(envfleet.make("CartPole-v1", num_envs=2))
    page = (ROOT / "docs" / "torchrl.md").read_text()
    assert "refuses `next_step`" in page


# --- the package -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ("sys.modules['torchrl'] = None", 'pip install "envfleet[torchrl]"'),
        ("import torchrl; torchrl.__version__ = '0.7.2'", "expected torchrl>=0.14 (tested: 0.14), got 0.7.2"),
    ],
)
def test_missing_or_old_torchrl(spoil, message):
    code = f"import sys\n{spoil}\nimport envfleet.apis.torchrl"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert message in result.stderr


def test_example_runs(tmp_path):
    script = ROOT / "examples" / "torchrl_rollout.py"
    command = [sys.executable, str(script), "--total-frames", "4096"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "mean return" in result.stdout
