"""What doctor finds out about the backends: which there are, and whether each runs an env here.

Plain text, without rich, as doctor itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

import envfleet
from envfleet.making import options

OK, MISSING, BROKEN = "ok", "--", "BROKEN"
Finding = tuple[str, str, str]  # state, what, detail

_TIME_LIMIT_S = 60.0
_PROGRAM = "backend_checks.time_processes()"


class TinyEnv(gymnasium.Env[Any, Any]):
    """Gives back what it is told."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **_: object) -> tuple[int, dict[str, object]]:
        """Starts at 0."""
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, object]]:
        """The action is the observation and the reward."""
        return int(action), float(action), False, False, {}


def findings() -> Iterator[Finding]:
    """One line for all backends, then one for each that Python envs run on."""
    yield OK, "backends", ", ".join(options.BACKENDS)
    yield _in_process("serial", 1, "any Python env, one after the other")
    yield _in_process("threads", 2, threads_say())
    yield _memfd()
    yield processes_start()


def threads_say() -> str:
    """Whom threads help on this interpreter."""
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        return "this Python has the GIL: threads help only envs that let go of it; envfleet tune measures it"
    return "the GIL is off: Python envs run on them in parallel"


def _in_process(backend: str, num_workers: int, detail: str) -> Finding:
    try:
        with envfleet.make_pool(TinyEnv, num_envs=2, num_workers=num_workers, backend=backend) as pool:
            step_tiny(pool)
    except Exception as error:  # whatever it is, the doctor's work is to tell
        return BROKEN, backend, f"a pool of a tiny env raised {type(error).__name__}: {error}"
    return OK, backend, detail


def step_tiny(pool: envfleet.Pool) -> None:
    """Raises when two TinyEnvs do not answer as they must."""
    pool.reset(timeout=_TIME_LIMIT_S)
    batch = pool.step(np.array([0, 1]), timeout=_TIME_LIMIT_S)
    if batch.obs.tolist() != [0, 1] or batch.reward.tolist() != [0.0, 1.0]:
        raise RuntimeError(f"expected rows of 0 and 1, got {batch.obs} and rewards {batch.reward}")


def _memfd() -> Finding:
    if sys.platform != "linux":
        return MISSING, "memfd", "Linux alone has it; shared memory lies in an unlinked temporary file instead"
    try:
        os.close(os.memfd_create("envfleet"))
    except OSError as error:
        return BROKEN, "memfd", f"memfd_create() raised {error}; processes need it for shared memory"
    return OK, "memfd", "shared memory without a name: nothing is left behind"


def processes_start(time_limit_s: float = _TIME_LIMIT_S) -> Finding:
    """A fork server and a pool of two workers, from a process of their own: what hangs there is ended with it."""
    # The path is handed over: an envfleet that is not installed must find itself.
    program = f"import sys; sys.path[:] = {sys.path!r}; from envfleet.cli import backend_checks; {_PROGRAM}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=time_limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return BROKEN, "processes", f"a pool of two workers was not up and stepped after {time_limit_s:g} s"
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return BROKEN, "processes", f"a pool of two workers failed: {last}"
    first_s, second_s = json.loads(done.stdout)
    return (
        OK,
        "processes",
        f"fork server and two workers up and stepped in {first_s:.2f} s; a second pool in {second_s * 1e3:.0f} ms",
    )


def time_processes() -> None:
    """Prints how long the first pool of a process and its second took, in seconds."""
    took = []
    for _ in range(2):
        started = time.perf_counter()
        with envfleet.make_pool(TinyEnv, num_envs=2, num_workers=2, backend="processes") as pool:
            step_tiny(pool)
            took.append(time.perf_counter() - started)
    print(json.dumps(took))
