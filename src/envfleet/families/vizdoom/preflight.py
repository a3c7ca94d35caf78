"""check_starts(): a preflight check that starts an engine with the user's files in a separate process.

A damaged file that passes check_wads(), and some settings, crash or hang the process that starts the engine. Files and
settings of the vizdoom package need no check.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from typing import Any

from envfleet.core.errors import ConfigError
from envfleet.families.vizdoom.files import GameFiles
from envfleet.families.vizdoom.game import EngineFolder

_TIMEOUT_S = 30.0
_passed: set[tuple[Any, ...]] = set()

_PROGRAM = """
import json, pickle, resource, sys
request = json.loads(sys.stdin.read())
sys.path[:] = request["sys_path"]
import vizdoom
doom = vizdoom.DoomGame()
doom.load_config(request["cfg"])
doom.set_config(pickle.loads(bytes.fromhex(request["settings"])))
doom.set_window_visible(False)
doom.clear_game_args()
doom.add_game_args(request["game_args"])
doom.set_vizdoom_path(request["engine"])
doom.set_doom_config_path(request["ini"])
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))
doom.init()
doom.new_episode()
doom.advance_action(1, True)
doom.close()
"""


def check_starts(files: GameFiles, settings: dict[str, Any], game_args: str) -> None:
    """Raise ConfigError, with the paths, if a game of these files does not start and take a step."""
    paths = [path for path in (files.cfg, files.wad, files.iwad) if path]
    stamps = [(path, os.stat(path).st_mtime_ns) for path in (*paths, files.engine)]
    pickled = pickle.dumps(settings).hex()
    key = (pickled, game_args, *stamps)
    if key in _passed:
        return
    folder = EngineFolder(files.engine)
    try:
        folder.mark_started()  # one that crashes here would crash again
        reason = _failure(folder, files, pickled, game_args)
        log = folder.log
    finally:
        folder.remove()
    if reason:
        raise ConfigError(
            f"the ViZDoom engine cannot play {' with '.join(paths)}: {reason}{f' ({log})' if log else ''}; "
            "a file is damaged, or the map, game_args or settings do not fit; a map for several players accepts one "
            "player with game_args='-host 1 -deathmatch'"
        )
    _passed.add(key)


def _failure(folder: EngineFolder, files: GameFiles, settings: str, game_args: str) -> str:
    """Start a game in a separate process and return why it failed; empty if it did not."""
    request = {
        "sys_path": [str(path) for path in sys.path],
        "cfg": files.cfg,
        "settings": settings,
        "game_args": game_args,
        "engine": folder.launcher,
        "ini": os.path.join(folder.path, "vizdoom.ini"),
    }
    try:
        result = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not take a step within {_TIMEOUT_S:.0f} s"
    if result.returncode == 0:
        return ""
    if result.returncode < 0:
        return "it crashed while it started"
    return result.stderr.strip().splitlines()[-1] if result.stderr.strip() else f"exit code {result.returncode}"
