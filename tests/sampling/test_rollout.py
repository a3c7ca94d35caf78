"""rollout(): the same transitions in every autoreset mode, whoever steps the envs."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from support.info_env import CountingEnv

import envfleet
from envfleet.sampling import Rollout, rollout
from envfleet.wrappers import NormalizeObservation, RecordEpisodeStatistics

MODES = ["next_step", "same_step", "disabled"]
MAKERS = ["native", "serial", "processes", "gymnasium"]


class Diary(gymnasium.Env):
    """Its observation says which episode and step it is in; ends after `length` steps, now one way, now the other."""

    observation_space = spaces.Dict(
        {"at": spaces.Box(-1, 1000, (2,), np.float64), "pair": spaces.Tuple((spaces.Discrete(1000), spaces.Text(9)))}
    )
    action_space = spaces.Discrete(1000)

    def __init__(self, length=3, trouble_at=None):
        self.length, self.trouble_at = length, trouble_at
        self.episode = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.count = 0
        return self._obs(), {}

    def step(self, action):
        if (self.episode, self.count) == self.trouble_at:
            raise ValueError("trouble")
        self.count += 1
        is_over = self.count == self.length
        ends = is_over and self.episode % 2 == 0, is_over and self.episode % 2 == 1
        return self._obs(), 10.0 * self.episode + self.count, *ends, {}

    def _obs(self):
        at = np.array([self.episode, self.count], np.float64)
        return {"at": at, "pair": (self.episode, f"s{self.count}")}


def diaries(mode, backend="serial", lengths=(2, 3, 5), **options):
    factories = [partial(Diary, length) for length in lengths]
    if backend == "gymnasium":
        return SyncVectorEnv(factories, autoreset_mode=AutoresetMode(mode.title().replace("_", "")))
    return envfleet.make(factories, backend=backend, autoreset_mode=mode, **options)


def check_diary(taken: Rollout, lengths, num_before=0):
    """Every transition that counts, in order, is the next one of the env's diary."""
    num_steps = len(taken.rewards)
    following = taken.next_obs()
    for env_id, length in enumerate(lengths):
        rows = np.flatnonzero(taken.mask[:, env_id])
        for number, row in enumerate(rows, num_before if isinstance(num_before, int) else num_before[env_id]):
            episode, count = divmod(number, length)
            at = (row, env_id)
            assert taken.obs["at"][at].tolist() == [episode, count]
            assert taken.obs["pair"][0][at] == episode
            assert taken.obs["pair"][1][at] == f"s{count}"
            assert following["at"][at].tolist() == [episode, count + 1]
            assert following["pair"][1][at] == f"s{count + 1}"
            assert taken.rewards[at] == 10 * episode + count + 1
            is_over = count + 1 == length
            assert taken.terminated[at] == (is_over and episode % 2 == 0)
            assert taken.truncated[at] == (is_over and episode % 2 == 1)
            assert taken.actions[at] == row
    assert taken.obs["at"].shape == (num_steps, len(lengths), 2)


class Steps:
    """Acts by the number of its call within a rollout."""

    def __init__(self):
        self.count = -1

    def __call__(self, obs):
        self.count += 1
        return np.full(3, self.count), {"number": np.arange(3) + self.count, "mark": np.ones((3, 2), np.float32)}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", ["serial", "processes", "gymnasium"])
def test_transitions_are_right_at_the_ends_of_episodes(mode, backend):
    lengths = (2, 3, 5)
    envs = diaries(mode, backend, lengths)
    num_before = [0, 0, 0]
    for num_steps in (7, 1, 12, 4):  # goes on where the last one ended
        taken = rollout(envs, Steps(), num_steps)
        check_diary(taken, lengths, num_before)
        np.testing.assert_array_equal(taken.extras["number"], np.arange(3) + np.arange(num_steps)[:, None])
        assert taken.extras["mark"].dtype == np.float32
        num_before = [number + int(own.sum()) for number, own in zip(num_before, taken.mask.T, strict=True)]
        assert taken.mask.all() == (mode != "next_step" or not taken.ended[:-1].any()) or num_steps == 1
    assert num_before == ([24, 24, 24] if mode != "next_step" else [16, 18, 20])
    envs.close()


@pytest.mark.parametrize("mode", MODES)
def test_episode_statistics_count_episodes_that_began_before(mode):
    envs = diaries(mode, lengths=(4, 7))
    episodes = [rollout(envs, lambda obs: np.zeros(2, int), 5).episodes for _ in range(6)]
    for env_id, length in enumerate((4, 7)):
        returns = np.concatenate([own.returns[own.env_id == env_id] for own in episodes])
        lengths = np.concatenate([own.lengths[own.env_id == env_id] for own in episodes])
        # next_step: each episode takes a step more.
        expected = 30 // (length + (mode == "next_step"))
        assert lengths.tolist() == [length] * expected
        assert returns.tolist() == [10 * k * length + length * (length + 1) / 2 for k in range(expected)]
    first = episodes[0]
    assert (first.return_mean, first.length_mean, len(first)) == (10.0, 4.0, 1)
    assert first.step.tolist() == [3]
    envs.close()


@pytest.mark.parametrize("mode", MODES)
def test_no_episode_ended(mode):
    envs = diaries(mode, lengths=(50, 50))
    taken = rollout(envs, None, 3)
    assert len(taken.episodes) == 0
    assert np.isnan(taken.episodes.return_mean)
    assert np.isnan(taken.episodes.length_mean)
    assert taken.final_obs["at"].shape == (0, 2)
    assert taken.mask.all()
    np.testing.assert_array_equal(taken.next_obs()["at"][:-1], taken.obs["at"][1:])
    envs.close()


def flat_transitions(taken: Rollout):
    """By env, what happened, without the steps that did not."""
    following = taken.next_obs()
    for env_id in range(taken.mask.shape[1]):
        own = taken.mask[:, env_id]
        columns = (taken.obs, taken.actions, taken.rewards, taken.terminated, taken.truncated, following)
        yield [column[own, env_id] for column in columns]


@pytest.mark.parametrize("maker", MAKERS)
def test_cartpole_returns_the_same_transitions_in_every_mode(maker):
    """Each env's stream of transitions is a function of its seed alone; next_step has fewer of them."""

    def lean(obs):
        return (obs[:, 2] > 0).astype(np.int64)

    streams = []
    for mode in MODES:
        if maker == "gymnasium":
            factories = [partial(gymnasium.make, "CartPole-v1", max_episode_steps=30)] * 4
            envs = SyncVectorEnv(factories, autoreset_mode=AutoresetMode(mode.title().replace("_", "")))
        else:
            envs = envfleet.make("CartPole-v1", num_envs=4, backend=maker, autoreset_mode=mode, max_episode_steps=30)
        parts = [rollout(envs, lean, 40, seed=7), rollout(envs, lean, 60)]
        streams.append([list(flat_transitions(part)) for part in parts])
        assert sum(int(part.truncated.sum()) for part in parts) > 0
        envs.close()
    joined = [
        [[np.concatenate([part[env_id][column] for part in parts]) for column in range(6)] for env_id in range(4)]
        for parts in streams
    ]
    for env_id in range(4):
        for column in range(6):
            shortest = min(len(own[env_id][column]) for own in joined)
            assert shortest > 80
            for own in joined[1:]:
                np.testing.assert_array_equal(own[env_id][column][:shortest], joined[0][env_id][column][:shortest])


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_a_step_in_which_an_env_failed_does_not_count(mode):
    factories = [partial(Diary, 3, trouble_at=(0, 1)), partial(Diary, 3)]
    envs = envfleet.make(factories, backend="serial", autoreset_mode=mode, on_error="restart")
    taken = rollout(envs, None, 5)
    assert taken.mask[:, 0].tolist() == [
        True,
        False,
        *([False, True, False] if mode == "next_step" else [True, False, True]),
    ]
    assert taken.truncated[1, 0]
    assert not (taken.episodes.env_id == 0).any()
    assert taken.mask[:3, 1].all()
    envs.close()


def test_random_actions_are_the_spaces_own():
    envs = envfleet.make("Pendulum-v1", num_envs=3, seed=0)
    envs.action_space.seed(5)
    once = rollout(envs, None, 4, seed=0)
    envs.action_space.seed(5)
    again = rollout(envs, None, 4, seed=0)
    np.testing.assert_array_equal(once.actions, again.actions)
    np.testing.assert_array_equal(once.obs, again.obs)
    assert once.actions.shape == (4, 3, 1)
    envs.close()


@pytest.mark.parametrize("backend", ["native", "serial"])
@pytest.mark.parametrize("mode", MODES)
def test_what_was_given_never_changes(backend, mode):
    """Nor does a pool that overwrites its batches spoil anything."""
    options = {"num_envs": 2, "backend": backend, "autoreset_mode": mode, "max_episode_steps": 4}
    with envfleet.make("CartPole-v1", **options, copy=False) as envs, envfleet.make("CartPole-v1", **options) as twins:
        taken, twin = (rollout(own, lambda obs: np.ones(2, int), 10, seed=3) for own in (envs, twins))
        np.testing.assert_array_equal(taken.obs, twin.obs)
        np.testing.assert_array_equal(taken.next_obs(), twin.next_obs())
        rollout(envs, None, 20)
        np.testing.assert_array_equal(taken.obs, twin.obs)
        np.testing.assert_array_equal(taken.next_obs(), twin.next_obs())


def test_wrappers_and_torch_policies():
    torch = pytest.importorskip("torch")
    envs = NormalizeObservation(envfleet.make("CartPole-v1", num_envs=3, seed=0))
    layer = torch.nn.Linear(4, 2)

    @torch.no_grad()
    def policy(obs):
        logits = layer(torch.as_tensor(obs, dtype=torch.float32))
        return logits.argmax(-1).numpy(), {"logits": logits}

    taken = rollout(envs, policy, 6)
    assert taken.extras["logits"].shape == (6, 3, 2)
    assert rollout(envs, policy, 6).obs.shape == (6, 3, 4)
    envs.close()


class PairEnv(gymnasium.Env):
    observation_space = spaces.Discrete(3)
    action_space = spaces.Tuple((spaces.Discrete(2), spaces.Dict({"push": spaces.Box(-1, 1, (2,), np.float32)})))

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 1, float(action[0]), False, False, {}


def test_actions_of_any_structure():
    envs = envfleet.make(PairEnv, num_envs=2, backend="serial")
    plain = (np.array([0, 1]), {"push": np.zeros((2, 2), np.float32)})
    taken = rollout(envs, lambda obs: plain, 3)
    assert taken.actions[0].tolist() == [[0, 1]] * 3
    assert taken.actions[1]["push"].shape == (3, 2, 2)
    assert taken.extras == {}
    taken = rollout(envs, lambda obs: (plain, {"value": obs}), 3)
    assert taken.extras["value"].tolist() == [[1, 1]] * 3
    assert taken.rewards.tolist() == [[0.0, 1.0]] * 3
    envs.close()


class LeverEnv(Diary):
    """Takes two numbers and a text."""

    action_space = spaces.Tuple((spaces.Discrete(5), spaces.Dict({"x": spaces.Box(0, 9, (2,)), "say": spaces.Text(3)})))


@pytest.mark.parametrize("num_envs", [2, 3])
def test_one_nested_action_per_env(num_envs):
    """As step() of a pool accepts them, with as many envs as the tuple has parts too."""
    singles = [(env_id, {"x": np.full(2, env_id, np.float32), "say": "abc"[env_id]}) for env_id in range(num_envs)]
    with envfleet.make(LeverEnv, num_envs=num_envs, backend="serial") as envs:
        taken = rollout(envs, lambda obs: list(singles), 2, seed=0)
    assert taken.actions[0].tolist() == [list(range(num_envs))] * 2
    assert taken.actions[1]["x"][1, :, 0].tolist() == list(range(num_envs))
    assert taken.actions[1]["say"].tolist() == [list("abc"[:num_envs])] * 2


def test_later_values_keep_what_the_first_ones_dtype_could_not_hold():
    """A policy that begins with whole numbers goes on with others."""
    envs = envfleet.make("Pendulum-v1", num_envs=2)
    answers = iter([([[0], [0]], [0, 0], ["a", "b"]), ([[0.5], [-0.5]], [0.25, 7], ["longer", "b"])])

    def policy(obs):
        actions, values, names = next(answers)
        return actions, {"value": values, "name": names}

    taken = rollout(envs, policy, 2)
    assert taken.actions.tolist() == [[[0.0], [0.0]], [[0.5], [-0.5]]]
    assert taken.extras["value"].tolist() == [[0.0, 0.0], [0.25, 7.0]]
    assert taken.extras["name"].tolist() == [["a", "b"], ["longer", "b"]]
    envs.close()


# --- what is refused ------------------------------------------------------------------------------------------


def test_asynchronous_pools_are_refused():
    envs = envfleet.make("CartPole-v1", num_envs=4, batch_size=2)
    with pytest.raises(envfleet.ConfigError, match="synchronous pool, got batch_size=2"):
        rollout(envs, None, 3)
    envs.close()


def test_bad_arguments():
    envs = envfleet.make("CartPole-v1", num_envs=2)
    with pytest.raises(envfleet.ConfigError, match="steps"):
        rollout(envs, None, 0)
    with pytest.raises(envfleet.ConfigError, match="policy"):
        rollout(envs, 3, 1)
    with pytest.raises(envfleet.ConfigError, match="VectorEnv"):
        rollout(gymnasium.make("CartPole-v1"), None, 1)
    with pytest.raises(envfleet.ConfigError, match="a row for each of 2 envs"):
        rollout(envs, lambda obs: (np.zeros(2, int), {"value": 3.0}), 1)
    with pytest.raises(envfleet.ActionError):
        rollout(envs, lambda obs: np.full(2, 7), 1)
    flips = iter([{}, {"value": np.zeros(2)}])
    with pytest.raises(envfleet.ConfigError, match="same extras each step"):
        rollout(envs, lambda obs: (np.zeros(2, int), next(flips)), 2)
    shapes = iter([(2, 3), (2, 1)])
    with pytest.raises(envfleet.ConfigError, match=r"'value' with rows of shape \(1,\) at step 1, \(3,\) before"):
        rollout(envs, lambda obs: (np.zeros(2, int), {"value": np.zeros(next(shapes))}), 2)
    assert rollout(envs, None, 2).mask.all()  # after an error the next rollout starts over
    envs.metadata.pop("autoreset_mode")
    with pytest.raises(envfleet.ConfigError, match="autoreset_mode"):
        rollout(envs, None, 2)
    assert len(rollout(envs, None, 2, autoreset_mode="next_step").rewards) == 2
    envs.close()


@pytest.mark.parametrize("wrap", [lambda envs: envs, RecordEpisodeStatistics], ids=["plain", "wrapped"])
@pytest.mark.parametrize("use", ["step", "reset", "reset_same", "reset_some"])
@pytest.mark.parametrize("copy", [True, False])
def test_envs_that_were_used_in_between(wrap, use, copy):
    envs = wrap(envfleet.make("CartPole-v1", num_envs=2, copy=copy))
    rollout(envs, None, 3, seed=0)
    if use == "step":
        envs.step([0, 0])
    elif use == "reset_some":
        envs.reset([1])
    else:
        envs.reset(seed=0 if use == "reset_same" else 99)
    with pytest.raises(envfleet.CallOrderError, match="reset=True"):
        rollout(envs, None, 3)
    first = rollout(envs, None, 3, reset=True)
    assert (np.abs(first.obs[0]) <= 0.05).all()
    assert rollout(envs, None, 3).mask.all()
    envs.close()


def restored(mode, backend, state=None):
    envs = diaries(mode, backend, (2, 3, 5))
    if state is not None:
        envs.set_state(state)
    return envs


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", ["serial", "processes"])
@pytest.mark.parametrize("num_steps", [3, 4])
def test_a_rollout_continues_from_a_restored_state(mode, backend, num_steps):
    envs = restored(mode, backend)
    rollout(envs, Steps(), num_steps)
    state = envs.get_state()
    expected = [rollout(envs, Steps(), 6) for _ in range(2)]
    envs.set_state(state)
    for other in (envs, restored(mode, backend, state)):
        for part in expected:
            again = rollout(other, Steps(), 6)
            for name in ("rewards", "terminated", "truncated", "mask"):
                np.testing.assert_array_equal(getattr(again, name), getattr(part, name))
            np.testing.assert_array_equal(again.obs["at"], part.obs["at"])
        other.close()


def test_a_restored_state_of_a_wrapper_is_not_discarded():
    envs = NormalizeObservation(envfleet.make("CartPole-v1", num_envs=2))
    rollout(envs, None, 3, seed=0)
    envs.set_state(envs.get_state())
    with pytest.raises(envfleet.CallOrderError, match=r"without wrappers.*NormalizeObservation.*reset=True"):
        rollout(envs, None, 3)
    assert rollout(envs, None, 3, reset=True).mask.all()
    assert rollout(envs, None, 3).mask.all()
    envs.close()


def test_a_restored_env_that_raised_is_reset():
    envs = envfleet.make([partial(Diary, 9, trouble_at=(0, 3))], backend="serial")
    envs.reset()
    envs.set_state(envs.get_state())
    with pytest.raises(envfleet.EnvError):
        rollout(envs, None, 5)
    assert rollout(envs, None, 3).mask.all()
    envs.close()


class Words(gymnasium.Env):
    """Observations of variable length; raises at the step `trouble_at`."""

    observation_space = spaces.Sequence(spaces.Discrete(5))
    action_space = spaces.Discrete(2)

    def __init__(self, trouble_at):
        self.trouble_at = trouble_at

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return (1,), {}

    def step(self, action):
        self.count += 1
        if self.count == self.trouble_at:
            raise ValueError("trouble")
        return (1,) * (1 + self.count), 1.0, False, False, {}


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_a_rollout_of_sequences_continues_after_a_restart(backend):
    envs = envfleet.make([partial(Words, 3), partial(Words, 99)], backend=backend, on_error="restart")
    assert not rollout(envs, None, 3, seed=1).mask[-1, 0]
    again = rollout(envs, None, 2)
    assert again.obs[:, 1].tolist() == [(1,) * 4, (1,) * 5]
    assert again.mask[:, 0].tolist() == [False, True]
    envs.step([0, 0])
    with pytest.raises(envfleet.CallOrderError, match="reset=True"):
        rollout(envs, None, 2)
    envs.close()


@pytest.mark.parametrize(("own", "given"), [("same_step", "next_step"), ("next_step", "same_step")])
def test_a_mode_that_the_envs_do_not_have_is_refused(own, given):
    envs = envfleet.make("CartPole-v1", num_envs=2, autoreset_mode=own)
    with pytest.raises(envfleet.ConfigError, match=f"'{own}'.*got '{given}'"):
        rollout(envs, None, 3, autoreset_mode=given)
    assert len(rollout(envs, None, 3, autoreset_mode=own).rewards) == 3
    envs.close()


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("on_error", ["raise", "restart"])
def test_an_info_error_of_the_env_is_no_restart(mode, on_error):
    """Steps that truncate episodes count, although the env reports an "error" with them."""
    with envfleet.make(
        CountingEnv, num_envs=2, backend="serial", autoreset_mode=mode, on_error=on_error, seed=0
    ) as envs:
        made = rollout(envs, lambda obs: np.zeros(2, np.int64), 12)
    assert made.truncated.any()
    assert made.mask[made.truncated].all()
    assert made.episodes.returns.tolist() == [3.0] * len(made.episodes.returns)
