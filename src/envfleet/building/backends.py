"""The backends of envfleet. Importing this module registers them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from envfleet.building.builders import EnvBuilders
from envfleet.core.backends import Backend, register_backend
from envfleet.core.executor import Executor
from envfleet.core.options import PoolConfig
from envfleet.core.spec import EnvSpec
from envfleet.executors.native import NativeExecutor
from envfleet.executors.processes.executor import ProcessesExecutor
from envfleet.executors.python.building import SpecMaker
from envfleet.executors.serial import SerialExecutor
from envfleet.executors.threads import ThreadsExecutor

Params = Sequence[Mapping[str, Any]]


def _native(
    native_id: str,
    spec: EnvSpec,
    config: PoolConfig,
    params: Params,
    make_renderer: Any,
    plugin: Path | None,
) -> tuple[Executor, PoolConfig]:
    return NativeExecutor(native_id, spec, config, params, make_renderer), config


def _python(executor_class: Callable[..., Executor]) -> Callable[..., tuple[Executor, PoolConfig]]:
    def make(
        env_builders: EnvBuilders, make_spec: SpecMaker, config: PoolConfig, params: Params
    ) -> tuple[Executor, PoolConfig]:
        return executor_class(env_builders, make_spec, config, params), config

    return make


def _native_on_ray(
    native_id: str,
    spec: EnvSpec,
    config: PoolConfig,
    params: Params,
    make_renderer: Any,
    plugin: Path | None,
) -> tuple[Executor, PoolConfig]:
    from envfleet.building.ray_envs import create_native_executor

    libraries = {} if plugin is None else {plugin.name: plugin.read_bytes()}
    return create_native_executor(native_id, spec, config, params, libraries)


def _python_on_ray(
    env_builders: EnvBuilders, make_spec: SpecMaker, config: PoolConfig, params: Params
) -> tuple[Executor, PoolConfig]:
    from envfleet.building.ray_envs import create_python_executor

    return create_python_executor(env_builders, make_spec, config, params)


register_backend(Backend("native", make_native=_native, runs_python_envs=False))
register_backend(Backend("serial", _python(SerialExecutor), is_parallel=False))
register_backend(Backend("threads", _python(ThreadsExecutor)))
register_backend(Backend("processes", _python(ProcessesExecutor), has_processes=True))
register_backend(Backend("ray", _python_on_ray, _native_on_ray, is_local=False, has_processes=True))
