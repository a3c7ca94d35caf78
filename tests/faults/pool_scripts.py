"""Scripts that make pools of Python envs."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from support import script_runs

PRELUDE = """\
import gc, json, os, psutil, signal, sys, threading, time
import numpy as np
import envfleet
from support.gates import Gate
from support.python_probes import SleepyEnv
from support.faulty_env import Misbehavior, MisbehavingEnv
def pids_of(pool):
    children = [child.pid for child in psutil.Process().children(recursive=True)]
    return sorted({*children, *getattr(pool.executor, "worker_pids", [])})
def slow(*milliseconds):
    return np.array(milliseconds, dtype=np.float32)
"""


def run_pool_script(tmp_path: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Runs it to its end; it must leave no process and no file."""
    return script_runs.run_script(tmp_path, code, prelude=PRELUDE)


def started_pool_script(tmp_path: Path, code: str) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    """One that runs; what is left of it at the end is killed."""
    return script_runs.started(tmp_path, code, prelude=PRELUDE)
