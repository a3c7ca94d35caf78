"""Arguments that several commands share, and how a wrong one is reported."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import gymnasium

import envfleet
from envfleet.errors import ConfigError
from envfleet.making.native_envs import find_entry

Subparsers: TypeAlias = "argparse._SubParsersAction[Parser]"

# Options of make() that have an argument of their own; --set would contradict it.
_OWN_ARGUMENTS = (
    "num_envs",
    "batch_size",
    "num_threads",
    "num_workers",
    "seed",
    "backend",
    "autoreset_mode",
    "render_mode",
)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Leaves with exit code 2."""
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def add_env_arguments(parser: Parser) -> None:
    """ID, --set and --plugin."""
    parser.add_argument(
        "env_id",
        metavar="ID",
        help="such as CartPole-v1: one of envfleet list, or any of Gymnasium's; module:Env-v0 imports the module first",
    )
    parser.add_argument(
        "--set",
        dest="params",
        metavar="NAME=VALUE",
        type=parameter,
        action="append",
        default=[],
        help="a parameter of the env; VALUE is read as JSON where it is JSON, else as text (repeatable)",
    )
    add_plugin_argument(parser)


def add_plugin_argument(parser: Parser) -> None:
    """--plugin."""
    parser.add_argument(
        "--plugin",
        dest="plugins",
        metavar="FILE.cc",
        action="append",
        default=[],
        help="compile and register a C++ env first (repeatable)",
    )


def runs_natively(env_id: str, backend: str) -> bool:
    """Whether an id on a backend is a native env: those are counted in thousands, Python's in tens."""
    return backend in ("auto", "native") and find_entry(env_id) is not None


def num_workers_of(pool: envfleet.Pool) -> int:
    """The threads or processes that run a pool's envs."""
    if pool.spec.backend == "native":
        return pool.config.num_threads
    return 1 if pool.spec.backend == "serial" else pool.config.num_workers


def compile_plugins(arguments: argparse.Namespace) -> None:
    """Makes the ids of every --plugin known."""
    for source in arguments.plugins:
        envfleet.compile(source)


def prepare(arguments: argparse.Namespace) -> None:
    """Makes known what ID may name. Of module:Env-v0, arguments.env_id becomes Env-v0 and arguments.module the rest."""
    compile_plugins(arguments)
    module, _, env_id = arguments.env_id.rpartition(":")
    arguments.module = ""
    if not module or arguments.env_id in gymnasium.registry:
        return
    # It is most often a file of this folder, which `python -m envfleet` would find and `envfleet` would not.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        importlib.import_module(module)
    except Exception as error:  # a module of the user's may raise anything
        raise ConfigError(
            f"{arguments.env_id} expected a module {module!r} that registers the env, "
            f"but it cannot be imported: {type(error).__name__}: {error}"
        ) from error
    arguments.module, arguments.env_id = module, env_id


def parameter(text: str) -> tuple[str, Any]:
    """NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    if name in _OWN_ARGUMENTS:
        raise argparse.ArgumentTypeError(f"expected a parameter of the env, got {name}, an option of the pool")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def positive_int(text: str) -> int:
    """An integer from 1 on, underscores allowed."""
    return int(_positive(text, int, "an integer above 0"))


def positive_float(text: str) -> float:
    """A finite number above 0."""
    return float(_positive(text, float, "a number above 0"))


def fraction(text: str) -> float:
    """A number between 0 and 1, both excluded."""
    value = positive_float(text)
    if value >= 1:
        raise argparse.ArgumentTypeError(f"expected a number between 0 and 1, got {text!r}")
    return value


def counts(text: str) -> list[int]:
    """Integers above 0, separated by commas; ascending, each once."""
    return sorted({positive_int(part) for part in text.split(",")})


def names(text: str) -> list[str]:
    """Words separated by commas, each once, in their order."""
    return list(dict.fromkeys(part.strip() for part in text.split(",")))


def output_file(suffix: str) -> Callable[[str], Path]:
    """A file to write, checked before the work whose result it gets."""

    def check(text: str) -> Path:
        path = Path(text)
        if path.suffix.lower() != suffix:
            raise argparse.ArgumentTypeError(f"expected a {suffix} file, got {text!r}")
        if not path.parent.is_dir():
            raise argparse.ArgumentTypeError(f"expected a file in a folder that exists, got {text!r}")
        return path

    return check


def _positive(text: str, kind: Callable[[str], float], expected: str) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
    return value
