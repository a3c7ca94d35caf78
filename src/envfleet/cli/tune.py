"""envfleet tune: finds the fastest setting for an env on this machine."""

from __future__ import annotations

import argparse

import envfleet
from envfleet.cli import arguments as args
from envfleet.core.errors import ConfigError

# Of envfleet.tune(), which also takes the options of make().
_OWN_ARGUMENTS = ("env", "seconds", "backends", "batch_sizes", "progress")


def add_parser(commands: args.Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "tune",
        help="find the fastest setting for an env",
        description="Measures the backends, worker counts and batch sizes that fit this machine and the env, with "
        "random actions, and prints the fastest as a call of envfleet.make().",
    )
    args.add_env_arguments(parser)
    add = parser.add_argument
    add(
        "--num-envs",
        type=args.counts,
        metavar="N,...",
        help="default: 1024 for a native env, 64 or fewer for a Python env",
    )
    add(
        "--backends",
        type=args.names,
        metavar="NAME,...",
        help="of native, serial, threads, processes",
    )
    add("--num-workers", type=args.counts, metavar="W,...", help="default: 1, 2, 4 ... up to the usable cores")
    add("--batch-sizes", type=args.counts, metavar="B,...", help="default: num_envs, half and a quarter of it")
    args.add_seconds(parser, 20.0)
    parser.set_defaults(command=tune)


def tune(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from envfleet.cli import console

    for name, _ in arguments.params:
        if name in _OWN_ARGUMENTS:
            raise ConfigError(f"--set {args.in_env_kwargs(name, 'tune')}")
    given = args.prepare(arguments)

    def show(share: float, text: str) -> None:
        bar.update(share, text, (1 - share) * arguments.seconds)

    with console.ProgressBar(given.name) as bar:
        result = envfleet.tune(
            given.env,
            num_envs=arguments.num_envs,
            backends=arguments.backends,
            num_workers=arguments.num_workers,
            batch_sizes=arguments.batch_sizes,
            seconds=arguments.seconds,
            progress=show,
            **dict(arguments.params),
        )
    print(result)
    for source in arguments.plugins:
        print(f"after: envfleet.compile({source!r})")
    if given.import_line:
        print(f"after: {given.import_line}")
    return 0
