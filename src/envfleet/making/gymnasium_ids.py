"""envfleet's ids in Gymnasium's registry, in a namespace of their own: gymnasium.make_vec("envfleet/CartPole-v1").

Gymnasium's own ids stay what they are. An id that has a namespace already ("ALE/Pong-v5") has no second one and is
left out. Gymnasium before 1.0 calls register_ids() through the plug-in entry point; later ones have no plug-ins, and
"envfleet:envfleet/CartPole-v1" imports envfleet first.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

from gymnasium.envs import registration
from gymnasium.envs.registration import EnvSpec

from envfleet.errors import ConfigError

NAMESPACE = "envfleet"
_PREFIX = f"{NAMESPACE}:"


def publish(env_ids: Iterable[str]) -> None:
    """Puts these ids of envfleet into Gymnasium's registry."""
    for env_id in env_ids:
        if "/" not in env_id:
            spec = EnvSpec(
                f"{NAMESPACE}/{env_id}",
                vector_entry_point="envfleet.making.registry:make_gymnasium",
                kwargs={"task_id": env_id},
            )
            # Not register(), which compares each id with all the others.
            registration.registry[spec.id] = spec


def register_ids() -> None:
    """Publishes every id, and has Gymnasium refuse "envfleet:CartPole-v1"."""
    from envfleet.making.registry import list_all_envs

    publish(list_all_envs())
    _refuse_ids_without_namespace()
    _check_importer()


def _check_importer() -> None:
    """Raises when it is Gymnasium that imports envfleet, for an id that is not ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_find_spec" and frame.f_globals.get("__name__") == registration.__name__:
            _check_namespace(frame.f_locals.get("env_id"))
        frame = frame.f_back


def _check_namespace(env_id: Any) -> None:
    """Gymnasium reads "envfleet:CartPole-v1" as: import envfleet, then make Gymnasium's own CartPole-v1."""
    if isinstance(env_id, str) and env_id.startswith(_PREFIX):
        name = env_id.removeprefix(_PREFIX)
        if not name.startswith(f"{NAMESPACE}/"):
            raise ConfigError(
                f"expected an id in envfleet's namespace after 'envfleet:', got {env_id!r}, which is Gymnasium's own "
                f"{name}; write '{NAMESPACE}:{NAMESPACE}/{name}', or '{NAMESPACE}/{name}' after import envfleet"
            )


def _refuse_ids_without_namespace() -> None:
    # Gymnasium has no hook for it, and drops the module's name before it looks into the registry.
    find_spec: Any = registration._find_spec  # type: ignore[attr-defined, unused-ignore]
    if hasattr(find_spec, "__wrapped__"):
        return

    @functools.wraps(find_spec)
    def find_spec_checked(env_id: str) -> Any:
        _check_namespace(env_id)
        return find_spec(env_id)

    registration._find_spec = find_spec_checked  # type: ignore[attr-defined, unused-ignore]
