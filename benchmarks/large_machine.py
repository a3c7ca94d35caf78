"""Run every measurement that needs many cores or a GPU, one after another, within a time limit.

python benchmarks/large_machine.py OUTPUT [--limit 540] [--only torch peers] [--list]

Each step is a command of its own, with a time limit of its own; its output is printed and kept in OUTPUT/log.txt, and
reports go to OUTPUT too. A step that fails does not stop the others. The last lines name the steps that failed, those
that were left out because there is no GPU, and those for which too little time was left: pass these to the next call.

The machine needs envfleet, the peers of `make bench` and, for the steps cuda_tests, stress and sanitizer, pytest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_PYTHON = sys.executable
_CUDA_TESTS = ("tests/apis/test_torch.py", "tests/apis/test_torch_groups.py", "tests/apis/test_jax.py")
_STRESS_BATCHES = 1_000_000


@dataclass(frozen=True)
class Step:
    """A command, and how long it takes at most. OUTPUT in its arguments stands for the folder of the results."""

    name: str
    command: tuple[str, ...]
    seconds: int
    needs_gpu: bool = False
    environment: tuple[tuple[str, str], ...] = ()


def _benchmark(name: str, script: str, *arguments: str, seconds: int, needs_gpu: bool = False) -> Step:
    return Step(name, (_PYTHON, f"benchmarks/{script}.py", *arguments), seconds, needs_gpu)


def _pytest(name: str, *arguments: str, seconds: int, environment: tuple[tuple[str, str], ...] = ()) -> Step:
    return Step(name, (_PYTHON, "-m", "pytest", "-q", *arguments), seconds, True, environment)


# In order of what is least known: the tests of code that ran on no GPU yet, then figures.
STEPS = (
    _pytest("cuda_tests", *_CUDA_TESTS, seconds=240),
    _benchmark("torch", "torch_gpu", "--rounds", "7", seconds=120, needs_gpu=True),
    _benchmark("peers", "many_cores", "--only", "peers", "--rounds", "7", "--seconds", "0.2", seconds=120),
    _benchmark("scaling", "many_cores", "--rounds", "5", "--scaling", "OUTPUT/threads.json", seconds=180),
    _benchmark("busy", "many_cores", "--only", "busy", "--rounds", "3", seconds=180),
    _benchmark(
        "atari", "compare", "atari", "--peers", "EnvPool", "ale-py", "--output", "OUTPUT/atari.json", seconds=150
    ),
    _benchmark("mujoco", "compare", "mujoco", "--peers", "EnvPool", "--output", "OUTPUT/mujoco.json", seconds=180),
    _benchmark("xla", "compare", "xla", "--output", "OUTPUT/xla.json", seconds=180),
    Step(
        "sanitizer",
        (
            *("compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "1"),
            *(_PYTHON, "tests/support/torch_consumers.py", "cuda", "native", "60", "1"),
        ),
        180,
        True,
    ),
    _benchmark("threads", "many_cores", "--only", "threads", seconds=120),
    _benchmark("growth", "many_cores", "--only", "growth", seconds=60),
    _pytest(
        "stress",
        *("-m", "soak", "-k", "million_batches", "tests/apis/test_torch.py", "--timeout", "3600"),
        seconds=500,
        environment=(("ENVFLEET_TORCH_BATCHES", str(_STRESS_BATCHES)),),
    ),
)


def main(argv: Sequence[str] | None = None, steps: Sequence[Step] = STEPS) -> int:
    """Return how many steps failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, nargs="?", default=Path("build/large_machine"))
    parser.add_argument("--limit", type=float, default=540, help="seconds of this call (default: %(default)s)")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="run these steps")
    parser.add_argument("--list", action="store_true", help="list the steps and run none")
    arguments = parser.parse_args(argv)
    names = [step.name for step in steps]
    unknown = sorted(set(arguments.only or ()) - set(names))
    if unknown:
        parser.error(f"--only expected some of {', '.join(names)}, got {' '.join(unknown)}")
    if arguments.list:
        for step in steps:
            print(f"{step.name}: up to {step.seconds} s: {' '.join(step.command)}")
        return 0
    chosen = [step for step in steps if arguments.only is None or step.name in arguments.only]
    without_gpu = [] if _has_gpu() else [step for step in chosen if step.needs_gpu]
    chosen = [step for step in chosen if step not in without_gpu]
    output = arguments.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + arguments.limit
    failed, left = [], []
    for step in chosen:
        if time.monotonic() + step.seconds > deadline:
            left.append(step.name)
        elif not _run(step, output):
            failed.append(step.name)
    print(f"failed: {' '.join(failed) or 'none'}")
    if without_gpu:
        print(f"left out, because nvidia-smi finds no GPU: {' '.join(step.name for step in without_gpu)}")
    print(f"not run: --only {' '.join(left)}" if left else "all others were run", flush=True)
    return len(failed)


def _has_gpu() -> bool:
    try:
        return subprocess.run(["nvidia-smi"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def _run(step: Step, output: Path) -> bool:
    """Run a step, print what it prints, and return whether it succeeded in time."""
    command = [argument.replace("OUTPUT", str(output)) for argument in step.command]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **dict(step.environment)}
    start = time.monotonic()
    with (output / "log.txt").open("a") as log:

        def say(line: str) -> None:
            for file in (sys.stdout, log):
                file.write(line)
                file.flush()

        say(f"=== {step.name}\n")
        # timeout ends what does not end by itself, with everything that it started.
        limited = ["timeout", "--kill-after=10", str(step.seconds), *command]
        pipe = subprocess.PIPE
        with subprocess.Popen(
            limited, cwd=ROOT, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                for line in process.stdout or ():
                    say(line)
            except BaseException:
                process.terminate()  # Ctrl-C does not reach it: timeout runs the command in a process group of its own
                raise
        say(f"=== {step.name}: exit code {process.returncode} after {time.monotonic() - start:.0f} s\n")
    return process.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
