"""rollout() of a TorchPool: the transitions of rollout() of the same envs as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install envfleet[torch]")

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
