"""envfleet list: the native envs and the simulators'. make() takes every id of Gymnasium besides."""

from __future__ import annotations

import argparse
import fnmatch
import re

import numpy as np
from gymnasium import Space, spaces

import envfleet
from envfleet.cli import arguments as args
from envfleet.envs.simulators import find_simulator
from envfleet.errors import MissingExtraError, UnknownEnvError
from envfleet.registry import family_of

_COLUMNS = {
    "family": "text",
    "id": "name",
    "backend": "name",
    "limit": "number",
    "observation": "text",
    "action": "text",
}
_BESIDES = "Any Gymnasium id works besides, on backend serial, threads or processes: LunarLander-v3, module:Env-v0."


def add_parser(commands: args.Subparsers) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "list",
        help="list the environments",
        description="Lists the environments that envfleet brings itself. `limit` is the time limit in steps. "
        'Where one needs an extra that is not installed, a column names it: pip install "envfleet[EXTRA]".',
    )
    parser.add_argument("pattern", metavar="PATTERN", nargs="?", help="part of an id, or a pattern such as 'Cart*'")
    args.add_plugin_argument(parser)
    parser.set_defaults(command=list_envs)


def list_envs(arguments: argparse.Namespace) -> int:
    """The command."""
    from envfleet.cli import console

    args.compile_plugins(arguments)
    known = envfleet.list_all_envs()
    ids = [env_id for env_id in known if arguments.pattern is None or matches(env_id, arguments.pattern)]
    if not ids:
        raise UnknownEnvError(
            f"no id of {len(known)} matches {arguments.pattern!r}; envfleet list shows all. {_BESIDES}"
        )
    rows = sorted((_row(env_id) for env_id in ids), key=lambda row: row[:2])
    title = f"{len(rows)} environment{'s' if len(rows) > 1 else ''}"
    if any(row[-1] for row in rows):
        console.print_rows(title, {**_COLUMNS, "extra needed": "name"}, rows)
    else:
        console.print_rows(title, _COLUMNS, (row[:-1] for row in rows))
    console.say(f"\n{_BESIDES}")
    return 0


def matches(env_id: str, pattern: str) -> bool:
    """Whether the pattern, or without wildcards a part, fits the id; case does not matter."""
    if re.search(r"[*?\[]", pattern):
        return fnmatch.fnmatchcase(env_id.lower(), pattern.lower())
    return pattern.lower() in env_id.lower()


def brief(space: Space[object]) -> str:
    """A space in a few words: without the bounds, which can be long."""
    if isinstance(space, spaces.Box):
        return f"Box{space.shape} {space.dtype}"
    if isinstance(space, spaces.Discrete):
        return f"Discrete({space.n})" if space.start == 0 else f"Discrete({space.n}, start={space.start})"
    if isinstance(space, spaces.MultiDiscrete):
        return f"MultiDiscrete({np.array2string(space.nvec, separator=', ', threshold=8)})"
    if isinstance(space, spaces.Dict):
        return "{" + ", ".join(f"{name}: {brief(part)}" for name, part in space.items()) + "}"
    if isinstance(space, spaces.Tuple):
        return "(" + ", ".join(brief(part) for part in space.spaces) + ")"
    return str(space)


def _row(env_id: str) -> tuple[str, ...]:
    family = family_of(env_id).name
    simulator = find_simulator(env_id)
    if simulator is not None:
        # Only an env knows its spaces, and hundreds are not built for a list.
        return family, env_id, simulator.backend, "", "", "", "" if simulator.is_installed else simulator.extra
    try:
        spec = envfleet.make_spec(env_id)
    except MissingExtraError as error:
        return family, env_id, "?", "?", "?", "?", error.extra
    limit = "-" if spec.max_episode_steps is None else f"{spec.max_episode_steps:,}"
    return family, env_id, spec.backend, limit, brief(spec.observation_space), brief(spec.action_space), ""
