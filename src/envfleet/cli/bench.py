"""envfleet bench: steps per second of one env, by pool size, backend and mode."""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import envfleet
from envfleet.cli import arguments as args
from envfleet.cli import peers as peers_of
from envfleet.cli.machine import describe_machine
from envfleet.core.files import new_file
from envfleet.tuning.report import Case, counted, duration, one_line
from envfleet.tuning.throughput import RandomStepper, Stepper, measure

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
# On a narrow terminal. mode last: without it, two rows of one pool size look alike.
_DROP_FIRST = ("batch_size", "workers", "slowest", "fastest", "mode")
_ROUND_S = 0.5  # of one case, by default
_NATIVE_SIZES, _PYTHON_SIZES = [1, 64, 1024, 8192], [1, 8, 64]


def add_parser(commands: args.Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "bench",
        help="measure steps/s over pool sizes",
        description="Measures one env at several pool sizes, with random actions sampled beforehand. Each round "
        "measures every row once, so that a slow phase of the machine affects all of them.",
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
        help="any of native, serial, threads, processes, ray (default: auto)",
    )
    add(
        "--batch-fraction",
        type=args.fraction,
        metavar="F",
        help="also measure asynchronous pools with batches of F times num_envs, such as 0.5",
    )
    add(
        "--compare",
        nargs="?",
        type=_peer_names,
        const=",".join(peers_of.PEERS),
        metavar="NAME,...",
        help="also measure the same env with Gymnasium's SyncVectorEnv (sync) and AsyncVectorEnv (async) and "
        "Stable-Baselines3's SubprocVecEnv (sb3), and print how many times as fast envfleet is (default: all three)",
    )
    add("--rounds", type=args.positive_int, default=5, metavar="N", help="default: %(default)s")
    args.add_seconds(parser, None, f"{_ROUND_S} for each row and round")
    add("--plot", type=args.output_file(".png"), metavar="FILE.png", help="draw a chart")
    add("--json", type=args.output_file(".json"), metavar="FILE.json", help="write every round's figure")
    parser.set_defaults(command=bench)


def _peer_names(text: str) -> list[str]:
    names = args.names(text)
    for name in names:
        if name not in peers_of.PEERS:
            raise argparse.ArgumentTypeError(
                f"expected names from {', '.join(peers_of.PEERS)}, got {name!r}; write the env's id before --compare"
            )
    return names


def bench(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from envfleet.cli import console

    if arguments.plot is not None:
        # Before measuring, so that a missing matplotlib is reported at once.
        from envfleet.cli import plotting
    given = args.prepare(arguments)
    notes: list[str] = []
    with ExitStack() as open_pools, console.ProgressBar(given.name) as bar:
        # The peers first: theirs fork, and a fork of a process with threads may hang.
        peers = _open_peers(arguments, given, open_pools, notes, bar)
        pools = _open_cases(arguments, given, open_pools, bar)
        num_rounds = arguments.rounds * (len(pools) + len(peers))
        round_s = _ROUND_S if arguments.seconds is None else arguments.seconds / num_rounds
        _measure([*pools, *peers], arguments.rounds, round_s, bar)
    results = [case for case, _ in pools]
    ratios = [(case, ratio(results, case)) for case, _ in peers]
    rounds = f"{counted(arguments.rounds, 'round')} of {duration(round_s)}"
    console.print_rows(
        f"{given.name}: median of {rounds}, with the slowest and fastest relative to it",
        _COLUMNS if arguments.compare is None else {**_COLUMNS, "envfleet is": "number"},
        [*map(_row, results), *([*_row(case), f"{times:.1f}x"] for case, times in ratios)],
        _DROP_FIRST,
    )
    for note in notes:
        console.say(note)
    if arguments.json is not None:
        with new_file(arguments.json) as path:
            path.write_text(json.dumps(_report(arguments, given, results, ratios), indent=2) + "\n")
        console.say(f"wrote {arguments.json}")
    if arguments.plot is not None:
        with new_file(arguments.plot) as path:
            plotting.plot(path, given.name, results, rounds, ratios)
        console.say(f"wrote {arguments.plot}")
    return 0


def _open_cases(
    arguments: argparse.Namespace, given: args.GivenEnv, open_pools: ExitStack, bar: ProgressBar
) -> list[tuple[Case, RandomStepper]]:
    cases: dict[tuple[str, int, int], tuple[Case, RandomStepper]] = {}
    for requested, num_envs in itertools.product(arguments.backends, _sizes(arguments, given)):
        bar.update(0.0, f"making {counted(num_envs, 'env')}")
        for batch_size in _batch_sizes(num_envs, arguments.batch_fraction):
            pool = envfleet.make_pool(
                given.env,
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


def _open_peers(
    arguments: argparse.Namespace, given: args.GivenEnv, open_peers: ExitStack, notes: list[str], bar: ProgressBar
) -> list[tuple[Case, peers_of.PeerStepper]]:
    if arguments.compare is None:
        return []
    if isinstance(given.env, str) and not peers_of.is_registered(given.env):
        # Otherwise each process of each peer would find out by itself, and print a traceback.
        notes.append(f"no other library was measured: {given.env} is not registered with Gymnasium")
        return []
    make_env = peers_of.env_factory(given, dict(arguments.params))
    opened: list[tuple[Case, peers_of.PeerStepper]] = []
    for name, num_envs in itertools.product(arguments.compare, _sizes(arguments, given)):
        title, _, has_processes, make_peer = peers_of.PEERS[name]
        if not peers_of.is_installed(name):
            notes.append(f'{title} was not measured: not installed; run: pip install "envfleet[{name}]"')
        elif has_processes and num_envs > peers_of.MAX_PROCESSES:
            notes.append(f"{title} was not measured with {num_envs:,} envs, for which it starts as many processes")
        else:
            bar.update(0.0, f"making {counted(num_envs, 'env')} with {title}")
            try:
                stepper = make_peer(make_env, num_envs)
            except Exception as error:  # the env may not work there; envfleet's figures are still of use
                notes.append(f"{title} was not measured: {one_line(error)}")
                continue
            open_peers.enter_context(stepper)
            opened.append((Case(title, num_envs, num_envs, num_envs if has_processes else 1), stepper))
    notes[:] = dict.fromkeys(notes)
    return opened


def ratio(pools: Sequence[Case], peer: Case) -> float:
    """Return how many times as fast as a peer the fastest pool of that size is: the median over the rounds."""
    fastest = max((case for case in pools if case.num_envs == peer.num_envs), key=lambda case: case.median)
    return statistics.median(ours / its for ours, its in zip(fastest.steps_per_s, peer.steps_per_s, strict=True))


def _sizes(arguments: argparse.Namespace, given: args.GivenEnv) -> list[int]:
    are_native = all(args.runs_natively(given.env, backend) for backend in arguments.backends)
    default = _NATIVE_SIZES if are_native and arguments.compare is None else _PYTHON_SIZES
    return list(arguments.num_envs or default)


def _batch_sizes(num_envs: int, fraction: float | None) -> list[int]:
    if fraction is None or num_envs == 1:
        return [num_envs]
    return [num_envs, min(max(1, round(num_envs * fraction)), num_envs - 1)]


def _measure(cases: Sequence[tuple[Case, Stepper]], rounds: int, round_s: float, bar: ProgressBar) -> None:
    for number in range(rounds):
        for position, (case, stepper) in enumerate(cases):
            num_done, num_rounds = number * len(cases) + position, rounds * len(cases)
            text = f"round {number + 1}: {counted(case.num_envs, 'env')}, {case.mode}"
            bar.update(num_done / num_rounds, text, (num_rounds - num_done) * round_s)
            case.steps_per_s.append(measure(stepper, round_s))


def _row(case: Case) -> list[str]:
    sizes = [f"{case.num_envs:,}", f"{case.batch_size:,}", str(case.num_workers)]
    spread = [f"{extreme(case.steps_per_s) / case.median - 1:+.0%}" for extreme in (min, max)]
    return [case.backend, case.mode, *sizes, f"{case.median:,.0f}", *spread]


def _report(
    arguments: argparse.Namespace, given: args.GivenEnv, cases: Sequence[Case], ratios: Sequence[tuple[Case, float]]
) -> dict[str, object]:
    return {
        "env": given.name,
        "command": shlex.join(["envfleet", *arguments.argv]),
        "machine": describe_machine(),
        "cases": [_figures(case) for case in cases],
        "peers": [{**_figures(case), "envfleet_is": times} for case, times in ratios],
    }


def _figures(case: Case) -> dict[str, object]:
    kept = {name: value for name, value in vars(case).items() if name != "error"}
    return {**kept, "mode": case.mode, "median": case.median}
