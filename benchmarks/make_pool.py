"""Create one large pool of CartPoles in this process and print the time and memory that it took, as JSON.

Run by the suite `make`: python make_pool.py envfleet|envpool|gymnasium NUM_ENVS
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def maker_of(package: str) -> Callable[[int], Any]:
    """Import the package and return the function that creates its pool."""
    if package == "envfleet":
        import envfleet

        return lambda n: envfleet.make("CartPole-v1", num_envs=n)
    if package == "envpool":
        import envpool

        return lambda n: envpool.make("CartPole-v1", env_type="gymnasium", num_envs=n)
    import gymnasium

    return lambda n: gymnasium.make_vec("CartPole-v1", n, vectorization_mode="vector_entry_point")


def memory_mb(field: str) -> float:
    """Return VmRSS, or its peak VmHWM. Not ru_maxrss, which keeps the parent's value across exec."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def main() -> None:
    package, num_envs = sys.argv[1], int(sys.argv[2])
    make = maker_of(package)
    make(1).reset()  # performs lazy imports, which do not belong to the pool
    before_mb = memory_mb("VmRSS")
    begin = time.perf_counter()
    pool = make(num_envs)
    make_s = time.perf_counter() - begin
    made_mb = memory_mb("VmRSS")
    pool.reset()
    held = pool.step(np.zeros(num_envs, dtype=np.int64))  # noqa: F841 (counts memory that is first touched here)
    facts = {
        "make_s": make_s,
        "made_mb": made_mb - before_mb,
        "stepped_mb": memory_mb("VmRSS") - before_mb,
        "peak_mb": memory_mb("VmHWM") - before_mb,
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
