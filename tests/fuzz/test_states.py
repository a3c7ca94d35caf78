"""State fuzzing: set_state() with damaged states of every native env.

A damaged state is refused with StateError, and the pool goes on exactly as before; or it is a state like any other,
and the env steps on. `make sanitize-python` runs this under AddressSanitizer, where a read past an array shows.

ENVFLEET_FUZZ_SEED chooses other mutations, ENVFLEET_FUZZ_STATES the number per env of the long form.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import random
import struct
from dataclasses import replace

import numpy as np
import pytest

import envfleet
from envfleet.building.native_envs import built_in_ids, find_entry
from envfleet.core.errors import CallOrderError, EnvError, StateError

SEED = int(os.environ.get("ENVFLEET_FUZZ_SEED", "0"))
NUM_MUTATIONS = int(os.environ.get("ENVFLEET_FUZZ_STATES", "2000"))
NUM_ENVS = 2

HAS_MUJOCO = all(importlib.util.find_spec(name) is not None for name in ("mujoco", "gymnasium"))
# One id per model: those of earlier versions run the same code.
MUJOCO = [
    "Ant-v5",
    "HalfCheetah-v5",
    "Hopper-v5",
    "Humanoid-v5",
    "HumanoidStandup-v5",
    "InvertedDoublePendulum-v5",
    "InvertedPendulum-v5",
    "Pusher-v5",
    "Reacher-v5",
    "Swimmer-v5",
    "Walker2d-v5",
]


def is_mujoco(env_id: str) -> bool:
    return env_id.rpartition("-")[0] in {own.rpartition("-")[0] for own in MUJOCO}


def is_minigrid(env_id: str) -> bool:
    return env_id.startswith("MiniGrid-")


def is_procgen(env_id: str) -> bool:
    return find_entry(env_id).native_id == "Procgen"  # whose states tests/oracle/test_procgen.py damages


BUILT_IN = sorted(
    env_id for env_id in built_in_ids() if not is_mujoco(env_id) and not is_minigrid(env_id) and not is_procgen(env_id)
)
# One id per kind of state: what moves, what is carried, what is to be reached.
MINIGRID = [
    "MiniGrid-Dynamic-Obstacles-5x5-v0",
    "MiniGrid-MemoryS7-v0",
    "MiniGrid-ObstructedMaze-1Dlhb-v0",
    "MiniGrid-PutNear-6x6-N2-v0",
    "MiniGrid-RedBlueDoors-6x6-v0",
    "MiniGrid-Unlock-v0",
]
# Enough of their kinds for the short form; the long form has all.
SHORT = [*BUILT_IN, "InvertedPendulum-v5", "Reacher-v5", *MINIGRID[:2]]

# What a field or a size may become that no env expects.
WORDS = (
    *(struct.pack("<d", value) for value in (float("nan"), float("inf"), -1e300, 1e18, 5e-324)),
    *(struct.pack("<q", value) for value in (-1, 0, 1, 2**31, 2**40, 2**62, -(2**63), 2**63 - 1)),
    *(struct.pack("<i", value) for value in (-1, 2**31 - 1, -(2**31))),
    b"\x02",
    b"\xff",
)


def mutated(state: bytes, foreign: list[bytes], draw: random.Random) -> bytes:
    """A damaged copy of a state. foreign: states of other envs."""
    kind = draw.randrange(8)
    own = bytearray(state)
    if kind == 0:
        for _ in range(draw.randint(1, 8)):
            own[draw.randrange(len(own))] ^= 1 << draw.randrange(8)
    elif kind == 1:
        del own[draw.randrange(len(own)) :]
    elif kind == 2:
        own += draw.randbytes(draw.choice((1, 8, 64, 4096)))
    elif kind == 3:
        first, second, size = draw.randrange(len(own)), draw.randrange(len(own)), draw.choice((1, 4, 8, 16))
        own[first : first + size], own[second : second + size] = own[second : second + size], own[first : first + size]
    elif kind in (4, 5):
        word = draw.choice(WORDS)
        # Often where a field begins: behind the generator, the number of steps and the phase.
        start = draw.choice(
            (draw.randrange(len(own)), draw.randrange(40, len(own), 4), draw.randrange(45, len(own), 4))
        )
        own[start : start + len(word)] = word
    elif kind == 6:
        start = draw.randrange(len(own))
        del own[start : start + draw.choice((1, 8, 40))]
    else:
        return draw.choice(foreign)
    return bytes(own)


def actions_of(pool: envfleet.Pool, draw: np.random.Generator) -> np.ndarray:
    space = pool.spec.action_space
    space.seed(int(draw.integers(2**31)))
    return np.stack([space.sample() for _ in range(pool.num_envs)])


def trace(pool: envfleet.Pool, num_steps: int) -> list[np.ndarray]:
    """What the pool gives out from here on under actions that are always the same."""
    draw = np.random.default_rng(SEED)
    rows: list[np.ndarray] = []
    for _ in range(num_steps):
        batch = pool.step(actions_of(pool, draw))
        obs = batch.obs.values() if isinstance(batch.obs, dict) else batch.obs
        obs = (obs,) if isinstance(obs, np.ndarray) else obs
        rows += [*obs, batch.reward, batch.terminated, batch.truncated, batch.elapsed_step]
    return rows


def frame_skip_of(pool: envfleet.Pool, env_id: str) -> int:
    return max(pool.get_attr("frame_skip")) if is_mujoco(env_id) else 1


def foreign_states() -> list[bytes]:
    states = []
    for env_id, options in (("CartPole-v1", {}), ("Catch-v0", {"rows": 30, "columns": 20}), ("Blackjack-v1", {})):
        with envfleet.make_pool(env_id, num_envs=1, seed=0, **options) as pool:
            pool.reset()
            states += pool.get_state().states
    return states


def fuzz(env_id: str, num_mutations: int) -> None:
    draw = random.Random(f"{SEED} {env_id}")
    print(f"ENVFLEET_FUZZ_SEED={SEED} {env_id}: {num_mutations} damaged states")
    foreign = [*foreign_states(), b"", bytes(40), b"\xff" * 4096]
    options = {"mission": "code"} if is_minigrid(env_id) else {}  # the texts need the package
    with envfleet.make_pool(env_id, num_envs=NUM_ENVS, seed=SEED, num_threads=1, **options) as pool:
        pool.reset()
        trace(pool, 3)
        saved = pool.get_state()
        expected = trace(pool, 4)
        pool.set_state(saved)
        num_refused = 0
        for _ in range(num_mutations):
            position = draw.randrange(NUM_ENVS)
            states = list(saved.states)
            states[position] = mutated(states[position], foreign, draw)
            try:
                pool.set_state(replace(saved, states=tuple(states)))
            except StateError:
                num_refused += 1
                assert pool.get_state() == saved
                continue
            try:
                # Some substeps are as good as any; a number that is valid may last for days.
                if frame_skip_of(pool, env_id) < 20:
                    trace(pool, 2)
                pool.observe()
            except (EnvError, CallOrderError):  # or it is of an env that was not reset
                pool.reset(env_ids=[position])
            pool.set_state(saved)
        assert 0 < num_refused < num_mutations
        got = trace(pool, 4)
        assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(got, expected, strict=True))


def ids_here(ids: list[str]) -> list[str]:
    return [env_id for env_id in ids if HAS_MUJOCO or not is_mujoco(env_id)]


@pytest.mark.parametrize("env_id", ids_here(SHORT))
def test_damaged_states(env_id):
    fuzz(env_id, 120)


def test_a_hand_without_cards():
    # Two sizes that fit each other: all of the dealer's cards are the player's.
    with envfleet.make_pool("Blackjack-v1", num_envs=1, seed=SEED) as pool:
        pool.reset()
        saved = pool.get_state()
        head, rest = saved.states[0][:45], saved.states[0][45:]
        (num_player,) = struct.unpack_from("<q", rest)
        (num_dealer,) = struct.unpack_from("<q", rest, 8 + num_player)
        end = 16 + num_player + num_dealer
        cards = rest[8 : 8 + num_player] + rest[16 + num_player : end]
        hands = struct.pack("<q", len(cards)) + cards + struct.pack("<q", 0)
        pool.set_state(replace(saved, states=(head + hands + rest[end:],)))
        with pytest.raises(EnvError, match="cards"):
            pool.step(np.array([1]))


@pytest.mark.soak
@pytest.mark.parametrize("env_id", ids_here([*BUILT_IN, *MUJOCO, *MINIGRID]))
def test_many_damaged_states(env_id):
    fuzz(env_id, NUM_MUTATIONS)


def test_damaged_pickles_of_a_pools_state():
    draw = random.Random(f"{SEED} pickles")
    print(f"ENVFLEET_FUZZ_SEED={SEED}")
    with envfleet.make_pool("CartPole-v1", num_envs=2, seed=SEED) as pool:
        pool.reset()
        saved = pool.get_state()
        expected = trace(pool, 4)
        pool.set_state(saved)
        whole = pickle.dumps(saved)
        for _ in range(300):
            own = bytearray(whole)
            for _ in range(draw.randint(1, 3)):
                own[draw.randrange(len(own))] = draw.randrange(256)
            try:
                pool.set_state(bytes(own[: draw.choice((len(own), draw.randrange(len(own))))]))
            except StateError:
                assert pool.get_state() == saved
            else:
                pool.set_state(saved)
        assert all(np.array_equal(a, b) for a, b in zip(trace(pool, 4), expected, strict=True))


@pytest.mark.parametrize(
    "damage",
    [
        {"states": 5},
        {"seeds": None},
        {"seeds": ("a", "b")},
        {"num_restarts": (1.5, "x")},
        {"num_restarts": 3},
        {"params": 7},
        {"states": {0: b"", 1: b""}},
        {"seeds": (-1, 2**200)},
    ],
    ids=repr,
)
def test_a_state_with_parts_of_another_type_is_refused(damage):
    with envfleet.make_pool("CartPole-v1", num_envs=2, seed=SEED) as pool:
        pool.reset()
        saved = pool.get_state()
        with pytest.raises(StateError, match="damaged"):
            pool.set_state(replace(saved, **damage))
        assert pool.get_state() == saved
        pool.reset()
