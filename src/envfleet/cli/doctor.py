"""envfleet doctor: shows what this installation has, and checks that its core works.

Plain text, without rich: the doctor must work without any extra.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np

import envfleet
from envfleet import _native
from envfleet.cli import arguments as args
from envfleet.core import backends
from envfleet.core.errors import CompileError, EnvfleetError
from envfleet.envs import compiler
from envfleet.envs.compile_cache import LibraryCache

OK, MISSING, BROKEN = "ok", "--", "BROKEN"
Finding = tuple[str, str, str]  # state, subject, detail

# What envfleet imports for an extra. If a package of it is not installed, these decide.
_MODULES = {
    "atari": ("ale_py",),
    "box2d": ("Box2D",),
    "cli": ("rich", "matplotlib", "imageio", "imageio_ffmpeg"),
    "dm": ("dm_env",),
    "dm_control": ("dm_control",),
    "minigrid": ("minigrid",),
    "mujoco": ("mujoco",),
    "pettingzoo": ("pettingzoo",),
    "progress": ("tqdm",),
    "ray": ("ray",),
    "render": ("pygame",),
    "rllib": ("ray.rllib",),
    "sb3": ("stable_baselines3",),
    "tianshou": ("tianshou",),
    "torch": ("torch",),
    "torchrl": ("torchrl", "tensordict"),
    "vizdoom": ("vizdoom",),
}
_TIME_LIMIT_S = 60.0
_SUBJECT_WIDTH = len("extra pettingzoo_atari")
_CXX_LINE = "#include <concepts>\nint same(std::integral auto number) { return number; }\ntemplate int same(int);\n"
_PROGRAM = "doctor.time_processes()"


def add_parser(commands: args.Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "doctor",
        help="check this installation",
        description="Shows what this installation has and whether its core works. The exit code is 1 if the core is "
        "broken; a missing compiler or extra is not an error.",
    )
    parser.set_defaults(command=doctor)


def doctor(arguments: argparse.Namespace) -> int:
    """Run the command."""
    is_broken = False
    for subjects, find in _PARTS:
        _show_status(f"examining {subjects} ...")
        for state, subject, detail in find():
            _show_status("")
            print(f"{state:<6}  {subject:<{_SUBJECT_WIDTH}}  {detail}".rstrip(), flush=True)
            is_broken |= state == BROKEN
            _show_status(f"examining {subjects} ...")
    _show_status("")
    print("\nSomething is broken; please report this output." if is_broken else "\nAll fine.")
    return 1 if is_broken else 0


def _show_status(text: str) -> None:
    """Replace the line below the findings; only on a terminal."""
    if sys.stdout.isatty():
        print(f"\r\x1b[K{text}", end="", flush=True)


def _basics() -> Iterator[Finding]:
    yield OK, "envfleet", f"{envfleet.__version__} ({os.path.dirname(envfleet.__file__)})"
    yield OK, "python", f"{platform.python_version()} ({platform.python_implementation()})"
    yield OK, "platform", platform.platform()
    yield OK, "numpy", np.__version__
    yield OK, "gymnasium", gymnasium.__version__
    yield OK, "cores", f"{_native.usable_cores()} usable of {os.cpu_count()}"
    yield OK, "features", ", ".join(_native.features) or "none; portable code instead"
    yield _compiler()
    yield _cache()
    yield OK, "environments", f"{len(envfleet.list_all_envs())} of envfleet, and every id of Gymnasium"
    yield self_test()


def self_test() -> Finding:
    """Step a CartPole pool and compare it with Gymnasium's env of the same seed."""
    subject = "self-test"
    try:
        with envfleet.make("CartPole-v1", num_envs=4, num_workers=2, seed=7) as envs:
            first, _ = envs.reset()
            stepped, reward, *_ = envs.step(np.ones(4, dtype=np.int64))
        oracle = gymnasium.make("CartPole-v1")
        expected, _ = oracle.reset(seed=7)
        expected_next = oracle.step(1)[0]
        oracle.close()
    except Exception as error:  # whatever it is, the doctor reports it
        return BROKEN, subject, f"CartPole-v1 raised {type(error).__name__}: {error}"
    # One float32 rounding either way, as in tests/oracle.
    for name, ours, theirs in (("first", first[0], expected), ("second", stepped[0], expected_next)):
        if not np.allclose(ours, theirs, rtol=2.0**-22, atol=0):
            return BROKEN, subject, f"the {name} observation of CartPole-v1 expected {theirs}, got {ours}"
    if not (reward == 1).all():
        return BROKEN, subject, f"CartPole-v1 expected rewards of 1, got {reward}"
    return OK, subject, "CartPole-v1 starts and steps like Gymnasium's"


def check_torch() -> Finding:
    """Report torch and CUDA, and whether batches reach the GPU from page-locked memory."""
    subject = "torch"
    if importlib.util.find_spec("torch") is None:
        return MISSING, subject, 'not installed; for tensors on a device run: pip install "envfleet[torch]"'
    try:
        import torch

        from envfleet.apis.torch import TorchPool

        has_cuda = torch.cuda.is_available()
        device, num_envs = ("cuda", 4096) if has_cuda else ("cpu", 4)
        with TorchPool("CartPole-v1", num_envs=num_envs, seed=7, device=device) as envs, _cartpoles(num_envs) as pool:
            obs, _ = envs.reset()
            is_equal = np.array_equal(obs.cpu().numpy(), pool.reset().obs)
            is_locked = has_cuda and _native.lock_pages(envs.groups[0].pool.step(np.zeros(num_envs, np.int64)).obs)
    except Exception as error:  # whatever it is, the doctor reports it
        return BROKEN, subject, f"TorchPool raised {type(error).__name__}: {error}"
    where = f"{torch.__version__} without a CUDA device"
    if has_cuda:
        where = f"{torch.__version__}, CUDA {torch.version.cuda} on {torch.cuda.get_device_name()}"
    if not is_equal:
        return BROKEN, subject, f"{where}: the tensors of a batch differ from its arrays"
    if not has_cuda:
        return OK, subject, f"{where}: TorchPool(..., device='cpu') works"
    if not is_locked:
        return OK, subject, f"{where}; batches cannot be page-locked here and are copied more slowly (see ulimit -l)"
    return OK, subject, f"{where}; batches are page-locked"


def _cartpoles(num_envs: int) -> envfleet.Pool:
    return envfleet.make_pool("CartPole-v1", num_envs=num_envs, seed=7)


def check_jax() -> Finding:
    """Step a CartPole pool inside jax.jit, where jax is installed: the handlers are built at their first use."""
    subject = "jax handlers"
    if importlib.util.find_spec("jax") is None:
        return MISSING, subject, 'jax is not installed; run: pip install "envfleet[jax]"'
    try:
        import jax
        import jax.numpy as jnp

        from envfleet.apis.jax import JaxPool

        with JaxPool("CartPole-v1", num_envs=4, seed=7) as envs:
            handle, _ = envs.reset()
            _, (obs, *_) = jax.jit(envs.step)(handle, jnp.ones(4, jnp.int32))
            stepped = np.asarray(obs)
        with envfleet.make("CartPole-v1", num_envs=4, seed=7) as same:
            same.reset()
            expected = same.step(np.ones(4, dtype=np.int64))[0]
    except CompileError as error:
        return MISSING, subject, str(error)
    except Exception as error:  # whatever it is, the doctor reports it
        return BROKEN, subject, f"CartPole-v1 inside jax.jit raised {type(error).__name__}: {error}"
    if not np.array_equal(stepped, expected):
        return BROKEN, subject, f"CartPole-v1 inside jax.jit expected {expected[0]}, got {stepped[0]}"
    devices = ", ".join(sorted({device.platform for device in jax.devices()}))
    return OK, subject, f"jax {jax.__version__} steps pools inside jit on {devices}"


def _compiler() -> Finding:
    try:
        command = compiler.find_compiler()
    except CompileError as error:
        return MISSING, "compiler", str(error)
    try:
        reason = _compile_a_line(command)
        version = compiler.run_program([*command, "--version"], _TIME_LIMIT_S).stdout.partition("\n")[0]
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    if reason:
        return MISSING, "compiler", f"{shlex.join(command)} cannot compile C++20: {reason}; set CXX to another compiler"
    return OK, "compiler", f"{shlex.join(command)} ({version})"


def _compile_a_line(command: Sequence[str]) -> str:
    """Build a library from a line of C++20, and return why this failed, or an empty string."""
    with tempfile.TemporaryDirectory(prefix="envfleet-doctor-") as folder:
        source, library = Path(folder, "line.cc"), Path(folder, "line.so")
        source.write_text(_CXX_LINE)
        build = [*command, "-std=c++20", "-fPIC", "-shared", str(source), "-o", str(library)]
        result = compiler.run_program(build, _TIME_LIMIT_S)
        if result.returncode != 0:
            return (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[0]
        return "" if library.is_file() else "it wrote no library"


def _cache() -> Finding:
    try:
        folder = compiler.cache_folder()
        if folder.exists():
            LibraryCache(folder)  # raises if other users can write to it
        # Where compile() would make the folder: the doctor leaves nothing behind.
        with tempfile.TemporaryFile(dir=next(own for own in (folder, *folder.absolute().parents) if own.exists())):
            pass
    except CompileError as error:
        return MISSING, "cache", str(error)
    except OSError as error:
        return (
            MISSING,
            "cache",
            f"{folder} cannot be written: {error.strerror}; set ENVFLEET_CACHE to a writable folder",
        )
    return OK, "cache", str(folder)


def _extras() -> Iterator[Finding]:
    try:
        extras = metadata.metadata("envfleet").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        yield MISSING, "extras", "unknown: envfleet runs from a folder and is not installed"
        return
    for extra in map(_extra_name, extras):
        found, missing = [], []
        for package in sorted(_packages_of("envfleet", extra)):
            try:
                found.append(f"{package} {metadata.version(package)}")
            except metadata.PackageNotFoundError:
                missing.append(package)
        if missing and _imports(_MODULES.get(extra, ())):
            # Another distribution provides the same module, such as Box2D's own instead of box2d-py.
            yield OK, f"extra {extra}", f"{', '.join(_MODULES[extra])} can be imported, without {', '.join(missing)}"
        elif missing:
            yield MISSING, f"extra {extra}", f"{', '.join(missing)} not installed; {_remedy(extra)}"
        else:
            yield OK, f"extra {extra}", ", ".join(found)


def _extra_name(name: str) -> str:
    """Return the name of an extra as pyproject.toml writes it; the metadata has pettingzoo-atari."""
    return name.replace("-", "_")


def _remedy(extra: str) -> str:
    if extra == "procgen":
        # It may replace numpy, or have no wheels for this Python. Only a Procgen env says so.
        from envfleet.families.procgen.plugin import installed_procgen

        try:
            installed_procgen()
        except EnvfleetError as error:
            return str(error).rpartition("not installed; ")[2]
    return f'run: pip install "envfleet[{extra}]"'


def _imports(modules: Sequence[str]) -> bool:
    """Return whether all of these modules can be imported; False for none."""
    if not modules:
        return False
    # In a process of its own: a package that is installed in part may crash.
    program = f"import sys; sys.path[:] = {sys.path!r}; import {', '.join(modules)}"
    try:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=_TIME_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _packages_of(distribution: str, extra: str) -> set[str]:
    """Return the packages that an extra adds; for gymnasium[toy-text], those that toy-text adds to gymnasium."""
    packages: set[str] = set()
    try:
        requirements = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return {distribution}
    for requirement in requirements:
        marker = re.search(r"""extra\s*==\s*['"]([^'"]+)['"]""", requirement)
        parts = re.match(r"([\w.-]+)\s*(?:\[([^\]]+)\])?", requirement)
        if marker is None or _extra_name(marker.group(1)) != _extra_name(extra) or parts is None:
            continue
        name, inner = parts.groups()
        if inner is None:
            packages.add(name)
        for inner_extra in (inner or "").split(","):
            packages |= _packages_of(name, inner_extra.strip()) if inner_extra else set()
    return packages


# --- backends -----------------------------------------------------------------------------------


class TinyEnv(gymnasium.Env[Any, Any]):
    """Returns its action as observation and reward."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **_: object) -> tuple[int, dict[str, object]]:
        """Return 0."""
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, object]]:
        """Return the action as observation and reward."""
        return int(action), float(action), False, False, {}


def _backends() -> Iterator[Finding]:
    has_ray = _imports(("ray",))
    shown = backends.all_backends() if has_ray else backends.local_backends()
    names = ", ".join((backends.AUTO, *(backend.name for backend in shown)))
    yield OK, "backends", names if has_ray else f'{names}; for ray run: pip install "envfleet[ray]"'
    yield _check_in_process("serial", 1, "any Python env, one after the other")
    yield _check_in_process("threads", 2, describe_threads())
    yield _memfd()
    yield check_processes()


def describe_threads() -> str:
    """Return which envs benefit from threads on this interpreter."""
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        return "this Python has a GIL: threads only help envs that release it; envfleet tune measures it"
    return "the GIL is off: Python envs run in parallel"


def _check_in_process(backend: Literal["serial", "threads"], num_workers: int, detail: str) -> Finding:
    try:
        with envfleet.make_pool(TinyEnv, num_envs=2, num_workers=num_workers, backend=backend) as pool:
            step_tiny(pool)
    except Exception as error:  # whatever it is, the doctor reports it
        return BROKEN, backend, f"a pool of a tiny env raised {type(error).__name__}: {error}"
    return OK, backend, detail


def step_tiny(pool: envfleet.Pool) -> None:
    """Step two TinyEnvs and raise if the results are wrong."""
    pool.reset(timeout=_TIME_LIMIT_S)
    batch = pool.step(np.array([0, 1]), timeout=_TIME_LIMIT_S)
    if batch.obs.tolist() != [0, 1] or batch.reward.tolist() != [0.0, 1.0]:
        raise RuntimeError(f"expected rows of 0 and 1, got {batch.obs} and rewards {batch.reward}")


def _memfd() -> Finding:
    if "memfd" not in _native.features:
        return MISSING, "memfd", "not in this build; shared memory is an unlinked temporary file instead"
    try:
        os.close(os.memfd_create("envfleet"))
    except OSError as error:
        return BROKEN, "memfd", f"memfd_create() raised {error}; processes need it for shared memory"
    return OK, "memfd", "anonymous shared memory: nothing is left behind"


def check_processes(time_limit_s: float = _TIME_LIMIT_S) -> Finding:
    """Start a fork server and a pool of two workers in a separate process, which can be killed if it hangs."""
    # With this process's path: envfleet may not be installed.
    program = f"import sys; sys.path[:] = {sys.path!r}; from envfleet.cli import doctor; {_PROGRAM}"
    try:
        result = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=time_limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return BROKEN, "processes", f"a pool of two workers did not start and step within {time_limit_s:g} s"
    if result.returncode != 0:
        last = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1]
        return BROKEN, "processes", f"a pool of two workers failed: {last}"
    first_s, second_s = json.loads(result.stdout)
    return (
        OK,
        "processes",
        f"fork server and two workers started and stepped in {first_s:.2f} s; a second pool in {second_s * 1e3:.0f} ms",
    )


def time_processes() -> None:
    """Print how long the first and the second pool of a process take, in seconds."""
    durations_s = []
    for _ in range(2):
        started = time.perf_counter()
        with envfleet.make_pool(TinyEnv, num_envs=2, num_workers=2, backend="processes") as pool:
            step_tiny(pool)
            durations_s.append(time.perf_counter() - started)
    print(json.dumps(durations_s))


# What is examined, and by which function.
_PARTS: tuple[tuple[str, Callable[[], Iterable[Finding]]], ...] = (
    ("the installation", _basics),
    ("the backends", _backends),
    ("the extras", _extras),
    ("torch", lambda: [check_torch()]),
    ("jax", lambda: [check_jax()]),
)
