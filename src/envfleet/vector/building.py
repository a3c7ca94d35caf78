"""Builders of the envs of a vector environment, which check their spaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gymnasium.spaces.utils import is_space_dtype_shape_equiv

from envfleet.apis.common.env_builders import ReadyEnvBuilder


@dataclass(frozen=True)
class VectorEnvBuilder(ReadyEnvBuilder):
    """Builds one env and checks its spaces as Gymnasium does."""

    class_name: str = "VectorEnv"
    observation_mode: Any = "same"

    def _check(self, env: Any) -> None:
        expected, got = self.observation_space, env.observation_space
        assert expected is not None, "a vector environment has chosen its spaces"
        # The messages are Gymnasium's: callers match them.
        if self.observation_mode == "same":
            if expected != got:
                raise RuntimeError(
                    f"{self.class_name}(..., observation_mode='same') however the sub-environments observation "
                    f"spaces are not equivalent. single_observation_space={expected}, sub-environment "
                    f"observation_space={got}. If this is intentional, use `observation_mode='different'` instead."
                )
        elif not is_space_dtype_shape_equiv(expected, got):
            raise RuntimeError(
                f"{self.class_name}(..., observation_mode='different' or custom space) however the sub-environment's "
                "observation spaces do not share a common shape and dtype. "
                f"single_observation_space={expected}, sub-environment observation_space={got}"
            )
        if env.action_space != self.action_space:
            raise RuntimeError(
                f"Some environments have an action space different from `{self.action_space}`, for example "
                f"`{env.action_space}`. In order to batch actions, the action spaces from all environments must be "
                "equal."
            )
