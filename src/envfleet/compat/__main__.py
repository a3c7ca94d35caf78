"""python -m envfleet.compat [-m] script [arguments]: runs a script with all of envfleet.compat's names in place."""

from __future__ import annotations

import os
import runpy
import sys
from typing import NoReturn

from envfleet.compat import env_wrappers, envpool, envpool_protocol, ray_env_wrapper
from envfleet.compat.modules import is_available

_USAGE = """usage: python -m envfleet.compat script.py [arguments]
       python -m envfleet.compat -m module [arguments]

Runs a script unchanged, with envfleet behind the names envpool, envpool_protocol, envpool_wrap, env_wrappers
and RayEnvWrapper (and a stand-in for gym, if that is not installed)."""


def main(arguments: list[str]) -> None:
    """Install every alias, then run the script or module."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE)
        sys.exit(0 if arguments else 2)
    is_module = arguments[0] == "-m"
    if is_module:
        sys.path.insert(0, os.getcwd())
    _check(arguments, is_module)
    for alias in (envpool, envpool_protocol, env_wrappers, ray_env_wrapper):
        alias.install()
    if is_module:
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        # As Python does for a script: modules next to the file, not next to a link to it, can be imported, and
        # __file__ stays valid if the script changes the working directory.
        script = os.path.abspath(arguments[0])
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
        sys.argv = arguments
        runpy.run_path(script, run_name="__main__")


def _check(arguments: list[str], is_module: bool) -> None:
    """Exit with one line, as Python does, if there is nothing to run."""
    if not is_module and arguments[0].startswith("-"):
        _exit(f"expected a script or -m, got the option {arguments[0]}; write Python's own options before -m")
    if is_module and len(arguments) == 1:
        _exit("expected a module after -m, got none")
    if is_module and not is_available(arguments[1].partition(".")[0]):
        _exit(f"expected a module that can be imported, got {arguments[1]!r}, which is not installed or not here")
    if not is_module and not os.path.exists(arguments[0]):
        _exit(f"expected a script, got {arguments[0]!r}, which does not exist")


def _exit(message: str) -> NoReturn:
    print(f"envfleet.compat: error: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
