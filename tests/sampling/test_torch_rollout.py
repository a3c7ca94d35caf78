"""rollout() of a TorchPool: the transitions of rollout() of the same envs as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install envfleet[torch]")

from support.info_env import CountingEnv  # noqa: E402

import envfleet  # noqa: E402
from envfleet import CallOrderError, ConfigError  # noqa: E402
from envfleet.apis.torch import TorchPool  # noqa: E402
from envfleet.sampling import rollout  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NUM_ENVS = 6


def lean(obs: Any) -> Any:
    """Push towards the side to which the pole leans; with extras."""
    actions = (obs[:, 2] > 0).to(torch.int64) if isinstance(obs, torch.Tensor) else (obs[:, 2] > 0).astype(np.int64)
    return actions, {"angles": obs[:, 2]}


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("num_groups", [1, 2])
def test_it_equals_the_rollout_of_arrays(mode: str, num_groups: int) -> None:
    options: dict[str, Any] = {"num_envs": NUM_ENVS, "seed": 5, "autoreset_mode": mode}
    with (
        TorchPool("CartPole-v1", DEVICE, num_groups=num_groups, **options) as envs,
        envfleet.make("CartPole-v1", **options) as arrays,
    ):
        for _ in range(3):  # the second continues the first
            data, expected = rollout(envs, lean, 30), rollout(arrays, lean, 30)
            for name in ("obs", "actions", "rewards", "terminated", "truncated", "mask", "ended", "last_obs"):
                np.testing.assert_array_equal(getattr(data, name).cpu(), getattr(expected, name), name)
            np.testing.assert_array_equal(data.extras["angles"].cpu(), expected.extras["angles"])
            valid = expected.mask
            np.testing.assert_array_equal(data.next_obs().cpu()[valid], expected.next_obs()[valid])
        assert data.obs.device.type == DEVICE
        envs.groups[0].reset()
        with pytest.raises(CallOrderError, match="reset=True"):
            rollout(envs, lean, 3)
        assert rollout(envs, None, 3, seed=5).obs.shape == (3, NUM_ENVS, 4)


def test_refusals() -> None:
    with TorchPool("CartPole-v1", DEVICE, num_envs=4, batch_size=2) as envs, pytest.raises(ConfigError, match="batch"):
        rollout(envs, lean, 3)
    with (
        TorchPool("CartPole-v1", DEVICE, num_envs=4, autoreset_mode="disabled") as envs,
        pytest.raises(ConfigError, match="'disabled'"),
    ):
        rollout(envs, lean, 3)
    with (
        TorchPool("CartPole-v1", DEVICE, num_envs=4) as envs,
        pytest.raises(ConfigError, match="a row for each of 4 envs"),
    ):
        rollout(envs, lambda obs: (torch.zeros(4, dtype=torch.int64), {"bad": obs[:2]}), 3)


@pytest.mark.parametrize("num_groups", [1, 2])
def test_extras_and_actions_of_several_dtypes_are_kept(num_groups: int) -> None:
    """Zeros of one dtype at first, then fractions."""
    num_calls = 0

    def policy(obs: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        is_first = num_calls <= num_groups
        value = torch.zeros(len(obs), dtype=torch.int64) if is_first else torch.full((len(obs),), 0.75)
        actions = torch.zeros(len(obs), 1, dtype=torch.int64) if is_first else torch.full((len(obs), 1), 0.5)
        return actions.to(obs.device), {"value": value.to(obs.device)}

    with TorchPool("Pendulum-v1", DEVICE, num_envs=4, num_groups=num_groups) as envs:
        data = rollout(envs, policy, 3, seed=0)
    assert data.extras["value"].tolist() == [[0] * 4, [0.75] * 4, [0.75] * 4]
    assert data.actions[..., 0].tolist() == [[0] * 4, [0.5] * 4, [0.5] * 4]


@pytest.mark.parametrize("num_groups", [1, 2])
@pytest.mark.parametrize(
    ("first", "later", "message"),
    [
        (["a", "b"], ["a"], r"same extras each step, got none of \['b'\] at step 1"),
        (["a"], [], r"same extras each step, got none of \['a'\] at step 1"),
        (["a"], ["a", "b"], "same extras each step, got 'b' first at step 1"),
    ],
)
def test_extras_of_other_names_are_refused(num_groups: int, first: Any, later: Any, message: str) -> None:
    num_calls = 0

    def policy(obs: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        names = first if num_calls <= num_groups else later
        return torch.zeros(len(obs), dtype=torch.int64), dict.fromkeys(names, obs[:, 0])

    with (
        TorchPool("CartPole-v1", DEVICE, num_envs=4, num_groups=num_groups) as envs,
        pytest.raises(ConfigError, match=message),
    ):
        rollout(envs, policy, 3)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.tensor(1.0), r"a row for each of 4 envs, got 'bad' of shape \(\)"),
        ([1.0] * 4, "expected tensors, got list"),
        (1.0, "expected tensors, got float"),
    ],
)
def test_extras_that_are_no_rows_are_refused(value: Any, message: str) -> None:
    with TorchPool("CartPole-v1", DEVICE, num_envs=4) as envs, pytest.raises(ConfigError, match=message):
        rollout(envs, lambda obs: (torch.zeros(4, dtype=torch.int64), {"bad": value}), 3)


def test_extras_of_other_shapes_are_refused() -> None:
    shapes = iter([(4, 4), (4,)])
    with (
        TorchPool("CartPole-v1", DEVICE, num_envs=4) as envs,
        pytest.raises(ConfigError, match="same shape each step"),
    ):
        rollout(envs, lambda obs: (torch.zeros(4, dtype=torch.int64), {"bad": torch.zeros(next(shapes))}), 3)


def test_an_info_error_of_the_env_is_no_restart():
    with TorchPool(CountingEnv, "cpu", num_envs=2, backend="serial", autoreset_mode="same_step", seed=0) as envs:
        made = rollout(envs, lambda obs: torch.zeros(2, dtype=torch.int64), 12)
    assert made.truncated.any()
    assert made.mask.all()
