"""Family: a group of env ids that share a simulator, an extra and a documentation page."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec
from numpy.typing import NDArray

from envfleet.core.errors import MissingExtraError

# Renders one env: maps its attributes to an RGB array.
Renderer = Callable[[Mapping[str, Any]], NDArray[np.uint8]]


def is_installed(package: str) -> bool:
    """Return whether a package can be found, without importing it."""
    return find_spec(package) is not None


def imported_spec(package: str, env_id: str) -> GymnasiumSpec:
    """Import a package that registers its envs with Gymnasium, and return a copy of its spec of an id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the package's own dependencies
        importlib.import_module(package)
    return deepcopy(gymnasium.registry[env_id])


def convert_each(convert: Callable[[Any], Any], value: Any) -> Any:
    """Convert one value, or each value of a list with one per env, for Family.translate."""
    return [convert(own) for own in value] if isinstance(value, (list, tuple)) else convert(value)


@dataclass(frozen=True)
class TextColumn:
    """An observation column of strings, which the native env writes as integer codes.

    space: the space that users see. texts: the string of each code.
    """

    space: gymnasium.Space[Any]
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Family:
    """A group of ids, native or in Python or both.

    A family is one module of families/ that defines an object of this class, where core/families.py finds it. The
    module must be cheap to import; it imports its simulator where an env is built.
    """

    name: str
    native_ids: tuple[str, ...] = ()
    package: str = ""  # the library that the envs import; empty if they need none
    extra: str = ""  # the extra of envfleet that installs it

    # --- native envs ---------------------------------------------------------------------------

    # Convert the user's parameters to those that the native env declares.
    translate: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
    # Return whether the native env supports these parameters. If it does not, the env runs in Python. None: it does.
    supports_params: Callable[[Mapping[str, Any]], bool] | None = None
    # Ids that stand for native_ids[0] with these parameters; native_ids[0] is then not an id by itself.
    aliases: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Register an id with the engine before it is described or built. None: the envs are compiled in. May be called
    # repeatedly; raises MissingExtraError or CompileError.
    load: Callable[[str], None] | None = None
    # Ids that Gymnasium registers without a class that runs.
    native_only: frozenset[str] = frozenset()
    # Return a renderer for an id and its parameters. None: the env renders itself, or cannot be rendered.
    make_renderer: Callable[[str, Mapping[str, Any]], Renderer] | None = None
    # Likewise, for a renderer that several envs share: its frames depend on the attributes alone. None: make_renderer.
    make_shared_renderer: Callable[[str, Mapping[str, Any]], Renderer] | None = None
    render_fps: Mapping[str, int] = field(default_factory=dict)
    # Return the string columns of the observation, given an id and the parameters of an env.
    text_columns: Callable[[str, Mapping[str, Any]], Mapping[str, TextColumn]] | None = None

    # The envs, native or in Python, have pixel observations with from_pixels=True: they are rendered.
    has_pixels: bool = False

    # --- Python envs ---------------------------------------------------------------------------

    # Return every id that runs as a Python env, whether or not the package is installed.
    python_ids: Callable[[], frozenset[str]] = frozenset
    # Return the Gymnasium spec of a Python id.
    spec_of: Callable[[str], GymnasiumSpec] | None = None
    # The backend that backend="auto" chooses for several Python envs.
    python_backend: str = "processes"
    # The default of num_workers, per core: above 1 if a worker spends its time waiting for its envs' processes.
    workers_per_core: int = 1
    # A step takes hundreds of microseconds, next to which switching between workers costs little: see
    # options.py:resolve_num_workers().
    has_slow_steps: bool = False
    # The Python envs open a window themselves with render_mode="human". For all others, the pool opens one.
    python_opens_windows: bool = False
    # Raise ConfigError for parameters that the env would refuse, before any worker starts.
    check_params: Callable[[str, Mapping[str, Any]], None] | None = None
    # Return every option of an env with these parameters, defaults included, for the pool's config.
    all_options: Callable[[str, Mapping[str, Any]], Mapping[str, Any]] | None = None

    @property
    def opens_windows(self) -> bool:
        """Whether every env of the family opens its own window; native envs never do."""
        return self.python_opens_windows and not self.native_ids

    @property
    def is_installed(self) -> bool:
        """Whether the family's package can be found; it is not imported."""
        return not self.package or is_installed(self.package)

    def check_installed(self, purpose: str) -> None:
        """Raise MissingExtraError if the family's package is not installed."""
        if not self.is_installed:
            raise MissingExtraError(self.package, self.extra, purpose)

    def python_spec(self, env_id: str) -> GymnasiumSpec:
        """Return the Gymnasium spec of an id in python_ids(). Raises MissingExtraError."""
        assert self.spec_of is not None
        self.check_installed(env_id)
        return self.spec_of(env_id)
