"""envfleet list: the native envs and the simulators'. make() takes every id of Gymnasium besides."""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import re

import numpy as np
from gymnasium import Space, spaces

import envfleet
from envfleet.cli import arguments as args
from envfleet.envs.simulators import find_simulator, is_installed
from envfleet.errors import UnknownEnvError
from envfleet.making.native_envs import find_entry
from envfleet.making.registry import family_of

_COLUMNS = {
    "family": "text",
    "id": "name",
    "backend": "name",
    "extra needed": "name",
    "limit": "number",
    "observation": "text",
    "action": "text",
}
_NOTHING = "-"
_BESIDES = "Any Gymnasium id works besides, on backend serial, threads or processes: LunarLander-v3, module:Env-v0."


def add_parser(commands: args.Subparsers) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "list",
        help="list the environments",
        description="Lists the environments that envfleet knows by themselves. `backend` is what runs several of them, "
        '`extra needed` what they need besides: pip install "envfleet[EXTRA]". `limit` is the time limit in steps. Of '
        "those that a simulator runs, spaces are known when one is made.",
    )
    parser.add_argument("pattern", metavar="PATTERN", nargs="?", help="part of an id, or a pattern such as 'Cart*'")
    parser.add_argument("--family", metavar="FAMILY", help="only those of this family, such as 'toy text'")
    args.add_plugin_argument(parser)
    parser.set_defaults(command=list_envs)


def list_envs(arguments: argparse.Namespace) -> int:
    """The command."""
    from envfleet.cli import console

    args.compile_plugins(arguments)
    by_family: dict[str, list[str]] = {}
    for env_id in envfleet.list_all_envs():
        by_family.setdefault(family_of(env_id).name, []).append(env_id)
    if arguments.family is not None and arguments.family not in by_family:
        nearest = difflib.get_close_matches(arguments.family, by_family, n=1, cutoff=0.4)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        raise UnknownEnvError(f"no family {arguments.family!r}; {hint}there are {', '.join(sorted(by_family))}")
    wanted = sorted(by_family) if arguments.family is None else [arguments.family]
    known = [(family, env_id) for family in wanted for env_id in by_family[family]]
    ids = [own for own in known if arguments.pattern is None or matches(own[1], arguments.pattern)]
    if not ids:
        raise UnknownEnvError(
            f"no id of {len(known)} matches {arguments.pattern!r}; envfleet list shows all. {_BESIDES}"
        )
    rows = sorted((_row(*own) for own in ids), key=lambda row: row[:2])
    console.print_rows(f"{len(rows)} environment{'s' if len(rows) > 1 else ''}", _COLUMNS, rows)
    if arguments.family is None and arguments.pattern is None:
        counts = ", ".join(f"{family} ({len(own)})" for family, own in sorted(by_family.items()))
        console.say(f"\nFamilies, for --family: {counts}.")
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


def _row(family: str, env_id: str) -> tuple[str, ...]:
    own = family_of(env_id)
    simulator = find_simulator(env_id)
    if simulator is not None and find_entry(env_id) is None:
        # Only an env knows its spaces, and hundreds are not built for a list.
        extra = _extra(simulator.extra, simulator.is_installed)
        return family, env_id, simulator.backend, extra, _NOTHING, _NOTHING, _NOTHING
    if own.extra:
        # Likewise: their library would have to be loaded, or even compiled.
        return family, env_id, "native", _extra(own.extra, is_installed(own.extra)), _NOTHING, _NOTHING, _NOTHING
    spec = envfleet.make_spec(env_id)
    limit = _NOTHING if spec.max_episode_steps is None else f"{spec.max_episode_steps:,}"
    return family, env_id, spec.backend, _NOTHING, limit, brief(spec.observation_space), brief(spec.action_space)


def _extra(name: str, has_it: bool) -> str:
    return name if has_it else f"{name} (not installed)"
