"""envfleet bench: steps a second of one env over sizes, backends and modes."""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import envfleet
from envfleet.cli import arguments as args
from envfleet.cli.driving import Driver
from envfleet.cli.machine import describe_machine

if TYPE_CHECKING:
    from envfleet.cli.console import ProgressBar

_COLUMNS = {
    "backend": "name",
    "mode": "name",
    "num_envs": "number",
    "batch_size": "number",
    "threads": "number",
    "steps/s": "number",
    "slowest": "number",
    "fastest": "number",
}
_CLOCK_EVERY_S = 1e-3


@dataclass
class Case:
    """One row of the table."""

    backend: str
    num_envs: int
    batch_size: int
    num_threads: int
    steps_per_s: list[float] = field(default_factory=list)  # one a round

    @property
    def mode(self) -> str:
        """sync or async."""
        return "async" if self.batch_size < self.num_envs else "sync"

    @property
    def median(self) -> float:
        """Over the rounds."""
        return statistics.median(self.steps_per_s)


def add_parser(commands: args.Subparsers) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "bench",
        help="measure steps/s over pool sizes",
        description="Measures one env over pool sizes, with random actions drawn beforehand. Each round measures every "
        "case once, so that a slow moment of the machine hits all of them alike.",
    )
    args.add_env_arguments(parser)
    add = parser.add_argument
    add("--num-envs", type=args.counts, default=[1, 64, 1024, 8192], metavar="N,...", help="default: 1,64,1024,8192")
    add("--num-threads", type=args.positive_int, metavar="T", help="default: the usable cores")
    add("--backends", type=args.names, default=["auto"], metavar="NAME,...", help="default: auto")
    add(
        "--batch-fraction",
        type=args.fraction,
        metavar="F",
        help="also measure asynchronous pools with batches of F times num_envs, such as 0.5",
    )
    add("--rounds", type=args.positive_int, default=5, metavar="N", help="default: %(default)s")
    add(
        "--seconds", type=args.positive_float, default=0.5, metavar="S", help="a round of a case (default: %(default)s)"
    )
    add("--plot", type=args.output_file(".png"), metavar="FILE.png", help="draw a chart")
    add("--json", type=args.output_file(".json"), metavar="FILE.json", help="write every round's figure")
    parser.set_defaults(command=bench)


def bench(arguments: argparse.Namespace) -> int:
    """The command."""
    from envfleet.cli import console

    if arguments.plot is not None:
        # Before the measuring: a missing matplotlib is told at once.
        from envfleet.cli import plotting
    args.compile_plugins(arguments)
    with ExitStack() as open_pools, console.ProgressBar(arguments.env_id) as bar:
        cases = _open_cases(arguments, open_pools)
        _measure(cases, arguments, bar)
    results = [case for case, _ in cases]
    rounds = f"{arguments.rounds} rounds of {arguments.seconds:g} s"
    console.print_rows(
        f"{arguments.env_id}: median of {rounds}, and how far the extremes are", _COLUMNS, map(_row, results)
    )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(_report(arguments, results), indent=2) + "\n")
        console.say(f"wrote {arguments.json}")
    if arguments.plot is not None:
        plotting.plot(arguments.plot, arguments.env_id, results, rounds)
        console.say(f"wrote {arguments.plot}")
    return 0


def _open_cases(arguments: argparse.Namespace, open_pools: ExitStack) -> list[tuple[Case, Driver]]:
    cases: dict[tuple[str, int, int], tuple[Case, Driver]] = {}
    for asked, num_envs in itertools.product(arguments.backends, arguments.num_envs):
        for batch_size in _batch_sizes(num_envs, arguments.batch_fraction):
            pool = envfleet.make_pool(
                arguments.env_id,
                num_envs=num_envs,
                batch_size=batch_size,
                num_threads=arguments.num_threads,
                backend=asked,
                seed=0,
                **dict(arguments.params),
            )
            open_pools.enter_context(pool)
            backend = pool.spec.backend if asked == "auto" else asked
            case = Case(backend, num_envs, batch_size, pool.config.num_threads)
            # "auto" may stand for a backend that is asked for by name too: one row of it is enough.
            cases.setdefault((backend, num_envs, batch_size), (case, Driver(pool, seed=0)))
    return list(cases.values())


def _batch_sizes(num_envs: int, fraction: float | None) -> list[int]:
    if fraction is None or num_envs == 1:
        return [num_envs]
    return [num_envs, min(max(1, round(num_envs * fraction)), num_envs - 1)]


def _measure(cases: list[tuple[Case, Driver]], arguments: argparse.Namespace, bar: ProgressBar) -> None:
    for turn in range(arguments.rounds):
        for position, (case, driver) in enumerate(cases):
            share = (turn + position / len(cases)) / arguments.rounds
            bar.update(share, f"round {turn + 1}: {case.num_envs:,} envs, {case.mode}")
            case.steps_per_s.append(measure(driver, arguments.seconds))


def measure(driver: Driver, seconds: float) -> float:
    """Steps a second over at least this time, from a fresh reset and after one round of all envs."""
    driver.start()
    for _ in range(-(-driver.pool.num_envs // driver.batch_size)):
        driver.advance()
    num_batches, between_looks = 0, 1
    started = looked = time.perf_counter()
    while looked - started < seconds:
        for _ in range(between_looks):
            driver.advance()
        num_batches += between_looks
        now = time.perf_counter()
        if now - looked < _CLOCK_EVERY_S:
            # Reading the clock after every batch would be a part of what a pool of one env takes.
            between_looks *= 2
        looked = now
    return num_batches * driver.batch_size / (looked - started)


def _row(case: Case) -> list[str]:
    sizes = [f"{case.num_envs:,}", f"{case.batch_size:,}", str(case.num_threads)]
    spread = [f"{extreme(case.steps_per_s) / case.median - 1:+.0%}" for extreme in (min, max)]
    return [case.backend, case.mode, *sizes, f"{case.median:,.0f}", *spread]


def _report(arguments: argparse.Namespace, cases: list[Case]) -> dict[str, object]:
    return {
        "env": arguments.env_id,
        "command": shlex.join(["envfleet", *arguments.argv]),
        "machine": describe_machine(),
        "cases": [{**vars(case), "mode": case.mode, "median": case.median} for case in cases],
    }
