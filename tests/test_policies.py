"""What counts as a policy is the same for rollout(), for the rollout of a TorchPool, and for record()."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import envfleet
from envfleet.sampling import rollout
from envfleet.wrappers import record

NUM_ENVS, NUM_STEPS = 3, 12
LENGTH = 4


class Notebook(gymnasium.Env):
    """Shows how many steps of the episode are done. Takes notes of its actions, all of which it has as its return."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 (as Gymnasium has it)
    observation_space = spaces.Box(0, 10, (1,), np.float32)
    action_space = spaces.Discrete(1000)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.count = render_mode, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        actions_seen.append(int(action))
        return np.full(1, self.count, np.float32), float(action), self.count == LENGTH, False, {}

    def render(self):
        return np.zeros((8, 8, 3), np.uint8)


actions_seen: list[int] = []  # by the envs, which run in this process


class Counter:
    """A model as Stable-Baselines3 has them: the state counts the steps of the episode, and the action shows it."""

    def __init__(self) -> None:
        self.starts: list[list[bool]] = []

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        assert isinstance(observation, np.ndarray)
        before = np.zeros(len(observation), np.int64) if state is None else state[0]
        assert (state is None) == (not self.starts)
        self.starts.append(episode_start.tolist())
        count = np.where(episode_start, 0, before) + 1
        return count + (500 if deterministic else 0), (count,)


def by_rollout(policy: Any, mode: str, tmp_path: Any) -> None:
    with make(mode) as envs:
        rollout(envs, policy, NUM_STEPS // 2, seed=0)
        rollout(envs, policy, NUM_STEPS - NUM_STEPS // 2)


def by_torch_rollout(policy: Any, mode: str, tmp_path: Any) -> None:
    torch = pytest.importorskip("torch")
    from envfleet.apis.torch import TorchPool

    if mode == "disabled":
        pytest.skip("not on a device")
    options = {"num_envs": NUM_ENVS, "backend": "serial", "autoreset_mode": mode}
    with TorchPool(Notebook, torch.device("cpu"), **options) as envs:
        rollout(envs, policy, NUM_STEPS // 2, seed=0)
        rollout(envs, policy, NUM_STEPS - NUM_STEPS // 2)


def by_record(policy: Any, mode: str, tmp_path: Any) -> None:
    pytest.importorskip("imageio")
    with make(mode, render_mode="rgb_array") as envs:
        # The first frame is that of the reset, or of the row before the first action.
        record(envs, tmp_path / "x.gif", policy, num_frames=NUM_STEPS + 1, seed=0)


def make(mode: str, **options: Any) -> Any:
    return envfleet.make(Notebook, num_envs=NUM_ENVS, backend="serial", autoreset_mode=mode, **options)


USERS = {"rollout": by_rollout, "torch_rollout": by_torch_rollout, "record": by_record}
each_user = pytest.mark.parametrize("use", USERS.values(), ids=USERS)


def ones(obs: Any) -> Any:
    return np.ones(len(obs), np.int64)


def tensors(obs: Any) -> Any:
    return pytest.importorskip("torch").ones(len(obs), dtype=pytest.importorskip("torch").int64)


class Plain:
    """predict() alone, as scikit-learn has it."""

    def predict(self, obs: Any) -> Any:
        return ones(obs)


POLICIES: dict[str, Callable[[], Any]] = {
    "actions": lambda: ones,
    "tensors": lambda: tensors,
    "extras": lambda: lambda obs: (ones(obs), {"value": np.zeros(len(obs))}),
    "tensor_extras": lambda: lambda obs: (tensors(obs), {"value": tensors(obs)}),
    "no_state": lambda: lambda obs: (ones(obs), None),
    "dropped_state": lambda: lambda obs: (ones(obs), (np.zeros(3), np.zeros(3))),
    "predict": Plain,
    "bound_predict": lambda: Plain().predict,
}


@each_user
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_policies(use, policy, tmp_path):
    actions_seen.clear()
    use(policy(), "same_step", tmp_path)
    assert actions_seen == [1] * NUM_ENVS * NUM_STEPS


@each_user
@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("given", ["model", "predict", "partial"])
def test_a_policy_with_a_state_gets_it_back_and_is_told_of_new_episodes(use, mode, given, tmp_path):
    model = Counter()
    policy = {"model": model, "predict": model.predict, "partial": partial(model.predict, deterministic=True)}[given]
    actions_seen.clear()
    use(policy, mode, tmp_path)
    # In next_step, the step that resets has no transition, and the row after it starts the episode.
    period = LENGTH + (mode == "next_step")
    assert model.starts == [[step % period == 0] * NUM_ENVS for step in range(NUM_STEPS)]
    counts = [step % period + 1 + (500 if given == "partial" else 0) for step in range(NUM_STEPS)]
    wanted = [count for step, count in enumerate(counts) if step % period < LENGTH]  # the others reach no env
    assert actions_seen[::NUM_ENVS] == wanted


@each_user
def test_another_policy_starts_without_a_state(use, tmp_path):
    """The asserts are in Counter."""
    use(Counter(), "same_step", tmp_path)
    with make("same_step") as envs:
        for _ in range(2):
            model = Counter()
            rollout(envs, model, 2)
            assert model.starts == [[True] * NUM_ENVS, [False] * NUM_ENVS]


@each_user
def test_models_of_stable_baselines3(use, tmp_path):
    sb3 = pytest.importorskip("stable_baselines3")

    class TwoActions(Notebook):
        action_space = spaces.Discrete(2)

    model = sb3.PPO("MlpPolicy", TwoActions(), n_steps=8, batch_size=8, device="cpu", seed=0)
    seen = []
    for policy in (model, model.policy, model.predict, partial(model.predict, deterministic=True)):
        actions_seen.clear()
        use(policy, "same_step", tmp_path)
        assert set(actions_seen) <= {0, 1}
        seen.append(len(actions_seen))
    assert seen == [NUM_ENVS * NUM_STEPS] * 4


def test_two_rows_of_actions_are_no_state():
    """A tuple of two rows, for two envs, of one type."""
    with envfleet.make("Pendulum-v1", num_envs=2) as envs:
        taken = rollout(envs, lambda obs: ((0.5,), (1.0,)), 2)
        assert taken.actions[..., 0].tolist() == [[0.5, 1.0]] * 2
    with envfleet.make("CartPole-v1", num_envs=2) as envs:
        assert rollout(envs, lambda obs: (0, 1), 2).actions.tolist() == [[0, 1]] * 2


def test_a_policy_that_takes_a_state_and_returns_none():
    def predict(obs, state, episode_start):
        return np.zeros(len(obs), np.int64)

    with make("same_step") as envs, pytest.raises(envfleet.ConfigError, match=r"\(actions, state\).*got ndarray"):
        rollout(envs, predict, 2)
