"""check_starts(): whether an engine starts with these files, tried out in a process of its own.

For files and settings that are not the package's. A damaged file that passes check_wads() takes
down, or hangs, whoever starts the engine, and so do some settings; here that is a process that nobody misses.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from typing import Any

from envfleet.envs.vizdoom.files import GameFiles
from envfleet.envs.vizdoom.game import Folder
from envfleet.errors import ConfigError

_TIMEOUT_S = 30.0
_passed: set[tuple[Any, ...]] = set()

_PROGRAM = """
import json, pickle, resource, sys
given = json.loads(sys.stdin.read())
sys.path[:] = given["sys_path"]
import vizdoom
doom = vizdoom.DoomGame()
doom.load_config(given["cfg"])
doom.set_config(pickle.loads(bytes.fromhex(given["settings"])))
doom.set_window_visible(False)
doom.clear_game_args()
doom.add_game_args(given["game_args"])
doom.set_vizdoom_path(given["engine"])
doom.set_doom_config_path(given["ini"])
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))
doom.init()
doom.new_episode()
doom.advance_action(1, True)
doom.close()
"""


def check_starts(files: GameFiles, settings: dict[str, Any], game_args: str) -> None:
    """Raises ConfigError with the paths when a game of these files does not start and take a step."""
    paths = [path for path in (files.cfg, files.wad, files.iwad) if path]
    stamps = [(path, os.stat(path).st_mtime_ns) for path in (*paths, files.engine)]
    pickled = pickle.dumps(settings).hex()
    key = (pickled, game_args, *stamps)
    if key in _passed:
        return
    folder = Folder(files.engine)
    try:
        reason = _try(folder, files, pickled, game_args)
        log = folder.log
    finally:
        folder.remove()
    if reason:
        raise ConfigError(
            f"the ViZDoom engine cannot play {' with '.join(paths)}: {reason}{f' ({log})' if log else ''}; "
            "a file is damaged, or the map, game_args or settings do not fit; a map that is for several players only "
            "takes a single one with game_args='-host 1 -deathmatch'"
        )
    _passed.add(key)


def _try(folder: Folder, files: GameFiles, settings: str, game_args: str) -> str:
    given = {
        "sys_path": [str(path) for path in sys.path],
        "cfg": files.cfg,
        "settings": settings,
        "game_args": game_args,
        "engine": folder.launcher,
        "ini": os.path.join(folder.path, "vizdoom.ini"),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            input=json.dumps(given),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not take a step within {_TIMEOUT_S:.0f} s"
    if done.returncode == 0:
        return ""
    if done.returncode < 0:
        return "it ended while it started"
    return done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
