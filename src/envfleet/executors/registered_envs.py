"""The envs that the user has registered with Gymnasium: part of what a worker inherits from its parent."""

from __future__ import annotations

import pickle
import warnings
from copy import deepcopy
from typing import Any, cast

import cloudpickle
import gymnasium
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec
from gymnasium.envs.registration import load_env_creator

from envfleet.core.spec import NAMESPACE


def registered_envs() -> bytes:
    """Return a pickle of the envs that were registered with Gymnasium, except those that workers have anyway."""
    own = {env_id: spec for env_id, spec in gymnasium.registry.items() if not _is_known_to_workers(spec)}
    if tuple(own.values()) != _registered_before[0]:
        portable = {}
        for env_id, spec in own.items():
            copied = deepcopy(spec)
            try:
                load_from_main(copied)
                cloudpickle.dumps(copied)
            except Exception:  # cannot be pickled, and may never be requested
                continue
            portable[env_id] = copied
        _registered_before[:] = [tuple(own.values()), cloudpickle.dumps(portable)]
    data: bytes = _registered_before[1]
    return data


def adopt_registered(data: bytes) -> None:
    """Register the envs that registered_envs() returned in another process."""
    # A package registers its envs when it is imported, which would warn that they exist already.
    warnings.filterwarnings("ignore", message=r".*Overriding environment .* already in registry")
    for env_id, spec in pickle.loads(data).items():
        gymnasium.registry.setdefault(env_id, spec)


# The specs that were last pickled, and the pickle: a registry of a thousand games rarely changes between pools.
_registered_before: list[Any] = [None, b""]


def _is_known_to_workers(spec: GymnasiumSpec) -> bool:
    """Return whether Gymnasium or envfleet registers this spec when it is imported."""
    return spec.namespace == NAMESPACE or (
        isinstance(spec.entry_point, str) and spec.entry_point.startswith("gymnasium.")
    )


def load_from_main(spec: GymnasiumSpec) -> None:
    """Replace the name of a class in __main__ by the class: a worker's __main__ is another module."""
    if isinstance(spec.entry_point, str) and spec.entry_point.startswith("__main__:"):
        spec.entry_point = cast(Any, load_env_creator(spec.entry_point))
