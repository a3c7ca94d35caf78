"""envfleet run: steps a pool with random actions, and reports its throughput and episode statistics."""

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
from envfleet.core.backends import find_backend
from envfleet.core.errors import ConfigError
from envfleet.tuning.throughput import RandomStepper

if TYPE_CHECKING:
    from envfleet.cli.console import ProgressBar

_NATIVE_ENVS, _PYTHON_ENVS = 1024, 64
_RECORD_ENVS, _RECORD_STEPS = 9, 150
_REFRESH_S = 0.1
# A chunk has this many rows per env: while the clock is stopped, the envs of an asynchronous pool still finish their
# step, so at most one row in 32 is not timed.
_ROWS_PER_ENV = 32
_MIN_CHUNK_ROWS, _MAX_CHUNK_ROWS = 1 << 14, 1 << 21


def add_parser(commands: args.Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "run",
        help="run random actions on a pool",
        description="Steps a pool with random actions. The actions are sampled before the clock starts and used in a "
        "cycle, and episode statistics are computed while it is stopped: steps/s measures the pool alone. "
        "Every row that the pool returns counts as a step, including the reset rows of next_step.",
    )
    args.add_env_arguments(parser)
    add = parser.add_argument
    add(
        "--num-envs",
        type=args.positive_int,
        metavar="N",
        help=f"default: {_NATIVE_ENVS} for a native env, {_PYTHON_ENVS} for a Python env",
    )
    add("--batch-size", type=args.positive_int, metavar="B", help="rows per batch; below N: asynchronous (default: N)")
    add("--num-workers", type=args.positive_int, metavar="W", help="threads or processes (default: the usable cores)")
    add("--num-threads", type=args.positive_int, metavar="W", help="the same, as EnvPool names it")
    length = parser.add_mutually_exclusive_group()
    args.add_seconds(length, 5.0)
    length.add_argument(
        "--steps", type=args.positive_int, metavar="N", help="run until N steps are done, in whole batches"
    )
    add("--seed", type=int, help="seed of the envs (env i gets seed+i) and of the actions")
    add("--autoreset-mode", choices=("next_step", "same_step"), default="next_step", help="default: %(default)s")
    add("--backend", default="auto", help="native, serial, threads, processes, ray or auto (default: %(default)s)")
    add(
        "--stats",
        action="store_true",
        help="also print pool.stats(): steps and episodes and, for Python envs, the time in the envs, per worker",
    )
    add(
        "--record",
        type=args.output_file(".gif", ".mp4"),
        metavar="FILE",
        help="also record a short rollout of a few envs, as FILE.gif or FILE.mp4",
    )
    add(
        "--record-envs",
        type=args.positive_int,
        metavar="N",
        help=f"envs in the recording (default: {_RECORD_ENVS})",
    )
    add("--record-steps", type=args.positive_int, metavar="N", help=f"frames (default: {_RECORD_STEPS})")
    add("--fps", type=args.positive_float, help="frames per second of the recording (default: the env's own)")
    parser.set_defaults(command=run)


@dataclass
class Progress:
    """The progress of a run so far."""

    episodes: EpisodeStatistics
    num_steps: int = 0
    in_pool_s: float = 0.0  # time in calls of the pool, to which steps/s refers
    wall_s: float = 0.0
    interrupted: bool = False

    @property
    def steps_per_s(self) -> float:
        """The throughput of the pool alone."""
        return self.num_steps / self.in_pool_s if self.in_pool_s else 0.0


@dataclass
class _Interrupt:
    requested: bool = field(default=False)


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from envfleet.cli import console

    _check_recording(arguments)
    given = args.prepare(arguments)
    options = {
        "seed": arguments.seed,
        "backend": arguments.backend,
        "autoreset_mode": arguments.autoreset_mode,
        **dict(arguments.params),
    }
    is_native = args.runs_natively(given.env, arguments.backend)
    with envfleet.make_pool(
        given.env,
        num_envs=arguments.num_envs or (_NATIVE_ENVS if is_native else _PYTHON_ENVS),
        batch_size=arguments.batch_size,
        num_workers=arguments.num_workers,
        num_threads=arguments.num_threads,
        **options,
    ) as pool:
        recorder = _recorder(arguments, given, options)
        with console.ProgressBar(given.name) as bar, _interruptible() as interrupt:
            progress = collect(pool, arguments, bar, interrupt)
        console.print_fields("envfleet run", _summary(pool, progress))
        if arguments.stats:
            console.say(str(pool.stats()))
    if recorder is not None and not progress.interrupted:
        with console.ProgressBar(arguments.record.name) as bar:
            recorder.write(bar.update)
        console.say(f"recorded {arguments.record}")
    return 130 if progress.interrupted else 0


def collect(pool: envfleet.Pool, arguments: argparse.Namespace, bar: ProgressBar, interrupt: _Interrupt) -> Progress:
    """Step the pool until the time or the steps are used up, or Ctrl-C."""
    batch_size = pool.config.batch_size
    chunk_rows = min(max(_ROWS_PER_ENV * pool.num_envs, _MIN_CHUNK_ROWS), _MAX_CHUNK_ROWS)
    log = RowLog(max(1, chunk_rows // batch_size), batch_size)
    progress = Progress(EpisodeStatistics(pool.num_envs))
    stepper = RandomStepper(pool, arguments.seed)
    stepper.start()
    started = time.perf_counter()
    ends_at = float("inf") if arguments.steps else started + arguments.seconds
    refreshed = 0.0
    while not progress.interrupted and not _is_done(progress, arguments):
        capacity = log.capacity
        if arguments.steps:
            capacity = min(capacity, -(-(arguments.steps - progress.num_steps) // batch_size))
        _fill(log, stepper, capacity, ends_at, progress, interrupt)
        progress.num_steps += log.num_batches * batch_size
        progress.episodes.add(*log.drain())
        now = time.perf_counter()
        progress.wall_s = now - started
        progress.interrupted = interrupt.requested
        if now - refreshed >= _REFRESH_S:
            refreshed = now
            fraction = progress.num_steps / arguments.steps if arguments.steps else progress.wall_s / arguments.seconds
            left_s = None if arguments.steps else arguments.seconds - progress.wall_s
            bar.update(fraction, _progress_text(progress), left_s)
    return progress


def _fill(
    log: RowLog, stepper: RandomStepper, capacity: int, ends_at: float, progress: Progress, interrupt: _Interrupt
) -> None:
    """Step, with the clock running, until the log is full or the progress bar is due."""
    started = now = time.perf_counter()
    stop_at = min(started + _REFRESH_S, ends_at)
    while log.num_batches < capacity and not interrupt.requested:
        log.append(stepper.step())
        now = time.perf_counter()
        if now >= stop_at:
            break
    progress.in_pool_s += now - started


def _is_done(progress: Progress, arguments: argparse.Namespace) -> bool:
    if arguments.steps:
        return bool(progress.num_steps >= arguments.steps)
    return bool(progress.wall_s >= arguments.seconds)


@contextmanager
def _interruptible() -> Iterator[_Interrupt]:
    """Make the first Ctrl-C end the run between two batches; a second one ends it at once."""
    interrupt = _Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    def request(*_: Any) -> None:
        interrupt.requested = True
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, request)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


def _check_recording(arguments: argparse.Namespace) -> None:
    for name in ("record_envs", "record_steps", "fps"):
        if arguments.record is None and getattr(arguments, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} expected a recording, got no --record; add --record FILE.gif")


def _recorder(arguments: argparse.Namespace, given: args.GivenEnv, options: dict[str, Any]) -> Any:
    """Return the recorder, made before the run so that an env that cannot be rendered is reported at once."""
    if arguments.record is None:
        return None
    from envfleet.cli.recording import Recorder

    return Recorder(
        arguments.record,
        given.env,
        arguments.record_envs or _RECORD_ENVS,
        options,
        arguments.record_steps or _RECORD_STEPS,
        arguments.fps,
    )


def _progress_text(progress: Progress) -> str:
    returns = progress.episodes.returns
    mean = f"mean return {returns.mean:,.2f}" if returns.count else "no episode ended yet"
    return f"{progress.steps_per_s:>12,.0f} steps/s   {mean}"


def _summary(pool: envfleet.Pool, progress: Progress) -> dict[str, str]:
    config = pool.config
    mode = "asynchronous" if config.is_async else "synchronous"
    return {
        "env": pool.spec.id,
        "num_envs": f"{config.num_envs:,}",
        "batch_size": f"{config.batch_size:,} ({mode})",
        "backend": pool.spec.backend,
        "threads" if find_backend(pool.spec.backend).has_threads else "workers": str(config.num_workers),
        "total steps": f"{progress.num_steps:,}",
        "wall time": f"{progress.wall_s:.2f} s ({progress.in_pool_s:.2f} s in the pool)",
        "steps/s": f"{progress.steps_per_s:,.0f}",
        "episodes": f"{progress.episodes.returns.count:,}",
        "return mean / std": _pair(progress.episodes.returns),
        "return min / max": _range(progress.episodes.returns, ",.2f"),
        "length mean": f"{progress.episodes.lengths.mean:,.1f}" if progress.episodes.lengths.count else "-",
        "length min / max": _range(progress.episodes.lengths, ",.0f"),
    }


def _pair(moments: Moments) -> str:
    return f"{moments.mean:,.2f} / {moments.std:,.2f}" if moments.count else "-"


def _range(moments: Moments, form: str) -> str:
    return f"{moments.lowest:{form}} / {moments.highest:{form}}" if moments.count else "-"
