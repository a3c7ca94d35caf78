"""envfleet bench: steps per second of one env, by pool size, backend and mode."""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
from contextlib import ExitStack
from typing import TYPE_CHECKING

import envfleet
from envfleet.cli import arguments as args
from envfleet.cli.machine import describe_machine
from envfleet.tuning.report import Case
from envfleet.tuning.throughput import RandomStepper, measure

if TYPE_CHECKING:
    from envfleet.cli.console import ProgressBar

_COLUMNS = {
    "backend": "name",
    "mode": "name",
    "num_envs": "number",
    "batch_size": "number",
    "workers": "number",
    "steps/s": "number",
    "slowest": "number",
    "fastest": "number",
}
_NATIVE_SIZES, _PYTHON_SIZES = [1, 64, 1024, 8192], [1, 8, 64]


def add_parser(commands: args.Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "bench",
        help="measure steps/s over pool sizes",
        description="Measures one env at several pool sizes, with random actions sampled beforehand. Each round "
        "measures every case once, so that a slow phase of the machine affects all of them.",
    )
    args.add_env_arguments(parser)
    add = parser.add_argument
    add(
        "--num-envs",
        type=args.counts,
        metavar="N,...",
        help="default: 1,64,1024,8192 for a native env, 1,8,64 for a Python env",
    )
    add("--num-workers", type=args.positive_int, metavar="W", help="threads or processes (default: the usable cores)")
    add("--num-threads", type=args.positive_int, metavar="W", help="the same, as EnvPool names it")
    add(
        "--backends",
        type=args.names,
        default=["auto"],
        metavar="NAME,...",
        help="any of native, serial, threads, processes (default: auto)",
    )
    add(
        "--batch-fraction",
        type=args.fraction,
        metavar="F",
        help="also measure asynchronous pools with batches of F times num_envs, such as 0.5",
    )
    add("--rounds", type=args.positive_int, default=5, metavar="N", help="default: %(default)s")
    add(
        "--seconds",
        type=args.positive_float,
        default=0.5,
        metavar="S",
        help="per round (default: %(default)s)",
    )
    add("--plot", type=args.output_file(".png"), metavar="FILE.png", help="draw a chart")
    add("--json", type=args.output_file(".json"), metavar="FILE.json", help="write every round's figure")
    parser.set_defaults(command=bench)


def bench(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from envfleet.cli import console

    if arguments.plot is not None:
        # Before measuring, so that a missing matplotlib is reported at once.
        from envfleet.cli import plotting
    args.prepare(arguments)
    with ExitStack() as open_pools, console.ProgressBar(arguments.env_id) as bar:
        cases = _open_cases(arguments, open_pools)
        _measure(cases, arguments, bar)
    results = [case for case, _ in cases]
    rounds = f"{arguments.rounds} rounds of {arguments.seconds:g} s"
    console.print_rows(
        f"{arguments.env_id}: median of {rounds}, with the slowest and fastest relative to it",
        _COLUMNS,
        map(_row, results),
    )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(_report(arguments, results), indent=2) + "\n")
        console.say(f"wrote {arguments.json}")
    if arguments.plot is not None:
        plotting.plot(arguments.plot, arguments.env_id, results, rounds)
        console.say(f"wrote {arguments.plot}")
    return 0


def _open_cases(arguments: argparse.Namespace, open_pools: ExitStack) -> list[tuple[Case, RandomStepper]]:
    cases: dict[tuple[str, int, int], tuple[Case, RandomStepper]] = {}
    are_native = all(args.runs_natively(arguments.env_id, backend) for backend in arguments.backends)
    sizes = arguments.num_envs or (_NATIVE_SIZES if are_native else _PYTHON_SIZES)
    for requested, num_envs in itertools.product(arguments.backends, sizes):
        for batch_size in _batch_sizes(num_envs, arguments.batch_fraction):
            pool = envfleet.make_pool(
                arguments.env_id,
                num_envs=num_envs,
                batch_size=batch_size,
                num_workers=arguments.num_workers,
                num_threads=arguments.num_threads,
                backend=requested,
                seed=0,
                **dict(arguments.params),
            )
            open_pools.enter_context(pool)
            backend = pool.spec.backend if requested == "auto" else requested
            case = Case(backend, num_envs, batch_size, pool.config.num_workers)
            # "auto" may mean a backend that was also requested by name: one row is enough.
            cases.setdefault((backend, num_envs, batch_size), (case, RandomStepper(pool, seed=0)))
    return list(cases.values())


def _batch_sizes(num_envs: int, fraction: float | None) -> list[int]:
    if fraction is None or num_envs == 1:
        return [num_envs]
    return [num_envs, min(max(1, round(num_envs * fraction)), num_envs - 1)]


def _measure(cases: list[tuple[Case, RandomStepper]], arguments: argparse.Namespace, bar: ProgressBar) -> None:
    for number in range(arguments.rounds):
        for position, (case, stepper) in enumerate(cases):
            fraction = (number + position / len(cases)) / arguments.rounds
            bar.update(fraction, f"round {number + 1}: {case.num_envs:,} envs, {case.mode}")
            case.steps_per_s.append(measure(stepper, arguments.seconds))


def _row(case: Case) -> list[str]:
    sizes = [f"{case.num_envs:,}", f"{case.batch_size:,}", str(case.num_workers)]
    spread = [f"{extreme(case.steps_per_s) / case.median - 1:+.0%}" for extreme in (min, max)]
    return [case.backend, case.mode, *sizes, f"{case.median:,.0f}", *spread]


def _report(arguments: argparse.Namespace, cases: list[Case]) -> dict[str, object]:
    return {
        "env": arguments.env_id,
        "command": shlex.join(["envfleet", *arguments.argv]),
        "machine": describe_machine(),
        "cases": [_figures(case) for case in cases],
    }


def _figures(case: Case) -> dict[str, object]:
    kept = {name: value for name, value in vars(case).items() if name != "error"}
    return {**kept, "mode": case.mode, "median": case.median}
