"""Box2D: Gymnasium's envs, and the ids that gym had for older versions of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from envfleet.envs.simulators import Simulator

# The id that runs in place of one that Gymnasium 1.0 dropped; docs/environments.md has the differences.
_SUCCESSORS = {
    "CarRacing-v2": "CarRacing-v3",
    "LunarLander-v2": "LunarLander-v3",
    "LunarLanderContinuous-v2": "LunarLanderContinuous-v3",
}


@cache
def all_ids() -> frozenset[str]:
    """Every id, of Gymnasium and of gym."""
    return frozenset({"BipedalWalker-v3", "BipedalWalkerHardcore-v3", *_SUCCESSORS, *_SUCCESSORS.values()})


def spec_of(env_id: str) -> GymnasiumSpec:
    """Gymnasium's spec of the env, under the id that was asked for."""
    if env_id in gymnasium.registry:
        return gymnasium.spec(env_id)
    return replace(gymnasium.spec(_SUCCESSORS[env_id]), id=env_id)


SIMULATOR = Simulator("box2d", "Box2D", "box2d", "processes", all_ids, spec_of, opens_windows=True)
