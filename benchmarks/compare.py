"""Measure envfleet against its peers, all in one run, in alternating rounds.

    python benchmarks/compare.py                                        run all suites but native_table, the longest
    python benchmarks/compare.py cartpole --num-envs 64 --peers envpool
    taskset -c 0,1 python benchmarks/compare.py cartpole mujoco --rounds 9 --baseline ../before/.venv/bin/python
                                                                        compare two builds of envfleet, on two cores
    python benchmarks/compare.py --markdown benchmarks/results/latest.json
    python benchmarks/compare.py --refresh docs/benchmarks              write the results into the documentation
    python benchmarks/compare.py ant --output /tmp/ant.json             run one suite ...
    python benchmarks/compare.py --refresh docs/benchmarks --output /tmp/ant.json    ... and update its results alone

docs/benchmarks.md describes the method and the results.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # also when a test imports this file by its path

import harness  # noqa: E402
import suites  # noqa: E402
import tables  # noqa: E402
from harness import Options  # noqa: E402

RESULTS = HERE / "results"


def main(arguments: list[str] | None = None) -> None:
    parser = _parser()
    args = parser.parse_args(arguments)
    if unknown := [suite for suite in args.suites if suite not in suites.SUITES]:
        parser.error(f"expected suites of {', '.join(suites.SUITES)}, got {', '.join(unknown)}")
    if args.rounds < 1 or args.seconds <= 0:
        parser.error(f"expected --rounds >= 1 and --seconds > 0, got {args.rounds} and {args.seconds}")
    saved = args.output or RESULTS / "latest.json"
    if args.markdown is not None:
        print(tables.markdown_of(json.loads(args.markdown.read_text())), end="")
    elif args.refresh is not None:
        refresh(args.refresh, json.loads(saved.read_text()))
    else:
        report = measure(args)
        saved.parent.mkdir(parents=True, exist_ok=True)
        saved.write_text(json.dumps(report, indent=1) + "\n")
        print(f"written to {saved}")


def refresh(target: Path, report: dict[str, Any]) -> None:
    """Write a report into a page, or into those pages of a folder that have marks for its suites."""
    paths = sorted(target.glob("*.md")) if target.is_dir() else [target]
    pages = {str(path): path.read_text() for path in paths}
    for name, text in tables.refreshed_pages(pages, report).items():
        if text != pages[name]:
            Path(name).write_text(text)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run the chosen suites, printing each case as soon as it is done."""
    # The peers' workers inherit it; threads of torch and OpenMP would compete with the envs.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warnings.filterwarnings("ignore", module=r"gymnasium|envpool|stable_baselines3")
    options = Options(
        num_envs=tuple(args.num_envs),
        num_threads=args.num_threads,
        peers=None if args.peers is None else tuple(peer.lower() for peer in args.peers),
        envs=None if args.envs is None else tuple(args.envs),
        baseline=args.baseline,
    )
    results: dict[str, Any] = {}
    for suite in args.suites or [name for name in suites.SUITES if name not in suites.ON_REQUEST]:
        try:
            cases = suites.build(suite, options)
        except harness.Skipped as reason:
            print(f"{suite}: skipped, {reason}\n", flush=True)
            continue
        results[suite] = []
        for case in cases:
            result = harness.run_case(case, args.rounds, args.seconds)
            print(tables.text_of_case(result), flush=True)
            results[suite].append(result)
    chosen = {"rounds": args.rounds, "seconds": args.seconds, **vars(options)}
    return harness.report(chosen, results)


def _parser() -> argparse.ArgumentParser:
    defaults = Options()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "suites",
        nargs="*",
        metavar="SUITE",
        help=f"one of {', '.join(suites.SUITES)}; default: all but {', '.join(suites.ON_REQUEST)}",
    )
    parser.add_argument("--peers", nargs="*", metavar="NAME", help="prefixes of the peers to run; envfleet always runs")
    parser.add_argument(
        "--num-envs", nargs="+", type=int, default=defaults.num_envs, metavar="N", help="sizes of the suite cartpole"
    )
    parser.add_argument("--envs", nargs="+", metavar="PREFIX", help="ids of the suite native_table; default: all")
    parser.add_argument(
        "--baseline",
        metavar="PYTHON",
        help="instead of peers, compare with the build of this interpreter's environment",
    )
    parser.add_argument("--num-threads", type=int, default=harness.usable_cores(), metavar="N")
    parser.add_argument("--rounds", type=int, default=7, metavar="N")
    parser.add_argument("--seconds", type=float, default=0.4, metavar="S", help="length of one round of one contender")
    parser.add_argument("--output", type=Path, metavar="JSON", help="default: benchmarks/results/latest.json")
    parser.add_argument("--markdown", type=Path, metavar="JSON", help="print this report as Markdown, measure nothing")
    parser.add_argument(
        "--refresh",
        type=Path,
        metavar="PATH",
        help="write the report (--output) into this page or folder of pages, between the marks of its suites",
    )
    return parser


if __name__ == "__main__":
    main()
