"""The folders that the build installs beside the extension module."""

from __future__ import annotations

from pathlib import Path

from envfleet import _native


def installed_folder(name: str) -> Path:
    """Return the folder "include" (the SDK's headers), or "plugins" or "xla" (what is built, and its source)."""
    return Path(_native.__file__).resolve().parent / name
