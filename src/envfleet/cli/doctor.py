"""envfleet doctor: what this installation has, and whether its core works.

Plain text, without rich: the doctor must work where an extra is what is missing.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import subprocess
from collections.abc import Iterator
from importlib import metadata

import gymnasium
import numpy as np

import envfleet
from envfleet import _native
from envfleet.cli import arguments as args
from envfleet.cli import backend_checks
from envfleet.cli.backend_checks import BROKEN, MISSING, OK, Finding
from envfleet.errors import CompileError
from envfleet.making import compiling


def add_parser(commands: args.Subparsers) -> None:
    """Declares the command."""
    parser = commands.add_parser(
        "doctor",
        help="check this installation",
        description="Shows what this installation has and whether its core works. Exit code 1 when the core is broken; "
        "a missing compiler or extra is no fault.",
    )
    parser.set_defaults(command=doctor)


def doctor(arguments: argparse.Namespace) -> int:
    """The command."""
    is_broken = False
    for state, what, detail in _findings():
        print(f"{state:<6}  {what:<14}  {detail}".rstrip(), flush=True)
        is_broken |= state == BROKEN
    print("\nSomething is broken; please report this output." if is_broken else "\nAll fine.")
    return 1 if is_broken else 0


def _findings() -> Iterator[Finding]:
    yield OK, "envfleet", f"{envfleet.__version__} ({os.path.dirname(envfleet.__file__)})"
    yield OK, "python", f"{platform.python_version()} ({platform.python_implementation()})"
    yield OK, "platform", platform.platform()
    yield OK, "numpy", np.__version__
    yield OK, "gymnasium", gymnasium.__version__
    yield OK, "cores", f"{_native.usable_cores()} usable of {os.cpu_count()}"
    yield _compiler()
    yield OK, "cache", str(compiling.cache_folder())
    yield from backend_checks.findings()
    yield OK, "environments", f"{len(envfleet.list_all_envs())} of its own, and every id of Gymnasium"
    yield from _extras()
    yield self_test()


def self_test() -> Finding:
    """Steps a CartPole pool, and compares with Gymnasium's where both start from the same seed."""
    what = "self-test"
    try:
        with envfleet.make("CartPole-v1", num_envs=4, num_threads=2, seed=7) as envs:
            first, _ = envs.reset()
            stepped, reward, *_ = envs.step(np.ones(4, dtype=np.int64))
        oracle = gymnasium.make("CartPole-v1")
        expected, _ = oracle.reset(seed=7)
        expected_next = oracle.step(1)[0]
        oracle.close()
    except Exception as error:  # whatever it is, the doctor's work is to tell
        return BROKEN, what, f"CartPole-v1 raised {type(error).__name__}: {error}"
    # One float32 rounding either way, as in tests/oracle.
    for name, ours, theirs in (("first", first[0], expected), ("second", stepped[0], expected_next)):
        if not np.allclose(ours, theirs, rtol=2.0**-22, atol=0):
            return BROKEN, what, f"the {name} observation of CartPole-v1 expected {theirs}, got {ours}"
    if not (reward == 1).all():
        return BROKEN, what, f"CartPole-v1 expected rewards of 1, got {reward}"
    return OK, what, "CartPole-v1 starts and steps as Gymnasium's"


def _compiler() -> Finding:
    try:
        command = compiling.find_compiler()
    except CompileError as error:
        return MISSING, "compiler", str(error)
    output = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout
    return OK, "compiler", f"{shlex.join(command)} ({output.partition(chr(10))[0]})"


def _extras() -> Iterator[Finding]:
    try:
        extras = metadata.metadata("envfleet").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        yield MISSING, "extras", "cannot tell: envfleet runs from a folder, it is not installed"
        return
    for extra in extras:
        found, missing = [], []
        for package in sorted(_packages_of("envfleet", extra)):
            try:
                found.append(f"{package} {metadata.version(package)}")
            except metadata.PackageNotFoundError:
                missing.append(package)
        if missing:
            remedy = f'pip install "envfleet[{extra}]"'
            yield MISSING, f"extra {extra}", f"{', '.join(missing)} not installed; run: {remedy}"
        else:
            yield OK, f"extra {extra}", ", ".join(found)


def _packages_of(distribution: str, extra: str) -> set[str]:
    """The packages that an extra adds; of gymnasium[toy-text], what toy-text adds to gymnasium."""
    packages: set[str] = set()
    try:
        requirements = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return {distribution}
    for requirement in requirements:
        marker = re.search(r"""extra\s*==\s*['"]([^'"]+)['"]""", requirement)
        parts = re.match(r"([\w.-]+)\s*(?:\[([^\]]+)\])?", requirement)
        if marker is None or marker.group(1) != extra or parts is None:
            continue
        name, inner = parts.groups()
        if inner is None:
            packages.add(name)
        for inner_extra in (inner or "").split(","):
            packages |= _packages_of(name, inner_extra.strip()) if inner_extra else set()
    return packages
