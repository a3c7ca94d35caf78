"""The time that tune() has: how much of it is used, and what it is used for."""

from __future__ import annotations

import time
from collections.abc import Callable

Progress = Callable[[float, str], None]  # the part of the time that is used, and what is measured now


class Budget:
    """Seconds that run from its making on."""

    def __init__(self, seconds: float, progress: Progress | None) -> None:
        self.seconds = seconds
        self._started = time.perf_counter()
        self._progress = progress

    @property
    def used_s(self) -> float:
        """Since the start."""
        return time.perf_counter() - self._started

    @property
    def left_s(self) -> float:
        """Below 0 when it was overdrawn."""
        return self.seconds - self.used_s

    def show(self, what: str) -> None:
        """Tells the caller what comes next."""
        if self._progress is not None:
            self._progress(min(1.0, self.used_s / self.seconds), what)


def duration(seconds: float) -> str:
    """1.5 s, 20 ms, 3.25 µs, 80 ns."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.0f} ns"
