"""Arguments that several commands share, and the parser that reports wrong ones."""

from __future__ import annotations

import argparse
import ast
import contextlib
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

# Options of make() that have an argument of their own, which --set would contradict.
_DEDICATED_ARGUMENTS = (
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
    """An ArgumentParser that prints errors as one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def add_env_arguments(parser: Parser) -> None:
    """Add ID, --set and --plugin."""
    parser.add_argument(
        "env_id",
        metavar="ID",
        help="an id such as CartPole-v1, from envfleet list or Gymnasium; module:Env-v0 imports the module first",
    )
    parser.add_argument(
        "--set",
        dest="params",
        metavar="NAME=VALUE",
        type=parameter,
        action="append",
        default=[],
        help="a parameter of the env; VALUE is parsed as JSON or as a Python literal if possible, else taken as text "
        "(repeatable)",
    )
    add_plugin_argument(parser)


def add_plugin_argument(parser: Parser) -> None:
    """Add --plugin."""
    parser.add_argument(
        "--plugin",
        dest="plugins",
        metavar="FILE.cc",
        action="append",
        default=[],
        help="compile and register a C++ env first (repeatable)",
    )


def runs_natively(env_id: str, backend: str) -> bool:
    """Return whether an id is a native env on this backend: the defaults are thousands of those, and tens of others."""
    return backend in ("auto", "native") and find_entry(env_id) is not None


def compile_plugins(arguments: argparse.Namespace) -> None:
    """Compile and register the env of every --plugin."""
    for source in arguments.plugins:
        envfleet.compile(source)


def prepare(arguments: argparse.Namespace) -> None:
    """Register what ID may refer to. Splits module:Env-v0 into arguments.module and arguments.env_id."""
    compile_plugins(arguments)
    module, _, env_id = arguments.env_id.rpartition(":")
    arguments.module = ""
    if not module or arguments.env_id in gymnasium.registry:
        return
    # Most often it is a file in this folder, which `python -m envfleet` would find and `envfleet` would not.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a user's module may raise anything, and a script may exit
        raise ConfigError(
            f"{arguments.env_id} expected a module {module!r} that registers the env, "
            f"but it cannot be imported: {type(error).__name__}: {error}"
        ) from error
    arguments.module, arguments.env_id = module, env_id


def parameter(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    if name in _DEDICATED_ARGUMENTS:
        raise argparse.ArgumentTypeError(f"expected a parameter of the env, got {name}, an option of the pool")
    if name == "task_id":
        raise argparse.ArgumentTypeError(in_env_kwargs(name, "make"))
    for parse in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError):  # json's error is a ValueError
            return name, parse(value)
    return name, value


def in_env_kwargs(name: str, function: str) -> str:
    """Return the error for a parameter of the env whose name is also an argument of envfleet's function."""
    return (
        f"expected a parameter of the env, got {name}, an argument of envfleet.{function}(); "
        f"if the env has one of that name, write --set 'env_kwargs={{\"{name}\": VALUE}}'"
    )


def positive_int(text: str) -> int:
    """Parse an integer of at least 1; underscores are allowed."""
    return int(_positive(text, int, "an integer above 0"))


def positive_float(text: str) -> float:
    """Parse a finite number above 0."""
    return float(_positive(text, float, "a number above 0"))


def fraction(text: str) -> float:
    """Parse a number between 0 and 1, both excluded."""
    value = positive_float(text)
    if value >= 1:
        raise argparse.ArgumentTypeError(f"expected a number between 0 and 1, got {text!r}")
    return value


def counts(text: str) -> list[int]:
    """Parse integers above 0, separated by commas, and return them ascending without duplicates."""
    return sorted({positive_int(part) for part in text.split(",")})


def names(text: str) -> list[str]:
    """Parse words separated by commas, and return them without duplicates."""
    return list(dict.fromkeys(part.strip() for part in text.split(",")))


def output_file(*suffixes: str) -> Callable[[str], Path]:
    """Return a parser of an output path, which checks that it can be written before the work starts."""

    def check(text: str) -> Path:
        path = Path(text)
        if path.suffix not in suffixes:
            raise argparse.ArgumentTypeError(f"expected a {' or '.join(suffixes)} file, got {text!r}")
        if not path.parent.is_dir():
            raise argparse.ArgumentTypeError(f"expected a file in a folder that exists, got {text!r}")
        if path.is_dir():
            raise argparse.ArgumentTypeError(f"expected a file, got {text!r}, which is a folder")
        try:
            _try_to_write(path)
        except OSError as error:
            raise argparse.ArgumentTypeError(
                f"expected a file that can be written, got {text!r}: {error.strerror}; choose another folder"
            ) from error
        return path

    return check


def _try_to_write(path: Path) -> None:
    """Open the file for writing, without changing or leaving anything. Raises OSError."""
    # os.access() is not enough: it allows root to write anywhere, even in /proc.
    target = path.resolve()  # a link may point to a file that does not exist yet
    if target.is_file():
        os.close(os.open(target, os.O_WRONLY))
    elif not target.exists():  # opening a device or a FIFO may block, or have an effect
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        target.unlink()


def _positive(text: str, kind: Callable[[str], float], expected: str) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
    return value
