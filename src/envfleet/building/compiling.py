"""C++ envs from one file: compile() builds and loads one, load_plugin() loads a library that is already built."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from envfleet import _native
from envfleet.building.gymnasium_ids import publish
from envfleet.building.native_envs import plugin_files
from envfleet.building.pools import make_spec
from envfleet.core.errors import CompileError, ConfigError
from envfleet.envs.compiler import build


def compile(  # noqa: A001 (the name users expect)
    path: str | os.PathLike[str], *, flags: Sequence[str] = (), debug: bool = False, verbose: bool = False
) -> list[str]:
    """Build a C++ env with the machine's compiler, register its ids and return them.

    The result is cached (in ENVFLEET_CACHE, or in envfleet of the user's cache folder), in a folder that only you may
    be able to write to. It is reused, within milliseconds, until the source, a header that it includes, the compiler,
    the flags or the CPU changes. The compiler is CXX, else c++, g++ or clang++; CXXFLAGS is added. Relative paths in
    flags are relative to the working directory.

    debug: an index past either end of an observation, info, action or parameter becomes an EnvError that names it;
    assertions hold, debug symbols are kept, and steps are many times slower. See docs/writing_a_cpp_env.md.
    """
    return load_plugin(build(path, flags=flags, debug=debug, verbose=verbose))


def load_plugin(path: str | os.PathLike[str]) -> list[str]:
    """Load a shared library whose source includes envfleet/env.h, register its ids and return them."""
    path = Path(path).resolve()
    built_in = set(_native.built_in_ids())
    try:
        ids = _native.load_plugin(str(path))
    except RuntimeError as error:
        raise CompileError(f"{path} cannot be loaded as an env: {error}") from error
    replaced = dict(plugin_files)
    plugin_files.update(dict.fromkeys(ids, path))
    try:
        for env_id in ids:
            make_spec(env_id)
    except ConfigError as error:
        _native.withdraw_types(ids)
        plugin_files.clear()
        plugin_files.update(replaced)
        raise CompileError(f"{env_id} in {path} was loaded, but its spec is invalid: {error}") from error
    for env_id in ids:
        if env_id in built_in:
            warnings.warn(f"{env_id} is now the env in {path}, which replaces the built-in one", stacklevel=3)
    publish(ids)
    return ids
