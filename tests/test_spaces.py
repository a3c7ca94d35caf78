"""Leaves, split and join: against Gymnasium's own batching of the same spaces."""

from __future__ import annotations

from collections import OrderedDict
from types import MappingProxyType

import numpy as np
import pytest
from gymnasium import Space, spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from envfleet.core.spaces import Leaf, batched_leaf, join, leaves_of, path_text, split


class Odd(Space):
    """A space that Gymnasium knows nothing of."""

    def __repr__(self):
        return "Odd()"

    def sample(self, mask=None, probability=None):
        return "odd"

    def contains(self, x):
        return x == "odd"


class OwnDict(spaces.Dict):
    pass


GRAPH = spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3))
DEEP = spaces.Dict(
    {
        "b": spaces.Tuple(
            [spaces.Discrete(3, start=1), OwnDict({"x": spaces.Box(-1, 1, (2, 2)), "t": spaces.Text(4)})]
        ),
        "a": spaces.MultiDiscrete([2, 3]),
        "c": spaces.Dict({}),
        "d": spaces.Tuple([spaces.MultiBinary(3), spaces.Tuple([spaces.Sequence(spaces.Discrete(2))])]),
        "e": Odd(),
    }
)
SPACES = [
    spaces.Box(-1, 1, (3,), np.float16),
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([[2, 3], [4, 5]]),
    spaces.MultiBinary((2, 2)),
    spaces.Text(5),
    GRAPH,
    spaces.Sequence(spaces.Box(0, 1, (2,)), stack=True),
    spaces.OneOf([spaces.Discrete(2), spaces.Box(0, 1, (2,))]),
    Odd(),
    spaces.Dict(OrderedDict(z=spaces.Discrete(2), a=spaces.Box(0, 1, (2,)))),
    spaces.Dict({"only": spaces.Discrete(2)}),
    spaces.Tuple([spaces.Discrete(2), spaces.Text(3)]),
    spaces.Tuple([]),
    spaces.Dict({}),
    DEEP,
]


def same(one, other):
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        one, other = tuple(one.values()), tuple(other.values())
    if isinstance(one, tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            same(a, b)
    else:
        np.testing.assert_array_equal(one, other)


def test_leaves_are_walked_in_the_space_s_own_order():
    leaves = leaves_of(DEEP)
    assert [(leaf.path, leaf.kind) for leaf in leaves] == [
        (("a",), "array"),
        (("b", 0), "array"),
        (("b", 1, "t"), "text"),
        (("b", 1, "x"), "array"),
        (("d", 0), "array"),
        (("d", 1, 0), "object"),
        (("e",), "object"),
    ]
    assert [leaf.path for leaf in leaves_of(SPACES[9])] == [("z",), ("a",)]
    assert path_text(leaves[2].path) == "['b'][1]['t']"
    assert path_text(()) == ""


@pytest.mark.parametrize(
    ("space", "dtype", "shape"),
    [
        (spaces.Discrete(3), np.int64, ()),
        (spaces.Box(0, 255, (2, 3), np.uint8), np.uint8, (2, 3)),
        (spaces.Box(0, 1, (), np.bool_), np.bool_, ()),
        (spaces.MultiDiscrete([2, 3]), np.int64, (2,)),
        (spaces.MultiBinary(4), np.int8, (4,)),
    ],
    ids=str,
)
def test_dtype_and_shape_of_array_leaves(space, dtype, shape):
    (leaf,) = leaves_of(space)
    assert leaf == Leaf((), space, "array")
    assert (leaf.dtype, leaf.shape) == (np.dtype(dtype), shape)


@pytest.mark.parametrize("space", [spaces.Text(3), GRAPH, SPACES[7], Odd()], ids=lambda space: type(space).__name__)
def test_other_leaves_have_neither_and_come_as_tuples(space):
    (leaf,) = leaves_of(space)
    for what in ("dtype", "shape"):
        with pytest.raises(TypeError, match=f"{what} expected an array leaf"):
            getattr(leaf, what)
    values = [space.sample() for _ in range(3)]
    handed = batched_leaf(leaf, values)
    assert type(handed) is tuple
    assert all(a is b for a, b in zip(handed, concatenate(space, values, None), strict=True))
    with pytest.raises(TypeError, match="stack the rows"):
        batched_leaf(leaves_of(spaces.Discrete(2))[0], [1])


@pytest.mark.parametrize("space", SPACES, ids=lambda space: type(space).__name__)
def test_split_and_join_are_inverse(space):
    space.seed(0)
    leaves, take, build = leaves_of(space), split(space), join(space)
    values = [space.sample() for _ in range(4)]
    parts = [take(value) for value in values]
    for value, own in zip(values, parts, strict=True):
        assert len(own) == len(leaves)
        assert all(part in leaf.space for part, leaf in zip(own, leaves, strict=True))
        same(build(own), value)
        same(build(tuple(own)), value)
    columns = [
        np.stack(column) if leaf.kind == "array" else batched_leaf(leaf, column)
        for leaf, column in zip(leaves, zip(*parts, strict=True), strict=True)
    ]
    batched = concatenate(space, values, create_empty_array(space, 4))
    same(build(columns), batched)
    for mine, theirs in zip(columns, take(batched), strict=True):
        same(mine, theirs)


def test_split_takes_what_the_space_contains():
    take = split(spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)]))
    assert take([0, 1]) == take((0, 1)) == take(np.array([0, 1])) == [0, 1]
    take = split(SPACES[9])
    assert take({"a": 1, "z": 2}) == take(MappingProxyType({"a": 1, "z": 2})) == [2, 1]


DEEP_VALUE = {"a": 0, "b": (0, {"t": 0, "x": 0}), "c": {}, "d": (0, (0,)), "e": 0}


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (SPACES[9], 3, r"expected value as a dict with the keys 'z', 'a', got int"),
        (SPACES[9], None, "got NoneType"),
        (SPACES[9], (1, 2), "got a tuple of 2 items"),
        (SPACES[9], {"z": 1}, "got one without 'a'"),
        (SPACES[9], {"z": 1, "a": 1, "k": 2}, "got one with an extra 'k'"),
        (SPACES[9], {"z": 1, "k": 2}, "got one without 'a' and with an extra 'k'"),
        (SPACES[10], {"other": 2}, "got one without 'only' and with an extra 'other'"),
        (SPACES[11], (1,), "expected value as a tuple of 2 items, got 1 items"),
        (SPACES[11], np.zeros(3), "got 3 items"),
        (SPACES[11], np.zeros(()), r"got an array of shape \(\)"),
        (SPACES[11], "ab", "got str"),
        (SPACES[11], {0: 1, 1: 2}, "got dict"),
        (spaces.Dict({}), {"a": 1}, "with the keys .none., got one with an extra 'a'"),
        (DEEP, {**DEEP_VALUE, "b": (0, {"t": 0})}, r"expected value\['b'\]\[1\] as a dict.*without 'x'"),
        (DEEP, {**DEEP_VALUE, "d": (0, 0)}, r"expected value\['d'\]\[1\] as a tuple of 1 items, got int"),
        (DEEP, {**DEEP_VALUE, "c": []}, r"expected value\['c'\] as a dict"),
    ],
    ids=str,
)
def test_a_wrong_structure_says_where(space, value, message):
    with pytest.raises(ValueError, match=message):
        split(space)(value)
    with pytest.raises(ValueError, match="expected obs"):
        split(space, "obs")(value)
