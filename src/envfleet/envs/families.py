"""FAMILIES: every family of env ids that envfleet knows, and lookups in it."""

from __future__ import annotations

from envfleet.envs import (
    atari,
    box2d,
    bsuite,
    classic_control,
    craftax,
    dm_control,
    highway,
    metaworld,
    minigrid,
    mujoco,
    nethack,
    procgen,
    robotics,
    toy_text,
    vizdoom,
)
from envfleet.envs.family import Family

FAMILIES: tuple[Family, ...] = (
    classic_control.FAMILY,
    toy_text.FAMILY,
    toy_text.NCHAIN_FAMILY,
    bsuite.FAMILY,
    mujoco.FAMILY,
    dm_control.FAMILY,
    minigrid.FAMILY,
    atari.FAMILY,
    vizdoom.FAMILY,
    procgen.FAMILY,
    box2d.FAMILY,
    robotics.FAMILY,
    metaworld.FAMILY,
    highway.FAMILY,
    nethack.FAMILY,
    nethack.MINIHACK_FAMILY,
    craftax.FAMILY,
)


def native_family(native_id: str) -> Family:
    """Return the family of a native env. The env of a plug-in is a family by itself."""
    return next((family for family in FAMILIES if native_id in family.native_ids), Family("plug-in", (native_id,)))


def find_python_family(env_id: object) -> Family | None:
    """Return the family whose Python envs include this id, or None."""
    if not isinstance(env_id, str):
        return None
    return next((family for family in FAMILIES if env_id in family.python_ids()), None)


def python_family_ids() -> set[str]:
    """Return the ids of every family's Python envs."""
    return {env_id for family in FAMILIES for env_id in family.python_ids()}
