"""Classic control: native envs, rendered by Gymnasium's own code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envfleet.core.family import Family, Renderer
from envfleet.envs.rendering import gymnasium_renderer

_MODULE = "gymnasium.envs.classic_control"
_ENTRY_POINTS = {
    "CartPole-v0": f"{_MODULE}.cartpole:CartPoleEnv",
    "CartPole-v1": f"{_MODULE}.cartpole:CartPoleEnv",
    "MountainCar-v0": f"{_MODULE}.mountain_car:MountainCarEnv",
    "MountainCarContinuous-v0": f"{_MODULE}.continuous_mountain_car:Continuous_MountainCarEnv",
    "Pendulum-v0": f"{_MODULE}.pendulum:PendulumEnv",
    "Pendulum-v1": f"{_MODULE}.pendulum:PendulumEnv",
    "Acrobot-v1": f"{_MODULE}.acrobot:AcrobotEnv",
}
_RENDER_FPS = {"CartPole-v0": 50, "CartPole-v1": 50, "Acrobot-v1": 15}


def _make_renderer(native_id: str, params: Mapping[str, Any]) -> Renderer:
    # Gymnasium's env has no such parameter.
    kwargs = {name: value for name, value in params.items() if name != "fast_math"}
    return gymnasium_renderer(_ENTRY_POINTS[native_id], kwargs)


FAMILY = Family("classic control", tuple(_ENTRY_POINTS), make_renderer=_make_renderer, render_fps=_RENDER_FPS)
