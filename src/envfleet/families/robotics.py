"""Gymnasium-Robotics: Fetch, the Shadow hand, mazes, the Adroit hand and the Franka kitchen."""

from __future__ import annotations

from functools import cache
from itertools import product

from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from envfleet.core.family import Family, imported_spec

_MANIPULATED = {"Block": ("", "RotateZ", "RotateParallel", "RotateXYZ"), "Egg": ("", "Rotate"), "Pen": ("", "Rotate")}
_TOUCH_SENSORS = ("", "_BooleanTouchSensors", "_ContinuousTouchSensors")
_MAZES = (
    "UMaze",
    *(f"{size}{goals}" for size in ("Open", "Medium", "Large") for goals in ("", "_Diverse_G", "_Diverse_GR")),
)


@cache
def all_ids() -> frozenset[str]:
    """Return every id of gymnasium-robotics 1.4 that does not need mujoco-py."""
    names = [f"Fetch{task}{{}}-v4" for task in ("Reach", "Push", "Slide", "PickAndPlace")]
    names.append("HandReach{}-v3")
    for thing, targets in _MANIPULATED.items():
        names += [f"HandManipulate{thing}{target}{touch}{{}}-v1" for target, touch in product(targets, _TOUCH_SENSORS)]
        names.append(f"HandManipulate{thing}Full{{}}-v1")
    names += [f"AntMaze_{maze}{{}}-v{version}" for maze, version in product(_MAZES, (3, 4, 5))]
    names += [f"PointMaze_{maze}{{}}-v3" for maze in _MAZES]
    adroit = [f"AdroitHand{task}{{}}-v1" for task in ("Door", "Hammer", "Pen", "Relocate")]
    return frozenset(
        {
            *(name.format(reward) for name, reward in product(names, ("", "Dense"))),
            *(name.format(reward) for name, reward in product(adroit, ("", "Sparse"))),
            "FrankaKitchen-v1",
        }
    )


def spec_of(env_id: str) -> GymnasiumSpec:
    """Return the package's own spec."""
    return imported_spec("gymnasium_robotics", env_id)


FAMILY = Family(
    "robotics",
    package="gymnasium_robotics",
    extra="robotics",
    python_ids=all_ids,
    spec_of=spec_of,
    python_opens_windows=True,
)
