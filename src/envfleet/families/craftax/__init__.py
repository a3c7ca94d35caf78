"""Craftax and Craftax-Classic: the ids of the craftax package, on JAX's CPU backend."""

from __future__ import annotations

from functools import cache

from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from envfleet.core.family import Family


@cache
def all_ids() -> frozenset[str]:
    """Return every id of craftax 1.6. Its AutoReset ids are left out: the pool resets the envs."""
    return frozenset(f"Craftax-{game}{kind}-v1" for game in ("", "Classic-") for kind in ("Symbolic", "Pixels"))


def spec_of(env_id: str) -> GymnasiumSpec:
    """Return the Gymnasium spec of an id. The env enforces its own time limit."""
    return GymnasiumSpec(env_id, entry_point="envfleet.families.craftax.env:CraftaxEnv", kwargs={"name": env_id})


FAMILY = Family(
    "craftax",
    package="craftax",
    extra="craftax",
    python_ids=all_ids,
    spec_of=spec_of,
)
