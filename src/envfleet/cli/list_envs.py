"""envfleet list: the ids of envfleet's families. make() also accepts every id of Gymnasium."""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import re

import numpy as np
from gymnasium import Space, spaces

import envfleet
from envfleet.building.native_envs import find_entry
from envfleet.building.registry import family_of
from envfleet.cli import arguments as args
from envfleet.core.errors import ConfigError, UnknownEnvError
from envfleet.envs.catalogue import EnvSummary, summaries
from envfleet.testing import check_env

_COLUMNS = {
    "family": "name",
    "id": "name",
    "backend": "name",
    "extra needed": "name",
    "limit": "number",
    "observation": "text",
    "action": "text",
}
_DROP_FIRST = ("family", "limit", "extra needed", "backend")  # on a narrow terminal
_NOTHING = "-"
_GYMNASIUM_IDS = "Any Gymnasium id also works, on backend serial, threads or processes: LunarLander-v3, module:Env-v0."


def add_parser(commands: args.Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "list",
        help="list the environments, or check some",
        description="Lists the environments of envfleet. `backend` is what runs several of them by default, "
        '`extra needed` what they need: pip install "envfleet[EXTRA]". `limit` is the time limit in steps. No env is '
        "built for this list: a few spaces that are only known then are left out. Into a file or a pipe, there is one "
        "short line per id, with tabs: the id, its backend and its family.",
    )
    parser.add_argument(
        "words",
        metavar="WORD",
        nargs="*",
        help="part of an id or of a family's name, or a pattern such as 'Cart*'; of several, all must match",
    )
    parser.add_argument("--long", action="store_true", help="the whole table, also into a file or a pipe")
    parser.add_argument(
        "--check",
        action="store_true",
        help="list nothing: run envfleet.testing.check_env() on each WORD, which is an id, module:Env-v0 or "
        "module:MyEnv, and print its report; the exit code is 1 if an env has errors",
    )
    parser.add_argument("--family", metavar="FAMILY", help="only ids of this family, such as 'toy text'")
    args.add_plugin_argument(parser)
    parser.set_defaults(command=list_envs)


def list_envs(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from envfleet.cli import console

    args.compile_plugins(arguments)
    if arguments.check:
        return _check(arguments)
    by_family: dict[str, list[str]] = {}
    for env_id in envfleet.list_all_envs():
        by_family.setdefault(family_of(env_id).name, []).append(env_id)
    if arguments.family is not None and arguments.family not in by_family:
        nearest = difflib.get_close_matches(arguments.family, by_family, n=1, cutoff=0.4)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        raise UnknownEnvError(f"no family {arguments.family!r}; {hint}there are {', '.join(sorted(by_family))}")
    wanted = sorted(by_family) if arguments.family is None else [arguments.family]
    known = [(family, env_id) for family in wanted for env_id in by_family[family]]
    ids = [own for own in known if all(matches(own[1], word) or matches(own[0], word) for word in arguments.words)]
    if not ids:
        words = " and ".join(map(repr, arguments.words))
        raise UnknownEnvError(f"none of {len(known)} ids matches {words}; envfleet list shows all. {_GYMNASIUM_IDS}")
    if not arguments.long and not console.is_terminal():
        print("\n".join(f"{env_id}\t{_backend(env_id)}\t{family}" for family, env_id in sorted(ids)))
        return 0
    rows = sorted((_row(*own) for own in ids), key=lambda row: row[:2])
    console.print_rows(f"{len(rows)} environment{'s' if len(rows) > 1 else ''}", _COLUMNS, rows, _DROP_FIRST)
    if arguments.family is None and not arguments.words:
        counts = ", ".join(f"{family} ({len(own)})" for family, own in sorted(by_family.items()))
        console.say(f"\nFamilies, for --family: {counts}.")
    console.say(f"\n{_GYMNASIUM_IDS}")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    """Check the envs that the words name."""
    from envfleet.cli import console

    if not arguments.words:
        raise ConfigError("--check expected the envs to check, got none; write their ids, or module:MyEnv")
    given = [args.find_env(word) for word in arguments.words]
    are_ok = []
    with console.ProgressBar("check_env") as bar:
        for number, own in enumerate(given):
            bar.update(number / len(given), f"{own.name} ({number + 1} of {len(given)})")
            report = check_env(own.env)
            console.say(str(report))
            are_ok.append(report.ok)
    return 0 if all(are_ok) else 1


def matches(name: str, pattern: str) -> bool:
    """Return whether a name matches a pattern, or contains it if it has no wildcards; case-insensitive."""
    if re.search(r"[*?\[]", pattern):
        return fnmatch.fnmatchcase(name.lower(), pattern.lower())
    return pattern.lower() in name.lower()


def brief(space: Space[object]) -> str:
    """Return a short description of a space, without its bounds."""
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
    # MiniGrid's and BabyAI's missions, without importing the package.
    if isinstance(space, spaces.Text) or any(kind.__name__ == "MissionSpace" for kind in type(space).__mro__):
        return "text"
    return str(space)


def _row(family: str, env_id: str) -> tuple[str, ...]:
    own = family_of(env_id)
    extra = own.extra or _NOTHING
    if own.extra and not own.is_installed:
        extra = f"{own.extra} (not installed)"
    backend = _backend(env_id)
    if find_entry(env_id) is not None and own.load is None and own.is_installed:
        spec = envfleet.make_spec(env_id)
        summary: EnvSummary | None = EnvSummary(
            spec.max_episode_steps, brief(spec.observation_space), brief(spec.action_space)
        )
    else:
        summary = summaries().get(env_id)
    if summary is None:
        return family, env_id, backend, extra, _NOTHING, _NOTHING, _NOTHING
    limit = _NOTHING if summary.max_episode_steps is None else f"{summary.max_episode_steps:,}"
    return family, env_id, backend, extra, limit, summary.observation, summary.action


def _backend(env_id: str) -> str:
    return "native" if find_entry(env_id) is not None else family_of(env_id).python_backend
