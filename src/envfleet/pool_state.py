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
    if (state.env_id, state.num_envs) != (env_id, num_envs):
        raise StateError(
            f"set_state() expected a state of {num_envs} x {env_id}, "
            f"got one of {state.num_envs} x {state.env_id}; make a pool like the one that was saved"
        )
    parts = (state.states, state.params, state.seeds, state.num_restarts)
    if any(len(part) != num_envs for part in parts) or not all(isinstance(own, bytes) for own in state.states):
        raise StateError(f"set_state() expected a part for each of {num_envs} envs, got a damaged PoolState")
    for position, (own, saved) in enumerate(zip(params, state.params, strict=True)):
        if own != saved:
            raise StateError(f"set_state() expected env {position} with the parameters {own}, got a state with {saved}")
    return state
