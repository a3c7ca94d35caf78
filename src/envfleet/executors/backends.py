"""The executors of Python envs by backend name."""

from __future__ import annotations

from collections.abc import Callable

from envfleet.executors.processes.executor import ProcessesExecutor
from envfleet.executors.python.executor import PythonExecutor
from envfleet.executors.serial import SerialExecutor
from envfleet.executors.threads import ThreadsExecutor

PYTHON_EXECUTORS: dict[str, Callable[..., PythonExecutor]] = {
    "serial": SerialExecutor,
    "threads": ThreadsExecutor,
    "processes": ProcessesExecutor,
}
