"""Measure native envs on a machine with many cores: by thread count, next to busy processes, and by size.

python benchmarks/many_cores.py [--seconds 0.25] [--rounds 5] [--only threads busy growth]
python benchmarks/many_cores.py --scaling benchmarks/results/threads-16-cores.json

All figures are millions of env steps per second. Ratios are taken between
measurements close in time; the median over the rounds is shown. "separate processes" is what the machine has to give:
one process per core, each with a pool of its own, one thread and its share of the envs, so that nothing is shared and
nobody waits for anybody.

--scaling measures only throughput by thread count, of envfleet and EnvPool, for light and heavy envs, and writes a
report of the form that compare.py writes; plot.py draws it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import harness
import mujoco_suites
import numpy as np
import tables
from harness import Case
from isolated import isolated_contender

import envfleet

_BUSY_LOOPS = 4
_WITH_BUSY_LOOPS = (
    *(("CartPole-v1", num_envs) for num_envs in (64, 1024, 8192, 65536)),
    ("Pendulum-v1", 8192),
    ("Acrobot-v1", 8192),
    ("Ant-v5", 256),
    ("Pong-v5", 64),
)
_WINDOWS_SECONDS = 60
_WINDOW_SECONDS = 0.2
_SCALING_THREADS = (1, 2, 4, 8, 16)
_SCALING = (("CartPole-v1", 65536), ("Pendulum-v1", 8192), ("Acrobot-v1", 8192), ("Ant-v5", 256))
_SECTIONS = ("threads", "busy", "growth")
_SIZES = (64, 1024, 8192, 65536)
_GROWTH = (1024, 4096, 16384, 65536, 262144)
Step = Callable[[], Any]


def actions_for(env_id: str, num_envs: int) -> np.ndarray:
    with envfleet.make(env_id, num_envs=1) as pool:
        space = pool.single_action_space
    return np.stack([space.sample() for _ in range(num_envs)])


def millions_per_second(step: Step, rows: int, seconds: float) -> float:
    """Return millions of env steps per second, after an untimed warm-up of a fifth of the time."""
    end = time.perf_counter() + 0.2 * seconds
    while time.perf_counter() < end:
        step()
    start = now = time.perf_counter()
    num_batches = 0
    while now - start < seconds:
        step()
        num_batches += 1
        now = time.perf_counter()
    return num_batches * rows / (now - start) / 1e6


def show(label: str, samples: Mapping[str, Sequence[float]]) -> None:
    first, *others = samples
    shown = [f"{name} {statistics.median(values):.4g}" for name, values in samples.items()]
    for other in others:
        ratios = [ours / theirs for ours, theirs in zip(samples[first], samples[other], strict=True)]
        shown.append(f"{statistics.median(ratios):.2f}x {other}")
    print(f"{label}: {', '.join(shown)}", flush=True)


class SeparateProcesses:
    """One process per core, each with a pool of one thread and its share of the envs."""

    def __init__(self, env_id: str, num_envs: int, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._num_envs = num_envs // count
        self._connections = []
        self._processes = []
        for _ in range(count):
            connection, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, env_id, self._num_envs), daemon=True)
            process.start()
            self._connections.append(connection)
            self._processes.append(process)
        for connection in self._connections:
            connection.recv()

    def millions_per_second(self, seconds: float) -> float:
        for connection in self._connections:
            connection.send(seconds)
        return sum(connection.recv() for connection in self._connections)

    def close(self) -> None:
        for connection in self._connections:
            connection.send(None)
        for process in self._processes:
            process.join()


def _serve(connection: Any, env_id: str, num_envs: int) -> None:
    actions = actions_for(env_id, num_envs)
    pool = envfleet.make(env_id, num_envs=num_envs, num_threads=1)
    pool.reset(seed=0)
    connection.send("ready")
    while (seconds := connection.recv()) is not None:
        connection.send(millions_per_second(lambda: pool.step(actions), num_envs, seconds))
    pool.close()


def by_threads(env_id: str, num_envs: int, counts: Sequence[int], args: argparse.Namespace) -> None:
    actions = actions_for(env_id, num_envs)
    pools = {f"{count} threads": envfleet.make(env_id, num_envs=num_envs, num_threads=count) for count in counts}
    for pool in pools.values():
        pool.reset(seed=0)
    steps = {name: (lambda pool=pool: pool.step(actions)) for name, pool in reversed(pools.items())}
    separate = SeparateProcesses(env_id, num_envs, max(counts))
    samples: dict[str, list[float]] = {name: [] for name in (*steps, "separate processes")}
    for _ in range(args.rounds):
        for name, step in steps.items():
            samples[name].append(millions_per_second(step, num_envs, args.seconds))
        samples["separate processes"].append(separate.millions_per_second(args.seconds))
    show(f"{env_id} n={num_envs}", samples)
    separate.close()
    for pool in pools.values():
        pool.close()


def next_to_busy_loops(env_id: str, num_envs: int, args: argparse.Namespace) -> None:
    actions = actions_for(env_id, num_envs)
    pool = envfleet.make(env_id, num_envs=num_envs, num_threads=os.cpu_count())
    pool.reset(seed=0)
    samples: dict[str, list[float]] = {f"with {_BUSY_LOOPS} busy loops": [], "quiet": [], "one thread": []}
    busy, quiet, one_thread = samples.values()
    alone = envfleet.make(env_id, num_envs=num_envs, num_threads=1)
    alone.reset(seed=0)
    for _ in range(args.rounds):
        quiet.append(millions_per_second(lambda: pool.step(actions), num_envs, args.seconds))
        one_thread.append(millions_per_second(lambda: alone.step(actions), num_envs, args.seconds))
        loops = [multiprocessing.get_context("spawn").Process(target=_burn, daemon=True) for _ in range(_BUSY_LOOPS)]
        for loop in loops:
            loop.start()
        time.sleep(2)  # until they run
        busy.append(millions_per_second(lambda: pool.step(actions), num_envs, args.seconds))
        for loop in loops:
            loop.kill()
            loop.join()
    show(f"{env_id} n={num_envs}", samples)
    pool.close()
    alone.close()


def growth(num_envs: int, connection: Any) -> None:
    """Send the seconds to make a pool of CartPoles and to reset it, the memory it takes, and its speed."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    pool = envfleet.make("CartPole-v1", num_envs=num_envs, num_threads=os.cpu_count())
    made = time.perf_counter()
    pool.reset(seed=0)
    has_reset = time.perf_counter()
    actions = np.random.default_rng(0).integers(0, 2, num_envs)
    pool.step(actions)
    megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    speeds = [millions_per_second(lambda: pool.step(actions), num_envs, 0.3) for _ in range(5)]
    connection.send((made - start, has_reset - made, megabytes, statistics.median(speeds)))
    pool.close()


def show_growth() -> None:
    # A process per size: the peak of the memory never falls.
    context = multiprocessing.get_context("spawn")
    for num_envs in _GROWTH:
        connection, theirs = context.Pipe()
        process = context.Process(target=growth, args=(num_envs, theirs))
        process.start()
        make_s, reset_s, megabytes, speed = connection.recv()
        process.join()
        print(
            f"CartPole-v1 n={num_envs}: make {1e3 * make_s:.1f} ms, reset {1e3 * reset_s:.1f} ms, "
            f"{megabytes:.0f} MB, {speed:.1f}",
            flush=True,
        )


def _burn() -> None:
    while True:
        pass


def slow_windows(env_id: str, num_envs: int, seconds: float) -> None:
    actions = actions_for(env_id, num_envs)
    pool = envfleet.make(env_id, num_envs=num_envs, num_threads=os.cpu_count())
    pool.reset(seed=0)
    count = int(seconds / _WINDOW_SECONDS)
    windows = [millions_per_second(lambda: pool.step(actions), num_envs, _WINDOW_SECONDS) for _ in range(count)]
    median = statistics.median(windows)
    num_slow = sum(window < median / 2 for window in windows)
    print(f"{env_id} n={num_envs}: {num_slow} of {count} windows of 0.2 s below half of the median ({median:.1f})")
    pool.close()


def scaling_cases(max_threads: int) -> list[Case]:
    """Return one case per env: envfleet and EnvPool at each thread count up to max_threads."""
    counts = [count for count in _SCALING_THREADS if count <= max_threads]
    cases = []
    for env, num_envs in _SCALING:
        contenders = [
            # In processes of their own: EnvPool contains another version of MuJoCo.
            isolated_contender(scaling_name(package, count), make, env=env, num_envs=num_envs, num_threads=count)
            for count in counts
            for package, make in (("envfleet", mujoco_suites.envfleet_sync), ("EnvPool", mujoco_suites.envpool_sync))
        ]
        reference = scaling_name("envfleet", counts[-1])
        facts = {"env_id": env, "num_envs": num_envs, "threads": counts}
        cases.append(Case(f"{env}, {num_envs} envs, by threads", "steps/s", contenders, reference, facts=facts))
    return cases


def scaling_name(package: str, num_threads: int) -> str:
    return f"{package}, {num_threads} thread{'s' * (num_threads > 1)}"


def write_scaling(path: Path, args: argparse.Namespace) -> None:
    results = []
    for case in scaling_cases(os.cpu_count() or 1):
        results.append(harness.run_case(case, args.rounds, args.seconds))
        print(tables.text_of_case(results[-1]), flush=True)
    options = {"rounds": args.rounds, "seconds": args.seconds}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(harness.report(options, {"threads": results}), indent=1) + "\n")
    print(f"written to {path}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.25)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scaling", type=Path, metavar="JSON", help="measure by thread count only, write this report")
    parser.add_argument("--only", nargs="+", choices=_SECTIONS, default=_SECTIONS)
    args = parser.parse_args(argv)
    if args.scaling is not None:
        write_scaling(args.scaling, args)
        return
    cores = os.cpu_count() or 1
    if "threads" in args.only:
        print("Threads")
        counts = sorted({1, *(count for count in (4, 8) if count < cores), cores})
        for num_envs in _SIZES:
            by_threads("CartPole-v1", num_envs, counts, args)
        for env_id in ("Pendulum-v1", "Acrobot-v1"):
            by_threads(env_id, 8192, [1, cores], args)
    if "busy" in args.only:
        print("Next to busy processes")
        for env_id, num_envs in _WITH_BUSY_LOOPS:
            next_to_busy_loops(env_id, num_envs, args)
        slow_windows("CartPole-v1", 8192, _WINDOWS_SECONDS)
    if "growth" in args.only:
        print("Growth")
        show_growth()


if __name__ == "__main__":
    main()
