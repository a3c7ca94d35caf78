"""tests/plugins/hooks.cc, compiled once: its envs, and which of their hooks throws what."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import envfleet
from envfleet import Pool
from envfleet.building.native_envs import plugin_files

SOURCE = Path(__file__).parents[1] / "plugins" / "hooks.cc"
HOOKS = (
    "none",
    "constructor",
    "spec",
    "reset",
    "step",
    "step_lanes",
    "observe",
    "render",
    "fields",
    "fields_changed",
    "save",
    "load",
)
# What is thrown, and what a caller reads of it.
THROWN = {
    "exception": "joint 3 exploded",
    "other_encoding": "caf\ufffd \ufffd",
    "number": "threw something that is not a std::exception",
    "long_text": "x" + "\u00e9" * 400,
}
ALWAYS = 1_000_000


class HooksPlugin:
    """The loaded library. Its envs take `mark`, their own id, and `burn_us`."""

    def __init__(self) -> None:
        (env_id, *_) = envfleet.compile(SOURCE, flags=["-O1"])
        self._library = ctypes.CDLL(str(plugin_files[env_id]))

    @contextlib.contextmanager
    def throwing(self, hook: str, thrown: str, env_id: int, times: int = ALWAYS) -> Iterator[None]:
        """Has a hook of one env throw, so many times."""
        self._library.arm(HOOKS.index(hook), list(THROWN).index(thrown), env_id, times)
        try:
            yield
        finally:
            self._library.arm(0, 0, -1, 0)

    @contextlib.contextmanager
    def frame(self, height: int, width: int, num_bytes: int) -> Iterator[None]:
        """Has render() fill its frame like that."""
        self._library.set_frame(height, width, num_bytes)
        try:
            yield
        finally:
            self._library.set_frame(2, 3, 18)

    def make_pool(self, env_id: str, num_envs: int, **options: Any) -> Pool:
        return envfleet.make_pool(env_id, num_envs=num_envs, mark=list(range(num_envs)), **options)
