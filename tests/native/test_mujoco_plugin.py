"""The plug-in with the MuJoCo envs: when it is loaded, for which MuJoCo it is built, and what is said where not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import envfleet
from envfleet.core.installation import installed_folder
from envfleet.envs.compiler import build
from envfleet.envs.mujoco_plugin import _start, flags_for, installed_mujoco

pytest.importorskip("mujoco")

_MAKE = "import envfleet; print(envfleet.make('Hopper-v5', num_envs=2{options}).reset(seed=0)[0][0, 0])"


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python code in a process of its own: what is loaded here stays loaded."""
    command = [sys.executable, "-W", "error::UserWarning", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=240)


def copied_mujoco(folder: Path, version: str, header_version: str | None = None) -> Path:
    """This Python's MuJoCo as another version: what the plug-in meets after an upgrade. The folder to put first."""
    mujoco = installed_mujoco()
    package = folder / "mujoco"
    package.mkdir(parents=True)
    for entry in mujoco.library.parent.iterdir():
        if entry not in (mujoco.library, mujoco.include):
            (package / entry.name).symlink_to(entry)
    (package / f"libmujoco.so.{version}").symlink_to(mujoco.library)
    shutil.copytree(mujoco.include, package / "include")
    header = package / "include" / "mujoco" / "mujoco.h"
    if header_version is not None:
        lines = header.read_text().splitlines()
        header.write_text(
            "\n".join(
                f"#define mjVERSION_HEADER {header_version}" if "mjVERSION_HEADER" in own else own for own in lines
            )
        )
    return folder


def test_importing_and_listing_load_nothing() -> None:
    code = (
        "import sys, envfleet; ids = envfleet.list_all_envs(); "
        "print('Ant-v5' in ids, 'mujoco' in sys.modules, 'libmujoco' in open('/proc/self/maps').read())"
    )
    assert run(code).stdout.split() == ["True", "False", "False"]


def test_without_mujoco_the_error_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util\nfind = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'mujoco' else find(name, *rest)\n"
    )
    found = run(_MAKE.format(options=""), PYTHONPATH=str(tmp_path))
    assert 'pip install "envfleet[mujoco]"' in found.stderr
    assert found.stderr.splitlines()[-1].startswith("envfleet.core.errors.MissingExtraError")


def test_the_source_for_other_versions_includes_every_file() -> None:
    folder = installed_folder("plugins") / "mujoco"
    included = {line.split('"')[1] for line in (folder / "all.cc").read_text().splitlines() if "#include" in line}
    assert included == {str(path.relative_to(folder)) for path in folder.rglob("*.cc") if path.name != "all.cc"}


@pytest.mark.soak
def test_another_version_is_built_from_source_and_cached(tmp_path: Path) -> None:
    folder = copied_mujoco(tmp_path / "other", "99.0.0")
    environment = {"PYTHONPATH": str(folder), "ENVFLEET_CACHE": str(tmp_path / "cache")}
    expected = run(_MAKE.format(options=", backend='native'"))
    built = run(_MAKE.format(options=", backend='native'"), **environment)
    assert (built.stdout, built.stderr) == (expected.stdout, "")
    assert len(list((tmp_path / "cache").glob("*.so"))) == 1
    again = run(_MAKE.format(options=", backend='native'"), CXX="/nowhere/c++", **environment)
    assert again.stdout == ""
    assert "CXX expected a compiler on the PATH" in again.stderr


def test_without_a_compiler_python_runs_it_and_a_warning_says_why(tmp_path: Path) -> None:
    folder = copied_mujoco(tmp_path / "other", "99.0.0")
    environment = {"PYTHONPATH": str(folder), "CXX": "/nowhere/c++", "ENVFLEET_CACHE": str(tmp_path / "cache")}
    code = (
        "import warnings, envfleet\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    spec = envfleet.make_spec('Hopper-v5', num_envs=2)\n"
        "print(spec.backend, [str(own.message) for own in seen if 'several times slower' in str(own.message)])\n"
    )
    found = run(code, **environment)
    assert "processes" in found.stdout, found.stderr
    assert "could not be compiled for MuJoCo 99.0.0" in found.stdout
    assert "a compiler on the PATH, got '/nowhere/c++'" in found.stdout
    refused = run(_MAKE.format(options=", backend='native'"), **environment)
    assert refused.stderr.splitlines()[-1].startswith(
        "envfleet.core.errors.CompileError: the native MuJoCo envs could not be compiled"
    )


def test_headers_of_another_version_than_the_library_are_refused(tmp_path: Path, monkeypatch) -> None:
    """The structs would not fit: checked before anything is called. A small source stands for the plug-in's."""
    monkeypatch.setenv("ENVFLEET_CACHE", str(tmp_path / "cache"))
    folder = copied_mujoco(tmp_path / "other", "99.0.0", header_version="99000000")
    mujoco = installed_mujoco()
    source = tmp_path / "small.cc"
    sources = installed_folder("plugins") / "mujoco"
    source.write_text("".join(f'#include "{sources / name}.cc"\n' for name in ("plugin", "model", "error_handler")))
    other = replace(mujoco, include=folder / "mujoco" / "include")
    plugin = build(source, flags=["-O0", *flags_for(other)])
    with pytest.raises(envfleet.CompileError, match=r"the library that they were built against, got .*libmujoco"):
        _start(str(plugin), mujoco)
