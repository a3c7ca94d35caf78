"""Generators for the tests of the Runner, runners of them, and ways to watch them."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np

from envfleet.sampling import Runner, weights

BACKENDS = ["serial", "processes"]
START_METHODS = ["forkserver", "spawn", "fork"]


def runner_of(generator, count, backend, **options):
    return Runner([partial(generator, index) for index in range(count)], backend=backend, **options)


def counting(index, *extra, start=0, size=0, log=None, **more):
    """Counts its trajectories; tells what it was asked. log: a folder where its finally block leaves a file."""
    count = start
    try:
        request = yield "ready"
        while True:
            count += 1
            request = yield {
                "index": index,
                "count": count,
                "request": request,
                "pid": os.getpid(),
                "data": np.full(size, count, np.float32),
                "extra": extra,
                **more,
            }
    finally:
        if log is not None:
            Path(log, f"closed-{index}").touch()


def told(index, folder=None):
    """Does what its requests say."""
    request = yield "ready"
    while True:
        request = yield do(index, *(request or ("step",)), folder=folder)


class TwoArgumentError(Exception):
    """Cannot be unpickled from its args."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class Unreadable:
    """Cannot be unpickled."""

    def __reduce__(self):
        return int, ("no number",)


def do(index, what, culprit=None, folder=None):
    if culprit is not None and culprit != index:
        return index
    if what == "raise":
        raise ValueError(f"trouble in {index}")
    if what == "raise_odd":
        raise TwoArgumentError(1, 2)
    if what == "sys_exit":
        raise SystemExit(3)
    if what == "os_exit":
        os._exit(7)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "lock":
        return threading.Lock()
    if what == "hang":
        Path(folder, f"hangs-{index}").touch()
        while True:
            time.sleep(60)
    return index


def two_of_them(index):
    """Ends after two trajectories."""
    yield "ready"
    yield index, 1
    yield index, 2


def turns(index, folder):
    """Waits for a file before each trajectory: tests say who is ready when."""
    yield "ready"
    count = 0
    while True:
        count += 1
        while not Path(folder, f"go-{index}-{count}").exists():
            time.sleep(0.005)
        yield index, count


def with_weights(index):
    """What it knows of the weights."""
    yield "ready"
    while True:
        value, version = weights()
        yield version, value


def dies_after_one(index):
    """Which weights it had at its start; then its process is gone."""
    value, version = weights()
    yield "ready"
    yield version, value
    os._exit(3)


def slow_start(index, folder):
    Path(folder, f"starts-{index}").touch()
    time.sleep(600)
    yield "ready"


def marked(folder, name):
    return Path(folder, name).exists()


def wait_and_interrupt(folder, name):
    """Ctrl-C for this process when that file is there."""
    while not marked(folder, name):
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGINT)
