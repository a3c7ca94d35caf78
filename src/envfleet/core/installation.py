"""The folders that the build installs beside the extension module."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path


def installed_folder(name: str) -> Path:
    """Return the folder "include" (the SDK's headers), or "plugins" or "xla" (what is built, and its source)."""
    extension = import_module("envfleet._native._extension")
    return Path(str(extension.__file__)).resolve().parents[1] / name
