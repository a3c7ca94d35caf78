"""Plans: what an actor needs to build its share of the envs, fit to travel."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from envfleet import _native
from envfleet.executors.backends import PYTHON_EXECUTORS
from envfleet.executors.base import Executor
from envfleet.executors.native import NativeExecutor
from envfleet.executors.python.building import EnvDescription, pickle_builders
from envfleet.making.builders import EnvBuilder, Recipe, adopt_registered, registered_envs
from envfleet.making.native_envs import Entry, family_of_native, load_entry
from envfleet.spec import EnvSpec, PoolConfig


class Plan(Protocol):
    """What builds the envs of a share, wherever it is unpickled."""

    def build(self) -> tuple[Executor, EnvDescription]:
        """The executor of the share, and what its envs say of themselves."""


@dataclass(frozen=True)
class NativePlan:
    """Native envs. libraries: of those that come from a plug-in, by file name."""

    native_id: str
    spec: EnvSpec
    config: PoolConfig
    values: tuple[Mapping[str, Any], ...]
    libraries: Mapping[str, bytes] = field(default_factory=dict)

    def build(self) -> tuple[Executor, EnvDescription]:
        """The native executor of the share."""
        if not self.libraries:
            load_entry(Entry(self.native_id))
        elif self.native_id not in _native.list_env_types():
            for name, data in self.libraries.items():
                _native.load_plugin(str(_stored(name, data)))
        portrait = EnvDescription(
            self.spec.observation_space, self.spec.action_space, self.spec.metadata, self.spec.render_mode
        )
        make_renderer = family_of_native(self.native_id).make_renderer
        return NativeExecutor(self.native_id, self.spec, self.config, self.values, make_renderer), portrait


@dataclass(frozen=True)
class ShiftedBuilder:
    """A builder that counts from its share's first env: envs are told their ids in the whole pool."""

    builder: EnvBuilder
    first_env: int

    def build(self, local_id: int) -> Any:
        """The env."""
        return self.builder.build(self.first_env + local_id)


@dataclass(frozen=True)
class PythonPlan:
    """Python envs on an inner backend."""

    name: str
    backend: str
    config: PoolConfig
    builders: tuple[Any, ...]
    max_episode_steps: int | None

    def build(self) -> tuple[Executor, EnvDescription]:
        """The inner executor of the share."""
        seen: list[EnvDescription] = []

        def make_spec(portrait: EnvDescription) -> EnvSpec:
            seen.append(portrait)
            return EnvSpec(
                id=self.name,
                entry_point=None,
                observation_space=portrait.observation_space,
                action_space=portrait.action_space,
                backend=self.backend,
                metadata=portrait.metadata,
                render_mode=portrait.render_mode,
            )

        config = self.config
        if config.num_workers == 0:
            config = replace(config, num_workers=min(config.num_envs, _native.usable_cores()))
        recipe = Recipe(self.name, self.builders, self.max_episode_steps)
        return PYTHON_EXECUTORS[self.backend](recipe, make_spec, config, ({},)), seen[0]


def native_plans(
    native_id: str,
    spec: EnvSpec,
    config: PoolConfig,
    values: Sequence[Mapping[str, Any]],
    shares: Sequence[range],
    libraries: Mapping[str, bytes],
) -> list[bytes]:
    """A plan for each share, pickled."""
    return [
        pickle_builders(
            NativePlan(
                native_id,
                spec,
                _inner_config(config, share, config.num_threads),
                tuple(values) if len(values) == 1 else tuple(values[share.start : share.stop]),
                libraries,
            ),
            "ray",
        )
        for share in shares
    ]


def python_plans(recipe: Recipe, backend: str, config: PoolConfig, shares: Sequence[range]) -> list[bytes]:
    """A plan for each share, pickled."""
    plans = []
    for share in shares:
        shifted: dict[int, ShiftedBuilder] = {}
        own = recipe.builders[share.start : share.stop]
        builders = tuple(shifted.setdefault(id(each), ShiftedBuilder(each, share.start)) for each in own)
        inner = _inner_config(config, share, 1 if backend == "serial" else config.num_threads)
        plan = PythonPlan(recipe.name, backend, inner, builders, recipe.max_episode_steps)
        plans.append(pickle_builders(plan, "ray"))
    return plans


def _inner_config(config: PoolConfig, share: range, num_workers: int) -> PoolConfig:
    """The config of one share: all of its envs at once. num_workers 0: as many as its machine has cores."""
    return PoolConfig(
        num_envs=len(share),
        batch_size=len(share),
        num_threads=max(1, min(num_workers, len(share))),
        num_workers=min(num_workers, len(share)),
        thread_affinity_offset=config.thread_affinity_offset,
        autoreset_mode=config.autoreset_mode,
        max_episode_steps=config.max_episode_steps,
        reward_threshold=config.reward_threshold,
        render_mode=config.render_mode,
        start_method=config.start_method,
        check_actions=config.check_actions,
        copy=False,  # a row is read, and sent, before the next one is written
    )


@dataclass(frozen=True)
class Luggage:
    """What an actor takes over from the caller before it loads anything of the user's.

    Not the environment variables and the folder: the actor's machine has its own; runtime_env sets them.
    """

    sys_path: tuple[str, ...]
    registered: bytes

    @staticmethod
    def here() -> Luggage:
        """That of this process, now."""
        return Luggage(tuple(map(str, sys.path)), registered_envs())

    def unpack(self) -> None:
        """Makes it this process's."""
        sys.path.extend(path for path in self.sys_path if path not in sys.path and os.path.isdir(path or "."))
        adopt_registered(self.registered)


def _stored(name: str, data: bytes) -> Path:
    """A plug-in's library as a file of this machine. Its name holds a digest of what it was built from."""
    folder = Path(tempfile.gettempdir(), f"envfleet-plugins-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / name
    if not path.exists() or path.stat().st_size != len(data):
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(data)
        os.replace(file.name, path)
    return path
