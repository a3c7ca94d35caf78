"""The settings that tune() measures, chosen from the machine's cores and a probe of the env."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envfleet.core.backends import find_backend, local_backends
from envfleet.core.errors import ConfigError
from envfleet.core.option_checks import integer_option
from envfleet.tuning.probe import Probe
from envfleet.tuning.report import Case

DEFAULT_PYTHON_ENVS, DEFAULT_NATIVE_ENVS = 64, 1024
_WAITING_WORKERS_PER_CORE, _MIN_WAITING_WORKERS, _MAX_WAITING_WORKERS = 8, 16, 64
_MAX = 2**31 - 1


def backends_for(backends: Any, *, is_native: bool, needs_processes: bool) -> tuple[str, ...]:
    """Return the backends to measure: the requested ones, or those that can run the env."""
    if backends is None:
        if is_native:
            return ("native",)
        return tuple(
            backend.name
            for backend in local_backends()
            if backend.runs_python_envs and (backend.has_processes or not needs_processes)
        )
    names = (backends,) if isinstance(backends, str) else tuple(backends)
    known = tuple(backend.name for backend in local_backends())
    if not names or not all(name in known for name in names):
        raise ConfigError(f"backends expected names from {known}, got {backends!r}")
    return tuple(dict.fromkeys(names))


def counts_of(name: str, value: Any, highest: int = _MAX) -> list[int] | None:
    """Check an option of tune() that is an integer or several, and return them ascending; None if it is None."""
    if value is None:
        return None
    values = list(value) if isinstance(value, (list, tuple, range)) else [value]
    if not values:
        raise ConfigError(f"{name} expected an integer or a list of integers, got {value!r}")
    return sorted({integer_option(name, own, 1, highest) for own in values})


def default_num_envs(probe: Probe | None, cores: int, seconds: float) -> int:
    """Return the default number of envs, which is lower if building or stepping them would use up the time.

    probe: of the Python env; None if only the native backend is measured.
    """
    if probe is None:
        return DEFAULT_NATIVE_ENVS
    num_envs = DEFAULT_PYTHON_ENVS
    while num_envs > 2 * cores and (
        num_envs * probe.step_s / cores > seconds / 40 or num_envs * probe.build_s > seconds / 20
    ):
        num_envs //= 2
    return num_envs


def worker_counts(cores: int, num_envs: int, waits: bool) -> list[int]:
    """Return 1, 2, 4 ... up to the number of cores; more for envs that wait."""
    highest = cores
    if waits:
        highest = max(cores, min(max(_WAITING_WORKERS_PER_CORE * cores, _MIN_WAITING_WORKERS), _MAX_WAITING_WORKERS))
    counts = {cores, highest, *(2**power for power in range(highest.bit_length()))}
    return sorted(count for count in counts if count <= num_envs) or [1]


def batch_sizes_for(num_envs: int, batch_sizes: Sequence[int] | None) -> list[int]:
    """Return the batch sizes to measure, the largest first."""
    if batch_sizes is None:
        batch_sizes = num_envs, max(1, num_envs // 2), max(1, num_envs // 4)
    sizes = sorted({size for size in batch_sizes if size <= num_envs}, reverse=True)
    if not sizes:
        raise ConfigError(f"batch_sizes expected a size of at most num_envs={num_envs}, got only larger ones")
    return sizes


def cases_of(
    backend: str, num_envs: int, batch_size: int, num_workers: Sequence[int] | None, probe: Probe, cores: int
) -> list[Case]:
    """Return a backend's cases with this batch size, one for each number of workers."""
    counts = worker_counts(cores, num_envs, probe.waits) if num_workers is None else num_workers
    counts = sorted({min(count, num_envs) for count in counts}) if find_backend(backend).is_parallel else [1]
    return [Case(backend, num_envs, batch_size, count) for count in counts]


def expected_s(case: Case, probe: Probe, cores: int) -> float:
    """Estimate how long it takes to build the pool, reset its envs and step each once."""
    builders = case.num_workers if find_backend(case.backend).has_processes else 1
    in_parallel = case.num_workers
    if not probe.waits:
        in_parallel, builders = min(in_parallel, cores), min(builders, cores)
    return case.num_envs * (probe.build_s / builders + (probe.reset_s + probe.step_s) / in_parallel)
