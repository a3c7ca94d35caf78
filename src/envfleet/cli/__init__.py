"""The command line: envfleet run, bench, tune, list and doctor.

Exit codes: 0 success; 1 doctor found something broken; 2 wrong input, or an error of envfleet (one line on stderr, no
traceback); 130 Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from envfleet import __version__
from envfleet.cli import bench, doctor, list_envs, run, tune
from envfleet.cli.arguments import Parser
from envfleet.errors import EnvfleetError

__all__ = ["main"]

_INTERRUPTED = 130  # a shell's exit code for a program that SIGINT ended
_BROKEN_PIPE = 141  # the same for SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. argv: without the program's name; None for that of this process."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        arguments = _parser().parse_args(argv)
        arguments.argv = list(argv)
        return int(arguments.command(arguments))
    except SystemExit as exit_:  # argparse: --help, --version, or a wrong argument
        return exit_.code if isinstance(exit_.code, int) else 2
    except KeyboardInterrupt:
        print("envfleet: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # `envfleet list | head`. Python flushes stdout once more at exit, which would fail again and print an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except (EnvfleetError, OSError) as error:
        print(f"envfleet: error: {error}", file=sys.stderr)
        return 2


def _parser() -> Parser:
    parser = Parser(prog="envfleet", description="Thousands of reinforcement-learning environments behind one pool.")
    parser.add_argument("--version", action="version", version=f"envfleet {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (run, bench, tune, list_envs, doctor):
        command.add_parser(commands)
    return parser
