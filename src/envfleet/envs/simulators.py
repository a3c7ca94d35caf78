"""Simulators: families of ids whose envs are Python classes over a library that an extra installs.

A family is one module in envs/ with a SIMULATOR of this kind; it must be cheap to import, and
import its library only where an env is built. Every executor runs it, as any Python env.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from envfleet.errors import MissingExtraError


@dataclass(frozen=True)
class Simulator:
    """A family of ids.

    package is what is imported, extra what installs it. backend is what backend="auto" runs
    several envs on. ids gives every id, installed or not; spec_of what builds one of them. check
    raises ConfigError over parameters that an env would be refused for, before any worker starts.
    workers_per_core is the default of num_workers: more than 1 where a worker waits for processes of its envs.
    settings_of gives every option of an env with these parameters, defaults too, for the config of a pool.
    opens_windows: its envs know render_mode="human" themselves; of the others the pool shows one in a window.
    """

    family: str
    package: str
    extra: str
    backend: str
    ids: Callable[[], frozenset[str]]
    spec_of: Callable[[str], GymnasiumSpec]
    check: Callable[[str, Mapping[str, Any]], None] | None = None
    workers_per_core: int = 1
    settings_of: Callable[[str, Mapping[str, Any]], Mapping[str, Any]] | None = None
    opens_windows: bool = False

    @property
    def is_installed(self) -> bool:
        """Whether its library can be found; nothing is imported."""
        return is_installed(self.package)

    def spec(self, env_id: str) -> GymnasiumSpec:
        """What builds an env of this id. Raises MissingExtraError."""
        if not self.is_installed:
            raise MissingExtraError(self.package, self.extra, env_id)
        return self.spec_of(env_id)


def is_installed(package: str) -> bool:
    """Whether a package can be found; nothing is imported."""
    return find_spec(package) is not None


def simulators() -> tuple[Simulator, ...]:
    """Every family, in the order in which they are listed."""
    from envfleet.envs import atari, box2d, dm_control, minigrid, vizdoom

    return (atari.SIMULATOR, vizdoom.SIMULATOR, dm_control.SIMULATOR, box2d.SIMULATOR, minigrid.SIMULATOR)


def simulated_ids() -> set[str]:
    """Every id of every family."""
    return {env_id for simulator in simulators() for env_id in simulator.ids()}


def find_simulator(env_id: object) -> Simulator | None:
    """The family of an id, if there is one."""
    if not isinstance(env_id, str):
        return None
    return next((simulator for simulator in simulators() if env_id in simulator.ids()), None)
