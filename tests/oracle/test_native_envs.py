"""The built-in native envs against Gymnasium as oracle.

The reference is a list of Gymnasium's own envs, stepped one by one in Python and reset as
next_step autoreset says: the call after an episode's end starts the next one with the same
generator, ignores the action and gives reward 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import PendulumEnv

import envfleet

# Gymnasium says so of CartPole-v0, which is compared all the same.
pytestmark = pytest.mark.filterwarnings("ignore:.*CartPole-v0 is out of date")

# What CartPole's fast_math may differ from Gymnasium by within the first steps of an episode: a last bit of the
# double state, amplified by an upright pole.
FAST_MATH = 2.0**-22


class Catch(gymnasium.Env):
    """bsuite's catch, restated on Gymnasium's generator."""

    def __init__(self, rows: int = 10, columns: int = 5) -> None:
        self.rows, self.columns = rows, columns
        self.observation_space = gymnasium.spaces.Box(0, 1, (rows, columns), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)

    def board(self) -> np.ndarray:
        board = np.zeros((self.rows, self.columns), np.float32)
        board[self.ball_y, self.ball_x] = board[-1, self.paddle_x] = 1
        return board

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.ball_x, self.ball_y, self.paddle_x = self.np_random.integers(self.columns), 0, self.columns // 2
        return self.board(), {}

    def step(self, action):
        self.paddle_x = np.clip(self.paddle_x + action - 1, 0, self.columns - 1)
        self.ball_y += 1
        ended = self.ball_y == self.rows - 1
        reward = (1.0 if self.paddle_x == self.ball_x else -1.0) if ended else 0.0
        return self.board(), reward, ended, False, {}


class NChain(gymnasium.Env):
    """gym's NChain-v0, restated on Gymnasium's generator."""

    def __init__(self, n: int = 5, slip: float = 0.2, small: float = 2, large: float = 10) -> None:
        self.n, self.slip, self.small, self.large, self.state = n, slip, small, large, 0
        self.observation_space, self.action_space = gymnasium.spaces.Discrete(n), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = 0
        return self.state, {}

    def step(self, action):
        if self.np_random.random() < self.slip:
            action = not action
        if action:
            self.state, reward = 0, self.small
        elif self.state < self.n - 1:
            self.state, reward = self.state + 1, 0
        else:
            reward = self.large
        return self.state, reward, False, False, {}


class OldPendulum(PendulumEnv):
    """gym's Pendulum-v0: gravity as -sin(theta + pi), and a position that moves by the unlimited velocity."""

    def step(self, u):
        theta, theta_dot = self.state
        u = np.clip(u, -self.max_torque, self.max_torque)[0]
        lean = ((theta + np.pi) % (2 * np.pi)) - np.pi
        costs = lean**2 + 0.1 * theta_dot**2 + 0.001 * (u**2)
        pull = -3 * self.g / (2 * self.l) * np.sin(theta + np.pi)
        velocity = theta_dot + (pull + 3.0 / (self.m * self.l**2) * u) * self.dt
        self.state = np.array([theta + velocity * self.dt, np.clip(velocity, -self.max_speed, self.max_speed)])
        return self._get_obs(), -costs, False, False, {}


# What Gymnasium has no class for, and its time limit.
RESTATED = {"Catch-v0": (Catch, None), "NChain-v0": (NChain, 1000), "Pendulum-v0": (OldPendulum, 200)}


def at_random(rng, space, obs, info):
    if isinstance(space, gymnasium.spaces.Box):
        return rng.uniform(space.low, space.high).astype(space.dtype)
    return rng.integers(space.n)


def round_and_round(rng, space, obs, info):
    """Drives Pendulum past its speed limit."""
    return np.where(obs[2] >= 0, space.high, space.low)


def by_momentum(rng, space, obs, info):
    """Reaches MountainCar's flag, with noise."""
    if rng.random() < 0.1:
        return at_random(rng, space, obs, info)
    forward = obs[1] >= 0
    if isinstance(space, gymnasium.spaces.Box):
        return np.array([rng.uniform(0.5, 1.0) * (1 if forward else -1)], np.float32)
    return 2 if forward else 0


def by_swinging(rng, space, obs, info):
    """Swings Acrobot up, with noise."""
    if rng.random() < 0.1:
        return at_random(rng, space, obs, info)
    return 0 if obs[4] > 0 else 2


def to_the_right(rng, space, obs, info):
    """Crosses CliffWalking's grid now and then."""
    return rng.choice(4, p=[0.3, 0.45, 0.2, 0.05])


def by_mask(rng, space, obs, info):
    """Finishes Taxi's errands now and then: mostly actions that do something, dropping off when possible."""
    mask = info["action_mask"]
    if rng.random() < 0.05:
        return at_random(rng, space, obs, info)
    if mask[4] or mask[5]:
        return 4 if mask[4] else 5
    return rng.choice(np.flatnonzero(mask))


@dataclass(frozen=True)
class Case:
    """One env with one set of parameters, and how to drive and compare it."""

    id: str
    params: dict[str, Any] = field(default_factory=dict)
    choose: Any = at_random
    steps: int = 600
    reference_id: str = ""  # the id that stands for one that Gymnasium lacks

    def make_reference(self) -> gymnasium.Env:
        if self.id in RESTATED:
            make, limit = RESTATED[self.id]
            env = make(**self.params)
            return env if limit is None else gymnasium.wrappers.TimeLimit(env, limit)
        return gymnasium.make(self.reference_id or self.id, disable_env_checker=True, **self.params)

    def __str__(self) -> str:
        return "-".join([self.id, *(f"{name}={value}" for name, value in self.params.items())])


TWO_STARTS = ["FSFH", "SFFF", "FHSG"]

CASES = [
    Case("CartPole-v0"),
    Case("CartPole-v1"),
    Case("CartPole-v1", {"sutton_barto_reward": True}),
    Case("MountainCar-v0", choose=by_momentum),
    Case("MountainCar-v0", {"goal_velocity": 0.02}, choose=by_momentum),
    Case("MountainCarContinuous-v0", choose=by_momentum),
    Case("MountainCarContinuous-v0", steps=2100),
    Case("MountainCarContinuous-v0", {"goal_velocity": 0.03}, choose=by_momentum),
    Case("Pendulum-v1"),
    Case("Pendulum-v1", {"g": 9.81}),
    Case("Acrobot-v1", choose=by_swinging),
    Case("Acrobot-v1", steps=1100),
    Case("FrozenLake-v1"),
    Case("FrozenLake-v1", {"is_slippery": False}),
    Case("FrozenLake-v1", {"success_rate": 0.7}),
    Case("FrozenLake-v1", {"reward_schedule": (10, -5, -0.1)}),
    Case("FrozenLake-v1", {"map_name": "8x8"}),
    Case("FrozenLake-v1", {"desc": TWO_STARTS}),
    Case("FrozenLake8x8-v1"),
    Case("FrozenLake8x8-v1", {"map_name": "4x4"}),
    Case("CliffWalking-v1", choose=to_the_right, steps=1500),
    Case("CliffWalking-v1", {"is_slippery": True}, choose=to_the_right, steps=1500),
    Case("CliffWalking-v0", choose=to_the_right, steps=1500, reference_id="CliffWalking-v1"),
    Case("CliffWalkingSlippery-v1", choose=to_the_right, steps=1500),
    Case("CliffWalkingSlippery-v1", {"is_slippery": False}, choose=to_the_right, steps=1500),
    Case("Taxi-v4", choose=by_mask),
    Case("Taxi-v4"),
    Case("Taxi-v4", {"is_rainy": True}, choose=by_mask),
    Case("Taxi-v4", {"is_rainy": True, "rainy_probability": 0.4}, choose=by_mask),
    Case("Taxi-v4", {"fickle_passenger": True, "fickle_probability": 0.9}, choose=by_mask),
    Case("Taxi-v4", {"is_rainy": True, "fickle_passenger": True}, choose=by_mask, steps=1500),
    Case("Taxi-v3", choose=by_mask, reference_id="Taxi-v4"),
    Case("Blackjack-v1"),
    Case("Blackjack-v1", {"sab": False}),
    Case("Blackjack-v1", {"sab": False, "natural": True}),
    Case("Blackjack-v1", {"natural": True}),
    Case("NChain-v0", steps=2100),
    Case("NChain-v0", {"n": 3, "slip": 0.4, "small": 1.5, "large": 7.0}, steps=2100),
    Case("Pendulum-v0"),
    Case("Pendulum-v0", {"g": 9.81}, choose=round_and_round),
    Case("Catch-v0"),
    Case("Catch-v0", {"rows": 6, "columns": 9}),
]

every_case = pytest.mark.parametrize("case", CASES, ids=str)
NUM_ENVS = 5


def rows_of(obs: Any, num_envs: int) -> list[Any]:
    """A batch of observations as one observation an env."""
    if isinstance(obs, tuple):
        return list(zip(*obs, strict=True))
    return list(obs[:num_envs])


def assert_equal(actual: Any, expected: Any, context: str) -> None:
    np.testing.assert_array_equal(actual, expected, err_msg=context)


def assert_same_infos(infos: dict[str, Any], row: int, expected: dict[str, Any], context: str) -> None:
    for key, value in expected.items():
        np.testing.assert_array_equal(infos[key][row], value, err_msg=f"{context}: {key}")
        assert infos[key].dtype == (np.int8 if key == "action_mask" else np.float64)


@every_case
def test_spaces_and_limits_equal_the_reference(case: Case) -> None:
    envs = envfleet.make(case.id, num_envs=1, **case.params)
    reference = case.make_reference()
    assert envs.single_observation_space == reference.observation_space
    assert envs.single_action_space == reference.action_space
    if reference.spec is not None:
        assert envs.spec.max_episode_steps == reference.spec.max_episode_steps
        assert envs.spec.reward_threshold == reference.spec.reward_threshold
    envs.close()


@every_case
def test_initial_observations_equal_the_reference(case: Case) -> None:
    num_envs, first_seed = 200, 1000
    envs = envfleet.make(case.id, num_envs=num_envs, **case.params)
    reference = case.make_reference()
    obs, infos = envs.reset(seed=first_seed)
    for row, actual in enumerate(rows_of(obs, num_envs)):
        expected, info = reference.reset(seed=first_seed + row)
        assert_equal(actual, expected, f"seed {first_seed + row}")
        assert_same_infos(infos, row, info, f"seed {first_seed + row}")
    envs.close()


@every_case
def test_rollouts_through_autoresets_equal_the_reference(case: Case) -> None:
    rng = np.random.default_rng(7)
    envs = envfleet.make(case.id, num_envs=NUM_ENVS, **case.params)
    references = [case.make_reference() for _ in range(NUM_ENVS)]
    space = references[0].action_space
    envs.reset(seed=42)
    last = [reference.reset(seed=42 + i) for i, reference in enumerate(references)]
    ended = [False] * NUM_ENVS
    num_ends = 0
    for step in range(case.steps):
        actions = [case.choose(rng, space, *row) for row in last]
        obs, rewards, terminated, truncated, infos = envs.step(np.array(actions, dtype=space.dtype))
        for i, actual in enumerate(rows_of(obs, NUM_ENVS)):
            context = f"env {i}, step {step}"
            if ended[i]:
                last[i] = references[i].reset()
                expected = (0.0, False, False)
            else:
                next_obs, *expected, info = references[i].step(actions[i])
                last[i] = (next_obs, info)
            assert_equal(actual, last[i][0], context)
            assert_equal(rewards[i], expected[0], context)
            assert (terminated[i], truncated[i]) == tuple(expected[1:]), context
            assert_same_infos(infos, i, last[i][1], context)
            ended[i] = bool(expected[1] or expected[2])
            num_ends += ended[i]
    assert num_ends >= 2 * NUM_ENVS, "too few episodes ended for this test to mean anything"
    envs.close()


def balance(rng, space, obs, info):
    """Keeps CartPole's pole upright and its cart near the middle for as long as it is asked."""
    return int(0.3 * obs[0] + 0.8 * obs[1] + 10 * obs[2] + 2 * obs[3] > 0)


def always(action):
    return lambda rng, space, obs, info: action


# Policies that never reach an end, so that an episode lasts for its whole time limit: there is no later moment at
# which a difference in the last bit could show.
LONG_EPISODES = [
    Case("CartPole-v0", choose=balance, steps=200),
    Case("CartPole-v1", choose=balance, steps=500),
    Case("MountainCar-v0", steps=200),
    Case("MountainCarContinuous-v0", steps=999),
    Case("Pendulum-v1", steps=200),
    Case("Acrobot-v1", choose=always(1), steps=500),
    Case("FrozenLake-v1", choose=always(3), steps=100),
    Case("FrozenLake8x8-v1", choose=always(3), steps=200),
    Case("Taxi-v4", choose=always(4), steps=200),
]


@pytest.mark.parametrize("case", LONG_EPISODES, ids=str)
def test_episodes_stay_on_the_reference_for_their_whole_time_limit(case: Case) -> None:
    num_envs = 16
    rng = np.random.default_rng(3)
    envs = envfleet.make(case.id, num_envs=num_envs)
    references = [case.make_reference() for _ in range(num_envs)]
    assert references[0].spec.max_episode_steps == case.steps
    space = references[0].action_space
    envs.reset(seed=0)
    last = [reference.reset(seed=i) for i, reference in enumerate(references)]
    for step in range(1, case.steps + 1):
        actions = [case.choose(rng, space, *row) for row in last]
        obs, rewards, terminated, truncated, _ = envs.step(np.array(actions, dtype=space.dtype))
        for i, actual in enumerate(rows_of(obs, num_envs)):
            next_obs, *expected, info = references[i].step(actions[i])
            last[i] = (next_obs, info)
            assert_equal(actual, next_obs, f"env {i}, step {step}")
            assert [rewards[i], terminated[i], truncated[i]] == expected, f"env {i}, step {step}"
            assert expected[1:] == [False, step == case.steps], "the policy does not keep this episode alive"
    envs.close()


def test_fast_math_starts_on_the_reference_and_may_leave_it() -> None:
    envs = envfleet.make("CartPole-v1", num_envs=32, fast_math=True)
    exact = envfleet.make("CartPole-v1", num_envs=32)
    obs, _ = envs.reset(seed=0)
    np.testing.assert_array_equal(obs, exact.reset(seed=0)[0])
    rng = np.random.default_rng(0)
    differ = False
    for _ in range(8):  # no pole falls within 8 steps
        actions = rng.integers(2, size=32)
        np.testing.assert_allclose(envs.step(actions)[0], exact.step(actions)[0], rtol=FAST_MATH, atol=FAST_MATH)
        differ |= not np.array_equal(envs.get_attr("state"), exact.get_attr("state"))
    assert differ, "fast_math computes the exact arithmetic, at its price"
    envs.close()
    exact.close()


@pytest.mark.parametrize(
    ("env_id", "names"),
    [
        ("CartPole-v1", ["state", "gravity", "length", "force_mag"]),
        ("MountainCar-v0", ["state", "goal_velocity", "goal_position", "force", "gravity", "max_speed"]),
        ("MountainCarContinuous-v0", ["state", "goal_velocity", "goal_position", "power", "max_speed"]),
        ("Pendulum-v1", ["state", "last_u", "g", "m", "l", "dt", "max_speed", "max_torque"]),
        ("Acrobot-v1", ["state"]),
        ("FrozenLake-v1", ["s", "lastaction"]),
        ("CliffWalking-v1", ["s", "lastaction"]),
        ("Taxi-v4", ["s", "lastaction", "fickle_step"]),
        ("Blackjack-v1", ["player", "dealer"]),
    ],
)
def test_attributes_equal_those_of_the_same_name(env_id: str, names: list[str]) -> None:
    envs = envfleet.make(env_id, num_envs=1)
    reference = gymnasium.make(env_id, disable_env_checker=True)
    envs.reset(seed=11)
    reference.reset(seed=11)
    action = np.array([0.5], np.float32) if isinstance(reference.action_space, gymnasium.spaces.Box) else 1
    envs.step(np.array([action]))
    reference.step(action)
    for name in names:
        np.testing.assert_array_equal(envs.get_attr(name)[0], getattr(reference.unwrapped, name), err_msg=name)
    envs.close()


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("CartPole-v1", {"low": -0.01, "high": 0.2}),
        ("MountainCar-v0", {"low": -0.9, "high": 0.1}),
        ("MountainCar-v0", {"high": -0.2}),
        ("MountainCarContinuous-v0", {"low": -0.9, "high": 0.1}),
        ("Acrobot-v1", {"low": -3.0, "high": 3.0}),
        ("Pendulum-v1", {"x_init": 0.5, "y_init": 3.0}),
        ("Pendulum-v1", {"y_init": 0.0}),
    ],
)
def test_reset_options_equal_the_reference(env_id: str, options: dict[str, float]) -> None:
    envs = envfleet.make(env_id, num_envs=50)
    reference = gymnasium.make(env_id, disable_env_checker=True)
    obs, _ = envs.reset(seed=3, options=options)
    for i in range(50):
        assert_equal(obs[i], reference.reset(seed=3 + i, options=options)[0], f"seed {3 + i}")
    envs.close()


@pytest.mark.parametrize(
    ("env_id", "options", "message"),
    [
        # Against an end that is the env's own default, which only the env knows.
        ("CartPole-v1", {"low": 1.0}, "low <= high"),
        ("MountainCar-v0", {"low": 1.0}, "low <= high"),
        ("MountainCarContinuous-v0", {"high": -2.0}, "low <= high"),
        ("Acrobot-v1", {"low": 1.0}, "low <= high"),
        ("Pendulum-v1", {"x_init": -1.0}, "x_init >= 0"),
    ],
)
def test_reset_options_that_make_no_interval_raise(env_id: str, options: dict[str, float], message: str) -> None:
    envs = envfleet.make(env_id, num_envs=2)
    with pytest.raises(envfleet.EnvError, match=message):
        envs.reset(seed=0, options=options)
    envs.close()


@pytest.mark.parametrize(
    ("env_id", "params", "message"),
    [
        ("FrozenLake-v1", {"desc": ["SF", "FFG"]}, "rows of one length"),
        ("FrozenLake-v1", {"desc": ["SF", "XG"]}, "tiles S, F, H or G, got 'X' in row 1"),
        ("FrozenLake-v1", {"desc": ["FF", "FG"]}, "a start tile S, got none"),
        ("FrozenLake-v1", {"map_name": "5x5"}, "expected 4x4 or 8x8, got 5x5"),
        ("FrozenLake-v1", {"reward_schedule": (1.0, 0.0)}, "expected 3 rewards"),
        ("Catch-v0", {"rows": 1}, "rows >= 2"),
    ],
)
def test_invalid_parameters_say_what_was_expected(env_id: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(envfleet.ConfigError, match=message):
        envfleet.make(env_id, num_envs=2, **params)
