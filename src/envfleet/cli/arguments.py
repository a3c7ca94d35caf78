"""Arguments that several commands share, and the parser that reports wrong ones."""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import importlib
import json
import operator
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeAlias

import gymnasium

import envfleet
from envfleet.building.native_envs import find_entry
from envfleet.core.backends import AUTO, runs_native_only
from envfleet.core.errors import ConfigError, short_repr
from envfleet.core.files import NewFile

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

# Options of make() that are objects, written as a dict of their fields.
_CONFIG_CLASSES = {"ray": envfleet.RayConfig}


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that prints errors as one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2."""
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def add_env_arguments(parser: Parser) -> None:
    """Add ENV, --set and --plugin."""
    parser.add_argument(
        "env_id",
        metavar="ENV",
        help="an id such as CartPole-v1, from envfleet list or Gymnasium; module:Env-v0 imports the module first, and "
        "module:MyEnv is a class or a factory of the module",
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


def add_seconds(parser: argparse._ActionsContainer, default: float | None, otherwise: str = "%(default)s") -> None:
    """Add --seconds, which means the same in every command. otherwise: what is the default, for the help."""
    parser.add_argument(
        "--seconds",
        type=positive_float,
        default=default,
        metavar="S",
        help=f"how long the envs are stepped, in total (default: {otherwise})",
    )


def runs_natively(env: Any, backend: str) -> bool:
    """Return whether an env is native on this backend: the defaults are thousands of those, and tens of others."""
    return find_entry(env) is not None and (backend == AUTO or runs_native_only(backend))


def compile_plugins(arguments: argparse.Namespace) -> None:
    """Compile and register the env of every --plugin."""
    for source in arguments.plugins:
        if sys.stderr.isatty():  # it takes seconds, and how many is not known
            print(f"compiling {source} ...", file=sys.stderr)
        envfleet.compile(source)


@dataclass(frozen=True)
class GivenEnv:
    """An env as a command was given it.

    Attributes:
        env: What make() takes: an id, a class or a factory.
        module: What must be imported first, if anything.
        name: The id, or the name of the attribute in the module.
    """

    env: Any
    module: str
    name: str

    @property
    def import_line(self) -> str:
        """What a script must do before it can use the env; empty if nothing."""
        if isinstance(self.env, str):
            return f"import {self.module}" if self.module else ""
        first, dot, _ = self.name.partition(".")
        return f"from {self.module} import {first}" if dot == "" else f"import {self.module}"


def prepare(arguments: argparse.Namespace) -> GivenEnv:
    """Register what ENV may refer to, and return what it is."""
    compile_plugins(arguments)
    return find_env(arguments.env_id)


def find_env(given: str) -> GivenEnv:
    """Return the env of an id, module:Env-v0 or module:attribute. Raises ConfigError if there is none."""
    module_name, _, name = given.rpartition(":")
    if not module_name or given in gymnasium.registry:
        return GivenEnv(given, "", given)
    module = _import(module_name, given)
    if name in gymnasium.registry or find_entry(name) is not None:
        return GivenEnv(name, module_name, name)
    try:
        env = operator.attrgetter(name)(module)
    except AttributeError:
        with contextlib.suppress(gymnasium.error.Error), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gymnasium.spec(name)  # an id without its version
            return GivenEnv(name, module_name, name)
        own = [known for known, value in vars(module).items() if callable(value) and not known.startswith("_")]
        nearest = difflib.get_close_matches(name, own, n=1, cutoff=0.5)
        hint = f"did you mean {module_name}:{nearest[0]}?" if nearest else "an id is written with its version: Env-v0"
        raise ConfigError(
            f"{given} expected an env {name!r} in module {module_name!r} (a class, a factory or an id that it "
            f"registers), found none; {hint}"
        ) from None
    if not callable(env):
        raise ConfigError(
            f"{given} expected a class or a factory, got {short_repr(env)}; write module:MyEnv or module:make_env"
        )
    return GivenEnv(env, module_name, name)


def _import(name: str, given: str) -> ModuleType:
    # Most often it is a file in this folder, which `python -m envfleet` would find and `envfleet` would not.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a user's module may raise anything, and a script may exit
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            remedy = "go to the folder of its file, or install its package"
            if name.endswith(".py"):
                remedy = f"write {given.replace('.py:', ':').replace('/', '.')}"
            raise ConfigError(
                f"{given} expected a module {name!r} in {os.getcwd()} or among the installed packages, found none; "
                f"{remedy}"
            ) from error
        frames = traceback.extract_tb(error.__traceback__)
        place = f" (in {frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        raise ConfigError(
            f"{given} expected a module {name!r} with the env, but it cannot be imported: "
            f"{type(error).__name__}: {error}{place}"
        ) from error


def parameter(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    if name in _DEDICATED_ARGUMENTS:
        raise argparse.ArgumentTypeError(f"expected a parameter of the env, got {name}, an option of the pool")
    if name == "task_id":
        raise argparse.ArgumentTypeError(in_env_kwargs(name, "make"))
    parsed = _literal(value)
    if name in _CONFIG_CLASSES and isinstance(parsed, dict):
        try:
            parsed = _CONFIG_CLASSES[name](**parsed)
        except (TypeError, ConfigError) as error:
            raise argparse.ArgumentTypeError(
                f"expected the fields of {_CONFIG_CLASSES[name].__name__}: {error}"
            ) from error
    return name, parsed


def _literal(text: str) -> Any:
    """Parse JSON or a Python literal; return any other text as it is."""
    for parse in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError):  # json's error is a ValueError
            return parse(text)
    return text


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
    if path.is_file():  # opening a device or a FIFO may block, or have an effect
        os.close(os.open(path, os.O_WRONLY))
    NewFile(path).discard()


def _positive(text: str, kind: Callable[[str], float], expected: str) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
    return value
