"""The plug-in with the Procgen envs: when it is loaded, and what is said if the package is missing or damaged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.procgen_package import NEEDS_PROCGEN

from envfleet.families.procgen.plugin import installed_procgen

_MAKE = "import envfleet; envfleet.make('procgen-coinrun', num_envs=2)"


def last_error(code: str, folder: Path) -> str:
    """Run code in a process of its own, which looks for packages in `folder` first; return the last line of stderr."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))},
        timeout=240,
    )
    assert done.returncode == 1, done.stderr
    return done.stderr.splitlines()[-1]


def package_in(folder: Path, library: bytes | None) -> Path:
    """Write a package procgen with this library."""
    prebuilt = folder / "procgen" / "data" / "prebuilt"
    prebuilt.mkdir(parents=True)
    (folder / "procgen" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    if library is not None:
        (prebuilt / "libenv.so").write_bytes(library)
    return folder


def without_procgen(folder: Path) -> Path:
    """Write a start-up module that hides an installed package."""
    (folder / "sitecustomize.py").write_text(
        "import importlib.util as util\nfind = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'procgen' else find(name, *rest)\n"
    )
    return folder


@pytest.mark.parametrize(
    ("minor", "expected"),
    [
        (
            12,
            ("MissingExtraError: a Procgen env needs the package 'procgen-mirror'", 'pip install "envfleet[procgen]"'),
        ),
        (14, ("UnsupportedVersionError: Procgen expected Python 3.11 or 3.12", "got Python 3.14")),
    ],
)
def test_a_missing_package(minor: int, expected: tuple[str, str], tmp_path: Path) -> None:
    version = f"type('V', (tuple,), {{'major': 3, 'minor': {minor}}})((3, {minor}, 0, 'final', 0))"
    error = last_error(f"import sys, envfleet; sys.version_info = {version}; {_MAKE}", without_procgen(tmp_path))
    assert all(part in error for part in expected)


@pytest.mark.parametrize(
    ("library", "message"),
    [(None, "expected its library in data/prebuilt"), (b"no library", "Procgen's library cannot be used")],
    ids=["none", "damaged"],
)
def test_another_package_of_the_name(library: bytes | None, message: str, tmp_path: Path) -> None:
    error = last_error(_MAKE, package_in(tmp_path, library))
    assert error.startswith("envfleet.core.errors.CompileError")
    assert message in error or "images, got 0" in error  # of the installed package, if there is one
    assert "pip install --no-deps procgen-mirror==0.10.7" in error


@NEEDS_PROCGEN
def test_missing_images_are_named(tmp_path: Path) -> None:
    # All but the images: the library would end the process.
    package = package_in(tmp_path, None) / "procgen"
    (package / "data" / "prebuilt" / "libenv.so").symlink_to(installed_procgen().library)
    error = last_error(_MAKE, tmp_path)
    assert error.startswith("envfleet.core.errors.CompileError")
    assert "images, got 0" in error
    assert "--force-reinstall" in error


def test_importing_and_listing_load_nothing() -> None:
    code = (
        "import sys, envfleet; ids = envfleet.list_all_envs(); "
        "print('CoinrunEasy-v0' in ids, 'procgen' in sys.modules, 'libenv' in open('/proc/self/maps').read())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.split() == ["True", "False", "False"]


@NEEDS_PROCGEN
def test_a_spec_opens_the_library_but_imports_nothing() -> None:
    code = (
        "import sys, envfleet; spec = envfleet.make_spec('CoinrunEasy-v0'); "
        "print(spec.max_episode_steps, 'procgen' in sys.modules, 'libenv.so' in open('/proc/self/maps').read())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.split() == ["1000", "False", "True"]
