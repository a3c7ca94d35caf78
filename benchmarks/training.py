"""Time to a score: examples/train/ppo.py with the same settings on envfleet, EnvPool and Gymnasium.

python benchmarks/training.py --tasks pong --executors envfleet,envpool --seeds 1 --budget 540
python benchmarks/training.py --tasks ant,halfcheetah --seeds 1,2,3 --parallel 2 -- --compile
python benchmarks/training.py --refresh docs/training.md

Each run writes one JSON file with its learning curve to benchmarks/results/training/; a run that has one is not
repeated, so that the runs can be spread over several calls. No run goes on beyond the budget, in seconds, of the whole
call. --parallel splits the cores among runs at the same time: compare only runs with the same number of cores. What
follows -- is passed to ppo.py. --refresh writes the table of all results into a page, and benchmarks/plot.py draws the
curves.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "examples" / "train" / "ppo.py"
RESULTS = ROOT / "benchmarks" / "results" / "training"
BEGIN, END = "<!-- results of training runs: begin -->", "<!-- results of training runs: end -->"
MIN_SECONDS = 5.0  # a run is not started with less time than this


@dataclass(frozen=True)
class Task:
    """An env, the preset of ppo.py that trains it, the return to reach, and options of ppo.py."""

    env_id: str
    preset: str
    target: float
    options: tuple[str, ...] = ()
    envfleet_options: tuple[str, ...] = ()  # for envfleet alone


TASKS = {
    "pong": Task("Pong-v5", "atari", 18, ("--bf16",), ("--num-groups", "2")),
    "ant": Task("Ant-v5", "mujoco", 4000, ("--num-envs", "128", "--num-minibatches", "8", "--gamma", "0.99")),
    "halfcheetah": Task("HalfCheetah-v5", "mujoco", 5000),
    "cartpole": Task("CartPole-v1", "classic", 450),
    "pendulum": Task("InvertedPendulum-v5", "classic", 950),
}
NAMES = {"envfleet": "envfleet", "envpool": "EnvPool", "gymnasium": "Gymnasium AsyncVectorEnv"}


@dataclass(frozen=True)
class Run:
    """One training run."""

    task: str
    executor: str
    seed: int

    def path(self, folder: Path) -> Path:
        return folder / f"{self.task}-{self.executor}-{self.seed}.json"


# --- running -------------------------------------------------------------------------------------


def train(run: Run, cores: Sequence[int], max_seconds: float, folder: Path, extra: Sequence[str]) -> str:
    """Train on these cores, and return a line about it."""
    task, log = TASKS[run.task], run.path(folder)
    command = [
        sys.executable, str(SCRIPT), task.env_id, "--preset", task.preset, "--target", str(task.target),
        "--executor", run.executor, "--seed", str(run.seed), "--max-seconds", str(max_seconds), "--log", str(log),
        *task.options, *(task.envfleet_options if run.executor == "envfleet" else ()), *extra,
    ]  # fmt: skip
    os.sched_setaffinity(0, cores)  # of this thread; the process that it starts inherits it
    done = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # the networks run on the GPU, or are small
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        return f"{run.task} {run.executor} {run.seed}: failed\n{done.stderr[-2000:]}"
    return f"{run.task} {run.executor} {run.seed}: {done.stdout.splitlines()[-1]}"


def run_all(runs: Sequence[Run], arguments: argparse.Namespace, folder: Path) -> None:
    """Run what has no result yet, some at the same time, within the budget."""
    end = time.monotonic() + arguments.budget
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // arguments.parallel)
    free: SimpleQueue[list[int]] = SimpleQueue()
    for index in range(arguments.parallel):
        free.put(cores[index * share : (index + 1) * share] or cores)

    def start(run: Run) -> None:
        own = free.get()
        try:
            seconds = min(arguments.max_seconds, end - time.monotonic())
            if seconds < MIN_SECONDS:
                print(f"{run.task} {run.executor} {run.seed}: not started, the budget is spent", flush=True)
            else:
                print(train(run, own, seconds, folder, arguments.extra), flush=True)
        finally:
            free.put(own)

    with ThreadPoolExecutor(arguments.parallel) as threads:
        list(threads.map(start, runs))


# --- the table -----------------------------------------------------------------------------------


def results(folder: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the results by task and executor, in the order of TASKS and NAMES."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for task, executor in itertools.product(TASKS, NAMES):
        for path in sorted(folder.glob(f"{task}-{executor}-*.json")):
            found[task, executor].append(json.loads(path.read_text()))
    return found


def table(folder: Path) -> str:
    """Return all results as Markdown."""
    lines = [
        "| task | executor | cores, device | reached | time to target | steps | steps per second | time in the envs |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    found = results(folder)
    for (task, executor), runs in found.items():
        machine, good = runs[0]["machine"], [run for run in runs if run["reached"]]
        times = sorted(run["seconds"] for run in good)
        spread = f" ({times[0]:.0f} to {times[-1]:.0f})" if len(times) > 1 else ""
        reached = [f"{statistics.median(times):.0f} s{spread}"] if times else []
        reached += [f"not in {run['seconds']:.0f} s" for run in runs if not run["reached"]]
        steps = f"{statistics.median(run['steps'] for run in good) / 1e6:.2f} M" if good else ""
        rate = statistics.median(run["steps"] / run["seconds"] for run in runs)
        share = statistics.median(run["env_share"] for run in runs)
        lines.append(
            f"| {TASKS[task].env_id} to {TASKS[task].target:g} | {NAMES[executor]} | {machine['usable_cores']}, "
            f"{machine['device']} | {len(good)} of {len(runs)} | {', '.join(reached)} | {steps} | {rate:,.0f} | "
            f"{share:.0%} |"
        )
    if not found:
        return "No results yet."
    machines = {json.dumps(run["machine"]["versions"]): run["machine"] for runs in found.values() for run in runs}
    for machine in machines.values():
        versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
        lines.append(f"\n{machine['date'][:10]}, Python {machine['python']}, {versions}.")
    return "\n".join(lines)


def refresh(page: Path, folder: Path) -> None:
    """Replace the table in a page."""
    text = page.read_text()
    if BEGIN not in text or END not in text:
        raise SystemExit(f"{page} expected the lines {BEGIN} and {END}, got none; put them where the table belongs")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n{table(folder)}\n{END}{after}")


def main() -> None:
    argv = sys.argv[1:]
    extra = argv[argv.index("--") + 1 :] if "--" in argv else []
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="", help=f"of {', '.join(TASKS)}")
    parser.add_argument("--executors", default=",".join(NAMES), help="default: %(default)s")
    parser.add_argument("--seeds", default="1", help="default: %(default)s")
    parser.add_argument("--max-seconds", type=float, default=540, help="of one run (default: %(default)s)")
    parser.add_argument("--budget", type=float, default=540, help="seconds of this call (default: %(default)s)")
    parser.add_argument("--parallel", type=int, default=1, help="runs at the same time (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results (default: %(default)s)")
    parser.add_argument("--again", action="store_true", help="repeat runs that have a result")
    parser.add_argument("--refresh", type=Path, help="write the table of all results into this page")
    arguments = parser.parse_args(argv[: argv.index("--")] if "--" in argv else argv)
    arguments.extra = extra
    arguments.output.mkdir(parents=True, exist_ok=True)
    runs = []
    for seed, task, executor in itertools.product(
        filter(None, arguments.seeds.split(",")),
        filter(None, arguments.tasks.split(",")),
        filter(None, arguments.executors.split(",")),
    ):
        if task not in TASKS or executor not in NAMES:
            parser.error(
                f"expected tasks of {', '.join(TASKS)} and executors of {', '.join(NAMES)}, got {task} {executor}"
            )
        run = Run(task, executor, int(seed))
        if importlib.util.find_spec(executor) is None:
            print(f"{task} {executor} {seed}: skipped, {executor} is not installed")
        elif arguments.again or not run.path(arguments.output).exists():
            runs.append(run)
    run_all(runs, arguments, arguments.output)
    print(table(arguments.output))
    if arguments.refresh:
        refresh(arguments.refresh, arguments.output)


if __name__ == "__main__":
    main()
