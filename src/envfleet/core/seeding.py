"""Seeds: the one place that decides which env gets which seed.

A seed is passed on as four 32-bit words, the form in which numpy's SeedSequence takes an integer below 2**128.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from envfleet.core.errors import SeedError, short_repr

Seed: TypeAlias = int | Sequence[int | None] | NDArray[np.integer[Any]] | None
Words: TypeAlias = NDArray[np.uint32]

_LIMIT = 1 << 128
# Seeds that envfleet draws itself are below this: many simulators accept no larger ones.
_SEEDS_FOR_ALL = 1 << 31


def seeds_for(seed: Any, env_ids: NDArray[np.int32], num_envs: int) -> list[int | None]:
    """Return the seed of each env in env_ids: seed+i for an int, its entry for a list.

    A list has one entry per element of env_ids, or one per env of the pool.
    """
    if isinstance(seed, np.ndarray):
        seed = seed.tolist()
    if seed is None:
        return [None] * len(env_ids)
    if _is_integer(seed):
        base = _checked(int(seed), "seed")
        _checked(base + num_envs - 1, "seed + num_envs - 1")
        return [base + int(env_id) for env_id in env_ids]
    if isinstance(seed, (str, bytes)) or not isinstance(seed, Sequence):
        raise SeedError(f"seed expected an int, a list of ints or None, got {short_repr(seed)}")
    if len(seed) == len(env_ids):
        chosen = list(seed)
    elif len(seed) == num_envs:
        chosen = [seed[int(env_id)] for env_id in env_ids]
    else:
        raise SeedError(
            f"seed expected a list of {len(env_ids)} entries, one per env, got {len(seed)}; "
            "pass an int to seed env i with seed+i"
        )
    return [_checked_entry(entry, position) for position, entry in enumerate(chosen)]


def fresh_seeds(count: int) -> list[int]:
    """Return distinct seeds from the operating system's entropy."""
    return random.SystemRandom().sample(range(_SEEDS_FOR_ALL), count)


def restart_seed(seed: int, restarts: int) -> int:
    """Return the seed of an env that is being rebuilt for the restarts-th time.

    It depends on the env's seed and the count alone, so that a rebuilt env has the same random stream on every
    executor.
    """
    state = np.random.SeedSequence(seed, spawn_key=(restarts,)).generate_state(1, np.uint32)
    return int(state[0]) % _SEEDS_FOR_ALL


def to_words(seeds: Sequence[int]) -> Words:
    """Return an array of shape (len(seeds), 4), little-endian."""
    data = b"".join(int(seed).to_bytes(16, "little") for seed in seeds)
    return np.frombuffer(data, dtype="<u4").reshape(len(seeds), 4).astype(np.uint32, copy=False)


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _checked(seed: int, name: str) -> int:
    if not 0 <= seed < _LIMIT:
        raise SeedError(f"{name} expected an integer from 0 to 2**128-1, got {seed}")
    return seed


def _checked_entry(entry: Any, position: int) -> int | None:
    if entry is None:
        return None
    if not _is_integer(entry):
        raise SeedError(f"seed[{position}] expected an int or None, got {short_repr(entry)}")
    return _checked(int(entry), f"seed[{position}]")
