"""Envs on Ray: the builders of inner executors, which travel to the actors, and the executor in the caller."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from envfleet import _native
from envfleet.building.builders import EnvBuilder, EnvBuilders
from envfleet.building.native_envs import NativeEntry, load_entry
from envfleet.core.backends import find_backend
from envfleet.core.errors import CompileError
from envfleet.core.executor import Executor
from envfleet.core.families import native_family
from envfleet.core.options import PoolConfig, RayConfig
from envfleet.core.spec import EnvSpec
from envfleet.envs.compile_cache import LibraryCache
from envfleet.envs.compiler import NoHomeFolderError, cache_folder
from envfleet.executors.native import NativeExecutor, check_native_options
from envfleet.executors.python.building import EnvDescription, SpecMaker, pickle_builders
from envfleet.executors.ray.executor import RayExecutor, create_executor


@dataclass(frozen=True)
class NativeExecutorBuilder:
    """Builds native envs. libraries: the plug-ins that define them, by file name."""

    native_id: str
    spec: EnvSpec
    config: PoolConfig
    params: tuple[Mapping[str, Any], ...]
    libraries: Mapping[str, bytes] = field(default_factory=dict)

    def build(self) -> tuple[Executor, EnvDescription]:
        """Return the native executor and the description of its envs."""
        if not self.libraries:
            load_entry(NativeEntry(self.native_id))
        elif self.native_id not in _native.list_env_types():
            for name, data in self.libraries.items():
                _load_library(name, data)
        description = EnvDescription(
            self.spec.observation_space, self.spec.action_space, self.spec.metadata, self.spec.render_mode
        )
        make_renderer = native_family(self.native_id).make_renderer
        return NativeExecutor(self.native_id, self.spec, self.config, self.params, make_renderer), description


@dataclass(frozen=True)
class OffsetEnvBuilder:
    """An env builder for a worker whose local env 0 is first_env: envs are built with their ids in the whole pool."""

    builder: EnvBuilder
    first_env: int

    def build(self, local_id: int) -> Any:
        """Build the env."""
        return self.builder.build(self.first_env + local_id)


@dataclass(frozen=True)
class PythonExecutorBuilder:
    """Builds Python envs on an inner backend."""

    name: str
    backend: str
    config: PoolConfig
    builders: tuple[Any, ...]
    max_episode_steps: int | None

    def build(self) -> tuple[Executor, EnvDescription]:
        """Return the inner executor and the description of its envs."""
        descriptions: list[EnvDescription] = []

        def make_spec(description: EnvDescription) -> EnvSpec:
            descriptions.append(description)
            return EnvSpec(
                id=self.name,
                entry_point=None,
                observation_space=description.observation_space,
                action_space=description.action_space,
                backend=self.backend,
                metadata=description.metadata,
                render_mode=description.render_mode,
            )

        config = self.config
        if config.num_workers == 0:
            config = replace(config, num_workers=min(config.num_envs, _native.usable_cores()))
        env_builders = EnvBuilders(self.name, self.builders, self.max_episode_steps)
        executor, _ = find_backend(self.backend).make_python(env_builders, make_spec, config, ({},))
        return executor, descriptions[0]


def create_native_executor(
    native_id: str,
    spec: EnvSpec,
    config: PoolConfig,
    params: Sequence[Mapping[str, Any]],
    libraries: Mapping[str, bytes],
) -> tuple[RayExecutor, PoolConfig]:
    """Join the cluster and run native envs on it. num_workers 0: one per core of the cluster."""

    def builders(config: PoolConfig, worker_envs: Sequence[range]) -> list[bytes]:
        return _native_builders(native_id, spec, config, params, worker_envs, libraries)

    return create_executor(builders, lambda _: spec, config, params, functools.partial(check_native_options, spec))


def create_python_executor(
    env_builders: EnvBuilders,
    make_spec: SpecMaker,
    config: PoolConfig,
    params: Sequence[Mapping[str, Any]],
) -> tuple[RayExecutor, PoolConfig]:
    """Join the cluster and run Python envs on it. num_workers 0: one per core of the cluster."""
    backend = config.ray.inner_backend or "serial"

    def builders(config: PoolConfig, worker_envs: Sequence[range]) -> list[bytes]:
        return _python_builders(env_builders, backend, config, worker_envs)

    return create_executor(builders, make_spec, config, params, None)


def _native_builders(
    native_id: str,
    spec: EnvSpec,
    config: PoolConfig,
    params: Sequence[Mapping[str, Any]],
    worker_envs: Sequence[range],
    libraries: Mapping[str, bytes],
) -> list[bytes]:
    """Return a pickled builder for each worker's envs."""
    return [
        pickle_builders(
            NativeExecutorBuilder(
                native_id,
                spec,
                _inner_config(config, envs, max(1, config.ray.inner_num_workers or 0)),
                tuple(params) if len(params) == 1 else tuple(params[envs.start : envs.stop]),
                libraries,
            ),
            "ray",
        )
        for envs in worker_envs
    ]


def _python_builders(
    env_builders: EnvBuilders, backend: str, config: PoolConfig, worker_envs: Sequence[range]
) -> list[bytes]:
    """Return a pickled builder for each worker's envs."""
    pickled = []
    num_workers = (config.ray.inner_num_workers or 0) if find_backend(backend).is_parallel else 1
    for envs in worker_envs:
        # Envs that share a builder go on sharing it, so that it is pickled once.
        offset: dict[int, OffsetEnvBuilder] = {}
        builders = tuple(
            offset.setdefault(id(builder), OffsetEnvBuilder(builder, envs.start))
            for builder in env_builders.builders[envs.start : envs.stop]
        )
        inner = _inner_config(config, envs, num_workers)
        builder = PythonExecutorBuilder(env_builders.name, backend, inner, builders, env_builders.max_episode_steps)
        pickled.append(pickle_builders(builder, "ray"))
    return pickled


def _inner_config(config: PoolConfig, envs: range, num_workers: int) -> PoolConfig:
    """Return the config of one worker's inner pool, synchronous. num_workers 0: one per core of its machine.

    Its executor does what on_error says with rows; the pool in the caller handles the faults.
    """
    return replace(
        config,
        num_envs=len(envs),
        batch_size=len(envs),
        num_workers=min(num_workers, len(envs)),
        step_timeout=None,  # the caller's: it covers the way to the actor as well
        copy=False,  # a row is read and sent before the next one is written
        ray=RayConfig(),
    )


_CACHE_VARIABLE = "runtime_env={'env_vars': {'ENVFLEET_CACHE': ...}}"


def _load_library(name: str, data: bytes) -> None:
    """Write a plug-in's library to a file of this machine and load it. Others must not be able to replace the file."""
    key = f"{Path(name).stem}-{hashlib.sha256(data).hexdigest()[:16]}"

    def store(folder: Path) -> Path:
        cache = LibraryCache(
            folder,
            expected="make() expected a cache folder on the Ray worker",
            remedy=f"pass {_CACHE_VARIABLE} with a folder of your own",
        )
        return cache.find(key) or cache.store(key, data, {})

    with contextlib.ExitStack() as stack:
        try:
            library = store(cache_folder())
        except (OSError, NoHomeFolderError):  # e.g. the home folder of a container: missing, read-only or full
            try:
                # Removed below: a library that is loaded does not need its file.
                temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="envfleet-plugin-"))
                library = store(Path(temporary))
            except OSError as error:
                raise CompileError(
                    f"{name} could not be stored on the Ray worker: {error}; "
                    f"pass {_CACHE_VARIABLE} with a writable folder that has enough space"
                ) from error
        _native.load_plugin(str(library))
