"""MiniGrid and BabyAI: every id of the minigrid package, which users need not import.

MiniGrid's ids except WFC's are native: native/envs/minigrid has one env for all of them, which represents missions as
integer codes. The mission strings and their space come from the package. Other backends run the package's own classes,
through env.py.
"""

from __future__ import annotations

import importlib
import itertools
import operator
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import cache
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from envfleet.core.errors import ConfigError
from envfleet.core.family import Family, TextColumn
from envfleet.core.options import POOL_OPTIONS
from envfleet.core.params import unknown_option

_MINIGRID = """
BlockedUnlockPickup-v0 DistShift1-v0 DistShift2-v0 DoorKey-16x16-v0 DoorKey-5x5-v0 DoorKey-6x6-v0
DoorKey-8x8-v0 Dynamic-Obstacles-16x16-v0 Dynamic-Obstacles-5x5-v0 Dynamic-Obstacles-6x6-v0
Dynamic-Obstacles-8x8-v0 Dynamic-Obstacles-Random-5x5-v0 Dynamic-Obstacles-Random-6x6-v0 Empty-16x16-v0
Empty-5x5-v0 Empty-6x6-v0 Empty-8x8-v0 Empty-Random-5x5-v0 Empty-Random-6x6-v0 Fetch-5x5-N2-v0 Fetch-6x6-N2-v0
Fetch-8x8-N3-v0 FourRooms-v0 GoToDoor-5x5-v0 GoToDoor-6x6-v0 GoToDoor-8x8-v0 GoToObject-6x6-N2-v0
GoToObject-8x8-N2-v0 KeyCorridorS3R1-v0 KeyCorridorS3R2-v0 KeyCorridorS3R3-v0 KeyCorridorS4R3-v0
KeyCorridorS5R3-v0 KeyCorridorS6R3-v0 LavaCrossingS11N5-v0 LavaCrossingS9N1-v0 LavaCrossingS9N2-v0
LavaCrossingS9N3-v0 LavaGapS5-v0 LavaGapS6-v0 LavaGapS7-v0 LockedRoom-v0 MemoryS11-v0 MemoryS13-v0
MemoryS13Random-v0 MemoryS17Random-v0 MemoryS7-v0 MemoryS9-v0 MultiRoom-N2-S4-v0 MultiRoom-N4-S5-v0
MultiRoom-N4-S5-v1 MultiRoom-N6-v0 ObstructedMaze-1Dl-v0 ObstructedMaze-1Dlh-v0 ObstructedMaze-1Dlhb-v0
ObstructedMaze-1Q-v0 ObstructedMaze-1Q-v1 ObstructedMaze-2Dl-v0 ObstructedMaze-2Dlh-v0 ObstructedMaze-2Dlhb-v0
ObstructedMaze-2Dlhb-v1 ObstructedMaze-2Q-v0 ObstructedMaze-2Q-v1 ObstructedMaze-Full-v0
ObstructedMaze-Full-v1 Playground-v0 PutNear-6x6-N2-v0 PutNear-8x8-N3-v0 RedBlueDoors-6x6-v0
RedBlueDoors-8x8-v0 SimpleCrossingS11N5-v0 SimpleCrossingS9N1-v0 SimpleCrossingS9N2-v0 SimpleCrossingS9N3-v0
Unlock-v0 UnlockPickup-v0 WFC-DungeonMazeScaled-v0 WFC-MazeSimple-v0 WFC-ObstaclesAngular-v0
WFC-ObstaclesBlackdots-v0 WFC-ObstaclesHogs3-v0 WFC-RoomsFabric-v0
"""
_BABYAI = """
ActionObjDoor-v0 BlockedUnlockPickup-v0 BossLevel-v0 BossLevelNoUnlock-v0 FindObjS5-v0 FindObjS6-v0
FindObjS7-v0 GoTo-v0 GoToDoor-v0 GoToImpUnlock-v0 GoToLocal-v0 GoToLocalS5N2-v0 GoToLocalS6N2-v0
GoToLocalS6N3-v0 GoToLocalS6N4-v0 GoToLocalS7N4-v0 GoToLocalS7N5-v0 GoToLocalS8N2-v0 GoToLocalS8N3-v0
GoToLocalS8N4-v0 GoToLocalS8N5-v0 GoToLocalS8N6-v0 GoToLocalS8N7-v0 GoToObj-v0 GoToObjDoor-v0 GoToObjMaze-v0
GoToObjMazeOpen-v0 GoToObjMazeS4-v0 GoToObjMazeS4R2-v0 GoToObjMazeS5-v0 GoToObjMazeS6-v0 GoToObjMazeS7-v0
GoToObjS4-v0 GoToObjS6-v1 GoToOpen-v0 GoToRedBall-v0 GoToRedBallGrey-v0 GoToRedBallNoDists-v0
GoToRedBlueBall-v0 GoToSeq-v0 GoToSeqS5R2-v0 KeyCorridor-v0 KeyCorridorS3R1-v0 KeyCorridorS3R2-v0
KeyCorridorS3R3-v0 KeyCorridorS4R3-v0 KeyCorridorS5R3-v0 KeyCorridorS6R3-v0 KeyInBox-v0 MiniBossLevel-v0
MoveTwoAcrossS5N2-v0 MoveTwoAcrossS8N9-v0 OneRoomS12-v0 OneRoomS16-v0 OneRoomS20-v0 OneRoomS8-v0 Open-v0
OpenDoor-v0 OpenDoorColor-v0 OpenDoorDebug-v0 OpenDoorLoc-v0 OpenDoorsOrderN2-v0 OpenDoorsOrderN2Debug-v0
OpenDoorsOrderN4-v0 OpenDoorsOrderN4Debug-v0 OpenRedBlueDoors-v0 OpenRedBlueDoorsDebug-v0 OpenRedDoor-v0
OpenTwoDoors-v0 Pickup-v0 PickupAbove-v0 PickupDist-v0 PickupDistDebug-v0 PickupLoc-v0 PutNextLocal-v0
PutNextLocalS5N3-v0 PutNextLocalS6N4-v0 PutNextS4N1-v0 PutNextS5N1-v0 PutNextS5N2-v0 PutNextS5N2Carrying-v0
PutNextS6N3-v0 PutNextS6N3Carrying-v0 PutNextS7N4-v0 PutNextS7N4Carrying-v0 Synth-v0 SynthLoc-v0 SynthS5R2-v0
SynthSeq-v0 UnblockPickup-v0 Unlock-v0 UnlockLocal-v0 UnlockLocalDist-v0 UnlockPickup-v0 UnlockPickupDist-v0
UnlockToUnlock-v0
"""


@cache
def all_ids() -> frozenset[str]:
    """Return every id of minigrid 3.2."""
    families = {"MiniGrid": _MINIGRID, "BabyAI": _BABYAI}
    return frozenset(f"{family}-{name}" for family, names in families.items() for name in names.split())


def spec_of(env_id: str) -> GymnasiumSpec:
    """Return the package's own spec, which it registers when imported, extended by the native env's options."""
    importlib.import_module("minigrid")
    spec = deepcopy(gymnasium.spec(env_id))
    spec.kwargs = {**spec.kwargs, "package_class": spec.entry_point}
    spec.entry_point = "envfleet.families.minigrid.env:make_env"
    return spec


# Options of every id, with the package's defaults. The first three are envfleet's own; see docs/environments.md.
_COMMON: dict[str, Any] = {
    "observation": "partial",
    "obs_tile_size": 8,
    "mission": "text",
    "agent_view_size": 7,
    "max_steps": None,
    "tile_size": 32,
    "highlight": True,
    "agent_pov": False,
    "screen_size": 640,
}
_ANY_VIEW = {"see_through_walls": False}
# The package's classes, by their names without "Env", with the arguments of each and their defaults.
_CLASSES: dict[str, dict[str, Any]] = {
    "BlockedUnlockPickup": {},
    "Crossing": {"size": 9, "num_crossings": 1, "obstacle_type": "lava"},
    "DistShift": {"width": 9, "height": 7, "agent_start_pos": (1, 1), "agent_start_dir": 0, "strip2_row": 2},
    "DoorKey": {"size": 8, **_ANY_VIEW},
    "DynamicObstacles": {"size": 8, "agent_start_pos": (1, 1), "agent_start_dir": 0, "n_obstacles": 4},
    "Empty": {"size": 8, "agent_start_pos": (1, 1), "agent_start_dir": 0},
    "Fetch": {"size": 8, "numObjs": 3},
    "FourRooms": {"agent_pos": None, "goal_pos": None, **_ANY_VIEW},
    "GoToDoor": {"size": 5},
    "GoToObject": {"size": 6, "numObjs": 2},
    "KeyCorridor": {"num_rows": 3, "obj_type": "ball", "room_size": 6},
    "LavaGap": {"size": 5, "obstacle_type": "lava"},
    "LockedRoom": {"size": 19, **_ANY_VIEW},
    "Memory": {"size": 8, "random_length": False},
    "MultiRoom": {
        "minNumRooms": 2,
        "maxNumRooms": 2,
        "maxRoomSize": 10,
        "width": 25,
        "height": 25,
        **_ANY_VIEW,
    },
    "ObstructedMaze_1Dlhb": {"key_in_box": True, "blocked": True},
    "ObstructedMaze_Full": {
        "agent_room": (1, 1),
        "key_in_box": True,
        "blocked": True,
        "num_quarters": 4,
        "num_rooms_visited": 25,
    },
    "Playground": {**_ANY_VIEW},
    "PutNear": {"size": 6, "numObjs": 2},
    "RedBlueDoor": {"size": 8, **_ANY_VIEW},
    "Unlock": {},
    "UnlockPickup": {},
}
_CLASSES["ObstructedMaze_Full_V1"] = _CLASSES["ObstructedMaze_Full"]
# Classes in which walls do not block the view.
_SEE_THROUGH = frozenset(("DistShift", "DynamicObstacles", "Empty", "Fetch", "GoToDoor", "GoToObject", "PutNear"))


def _maze(agent_room: tuple[int, int], key_in_box: bool, blocked: bool, quarters: int, rooms: int) -> dict[str, Any]:
    return {
        "agent_room": agent_room,
        "key_in_box": key_in_box,
        "blocked": blocked,
        "num_quarters": quarters,
        "num_rooms_visited": rooms,
    }


# The class of each id, and the arguments with which the package registers it.
NATIVE: dict[str, tuple[str, dict[str, Any]]] = {
    "BlockedUnlockPickup-v0": ("BlockedUnlockPickup", {}),
    **{
        f"{name}CrossingS{size}N{count}-v0": (
            "Crossing",
            {"size": size, "num_crossings": count, **({"obstacle_type": "wall"} if name == "Simple" else {})},
        )
        for name in ("Lava", "Simple")
        for size, count in ((9, 1), (9, 2), (9, 3), (11, 5))
    },
    "DistShift1-v0": ("DistShift", {"strip2_row": 2}),
    "DistShift2-v0": ("DistShift", {"strip2_row": 5}),
    **{f"DoorKey-{size}x{size}-v0": ("DoorKey", {"size": size}) for size in (5, 6, 8, 16)},
    "Dynamic-Obstacles-5x5-v0": ("DynamicObstacles", {"size": 5, "n_obstacles": 2}),
    "Dynamic-Obstacles-Random-5x5-v0": ("DynamicObstacles", {"size": 5, "agent_start_pos": None, "n_obstacles": 2}),
    "Dynamic-Obstacles-6x6-v0": ("DynamicObstacles", {"size": 6, "n_obstacles": 3}),
    "Dynamic-Obstacles-Random-6x6-v0": ("DynamicObstacles", {"size": 6, "agent_start_pos": None, "n_obstacles": 3}),
    "Dynamic-Obstacles-8x8-v0": ("DynamicObstacles", {}),
    "Dynamic-Obstacles-16x16-v0": ("DynamicObstacles", {"size": 16, "n_obstacles": 8}),
    **{f"Empty-{size}x{size}-v0": ("Empty", {"size": size}) for size in (5, 6, 16)},
    "Empty-8x8-v0": ("Empty", {}),
    **{f"Empty-Random-{size}x{size}-v0": ("Empty", {"size": size, "agent_start_pos": None}) for size in (5, 6)},
    "Fetch-5x5-N2-v0": ("Fetch", {"size": 5, "numObjs": 2}),
    "Fetch-6x6-N2-v0": ("Fetch", {"size": 6, "numObjs": 2}),
    "Fetch-8x8-N3-v0": ("Fetch", {}),
    "FourRooms-v0": ("FourRooms", {}),
    "GoToDoor-5x5-v0": ("GoToDoor", {}),
    "GoToDoor-6x6-v0": ("GoToDoor", {"size": 6}),
    "GoToDoor-8x8-v0": ("GoToDoor", {"size": 8}),
    "GoToObject-6x6-N2-v0": ("GoToObject", {}),
    "GoToObject-8x8-N2-v0": ("GoToObject", {"size": 8, "numObjs": 2}),
    **{
        f"KeyCorridorS{size}R{rows}-v0": ("KeyCorridor", {"room_size": size, "num_rows": rows})
        for size, rows in ((3, 1), (3, 2), (3, 3), (4, 3), (5, 3), (6, 3))
    },
    **{f"LavaGapS{size}-v0": ("LavaGap", {"size": size}) for size in (5, 6, 7)},
    "LockedRoom-v0": ("LockedRoom", {}),
    **{f"MemoryS{size}-v0": ("Memory", {"size": size}) for size in (7, 9, 11, 13)},
    **{f"MemoryS{size}Random-v0": ("Memory", {"size": size, "random_length": True}) for size in (13, 17)},
    "MultiRoom-N2-S4-v0": ("MultiRoom", {"minNumRooms": 2, "maxNumRooms": 2, "maxRoomSize": 4}),
    "MultiRoom-N4-S5-v0": ("MultiRoom", {"minNumRooms": 6, "maxNumRooms": 6, "maxRoomSize": 5}),
    "MultiRoom-N4-S5-v1": ("MultiRoom", {"minNumRooms": 4, "maxNumRooms": 4, "maxRoomSize": 5}),
    "MultiRoom-N6-v0": ("MultiRoom", {"minNumRooms": 6, "maxNumRooms": 6}),
    "ObstructedMaze-1Dl-v0": ("ObstructedMaze_1Dlhb", {"key_in_box": False, "blocked": False}),
    "ObstructedMaze-1Dlh-v0": ("ObstructedMaze_1Dlhb", {"key_in_box": True, "blocked": False}),
    "ObstructedMaze-1Dlhb-v0": ("ObstructedMaze_1Dlhb", {}),
    "ObstructedMaze-2Dl-v0": ("ObstructedMaze_Full", _maze((2, 1), False, False, 1, 4)),
    "ObstructedMaze-2Dlh-v0": ("ObstructedMaze_Full", _maze((2, 1), True, False, 1, 4)),
    "ObstructedMaze-2Dlhb-v0": ("ObstructedMaze_Full", _maze((2, 1), True, True, 1, 4)),
    "ObstructedMaze-1Q-v0": ("ObstructedMaze_Full", _maze((1, 1), True, True, 1, 5)),
    "ObstructedMaze-2Q-v0": ("ObstructedMaze_Full", _maze((2, 1), True, True, 2, 11)),
    "ObstructedMaze-Full-v0": ("ObstructedMaze_Full", {}),
    "ObstructedMaze-2Dlhb-v1": ("ObstructedMaze_Full_V1", _maze((2, 1), True, True, 1, 4)),
    "ObstructedMaze-1Q-v1": ("ObstructedMaze_Full_V1", _maze((1, 1), True, True, 1, 5)),
    "ObstructedMaze-2Q-v1": ("ObstructedMaze_Full_V1", _maze((2, 1), True, True, 2, 11)),
    "ObstructedMaze-Full-v1": ("ObstructedMaze_Full_V1", {}),
    "Playground-v0": ("Playground", {}),
    "PutNear-6x6-N2-v0": ("PutNear", {}),
    "PutNear-8x8-N3-v0": ("PutNear", {"size": 8, "numObjs": 3}),
    "RedBlueDoors-6x6-v0": ("RedBlueDoor", {"size": 6}),
    "RedBlueDoors-8x8-v0": ("RedBlueDoor", {}),
    "Unlock-v0": ("Unlock", {}),
    "UnlockPickup-v0": ("UnlockPickup", {}),
}


def class_name(task: str) -> str:
    """Return the name of the task's class in minigrid.envs."""
    return task if task.startswith("ObstructedMaze") else f"{task}Env"


def _translate(params: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the package's arguments to the native env's."""
    task = params["task"]
    known = {**_COMMON, **_CLASSES[task]}
    for name in params:
        if name not in known and name != "task":
            raise unknown_option(f"MiniGrid's {task}", name, known, POOL_OPTIONS)
    native = {"see_through_walls": task in _SEE_THROUGH, **known, **params}
    del native["screen_size"]  # the size of a window, which the pool opens instead
    if "agent_pos" in native:
        native["agent_start_pos"] = native.pop("agent_pos")
    for name, convert in _CONVERSIONS.items():
        if name in native:
            native[name] = convert(name, native[name])
    return native


def _max_steps(name: str, value: Any) -> Any:
    """Convert a limit, 0 meaning the task's own; or a list with one limit per env."""
    if isinstance(value, (list, tuple)):
        return [_max_steps(name, own) for own in value]
    if value is not None and isinstance(value, (int, float)) and value < 1:
        raise ConfigError(f"max_steps expected an integer of at least 1, or None for the env's own, got {value!r}")
    return 0 if value is None else value


def _position(name: str, value: Any) -> Any:
    """Convert a position, (-1, -1) meaning anywhere; or a list with one position per env."""
    if value is None:
        return [-1, -1]
    if isinstance(value, (list, tuple)) and any(own is None or isinstance(own, (list, tuple)) for own in value):
        return [_position(name, own) for own in value]
    try:
        pair = [operator.index(own) for own in value]
    except TypeError:
        pair = []
    if len(pair) != 2 or min(pair) < 0:
        raise ConfigError(f"{name} expected two integers of at least 0, x and y, or None for any, got {value!r}")
    return pair


def _obstacle(name: str, value: Any) -> Any:
    """Convert an obstacle type, which may be one of the package's classes; or a list with one per env."""
    if isinstance(value, (list, tuple)):
        return [_obstacle(name, own) for own in value]
    text = getattr(value, "__name__", value)
    if not isinstance(text, str) or text.lower() not in ("lava", "wall"):
        raise ConfigError(
            f"obstacle_type expected 'lava' or 'wall', got {value!r}; backend='processes' takes any class"
        )
    return text.lower()


_CONVERSIONS: dict[str, Callable[[str, Any], Any]] = {
    "max_steps": _max_steps,
    "agent_start_pos": _position,
    "goal_pos": _position,
    "agent_room": _position,
    "obstacle_type": _obstacle,
}


def missions(space: Any) -> tuple[str, ...]:
    """Return all strings of one of the package's MissionSpaces; the index of a string is its code."""
    placeholders = space.ordered_placeholders or ()
    return tuple(space.mission_func(*chosen) for chosen in itertools.product(*placeholders))


@cache
def _mission_space(task: str, obstacle_type: str, obj_type: str) -> Any:
    """Return the package's mission space, from an env that is built for it."""
    kwargs = {name: value for name, value in _CLASSES[task].items() if value is not None}
    if "obstacle_type" in kwargs:
        objects = importlib.import_module("minigrid.core.world_object")
        kwargs["obstacle_type"] = objects.Wall if obstacle_type == "wall" else objects.Lava
    if "obj_type" in kwargs:
        kwargs["obj_type"] = obj_type
    env = getattr(importlib.import_module("minigrid.envs"), class_name(task))(**kwargs)
    return env.observation_space["mission"]


def _text_columns(env_id: str, params: Mapping[str, Any]) -> dict[str, TextColumn]:
    """Return the mission column, unless the user wants its code."""
    if params["mission"] == "code":
        return {}
    if params["mission"] != "text":
        raise ConfigError(f"mission expected 'text' or 'code', got {params['mission']!r}")
    FAMILY.check_installed(f"{env_id} with mission='text' instead of 'code'")
    space = _mission_space(params["task"], params["obstacle_type"], params["obj_type"])
    return {"mission": TextColumn(deepcopy(space), missions(space))}


FAMILY = Family(
    "minigrid",
    ("MiniGrid",),
    package="minigrid",
    extra="minigrid",
    translate=_translate,
    aliases={f"MiniGrid-{name}": {"task": task, **kwargs} for name, (task, kwargs) in NATIVE.items()},
    render_fps={"MiniGrid": 10},
    text_columns=_text_columns,
    python_ids=all_ids,
    spec_of=spec_of,
    python_opens_windows=True,
)
