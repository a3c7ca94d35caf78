"""The machine and the versions of a measurement."""

from __future__ import annotations

import datetime
import platform
from pathlib import Path

import gymnasium
import numpy as np

from envfleet import __version__, _native


def describe_machine() -> dict[str, str]:
    """Return what a measurement must state to be meaningful later."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "envfleet": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "gymnasium": gymnasium.__version__,
        "platform": platform.platform(),
        "cpu": _cpu(),
        "usable_cores": str(_native.usable_cores()),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())
