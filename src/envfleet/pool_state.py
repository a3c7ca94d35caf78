"""PoolState: what get_state() gives, and whether it fits where set_state() puts it."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

from envfleet.errors import StateError


@dataclass(frozen=True)
class PoolState:
    """The state of a whole pool between batches. Pickles; fits pools of the same env and size."""

    env_id: str
    num_envs: int
    states: tuple[bytes, ...]
    params: tuple[str, ...]  # what each env was made with
    seeds: tuple[int, ...]
    num_restarts: tuple[int, ...]  # since each was seeded


def _is_whole(state: PoolState) -> bool:
    """Whether its parts are what get_state() made them: a damaged pickle may hold anything, or leave some out."""
    parts = {"states": bytes, "params": str, "seeds": int, "num_restarts": int}
    values = {name: getattr(state, name, None) for name in ("env_id", "num_envs", *parts)}
    if not isinstance(values["env_id"], str) or not isinstance(values["num_envs"], int):
        return False
    for name, kind in parts.items():
        part = values[name]
        if not isinstance(part, tuple) or len(part) != values["num_envs"]:
            return False
        if not all(isinstance(own, kind) for own in part):
            return False
    return all(0 <= seed < 2**128 for seed in state.seeds) and min(state.num_restarts, default=0) >= 0


def fitting_state(state: PoolState | bytes, env_id: str, params: tuple[str, ...]) -> PoolState:
    """The state, unpickled if need be, that fits a pool of this env with these parameters."""
    num_envs = len(params)
    if isinstance(state, bytes):
        try:
            state = pickle.loads(state)
        except Exception as error:
            raise StateError(f"set_state() expected a pickled PoolState, got bytes that are none: {error}") from error
    if not isinstance(state, PoolState):
        raise StateError(f"set_state() expected a PoolState of get_state(), got {type(state).__name__}")
    if not _is_whole(state):
        raise StateError(
            "set_state() expected a PoolState with a part for each of its envs, got a damaged one; "
            "save it again with get_state()"
        )
    if (state.env_id, state.num_envs) != (env_id, num_envs):
        raise StateError(
            f"set_state() expected a state of {num_envs} x {env_id}, "
            f"got one of {state.num_envs} x {state.env_id}; make a pool like the one that was saved"
        )
    for position, (own, saved) in enumerate(zip(params, state.params, strict=True)):
        if own != saved:
            raise StateError(f"set_state() expected env {position} with the parameters {own}, got a state with {saved}")
    return state
