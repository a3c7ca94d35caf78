"""Box2D: Gymnasium's envs, and the ids of their older versions in gym."""

from __future__ import annotations

import contextlib
import importlib
import sys
import warnings
from dataclasses import replace
from functools import cache

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from envfleet.core.family import Family

# Replacements for the ids that Gymnasium 1.0 dropped; docs/environments.md lists the differences.
_SUCCESSORS = {
    "CarRacing-v2": "CarRacing-v3",
    "LunarLander-v2": "LunarLander-v3",
    "LunarLanderContinuous-v2": "LunarLanderContinuous-v3",
}


@cache
def all_ids() -> frozenset[str]:
    """Return every id, Gymnasium's and gym's."""
    return frozenset({"BipedalWalker-v3", "BipedalWalkerHardcore-v3", *_SUCCESSORS, *_SUCCESSORS.values()})


def spec_of(env_id: str) -> GymnasiumSpec:
    """Return Gymnasium's spec of the env, under the requested id."""
    if env_id in gymnasium.registry:
        return gymnasium.spec(env_id)
    return replace(gymnasium.spec(_SUCCESSORS[env_id]), id=env_id)


def import_box2d() -> None:
    """Import Box2D without its deprecation warnings: turned into exceptions, they crash the process.

    They are raised while the types of SWIG's module are created, which does not check for errors.
    """
    if "Box2D" not in sys.modules:
        with warnings.catch_warnings(), contextlib.suppress(ImportError):  # Gymnasium says what is missing
            warnings.simplefilter("ignore")
            importlib.import_module("Box2D")


FAMILY = Family(
    "box2d",
    package="Box2D",
    extra="box2d",
    python_ids=all_ids,
    spec_of=spec_of,
    python_opens_windows=True,
)
