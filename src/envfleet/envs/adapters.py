"""adapt(): any Python env, of whatever age, in Gymnasium's API.

Three kinds are taken besides Gymnasium's own: gym up to 0.25 (4-tuple step, seed()), gym 0.26
(Gymnasium's calls with gym's classes and spaces), and the five-method protocol of
envpool_wrapper. gym itself is never imported: its classes are known by what they have.
"""

from __future__ import annotations

from typing import Any

import gymnasium

from envfleet.envs.adapted_env import AdaptedEnv, EnvPoolProtocolEnv
from envfleet.envs.env_styles import is_envpool_protocol, reset_keywords, speaks_gymnasium, takes_env_id
from envfleet.envs.gym_spaces import to_gymnasium_space

__all__ = [
    "AdaptedEnv",
    "EnvPoolProtocolEnv",
    "adapt",
    "is_envpool_protocol",
    "reset_keywords",
    "takes_env_id",
    "to_gymnasium_space",
]


def adapt(env: Any, render_mode: str | None = None) -> Any:
    """The env itself where it speaks Gymnasium's API, else the env in an AdaptedEnv.

    The very same object comes back for every gymnasium.Env, so that nothing is paid for a
    step; what is wrong with one shows when it is stepped. render_mode is for an old env, whose
    constructor does not take it.
    """
    if is_envpool_protocol(env):
        return EnvPoolProtocolEnv(env, render_mode)
    if isinstance(env, gymnasium.Env) or speaks_gymnasium(env):
        return env
    return AdaptedEnv(env, render_mode)
