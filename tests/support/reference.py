"""The reference: a pool's semantics written down as plainly as can be, over Gymnasium envs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from envfleet.core.autoreset import Phase, StepRule, step_rule


@dataclass
class Row:
    obs: Any
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    elapsed_step: int = 0
    info: dict[str, Any] = field(default_factory=dict)
    final_obs: Any = None
    final_info: dict[str, Any] | None = None


class ReferenceEnv:
    """One env under an autoreset mode."""

    def __init__(self, env: gymnasium.Env[Any, Any], mode: AutoresetMode) -> None:
        self.env, self.mode = env, mode
        self.phase, self.elapsed_step = Phase.UNSTARTED, 0

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Row:
        obs, info = self.env.reset(seed=seed, options=options)
        self.phase, self.elapsed_step = Phase.RUNNING, 0
        return Row(obs, info=info)

    def step(self, action: Any) -> Row:
        rule = step_rule(self.mode, self.phase)
        assert rule is not StepRule.REFUSE
        if rule is StepRule.RESET:
            return self.reset()
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.elapsed_step += 1
        row = Row(obs, float(reward), terminated, truncated, self.elapsed_step, info)
        if terminated or truncated:
            self.phase = Phase.ENDED
            if rule is StepRule.STEP_THEN_RESET:
                first = self.reset()
                row.final_obs, row.final_info = row.obs, row.info
                row.obs, row.info, row.elapsed_step = first.obs, first.info, 0
        return row


class ReferencePool:
    """num_envs of them; env i is seeded with seed + i."""

    def __init__(
        self, env_id: str, num_envs: int, mode: AutoresetMode = AutoresetMode.NEXT_STEP, **kwargs: Any
    ) -> None:
        self.envs = [ReferenceEnv(gymnasium.make(env_id, **kwargs), mode) for _ in range(num_envs)]

    def reset(self, seed: int) -> list[Row]:
        return [env.reset(seed=seed + i) for i, env in enumerate(self.envs)]

    def step(self, actions: Any) -> list[Row]:
        return [env.step(action) for env, action in zip(self.envs, actions, strict=True)]


def column(rows: list[Row], name: str) -> np.ndarray[Any, Any]:
    return np.array([getattr(row, name) for row in rows])
