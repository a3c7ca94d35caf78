"""NetHack and MiniHack: the ids of nle and minihack, which users need not import. env.py makes them reproducible."""

from __future__ import annotations

from functools import cache

from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from envfleet.core.family import Family, imported_spec

_NETHACK = "NetHack NetHackChallenge NetHackEat NetHackGold NetHackOracle NetHackScout NetHackScore NetHackStaircase"
# Without Boxoban, whose levels are not in the package, and the crossings, which it cannot build with MiniGrid 3.
_MINIHACK = """
Navigation-Custom-v0 Skill-Custom-v0 Room-5x5-v0 Room-Random-5x5-v0 Room-Dark-5x5-v0 Room-Monster-5x5-v0
Room-Trap-5x5-v0 Room-Ultimate-5x5-v0 Room-15x15-v0 Room-Random-15x15-v0 Room-Dark-15x15-v0
Room-Monster-15x15-v0 Room-Trap-15x15-v0 Room-Ultimate-15x15-v0 Corridor-R2-v0 Corridor-R3-v0 Corridor-R5-v0
KeyRoom-Fixed-S5-v0 KeyRoom-S5-v0 KeyRoom-S15-v0 KeyRoom-Dark-S5-v0 KeyRoom-Dark-S15-v0 MazeWalk-9x9-v0
MazeWalk-Mapped-9x9-v0 MazeWalk-15x15-v0 MazeWalk-Mapped-15x15-v0 MazeWalk-45x19-v0 MazeWalk-Mapped-45x19-v0
CorridorBattle-v0 CorridorBattle-Dark-v0 MultiRoom-N2-v0 MultiRoom-N4-v0 MultiRoom-N6-v0 MultiRoom-N10-v0
MultiRoom-N6-OpenDoor-v0 MultiRoom-N10-OpenDoor-v0 MultiRoom-N2-Locked-v0 MultiRoom-N4-Locked-v0
MultiRoom-N6-Locked-v0 MultiRoom-N2-Lava-v0 MultiRoom-N4-Lava-v0 MultiRoom-N6-Lava-v0 MultiRoom-N10-Lava-v0
MultiRoom-N6-Lava-OpenDoor-v0 MultiRoom-N10-Lava-OpenDoor-v0 MultiRoom-N2-Monster-v0 MultiRoom-N4-Monster-v0
MultiRoom-N6-Monster-v0 MultiRoom-N2-Extreme-v0 MultiRoom-N4-Extreme-v0 MultiRoom-N6-Extreme-v0
MultiRoom-N2-LavaMonsters-v0 MultiRoom-N4-LavaMonsters-v0 MultiRoom-N6-LavaMonsters-v0 Memento-Short-F2-v0
Memento-F2-v0 Memento-F4-v0 River-v0 River-Monster-v0 River-Lava-v0 River-MonsterLava-v0 River-Narrow-v0
HideNSeek-Mapped-v0 HideNSeek-v0 HideNSeek-Lava-v0 HideNSeek-Big-v0 Labyrinth-Big-v0 Labyrinth-Small-v0
ExploreMaze-Easy-v0 ExploreMaze-Hard-v0 ExploreMaze-Easy-Mapped-v0 ExploreMaze-Hard-Mapped-v0 Eat-v0 Pray-v0
Sink-v0 Wield-v0 Wear-v0 PutOn-v0 Zap-v0 Read-v0 Eat-Fixed-v0 Pray-Fixed-v0 Sink-Fixed-v0 Wield-Fixed-v0
Wear-Fixed-v0 PutOn-Fixed-v0 Zap-Fixed-v0 Read-Fixed-v0 Eat-Distr-v0 Pray-Distr-v0 Sink-Distr-v0 Wield-Distr-v0
Wear-Distr-v0 PutOn-Distr-v0 Zap-Distr-v0 Read-Distr-v0 ClosedDoor-v0 LockedDoor-v0 LockedDoor-Fixed-v0
WoD-Easy-Full-v0 WoD-Easy-Restricted-v0 WoD-Medium-Full-v0 WoD-Medium-Restricted-v0 WoD-Hard-Full-v0
WoD-Hard-Restricted-v0 WoD-Pro-Full-v0 WoD-Pro-Restricted-v0 Levitate-Boots-Full-v0
Levitate-Boots-Restricted-v0 Levitate-Ring-Full-v0 Levitate-Ring-Restricted-v0 Levitate-Potion-Full-v0
Levitate-Potion-Restricted-v0 Levitate-Random-Full-v0 Levitate-Boots-Fixed-v0 Levitate-Ring-Fixed-v0
Levitate-Potion-Fixed-v0 Freeze-Wand-Full-v0 Freeze-Wand-Restricted-v0 Freeze-Horn-Full-v0
Freeze-Horn-Restricted-v0 Freeze-Random-Full-v0 Freeze-Random-Restricted-v0 Freeze-Lava-Full-v0
Freeze-Lava-Restricted-v0 LavaCross-Levitate-Potion-Pickup-Full-v0
LavaCross-Levitate-Potion-Pickup-Restricted-v0 LavaCross-Levitate-Potion-Inv-Full-v0
LavaCross-Levitate-Potion-Inv-Restricted-v0 LavaCross-Levitate-Ring-Pickup-Full-v0
LavaCross-Levitate-Ring-Pickup-Restricted-v0 LavaCross-Levitate-Ring-Inv-Full-v0
LavaCross-Levitate-Ring-Inv-Restricted-v0 LavaCross-Levitate-Full-v0 LavaCross-Levitate-Restricted-v0
LavaCross-Full-v0 LavaCross-Restricted-v0 Quest-Easy-v0 Quest-Medium-v0 Quest-Hard-v0 Sokoban4a-v1 Sokoban4b-v1
Sokoban3a-v1 Sokoban3b-v1 Sokoban2a-v1 Sokoban2b-v1 Sokoban1a-v1 Sokoban1b-v1
"""


@cache
def nethack_ids() -> frozenset[str]:
    """Return every id of nle 1.3."""
    return frozenset(f"{name}-v0" for name in (*_NETHACK.split(), "NetHackStaircasePet"))


@cache
def minihack_ids() -> frozenset[str]:
    """Return every id of minihack 1.0, except Boxoban's and the crossings'."""
    return frozenset(f"MiniHack-{name}" for name in _MINIHACK.split())


def spec_of(env_id: str) -> GymnasiumSpec:
    """Return the package's own spec of an id, with the class made reproducible."""
    spec = imported_spec("minihack" if env_id.startswith("MiniHack") else "nle", env_id)
    spec.kwargs = {**spec.kwargs, "package_class": spec.entry_point}
    spec.entry_point = "envfleet.families.nethack.env:make_env"
    return spec


FAMILY = Family("nethack", package="nle", extra="nle", python_ids=nethack_ids, spec_of=spec_of)
MINIHACK_FAMILY = Family("minihack", package="minihack", extra="minihack", python_ids=minihack_ids, spec_of=spec_of)
