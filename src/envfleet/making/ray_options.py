"""The options of backend="ray": sizes, placement, and what is refused on other backends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from numbers import Real
from typing import Any

from envfleet.errors import ConfigError
from envfleet.spec import PoolConfig

# Fields of PoolConfig that no other backend knows.
RAY_OPTIONS = (
    "envs_per_worker",
    "inner_backend",
    "ray_address",
    "ray_options",
    "runtime_env",
    "ray_direct",
    "placement_timeout",
)
INNER_BACKENDS = ("native", "serial", "threads", "processes")
MAX_RAY_WORKERS = 1 << 16
_DEFAULTS = {field.name: field.default for field in fields(PoolConfig) if field.name in RAY_OPTIONS}

Integer = Callable[[str, Any, int, int], int]


def refuse_ray_options(backend: str, given: Mapping[str, Any]) -> None:
    """Raises when an option of the ray backend came with another one."""
    if backend == "ray":
        return
    for name in RAY_OPTIONS:
        if given.get(name) is not None and given[name] != _DEFAULTS[name]:
            raise ConfigError(f"{name} is for backend='ray', got it with backend={backend!r}; leave it out")


def ray_sizes(given: Mapping[str, Any], default_num_envs: int, integer: Integer, max_envs: int) -> dict[str, Any]:
    """num_envs and num_workers, where envs_per_worker decides one of them."""
    if given.get("envs_per_worker") is None:
        return dict(given)
    per_worker = integer("envs_per_worker", given["envs_per_worker"], 1, max_envs)
    num_envs, num_workers = given.get("num_envs"), given.get("num_workers")
    if num_envs is None and default_num_envs > 1:
        num_envs = default_num_envs
    if num_envs is None and not num_workers:
        raise ConfigError("envs_per_worker expected num_workers or num_envs beside it, got neither; name one of them")
    if num_workers:
        num_workers = integer("num_workers", num_workers, 1, MAX_RAY_WORKERS)
        product = num_workers * per_worker
        if num_envs is not None and integer("num_envs", num_envs, 1, max_envs) != product:
            raise ConfigError(
                f"num_envs expected num_workers * envs_per_worker = {num_workers} * {per_worker} = {product}, "
                f"got {num_envs}; leave one of the three out"
            )
        return {**given, "num_envs": product, "num_workers": num_workers}
    num_envs = integer("num_envs", num_envs, 1, max_envs)
    if num_envs % per_worker:
        raise ConfigError(
            f"num_envs expected a multiple of envs_per_worker={per_worker}, got {num_envs}; "
            "name num_workers instead, and shares may differ by one env"
        )
    return {**given, "num_envs": num_envs, "num_workers": num_envs // per_worker}


def ray_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The rest of the ray backend's options, checked."""
    inner = given.get("inner_backend")
    if inner is not None and inner not in INNER_BACKENDS:
        raise ConfigError(f"inner_backend expected one of {INNER_BACKENDS} or None, got {inner!r}")
    address = given.get("ray_address")
    if address is not None and (not isinstance(address, str) or not address):
        raise ConfigError(
            f"ray_address expected an address such as '10.0.0.1:6379', 'auto', 'local' or None, got {address!r}"
        )
    checked: dict[str, Any] = {"inner_backend": inner, "ray_address": address}
    for name in ("ray_options", "runtime_env"):
        value = given.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"{name} expected a dict, got {type(value).__name__}: {value!r}")
        checked[name] = None if value is None else dict(value)
    for name in ("max_restarts", "max_task_retries", "max_concurrency", "lifetime", "concurrency_groups", "name"):
        if name in (checked["ray_options"] or {}):
            raise ConfigError(
                f"ray_options cannot hold {name!r}: the pool decides it; on_error says what becomes of faults"
            )
    num_cpus: Any = (checked["ray_options"] or {}).get("num_cpus")
    if num_cpus is not None and (not isinstance(num_cpus, Real) or not 0 <= float(num_cpus) < MAX_RAY_WORKERS):
        raise ConfigError(f"ray_options['num_cpus'] expected a number of cores from 0 on, got {num_cpus!r}")
    return checked


@contextmanager
def refused_by_ray(options: Mapping[str, Any]) -> Iterator[None]:
    """Around the making of actors: Ray checks their options itself, each in its own way."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"ray_options and runtime_env expected what a Ray actor's .options() takes, got {dict(options)}: {error}"
        ) from error
