"""thread_affinity_offset for Python workers: worker i runs on one core, the (offset + i)-th that this process may use.

The same rule as that of the native engine's threads (native/engine/cores.cc).
"""

from __future__ import annotations

import os


def pin_worker(offset: int, worker: int) -> None:
    """Pins the calling thread, and the threads and processes that it starts, to its core. Below 0: to none."""
    if offset < 0 or not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[(offset + worker) % len(cores)]})
