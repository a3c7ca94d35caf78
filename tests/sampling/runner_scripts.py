"""Scripts that make Runners."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from support import script_runs

PRELUDE = """\
import json, os, signal, sys, threading, time
from functools import partial
from itertools import islice
import envfleet, psutil
from envfleet.sampling import Runner
from support.gates import Gate
from support.python_probes import wait_at_gate
from sampling_probes import counting, told
"""
FOLDERS = (Path(__file__).parent,)


def run_runner_script(tmp_path: Path, code: str) -> tuple[int, str, str]:
    """Runs it to its end: exit code, output, errors. It must leave no process and no file."""
    result = script_runs.run_script(tmp_path, code, prelude=PRELUDE, folders=FOLDERS)
    return result.returncode, result.stdout, result.stderr


def started_runner_script(tmp_path: Path, code: str) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    """One that runs; what is left of it at the end is killed."""
    return script_runs.started(tmp_path, code, prelude=PRELUDE, folders=FOLDERS)
