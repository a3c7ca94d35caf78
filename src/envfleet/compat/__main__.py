"""python -m envfleet.compat [-m] script [arguments]: runs a script with all of envfleet.compat's names in place."""

from __future__ import annotations

import os
import runpy
import sys

from envfleet.compat import env_wrappers, envpool, envpool_protocol, ray_env_wrapper

_USAGE = """usage: python -m envfleet.compat script.py [arguments]
       python -m envfleet.compat -m module [arguments]

Runs a script unchanged, with envfleet behind the names envpool, envpool_protocol, envpool_wrap, env_wrappers
and RayEnvWrapper (and a stand-in for gym, if that is not installed)."""


def main(arguments: list[str]) -> None:
    """Install every alias, then run the script or module."""
    if not arguments or arguments[0] in ("-h", "--help") or arguments == ["-m"]:
        print(_USAGE)
        sys.exit(0 if arguments else 2)
    for alias in (envpool, envpool_protocol, env_wrappers, ray_env_wrapper):
        alias.install()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        # As Python does for a script: modules next to it can be imported.
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
