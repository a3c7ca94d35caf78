"""The XML files of MuJoCo's models: their paths, and a fingerprint of their contents."""

from __future__ import annotations

import os
import re
import zlib
from pathlib import Path
from typing import Any

from envfleet.envs.mujoco_plugin import asset_folder

_NAMED = re.compile(rb"""\bfile\s*=\s*["']([^"']+)["']""")
_FOLDERS = re.compile(rb"""\b(?:asset|mesh|texture)dir\s*=\s*["']([^"']+)["']""")


def full_path(xml_file: Any) -> Any:
    """Resolve a path as Gymnasium does: a bare name is one of its own files. Return other values unchanged."""
    if not isinstance(xml_file, (str, os.PathLike)):
        return xml_file
    path = os.fspath(xml_file)
    is_own = isinstance(path, str) and not path.startswith((".", "/", "~"))
    return str(asset_folder() / path) if is_own else os.path.abspath(os.path.expanduser(path))


def stamp(path: str) -> str:
    """Return a fingerprint of a model's file and of all files that it names (parts, meshes, textures).

    It depends on their contents, not on their times: a state that was saved with a model also fits the same model on
    another machine.
    """
    here = os.path.dirname(path)
    folders, names, found = {here}, set[str](), dict[str, bytes]()
    wanted = {path}
    while new := sorted(own for own in wanted if own not in found and os.path.isfile(own)):
        for own in new:
            try:
                found[own] = Path(own).read_bytes()
            except OSError:
                return ""  # the native env reports the error
            if own == path or own.endswith(".xml"):
                folders |= {os.path.join(here, os.fsdecode(name)) for name in _FOLDERS.findall(found[own])}
                folders.add(os.path.dirname(own))
                names |= {os.fsdecode(name) for name in _NAMED.findall(found[own])}
        wanted = {os.path.normpath(os.path.join(folder, name)) for folder in folders for name in names}
    crc = 0
    for content in found.values():
        crc = zlib.crc32(content, crc)
    return f"{crc}:{sum(map(len, found.values()))}"
