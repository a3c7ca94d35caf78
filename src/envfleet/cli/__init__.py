"""The command line: envfleet run, bench, tune, list and doctor.

Exit codes: 0 success; 1 doctor found something broken, or list --check an env with errors; 2 wrong input, or an error
of envfleet (one line on stderr, no traceback) or of the env (with the env's traceback); 130 Ctrl-C; 141 the reader of
the output is gone.
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Iterator, Sequence

from envfleet import __version__
from envfleet.cli import bench, doctor, list_envs, run, tune
from envfleet.cli.arguments import Parser
from envfleet.core.errors import EnvError, EnvfleetError
from envfleet.tuning.report import counted

__all__ = ["main"]

_INTERRUPTED = 130  # a shell's exit code for a program that SIGINT ended
_BROKEN_PIPE = 141  # the same for SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. argv: without the program's name; None for that of this process."""
    argv = sys.argv[1:] if argv is None else argv
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # A table is worth more with "?s" for "µs" than a UnicodeEncodeError after the measurement.
        sys.stdout.reconfigure(errors="replace")
    try:
        arguments = _parser().parse_args(argv)
        arguments.argv = list(argv)
        return int(arguments.command(arguments))
    except SystemExit as exit_:  # argparse: --help, --version, or a wrong argument
        return exit_.code if isinstance(exit_.code, int) else 2
    except (KeyboardInterrupt, Exception) as error:
        return _exit_code(error)


def _exit_code(error: BaseException) -> int:
    """Report an exception on stderr and return the exit code. Raises it if it is a bug."""
    # Ctrl-C also reaches the workers of other libraries. What fails because of that follows the interrupt.
    if any(isinstance(own, KeyboardInterrupt) for own in _with_contexts(error)):
        print("envfleet: interrupted", file=sys.stderr)
        return _INTERRUPTED
    if isinstance(error, BrokenPipeError) and (closed := [fd for fd in (1, 2) if _has_no_reader(fd)]):
        # `envfleet list | head`. Python flushes stdout once more at exit, which would fail again and print an error.
        for fd in closed:
            os.dup2(os.open(os.devnull, os.O_WRONLY), fd)
        return _BROKEN_PIPE
    if not isinstance(error, (EnvfleetError, OSError)):
        raise error
    print(f"envfleet: error: {_env_error(error) if isinstance(error, EnvError) else error}", file=sys.stderr)
    return 2


def _with_contexts(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, the one during whose handling it was raised, and so on."""
    own: BaseException | None = error
    while own is not None:
        yield own
        own = own.__context__


def _has_no_reader(fd: int) -> bool:
    """Return whether a file descriptor is a pipe or socket that was closed at its other end."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _env_error(error: EnvError) -> str:
    """Describe an env's exception by its own traceback. The message of an EnvError is for callers from Python."""
    first, num_others = error.faults[0], len(error.faults) - 1
    others = f" (and {counted(num_others, 'more env')})" if num_others else ""
    text = f"env {first.env_id} raised in {first.method}(){others}: {first.message}"
    # One of envfleet says what to do; where it was raised does not matter.
    if first.traceback and not isinstance(first.cause, EnvfleetError):
        text += f"\n\n{first.traceback.rstrip()}"
    return text


def _parser() -> Parser:
    parser = Parser(prog="envfleet", description="Thousands of reinforcement-learning environments behind one pool.")
    parser.add_argument("--version", action="version", version=f"envfleet {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (run, bench, tune, list_envs, doctor):
        command.add_parser(commands)
    return parser
