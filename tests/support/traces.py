"""What a process leaves behind: children, descriptors, shared memory, temporary files."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

# How long a condition may take to come true: only a test that fails waits so long, so it is generous.
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Traces:
    """children: of any generation, zombies among them. descriptors: how many of each kind."""

    children: frozenset[int]
    descriptors: Counter[str]
    files: frozenset[str]

    @classmethod
    def now(cls) -> Traces:
        """What this process holds."""
        gc.collect()
        children = frozenset(child.pid for child in psutil.Process().children(recursive=True))
        return cls(children, _descriptors(), shared_files())

    def since(self, before: Traces) -> str:
        """What is here that was not before, in words; empty when nothing is."""
        found = []
        for pid in self.children - before.children:
            found.append(f"child {pid} ({_name_of(pid)})")
        found += [f"{count} more of {kind}" for kind, count in (self.descriptors - before.descriptors).items()]
        return ", ".join([*found, *sorted(self.files - before.files)])


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> bool:
    """Whether it came true in that time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def assert_nothing_left(before: Traces) -> None:
    """That this process holds no more than before; waits a while for what is on its way out."""
    wait_until(lambda: not Traces.now().since(before))
    left = Traces.now().since(before)
    assert not left, f"left behind: {left}"


def is_alive(pid: int) -> bool:
    """Whether it runs. A zombie does not: it waits for a parent that may be gone itself."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def alive(pids: Iterable[int]) -> list[int]:
    return [pid for pid in pids if is_alive(pid)]


def shared_files() -> frozenset[str]:
    """Files of ours in shared memory and in the folder of temporary files.

    Other tests run beside, so only names that envfleet would give count: multiprocessing's are also given
    by the frameworks there, and games of ViZDoom have tests of their own.
    """
    folders = [Path("/dev/shm"), Path(tempfile.gettempdir())]
    return frozenset(
        str(entry)
        for folder in folders
        if folder.is_dir()
        for entry in folder.iterdir()
        if "envfleet" in entry.name and "vizdoom" not in entry.name
    )


def _descriptors() -> Counter[str]:
    kinds: Counter[str] = Counter()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue  # the descriptor that listdir itself used
        kinds[target.split(":")[0] if ":[" in target else target] += 1
    return kinds


def _name_of(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        return f"{process.status()} {' '.join(process.cmdline())[:200]}"
    except psutil.NoSuchProcess:
        return "gone meanwhile"
