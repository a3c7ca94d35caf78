"""envfleet run: random actions on a pool, how fast it went and what the episodes gave."""

from __future__ import annotations

import argparse
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import envfleet
from envfleet.cli import arguments as args
from envfleet.cli.episodes import EpisodeStatistics, Moments, RowLog
from envfleet.driving import Driver

if TYPE_CHECKING:
    from envfleet.cli.console import ProgressBar

_NATIVE_ENVS, _PYTHON_ENVS = 1024, 64
_REFRESH_S = 0.1
# A chunk is this many rows for each env: while the clock stands, the envs of an asynchronous
# pool go on until all are done, so at most one row in 32 comes for free.
_ROWS_PER_ENV = 32
_MIN_CHUNK_ROWS, _MAX_CHUNK_ROWS = 1 << 14, 1 << 21


def add_parser(commands: args.Subparsers) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "run",
        help="run random actions on a pool",
        description="Runs random actions on a pool. The actions are drawn before the clock starts and used in turn, "
        "and episode statistics are worked out while it stands: steps/s is what the pool alone does. "
        "Every row that the pool gives counts as a step, the reset rows of next_step included.",
    )
    args.add_env_arguments(parser)
    add = parser.add_argument
    add(
        "--num-envs",
        type=args.positive_int,
        metavar="N",
        help=f"default: {_NATIVE_ENVS} of a native env, {_PYTHON_ENVS} of a Python env",
    )
    add("--batch-size", type=args.positive_int, metavar="B", help="rows a batch; below N: asynchronous (default: N)")
    add("--num-threads", type=args.positive_int, metavar="T", help="of native (default: the usable cores)")
    add("--num-workers", type=args.positive_int, metavar="W", help="of threads and processes (default: likewise)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=args.positive_float, default=5.0, metavar="S", help="default: %(default)s")
    length.add_argument(
        "--steps", type=args.positive_int, metavar="N", help="run until N steps are done, in whole batches"
    )
    add("--seed", type=int, help="of the envs (env i gets seed+i) and of the actions")
    add("--autoreset-mode", choices=("next_step", "same_step"), default="next_step", help="default: %(default)s")
    add("--backend", default="auto", help="native, serial, threads, processes or auto (default: %(default)s)")
    add("--stats", action="store_true", help="also print what pool.stats() says: time in the envs, of each worker")
    add("--record", type=args.output_file(".gif"), metavar="FILE.gif", help="also draw a short rollout of a few envs")
    add(
        "--record-envs",
        type=args.positive_int,
        default=9,
        metavar="N",
        help="envs in the picture (default: %(default)s)",
    )
    add("--record-steps", type=args.positive_int, default=150, metavar="N", help="frames (default: %(default)s)")
    add("--fps", type=args.positive_float, help="frames a second (default: the env's own)")
    parser.set_defaults(command=run)


@dataclass
class Tally:
    """How far a run has come."""

    episodes: EpisodeStatistics
    num_steps: int = 0
    in_pool_s: float = 0.0  # time in the pool's calls: what steps/s is over
    wall_s: float = 0.0
    interrupted: bool = False

    @property
    def steps_per_s(self) -> float:
        """Of the pool alone."""
        return self.num_steps / self.in_pool_s if self.in_pool_s else 0.0


@dataclass
class _Interrupt:
    asked: bool = field(default=False)


def run(arguments: argparse.Namespace) -> int:
    """The command."""
    from envfleet.cli import console

    args.prepare(arguments)
    options = {
        "seed": arguments.seed,
        "backend": arguments.backend,
        "autoreset_mode": arguments.autoreset_mode,
        **dict(arguments.params),
    }
    is_native = args.runs_natively(arguments.env_id, arguments.backend)
    with envfleet.make_pool(
        arguments.env_id,
        num_envs=arguments.num_envs or (_NATIVE_ENVS if is_native else _PYTHON_ENVS),
        batch_size=arguments.batch_size,
        num_threads=arguments.num_threads or arguments.num_workers,
        num_workers=arguments.num_workers,
        **options,
    ) as pool:
        recorder = _recorder(arguments, options)
        with console.ProgressBar(arguments.env_id) as bar, _interruptible() as interrupt:
            tally = collect(pool, arguments, bar, interrupt)
        console.print_fields("envfleet run", _summary(pool, tally))
        if arguments.stats:
            console.say(str(pool.stats()))
    if recorder is not None and not tally.interrupted:
        recorder.write(arguments.record, arguments.record_steps, arguments.fps)
        console.say(f"recorded {arguments.record}")
    return 130 if tally.interrupted else 0


def collect(pool: envfleet.Pool, arguments: argparse.Namespace, bar: ProgressBar, interrupt: _Interrupt) -> Tally:
    """Steps the pool until the time or the steps are used up, or Ctrl-C."""
    batch_size = pool.config.batch_size
    chunk_rows = min(max(_ROWS_PER_ENV * pool.num_envs, _MIN_CHUNK_ROWS), _MAX_CHUNK_ROWS)
    log = RowLog(max(1, chunk_rows // batch_size), batch_size)
    tally = Tally(EpisodeStatistics(pool.num_envs))
    driver = Driver(pool, arguments.seed)
    driver.start()
    started = time.perf_counter()
    ends_at = float("inf") if arguments.steps else started + arguments.seconds
    refreshed = 0.0
    while not tally.interrupted and not _is_done(tally, arguments):
        capacity = log.capacity
        if arguments.steps:
            capacity = min(capacity, -(-(arguments.steps - tally.num_steps) // batch_size))
        _fill(log, driver, capacity, ends_at, tally, interrupt)
        tally.num_steps += log.num_batches * batch_size
        tally.episodes.add(*log.drain())
        now = time.perf_counter()
        tally.wall_s = now - started
        tally.interrupted = interrupt.asked
        if now - refreshed >= _REFRESH_S:
            refreshed = now
            share = tally.num_steps / arguments.steps if arguments.steps else tally.wall_s / arguments.seconds
            bar.update(share, _beside(tally))
    return tally


def _fill(log: RowLog, driver: Driver, capacity: int, ends_at: float, tally: Tally, interrupt: _Interrupt) -> None:
    """Steps against the clock until the log is full or the bar is due."""
    begun = now = time.perf_counter()
    stop_at = min(begun + _REFRESH_S, ends_at)
    while log.num_batches < capacity and not interrupt.asked:
        log.append(driver.advance())
        now = time.perf_counter()
        if now >= stop_at:
            break
    tally.in_pool_s += now - begun


def _is_done(tally: Tally, arguments: argparse.Namespace) -> bool:
    if arguments.steps:
        return bool(tally.num_steps >= arguments.steps)
    return bool(tally.wall_s >= arguments.seconds)


@contextmanager
def _interruptible() -> Iterator[_Interrupt]:
    """The first Ctrl-C asks the run to end between two batches; the second ends it at once."""
    interrupt = _Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    def ask(*_: Any) -> None:
        interrupt.asked = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


def _recorder(arguments: argparse.Namespace, options: dict[str, Any]) -> Any:
    """Made before the run: an env that cannot be drawn is told at once, not after it."""
    if arguments.record is None:
        return None
    from envfleet.cli.recording import Recorder

    return Recorder(arguments.env_id, arguments.record_envs, options)


def _beside(tally: Tally) -> str:
    returns = tally.episodes.returns
    mean = f"mean return {returns.mean:,.2f}" if returns.count else "no episode ended yet"
    return f"{tally.steps_per_s:>12,.0f} steps/s   {mean}"


def _summary(pool: envfleet.Pool, tally: Tally) -> dict[str, str]:
    config = pool.config
    mode = "asynchronous" if config.is_async else "synchronous"
    return {
        "env": pool.spec.id,
        "num_envs": f"{config.num_envs:,}",
        "batch_size": f"{config.batch_size:,} ({mode})",
        "backend": pool.spec.backend,
        "threads" if pool.spec.backend in ("native", "threads") else "workers": str(args.num_workers_of(pool)),
        "total steps": f"{tally.num_steps:,}",
        "wall time": f"{tally.wall_s:.2f} s ({tally.in_pool_s:.2f} s in the pool)",
        "steps/s": f"{tally.steps_per_s:,.0f}",
        "episodes": f"{tally.episodes.returns.count:,}",
        "return mean / std": _pair(tally.episodes.returns),
        "return min / max": _range(tally.episodes.returns, ",.2f"),
        "length mean": f"{tally.episodes.lengths.mean:,.1f}" if tally.episodes.lengths.count else "-",
        "length min / max": _range(tally.episodes.lengths, ",.0f"),
    }


def _pair(moments: Moments) -> str:
    return f"{moments.mean:,.2f} / {moments.std:,.2f}" if moments.count else "-"


def _range(moments: Moments, form: str) -> str:
    return f"{moments.lowest:{form}} / {moments.highest:{form}}" if moments.count else "-"
