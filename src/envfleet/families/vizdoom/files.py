"""The files of a game: found, and checked before an engine reads them.

An engine that cannot read its files exits, hangs, or uses up all memory, and ViZDoom crashes if an engine exits while
it starts. So errors must be detected here.
"""

from __future__ import annotations

import difflib
import os
import re
import struct
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from envfleet.core.errors import ConfigError

_MAP_NAME = re.compile(r"MAP\d\d|E\dM\d")


@dataclass(frozen=True)
class GameFiles:
    """The paths of a game's files. wad is empty for a game that plays a map of the iwad itself."""

    cfg: str
    wad: str
    iwad: str
    engine: str


def package_folder() -> Path:
    """Return the folder of the vizdoom package, with the engine and its WADs."""
    import vizdoom

    return Path(vizdoom.__file__).parent


def scenarios_folder() -> Path:
    """Return the folder of the package's scenarios."""
    import vizdoom

    return Path(vizdoom.scenarios_path)


def check_working_folder() -> None:
    """Raise ConfigError if the working folder was deleted, before ViZDoom, which would end the process."""
    try:
        os.getcwd()
    except OSError as error:
        raise ConfigError(
            f"a ViZDoom game expected a working folder that exists, got one that was deleted ({error.strerror}); "
            "change to another folder"
        ) from None


def new_doom() -> Any:
    """Return a vizdoom.DoomGame with its own defaults."""
    import vizdoom

    check_working_folder()
    return vizdoom.DoomGame()


def find_cfg(name: str) -> str:
    """Return the path of a scenario's cfg: the package's, or envpool_assets' for the four that only EnvPool has."""
    path = scenarios_folder() / name
    if path.is_file():
        return str(path)
    assets = find_spec("envpool_assets")
    for folder in (assets.submodule_search_locations or ()) if assets is not None else ():
        other = Path(folder) / "vizdoom" / "maps" / name
        if other.is_file():
            return str(other)
    stem = name.removesuffix(".cfg")
    raise ConfigError(
        f"expected the scenario {name} in {path.parent}, found none: it is not part of the vizdoom package; "
        f"run: pip install envpool-assets, or pass cfg_path and wad_path with your {stem}.cfg and {stem}.wad"
    )


def check_cfg(path: str) -> str:
    """Return the absolute path of a cfg file, after checking that it can be read as text."""
    path = existing_file(path, "cfg_path")
    try:
        Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cfg_path expected a text file of settings, got {path}: {error}") from None
    return path


def check_wads(wad: str, iwad: str, doom_map: str) -> None:
    """Check that the files are complete WADs or archives, and that one of them contains the map."""
    in_scenario = lump_names(wad, "wad_path") if wad else frozenset()
    in_game = lump_names(iwad, "iwad_path")
    names = None if in_scenario is None or in_game is None else in_scenario | in_game
    if names is not None and doom_map.upper() not in names:
        known = (
            sorted(name for name in names if _MAP_NAME.fullmatch(name))
            if not in_scenario
            else sorted(name for name in in_scenario if _MAP_NAME.fullmatch(name))
        )
        nearest = difflib.get_close_matches(doom_map.upper(), known, n=3, cutoff=0.5) or known[:3]
        raise ConfigError(
            f"map_id expected a map of {wad or iwad}, got {doom_map!r}; did you mean {' or '.join(nearest)}?"
        )


def lump_names(path: str, option: str) -> frozenset[str] | None:
    """Return the names in a WAD's directory, or None for an archive (pk3), which has folders instead."""
    path = existing_file(path, option)
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        header = file.read(12)
        if header[:4] == b"PK\x03\x04":
            if not zipfile.is_zipfile(path):
                raise ConfigError(f"{option} expected a WAD or a pk3 archive, got {path}, a damaged archive")
            return None
        if len(header) < 12 or header[:4] not in (b"IWAD", b"PWAD"):
            raise ConfigError(
                f"{option} expected a WAD, which begins with IWAD or PWAD, got {path}, "
                f"which begins with {header[:4]!r}; it is damaged or not a WAD"
            )
        count, offset = struct.unpack("<ii", header[4:])
        if count < 1 or offset < 12 or offset + 16 * count > size:
            raise ConfigError(
                f"{option} expected a complete WAD, got {path} of {size} bytes, whose directory of {count} entries at "
                f"{offset} exceeds it; it is damaged or truncated"
            )
        file.seek(offset)
        directory = file.read(16 * count)
    names = set()
    for start, length, raw in struct.iter_unpack("<ii8s", directory):
        name = raw.split(b"\0")[0].decode("latin-1").upper()
        if length < 0 or (length > 0 and not 0 <= start <= size - length):
            raise ConfigError(
                f"{option} expected a complete WAD, got {path}, whose entry {name!r} is outside of its {size} bytes; "
                "it is damaged or truncated"
            )
        names.add(name)
    return frozenset(names)


def existing_file(path: str, option: str) -> str:
    """Return the absolute path of a file, or raise ConfigError if it does not exist."""
    path = os.path.abspath(os.path.expanduser(path))
    if not os.path.isfile(path):
        raise ConfigError(f"{option} expected a file, got {path}, which does not exist")
    return path
