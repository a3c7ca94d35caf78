"""ROMs, and what the emulator knows of them: checked first, since an unknown ROM would end the process."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from envfleet.core.errors import ConfigError, MissingExtraError
from envfleet.families.atari.games import GAMES
from envfleet.families.atari.options import AtariOptions, read_options


@dataclass(frozen=True)
class RomInfo:
    """Properties of a game that only the emulator knows."""

    height: int
    width: int
    ram_bytes: int
    minimal_actions: tuple[Any, ...]
    legal_actions: tuple[Any, ...]
    modes: tuple[int, ...]
    difficulties: tuple[int, ...]


def check_params(game: str, style: str, params: Mapping[str, Any]) -> None:
    """Raise ConfigError for parameters that an env would reject, before any worker starts."""
    options = read_options(style, params)
    path = rom_path(game)
    if options.mode != -1 or options.difficulty != -1:  # rarely set, and loading a ROM is slow
        check_settings(game, options, rom_info(path))


def check_settings(game: str, options: AtariOptions, info: RomInfo) -> None:
    """Raise ConfigError if the game has no such mode or difficulty."""
    for name, value, known in (
        ("mode", options.mode, info.modes),
        ("difficulty", options.difficulty, info.difficulties),
    ):
        if value != -1 and value not in known:
            raise ConfigError(f"{name} of {game} expected one of {list(known)}, or -1 for its default, got {value}")


def rom_folder() -> Path:
    """Return the folder of the ROMs: ALE_ROMS_DIR, or ale-py's own."""
    return Path(os.environ.get("ALE_ROMS_DIR") or _wheel_folder())


def rom_path(game: str) -> Path:
    """Return the path of a game's ROM, verified by its digest. Raises ConfigError with the path."""
    if game not in GAMES:
        nearest = difflib.get_close_matches(str(game), GAMES, n=3)
        hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"the games are {', '.join(GAMES)}"
        raise ConfigError(f"expected a game such as 'pong' or 'ms_pacman', got {game!r}; {hint}")
    path = rom_folder() / f"{game}.bin"
    try:
        stamp = path.stat()
    except OSError as error:
        raise ConfigError(
            f"expected the ROM of {game} at {path}, which cannot be read ({error.strerror}); "
            "reinstall ale-py, or set ALE_ROMS_DIR to a folder with the ROM"
        ) from error
    _check_rom(path, stamp.st_size, stamp.st_mtime_ns)
    return path


@cache
def rom_info(path: Path) -> RomInfo:
    """Return what the emulator knows of a verified ROM, which is loaded once per process."""
    from envfleet.families.atari.emulator import new_console

    console = new_console({})
    console.loadROM(path)
    height, width = console.getScreenDims()
    return RomInfo(
        height,
        width,
        console.getRAMSize(),
        tuple(console.getMinimalActionSet()),
        tuple(console.getLegalActionSet()),
        tuple(console.getAvailableModes()),
        tuple(console.getAvailableDifficulties()),
    )


@cache
def _check_rom(path: Path, size: int, changed_ns: int) -> None:
    """Verify a ROM. size, changed_ns: cache keys, so that a file that changes is verified again."""
    try:
        digest = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
    except OSError as error:
        raise ConfigError(f"the ROM {path} cannot be read: {error.strerror or error}") from error
    expected = _known_digests().get(path.name)
    if digest != expected:
        raise ConfigError(
            f"expected the ROM {path} with the md5 {expected}, got {digest} ({size} bytes): it is corrupt or another "
            "version; reinstall ale-py, or set ALE_ROMS_DIR to a folder with the right one"
        )


@cache
def _known_digests() -> dict[str, str]:
    digests: dict[str, str] = json.loads((_wheel_folder() / "md5.json").read_text())
    return digests


@cache
def _wheel_folder() -> Path:
    # Not imported: that would register hundreds of ids with Gymnasium, which are sent to every worker.
    found = find_spec("ale_py")
    if found is None or not found.submodule_search_locations:
        raise MissingExtraError("ale_py", "atari", "an Atari env")
    return Path(found.submodule_search_locations[0]) / "roms"
