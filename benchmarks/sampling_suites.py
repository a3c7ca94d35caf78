"""Suite `runner`: the trajectory Runner on processes against serial, and the CPU time of the caller's process.

Steps take 5 ms of CPU time or of waiting. Each contender runs in its own process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from harness import Case, Loop, Options, Target
from isolated import isolated_contender

STEP_S = 5e-3
STEPS_PER_TRAJECTORY = 10
_GENERATORS = 2
PROCESSES, SERIAL = "Runner on processes", "Runner on serial"


def trajectories(index: int, does_work: bool) -> Iterator[Any]:
    """Yield trajectories of ten steps of 5 ms, with one 84x84x4 image per step."""
    yield "ready"
    while True:
        pictures = np.empty((STEPS_PER_TRAJECTORY, 84, 84, 4), np.uint8)
        for step in range(STEPS_PER_TRAJECTORY):
            if does_work:
                # The thread's CPU clock: the wall clock would also advance while other processes have the core.
                until_s = time.thread_time() + STEP_S
                while time.thread_time() < until_s:
                    pass
            else:
                time.sleep(STEP_S)
            pictures[step] = step
        yield {"index": index, "pictures": pictures}


def _runner(backend: str, does_work: bool) -> Any:
    from envfleet.sampling import Runner

    return Runner([partial(trajectories, index, does_work) for index in range(_GENERATORS)], backend=backend)


def loop(backend: str, does_work: bool) -> Loop:
    runner = _runner(backend, does_work)
    stream = runner.trajs()

    def run(num_trajectories: int) -> None:
        for _ in islice(stream, num_trajectories):
            pass

    return Loop(run, STEPS_PER_TRAJECTORY, runner.close)


@dataclass
class CallerLoad:
    """Measures the CPU time that the caller's process uses while it waits for trajectories, in percent of a core."""

    runner: Any

    def measure(self, seconds: float) -> float:
        stream = self.runner.trajs()
        next(stream)
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        while time.perf_counter() - begin_s < max(1.0, seconds):
            next(stream)
        return 100 * (time.process_time() - begin_cpu_s) / (time.perf_counter() - begin_s)

    def close(self) -> None:
        self.runner.close()


def caller_load(does_work: bool) -> CallerLoad:
    return CallerLoad(_runner("processes", does_work))


def runner(options: Options) -> list[Case]:
    kinds = {True: "of work", False: "of waiting"}
    facts = {"num_generators": _GENERATORS, "steps_per_trajectory": STEPS_PER_TRAJECTORY}
    speed = [
        Case(
            f"Runner, {_GENERATORS} generators, steps of 5 ms {kind}",
            "steps/s",
            [
                isolated_contender(name, loop, backend=backend, does_work=does_work)
                for name, backend in ((PROCESSES, "processes"), (SERIAL, "serial"))
            ],
            PROCESSES,
            [Target("ratio", PROCESSES, 1.7, SERIAL)],
            facts=facts,
        )
        for does_work, kind in kinds.items()
    ]
    load = Case(
        f"Runner, {_GENERATORS} generators, steps of 5 ms of waiting: the caller's process",
        "% of a core",
        [isolated_contender(PROCESSES, caller_load, does_work=False)],
        PROCESSES,
        [Target("value", PROCESSES, 5.0)],
        more_is_better=False,
        facts=facts,
    )
    return [*speed, load]


SUITES: dict[str, Callable[[Options], list[Case]]] = {"runner": runner}
