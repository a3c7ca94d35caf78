"""envfleet's ids in Gymnasium's registry, in a namespace of their own: gymnasium.make_vec("envfleet/CartPole-v1").

Gymnasium's own ids do not change. An id that already has a namespace ("ALE/Pong-v5") cannot have a second one and is
left out. Gymnasium before 1.0 calls register_ids() through the plug-in entry point; later versions have no plug-ins,
and "envfleet:envfleet/CartPole-v1" imports envfleet first.

"envfleet:CartPole-v1" is an easy mistake: Gymnasium imports envfleet, and then silently makes its own CartPole-v1. It
raises ConfigError instead. Gymnasium has no hook for that: it strips the module's name and looks up the rest in a dict.
So envfleet wraps the private function that does this, registration._find_spec(). If that very function is importing
envfleet, because of such an id, the wrapper comes too late, and the id is read from the function's frame. On a
Gymnasium without that function, nothing else breaks: the id is just not refused.
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
_FIND_SPEC = "_find_spec"  # private in Gymnasium


def publish(env_ids: Iterable[str]) -> None:
    """Add these ids to Gymnasium's registry, in envfleet's namespace."""
    for env_id in env_ids:
        if "/" not in env_id:
            spec = EnvSpec(
                f"{NAMESPACE}/{env_id}",
                vector_entry_point="envfleet.making.make:make_gymnasium",
                kwargs={"task_id": env_id},
            )
            # Not gymnasium.register(), which compares each id with all others.
            registration.registry[spec.id] = spec


def register_ids() -> None:
    """Publish every id, and make Gymnasium refuse "envfleet:CartPole-v1"."""
    from envfleet.making.registry import list_all_envs

    publish(list_all_envs())
    _wrap_find_spec()
    _check_importing_frame()


def _check_namespace(env_id: Any) -> None:
    """Raise ConfigError for "envfleet:" before an id that is not in envfleet's namespace."""
    if isinstance(env_id, str) and env_id.startswith(_PREFIX):
        name = env_id.removeprefix(_PREFIX)
        if not name.startswith(f"{NAMESPACE}/"):
            raise ConfigError(
                f"expected an id in envfleet's namespace after 'envfleet:', got {env_id!r}, which is Gymnasium's own "
                f"{name}; write '{NAMESPACE}:{NAMESPACE}/{name}', or '{NAMESPACE}/{name}' after import envfleet"
            )


def _wrap_find_spec() -> None:
    find_spec: Any = getattr(registration, _FIND_SPEC, None)
    if find_spec is None or hasattr(find_spec, "__wrapped__"):
        return

    @functools.wraps(find_spec)
    def find_spec_checked(env_id: str) -> Any:
        _check_namespace(env_id)
        return find_spec(env_id)

    setattr(registration, _FIND_SPEC, find_spec_checked)


def _check_importing_frame() -> None:
    """Check the id for which Gymnasium is importing envfleet right now, if it is."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == _FIND_SPEC and frame.f_globals.get("__name__") == registration.__name__:
            _check_namespace(frame.f_locals.get("env_id"))
        frame = frame.f_back
