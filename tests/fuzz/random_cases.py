"""Random spaces, envs and calls for the differential tests, drawn by hypothesis, and how results are compared.

ENVFLEET_FUZZ_SEED chooses other cases; ENVFLEET_FUZZ_CASES is the number per test of the long form, where a case takes
a fraction of a second; tests whose cases take seconds run a part of it. A failure prints both the seed and the smallest
case that hypothesis found.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import hypothesis
import numpy as np
from gymnasium import spaces
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from support.random_env import INFO_KINDS, MIXED_INFO_KINDS, REWARD_KINDS, EnvPlan, InfoPlan

SEED = int(os.environ.get("ENVFLEET_FUZZ_SEED", "0"))
NUM_CASES = int(os.environ.get("ENVFLEET_FUZZ_CASES", "300"))


def run_cases(check: Callable[[Any], None], cases: st.SearchStrategy[Any], num_cases: int, name: str) -> None:
    """Run a check on random cases; the same ones for the same seed.

    The examples depend on the seed and on the strategy alone, so a case that fails is found again with its seed.
    """
    print(f"ENVFLEET_FUZZ_SEED={SEED} {name}: {num_cases} cases")

    @hypothesis.seed(SEED)
    @hypothesis.settings(
        max_examples=num_cases,
        database=None,
        deadline=None,
        print_blob=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(cases)
    def run(case: Any) -> None:
        check(case)

    run()


# --- spaces ----------------------------------------------------------------------------------------

_DTYPES = (np.float16, np.float32, np.float64, np.int8, np.int16, np.int32, np.int64)
_DTYPES += (np.uint8, np.uint16, np.uint32, np.uint64, np.bool_)
_SHAPES = st.sampled_from([(), (1,), (3,), (2, 3), (4, 1, 2), (0,), (2, 0)])
_NAMES = st.sampled_from(["a", "b", "zulu", "Alpha", "with space", "é漢", "0"])


@st.composite
def boxes(draw: Any, unbounded: bool = True) -> spaces.Box:
    dtype, shape = draw(st.sampled_from(_DTYPES)), draw(_SHAPES)
    if dtype is np.bool_:
        return spaces.Box(0, 1, shape, np.bool_)
    if np.issubdtype(dtype, np.floating):
        low, high = draw(st.sampled_from([(-1, 1), (0, 0.5), (-100, 100), (-np.inf, np.inf), (0, np.inf)]))
        if not unbounded and np.inf in (high, -low):
            low, high = -1, 1
        return spaces.Box(low, high, shape, dtype)
    # Gymnasium samples through doubles: beyond larger bounds its samples lie outside of the space.
    least, most = (max(int(np.iinfo(dtype).min), -(2**40)), min(int(np.iinfo(dtype).max), 2**40))
    low, high = draw(st.sampled_from([(0, 1), (0, 100), (least, most), (most - 3, most)]))
    return spaces.Box(low, high, shape, dtype)


@st.composite
def _discretes(draw: Any) -> spaces.Discrete:
    dtype = draw(st.sampled_from([np.int64, np.int64, np.int32, np.int8, np.uint8]))
    start = draw(st.sampled_from([0, 0, 5, -3]))
    if np.issubdtype(dtype, np.unsignedinteger):
        start = abs(start)
    return spaces.Discrete(draw(st.integers(1, 7)), start=start, dtype=dtype)


@st.composite
def _multi_discretes(draw: Any) -> spaces.MultiDiscrete:
    shape = draw(st.sampled_from([(1,), (2,), (2, 3)]))
    size = int(np.prod(shape))
    counts = np.reshape(draw(st.lists(st.integers(1, 9), min_size=size, max_size=size)), shape)
    starts = np.reshape(draw(st.lists(st.integers(-5, 5), min_size=size, max_size=size)), shape)
    dtype = draw(st.sampled_from([np.int64, np.int32, np.int16]))
    return spaces.MultiDiscrete(counts, dtype=dtype, start=starts)


def flat_spaces(unbounded: bool = True) -> st.SearchStrategy[Any]:
    """Spaces whose values are arrays of one dtype and shape."""
    binaries = st.sampled_from([1, 3, (2, 2)]).map(spaces.MultiBinary)
    return st.one_of(boxes(unbounded), _discretes(), _multi_discretes(), binaries)


def _texts() -> st.SearchStrategy[Any]:
    charsets = st.sampled_from(["ab", "abcxyz", "é漢🎲"])
    return st.builds(
        lambda size, charset: spaces.Text(size, min_length=0, charset=charset), st.integers(1, 6), charsets
    )


_ODD_SPACES = st.sampled_from(
    [
        spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(4, start=1)),
        spaces.Graph(spaces.Discrete(3), None),
        spaces.Sequence(spaces.Box(-1, 1, (2,), np.float64)),
        spaces.Sequence(spaces.Discrete(5), stack=True),
        spaces.OneOf([spaces.Discrete(3, start=5), spaces.Box(-1, 1, (2, 2)), spaces.Text(4)]),
    ]
)


def nested_spaces(unbounded: bool = True, odd: bool = True) -> st.SearchStrategy[Any]:
    """Dict and Tuple of everything; odd: with Text, Graph, Sequence and OneOf."""
    leaves = flat_spaces(unbounded)
    if odd:
        leaves = st.one_of(leaves, leaves, leaves, _texts(), _ODD_SPACES)
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.dictionaries(_NAMES, inner, min_size=1, max_size=3).map(spaces.Dict),
            st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
        ),
        max_leaves=5,
    )


# --- envs ------------------------------------------------------------------------------------------

_CHANCES = st.sampled_from([0.0, 0.3, 1.0, 1.0])


@st.composite
def _infos(draw: Any, kinds: Iterable[str]) -> tuple[InfoPlan, ...]:
    # Names of values and of dicts are disjoint: a key is always the one or the other.
    names = draw(st.lists(st.sampled_from(["x", "y", "text", "é漢", "lives", "TimeLimit.z"]), max_size=4, unique=True))
    folders = st.sampled_from([(), (), ("inner",), ("inner", "deep"), ("other",)])
    kind = st.sampled_from(sorted(kinds))
    return tuple(InfoPlan((*draw(folders), name), draw(kind), draw(_CHANCES), draw(_CHANCES)) for name in names)


@st.composite
def env_plans(draw: Any, *, observation_spaces: Any = None, action_spaces: Any = None, kinds: Any = None) -> EnvPlan:
    """What an env is like; kinds: of its infos, default all that Gymnasium batches without loss."""
    return EnvPlan(
        draw(nested_spaces() if observation_spaces is None else observation_spaces),
        draw(nested_spaces() if action_spaces is None else action_spaces),
        draw(_infos(INFO_KINDS if kinds is None else kinds)),
        max_length=draw(st.sampled_from([1, 2, 5, 9])),
        chance_of_both=draw(st.sampled_from([0.0, 0.5])),
        chance_of_termination=draw(st.sampled_from([0.0, 0.5, 1.0])),
        reward=draw(st.sampled_from(sorted(REWARD_KINDS))),
        has_numpy_flags=draw(st.booleans()),
    )


ALL_KINDS = [*INFO_KINDS, *MIXED_INFO_KINDS]
CALLS = ["step"] * 8 + ["reset", "reset_seed", "reset_seeds", "reset_options", "reset_mask", "reset_mask_seeds"]
CALLS += ["render", "call", "get_attr", "set_attr", "detour"]


@dataclass(frozen=True)
class Case:
    """An env plan, and what is done with a vector of such envs."""

    plan: EnvPlan
    num_envs: int
    mode: str
    seed: int
    calls: tuple[str, ...]
    num_workers: int


@st.composite
def vector_cases(draw: Any, plans: Any = None, modes: Any = ("next_step", "same_step", "disabled")) -> Case:
    num_envs = draw(st.integers(1, 4))
    return Case(
        draw(plans if plans is not None else env_plans()),
        num_envs,
        draw(st.sampled_from(modes)),
        draw(st.integers(0, 2**31 - 100)),
        tuple(draw(st.lists(st.sampled_from(CALLS), min_size=6, max_size=25))),
        draw(st.integers(1, num_envs)),
    )


# --- comparing -------------------------------------------------------------------------------------


def assert_same(theirs: Any, own: Any, where: str = "", *, strict: bool = True) -> None:
    """Equal in structure, dtypes and every bit.

    strict: also in the types of scalars; else 3, np.int64(3) and np.array(3) are the same.
    """
    if not strict and isinstance(theirs, np.ndarray) and theirs.shape == () and isinstance(own, np.generic):
        own = np.asarray(own)
    if isinstance(theirs, dict):
        assert isinstance(own, dict), f"{where}: expected a dict, got {own!r}"
        assert theirs.keys() == own.keys(), f"{where}: expected the keys {list(theirs)}, got {list(own)}"
        for key in theirs:
            assert_same(theirs[key], own[key], f"{where}[{key!r}]", strict=strict)
    elif isinstance(theirs, (tuple, list)):
        assert type(theirs) is type(own), f"{where}: expected {theirs!r}, got {own!r}"
        assert len(theirs) == len(own), f"{where}: expected {len(theirs)} parts, got {len(own)}"
        for position, (one, other) in enumerate(zip(theirs, own, strict=True)):
            assert_same(one, other, f"{where}[{position}]", strict=strict)
    elif isinstance(theirs, np.ndarray):
        assert isinstance(own, np.ndarray), f"{where}: expected the array {theirs!r}, got {own!r}"
        assert theirs.shape == own.shape, f"{where}: expected the shape {theirs.shape}, got {own.shape}"
        assert theirs.dtype == own.dtype, f"{where}: expected {theirs.dtype} {theirs!r}, got {own.dtype} {own!r}"
        if theirs.dtype == object:
            for position in np.ndindex(theirs.shape):
                assert_same(theirs[position], own[position], f"{where}{list(position)}", strict=strict)
        else:
            assert theirs.tobytes() == own.tobytes(), f"{where}: expected {theirs!r}, got {own!r}"
    else:
        if strict or not isinstance(theirs, (int, float, np.generic)):
            assert type(theirs) is type(own), (
                f"{where}: expected {theirs!r} ({type(theirs)}), got {own!r} ({type(own)})"
            )
        both_nan = theirs != theirs and own != own  # NaN alone differs from itself
        assert both_nan or theirs == own, f"{where}: expected {theirs!r}, got {own!r}"
