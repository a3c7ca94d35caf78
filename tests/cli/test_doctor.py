"""envfleet doctor: what it finds, and when it says that something is broken."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import envfleet
from envfleet.cli import doctor, main


def findings_of(output: str) -> dict[str, tuple[str, str]]:
    rows = (re.fullmatch(r"(ok|--|BROKEN) +(\S.*?)  +(.*)", line) for line in output.splitlines())
    return {row[2]: (row[1], row[3]) for row in rows if row}


def test_all_fine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    found = findings_of(output.out)
    assert found["envfleet"][1].startswith(envfleet.__version__)
    assert found["python"][1].startswith(platform.python_version())
    assert "usable of" in found["cores"][1]
    assert found["compiler"][0] == found["cache"][0] == "ok"
    assert found["backends"][1].startswith("auto, native, serial, threads, processes")
    assert ("processes, ray" in found["backends"][1]) == (importlib.util.find_spec("ray") is not None)
    for backend in ("serial", "threads", "processes", "memfd", "self-test"):
        assert found[backend][0] == "ok", found[backend]
    assert re.search(r"fork server and two workers started and stepped in [\d.]+ s", found["processes"][1])
    assert found["torch"][0] == "ok"
    assert ("page-locked" if torch.cuda.is_available() else "without a CUDA device") in found["torch"][1]
    assert f"dm-env {metadata.version('dm-env')}" in found["extra dm"][1]
    assert output.out.endswith("\nAll fine.\n")
    # One column each, also for the longest subject, with the names of pyproject.toml.
    rows = [line for line in output.out.splitlines() if line.startswith(("ok", "--"))]
    assert all(row[30:32] == "  " and row[32] != " " for row in rows)
    assert {"extra pettingzoo_atari", "extra dm_control"} <= found.keys()


@pytest.mark.parametrize(
    ("has_gil", "said"),
    [
        (True, "threads only help envs that release it"),
        (False, "the GIL is off: Python envs run in parallel"),
    ],
)
def test_threads_and_the_gil(has_gil: bool, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: has_gil, raising=False)
    assert said in doctor.describe_threads()


@pytest.mark.parametrize(
    ("program", "time_limit_s", "said"),
    [
        ("import time; time.sleep(600)", 2.0, "did not start and step within 2 s"),
        ("raise SystemExit('no futex here')", 60.0, "failed: no futex here"),
        ("import os; os.abort()", 60.0, "failed: exit code -6"),
    ],
)
def test_processes_that_do_not_start(
    program: str, time_limit_s: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_PROGRAM", program)
    state, what, detail = doctor.check_processes(time_limit_s)
    assert (state, what) == ("BROKEN", "processes")
    assert said in detail


def test_what_raises_is_broken(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no threads today")

    monkeypatch.setattr(envfleet, "make_pool", fail)
    monkeypatch.setattr(envfleet, "make", fail)
    assert main(["doctor"]) == 1
    output = capsys.readouterr()
    assert output.err == ""
    found = findings_of(output.out)
    for subject in ("threads", "self-test"):
        state, detail = found[subject]
        assert state == "BROKEN"
        assert "RuntimeError: no threads today" in detail


def test_what_is_missing_names_its_command_and_is_no_fault(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    version_of = metadata.version

    def version(package: str) -> str:
        if package.startswith(("dm", "pygame")):
            raise metadata.PackageNotFoundError(package)
        return version_of(package)

    monkeypatch.setattr(metadata, "version", version)
    for extra in ("dm", "render"):
        monkeypatch.setitem(doctor._MODULES, extra, ("no_such_module",))  # what the missing packages would provide
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("ENVFLEET_CACHE", str(tmp_path / "some" / "where"))
    assert main(["doctor"]) == 0
    found = findings_of(capsys.readouterr().out)
    assert found["extra dm"] == ("--", 'dm-env not installed; run: pip install "envfleet[dm]"')
    # gymnasium itself is there; what its own extras add is not.
    assert found["extra render"][0] == "--"
    assert 'pip install "envfleet[render]"' in found["extra render"][1]
    assert found["compiler"][0] == "--"
    assert "no-such-compiler" in found["compiler"][1]
    assert found["cache"] == ("ok", str(tmp_path / "some" / "where"))


@pytest.mark.parametrize(
    ("compiler", "said"),
    [
        ("/bin/false", "/bin/false cannot compile C++20: exit code 1"),
        ("/bin/true", "/bin/true cannot compile C++20: it wrote no library"),
        (f"{sys.executable} -c 'import time; time.sleep(600)'", "timed out after 1"),
    ],
)
def test_a_compiler_that_does_not_compile(compiler: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setattr(doctor, "_TIME_LIMIT_S", 1.0 if "sleep" in compiler else 60.0)
    state, _, detail = doctor._compiler()
    assert state == "--"
    assert said in detail
    assert detail.endswith("; set CXX to another compiler")


@pytest.mark.parametrize("folder", ["/proc/foo", f"{__file__}/foo"])
def test_a_cache_that_cannot_be_written(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVFLEET_CACHE", folder)
    state, _, detail = doctor._cache()
    assert state == "--"
    assert detail.startswith(f"{folder} cannot be written: ")
    assert detail.endswith("; set ENVFLEET_CACHE to a writable folder")


def test_a_cache_that_others_can_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setenv("ENVFLEET_CACHE", str(tmp_path))
    state, _, detail = doctor._cache()
    assert state == "--"
    assert "that only you can write to" in detail


def test_without_a_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("ENVFLEET_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", fail)  # as for a user that the container does not know
    state, _, detail = doctor._cache()
    assert (state, "set ENVFLEET_CACHE or HOME" in detail) == ("--", True)


def test_backends_without_ray(cli: Any) -> None:
    result = cli("doctor", blocked=("ray",))
    assert result.returncode == 0
    said = 'auto, native, serial, threads, processes; for ray run: pip install "envfleet[ray]"'
    assert findings_of(result.stdout)["backends"] == ("ok", said)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_torch_pool_that_cannot_be_made_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_torch()[0] == "ok"
    monkeypatch.setattr("envfleet.apis.torch.pool.make_pools", None)
    state, _, detail = doctor.check_torch()
    assert state == "BROKEN"
    assert "TorchPool raised TypeError" in detail


@pytest.mark.skipif(importlib.util.find_spec("procgen") is not None, reason="needs a Python without procgen")
def test_procgen_says_what_else_it_installs() -> None:
    found = {subject: (state, detail) for state, subject, detail in doctor._extras()}
    state, detail = found["extra procgen"]
    assert state == "--"
    if sys.version_info[:2] in ((3, 11), (3, 12)):
        assert 'run: pip install "envfleet[procgen]", which installs numpy<2; to keep a newer numpy run: pip' in detail
    else:
        assert "expected Python 3.11 or 3.12" in detail


def test_an_extra_counts_as_installed_if_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    # gymnasium[box2d] names box2d-py and swig; LunarLander runs with any distribution that provides Box2D.
    pytest.importorskip("Box2D", reason="needs Box2D")

    version_of = metadata.version

    def version(package: str) -> str:
        if package in ("box2d-py", "swig"):
            raise metadata.PackageNotFoundError(package)
        return version_of(package)

    monkeypatch.setattr(metadata, "version", version)
    found = {subject: (state, detail) for state, subject, detail in doctor._extras()}
    assert found["extra box2d"] == ("ok", "Box2D can be imported, without box2d-py, swig")


def test_another_first_observation_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        def __enter__(self) -> Wrong:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def reset(self) -> tuple[np.ndarray, dict[str, object]]:
            return np.zeros((4, 4), np.float32), {}

        def step(self, _: object) -> tuple[np.ndarray, np.ndarray]:
            return np.zeros((4, 4), np.float32), np.ones(4)

    monkeypatch.setattr(envfleet, "make", lambda *_, **__: Wrong())
    state, _, detail = doctor.self_test()
    assert state == "BROKEN"
    assert "the first observation" in detail


def test_works_without_the_cli_extra(cli: Any) -> None:
    result = cli("doctor", blocked=("rich", "matplotlib", "imageio"))
    assert (result.returncode, result.stderr) == (0, "")
    assert "All fine." in result.stdout


def test_jax_handlers_work_where_jax_is() -> None:
    state, _, detail = doctor.check_jax()
    if importlib.util.find_spec("jax") is None:
        assert (state, detail) == ("--", 'jax is not installed; run: pip install "envfleet[jax]"')
    else:
        assert state == "ok", detail
        assert "steps pools inside jit on cpu" in detail
