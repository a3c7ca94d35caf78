"""From what make() was given to a RayExecutor: joins the cluster, cuts the shares, writes the plans."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from envfleet import _native
from envfleet.executors.native import check_native_options
from envfleet.executors.python.building import SpecMaker
from envfleet.executors.ray import cluster as ray_cluster
from envfleet.executors.ray.executor import RayExecutor
from envfleet.executors.ray.plans import native_plans, python_plans
from envfleet.making.builders import Recipe
from envfleet.spec import EnvSpec, PoolConfig

Planner = Callable[[PoolConfig, Sequence[range]], list[bytes]]


def ray_native(
    native_id: str,
    spec: EnvSpec,
    config: PoolConfig,
    values: Sequence[Mapping[str, Any]],
    libraries: Mapping[str, bytes],
    given: frozenset[str],
) -> tuple[RayExecutor, PoolConfig]:
    """Native envs on actors. given: the options that were named."""

    def plans(config: PoolConfig, shares: Sequence[range]) -> list[bytes]:
        return native_plans(native_id, spec, config, values, shares, libraries)

    return _made(plans, lambda _: spec, config, values, given, partial(check_native_options, spec))


def ray_python(
    recipe: Recipe,
    make_spec: SpecMaker,
    config: PoolConfig,
    params: Sequence[Mapping[str, Any]],
    given: frozenset[str],
) -> tuple[RayExecutor, PoolConfig]:
    """Python envs on actors."""
    backend = config.inner_backend or "serial"

    def plans(config: PoolConfig, shares: Sequence[range]) -> list[bytes]:
        return python_plans(recipe, backend, config, shares)

    return _made(plans, make_spec, config, params, given, None)


def _made(
    plans: Planner,
    make_spec: SpecMaker,
    config: PoolConfig,
    params: Sequence[Mapping[str, Any]],
    given: frozenset[str],
    check_options: Callable[[Mapping[str, Any]], None] | None,
) -> tuple[RayExecutor, PoolConfig]:
    num_cpus = int((config.ray_options or {}).get("num_cpus") or 0)
    config = replace(config, num_threads=config.num_threads or num_cpus)
    has_num_workers = not given.isdisjoint({"num_workers", "envs_per_worker"})
    if has_num_workers:
        # Pickled before anything is started: what cannot travel is told at once.
        shares = _shares(config)
        pickled = plans(config, shares)
    lease = ray_cluster.join(config.ray_address)
    try:
        if not has_num_workers:
            # As many as the cluster has cores.
            config = replace(config, num_workers=min(config.num_envs, ray_cluster.num_cpus(lease.ray)))
            shares = _shares(config)
            pickled = plans(config, shares)
        return RayExecutor(lease, make_spec, config, params, pickled, shares, check_options), config
    except BaseException:
        lease.leave()
        raise


def _shares(config: PoolConfig) -> list[range]:
    num_workers = config.num_workers
    firsts = [_native.first_env_of(config.num_envs, num_workers, worker) for worker in range(num_workers + 1)]
    return [range(first, end) for first, end in itertools.pairwise(firsts)]
