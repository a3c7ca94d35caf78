"""The comparisons of the trajectory Runner: processes against serial, and what the caller's process costs meanwhile.

The steps take 5 ms, of work on the processor or of waiting; each contender runs in a process of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from harness import Case, Contender, Loop, Target
from isolated import Isolated
from options import Options

STEP_S = 5e-3
STEPS_A_TRAJECTORY = 10
_GENERATORS = 2
PROCESSES, SERIAL = "Runner on processes", "Runner on serial"


def trajectories(index: int, does_work: bool) -> Iterator[Any]:
    """Trajectories of ten steps of 5 ms, with an 84x84x4 picture each."""
    yield "ready"
    while True:
        pictures = np.empty((STEPS_A_TRAJECTORY, 84, 84, 4), np.uint8)
        for step in range(STEPS_A_TRAJECTORY):
            if does_work:
                # The thread's own clock: the one on the wall would also run while others have the core.
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

    return Loop(run, STEPS_A_TRAJECTORY, runner.close)


@dataclass
class CallersShare:
    """The share of a core that the caller's process takes while it waits for trajectories."""

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


def callers_share(does_work: bool) -> CallersShare:
    return CallersShare(_runner("processes", does_work))


def runner(options: Options) -> list[Case]:
    kinds = {True: "of work", False: "of waiting"}
    facts = {"num_generators": _GENERATORS, "steps_a_trajectory": STEPS_A_TRAJECTORY}
    speed = [
        Case(
            f"Runner, {_GENERATORS} generators, steps of 5 ms {kind}",
            "steps/s",
            [
                Contender(name, partial(Isolated, loop, backend=backend, does_work=does_work))
                for name, backend in ((PROCESSES, "processes"), (SERIAL, "serial"))
            ],
            PROCESSES,
            [Target("ratio", PROCESSES, 1.7, SERIAL)],
            facts=facts,
        )
        for does_work, kind in kinds.items()
    ]
    share = Case(
        f"Runner, {_GENERATORS} generators, steps of 5 ms of waiting: the caller's process",
        "% of a core",
        [Contender(PROCESSES, partial(Isolated, callers_share, does_work=False))],
        PROCESSES,
        [Target("value", PROCESSES, 5.0)],
        more_is_better=False,
        facts=facts,
    )
    return [*speed, share]


SUITES: dict[str, Callable[[Options], list[Case]]] = {"runner": runner}
