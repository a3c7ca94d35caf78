"""Infos as columns: against Gymnasium's _add_info, where that neither raises nor spoils a value."""

from __future__ import annotations

import enum

import numpy as np
import pytest
from gymnasium.vector import VectorEnv
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envfleet.core.infos import merge, split_rows
from envfleet.executors.ray.batches import join_infos, split_info


def gymnasium_merge(infos):
    envs = VectorEnv()
    envs.num_envs = len(infos)
    columns = {}
    for row, info in enumerate(infos):
        columns = envs._add_info(columns, info or {}, row)
    return columns


def merge_of_workers(infos):
    """As the Ray backend does: each env's info is merged on its own worker, sent in parts, and joined."""
    objects, columns = {}, []
    for row, info in enumerate(infos):
        own, objects_of_row = split_info(merge([info]), 1)
        columns.append((own, slice(0, 1), slice(row, row + 1)))
        if objects_of_row:
            objects[row] = objects_of_row[0]
    return join_infos(columns, objects, len(infos))


def assert_same(one, other):
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if one.dtype == object:
            for a, b in zip(one.ravel(), other.ravel(), strict=True):
                assert_same(a, b)
        else:
            np.testing.assert_array_equal(one, other)
    else:
        assert one == other or (one != one and other != other)


def assert_holds(own, info):
    """The row's own dict is what the env said, up to numpy's types for numbers."""
    assert list(own) == [key for key in own if key in info]
    assert set(own) == set(info)
    for key, value in info.items():
        if isinstance(value, dict) and key != "final_obs":
            assert_holds(own[key], value)
        elif isinstance(value, np.ndarray):
            np.testing.assert_array_equal(own[key], value)
        else:
            assert own[key] == value or (own[key] != own[key] and value != value)


# A key's name says the type of its values, so that Gymnasium takes every combination.
FLAT = st.fixed_dictionaries(
    {},
    optional={
        "float": st.floats(),
        "int": st.integers(-(2**63), 2**63 - 1),
        "bool": st.booleans(),
        "f4": st.floats(width=32).map(np.float32),
        "u1": st.integers(0, 255).map(np.uint8),
        "npbool": st.booleans().map(np.bool_),
        "text": st.text(max_size=3),
        "none": st.none(),
        "list": st.lists(st.integers(), max_size=3),
        "array": st.lists(st.floats(width=32), min_size=2, max_size=2).map(lambda v: np.array(v, np.float32)),
        "scalar_array": st.integers(0, 9).map(np.array),
        "mixed": st.one_of(st.text(max_size=2), st.tuples(st.integers())),
        "final_obs": st.one_of(st.floats(), st.just({"a": 1}), st.just(np.arange(3)), st.tuples(st.integers())),
        3: st.floats(),
    },
)
INFOS = st.fixed_dictionaries(
    {},
    optional={
        "plain": st.floats(),
        "episode": FLAT,
        "final_info": st.fixed_dictionaries({}, optional={"deep": FLAT, "r": st.floats()}),
    },
)


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.none(), FLAT, INFOS, st.builds(lambda a, b: {**a, **b}, FLAT, INFOS)), min_size=1, max_size=6)
)
def test_as_gymnasium_does(infos):
    columns = merge(infos)
    assert_same(columns, gymnasium_merge(infos))
    for row, info in enumerate(infos):
        assert_holds(split_rows(columns, row), info or {})
    # One row after another gives the same as all at once.
    into = {}
    for row, info in enumerate(infos):
        alone = [None] * len(infos)
        alone[row] = info
        assert merge(alone, into) is into
    assert_same(into, columns)


class Colour(enum.IntEnum):
    RED = 1


ANY = st.one_of(
    st.floats(),
    st.integers(),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from([np.float16(1.5), np.float32(0.1), np.int8(-3), np.uint64(2**63 + 1), np.int64(2**60 + 1), 1j]),
    st.sampled_from([np.bool_(True), None, "1.5", "x", b"x", Colour.RED, [1, 2], (1, 2), {1, 2}]),
    st.sampled_from([np.timedelta64(3, "s"), np.timedelta64(3, "ms"), np.datetime64(3, "s")]),
    st.sampled_from(
        [np.zeros(2), np.ones(3), np.ones(2, np.int64), np.array([2**62 + 1, 0]), np.array(3), np.zeros((0,)),
         np.array(["a", "b"]), np.array(["abc", "b"]), np.array([None, 1]), np.ones(2, bool),
         np.array([(1, 2.0)], dtype=[("a", int), ("b", float)]), np.ma.masked_array([1.0, 2.0])]
    ),
    st.dictionaries(st.sampled_from(["a", "b"]), st.one_of(st.integers(0, 3), st.floats(), st.text(max_size=2))),
)  # fmt: skip


@settings(deadline=None, max_examples=400)
@given(st.lists(st.one_of(st.none(), st.dictionaries(st.sampled_from(["a", "b"]), ANY)), min_size=1, max_size=5))
def test_whatever_the_envs_say_is_kept(infos):
    columns = merge(infos)
    into = {}
    for row, info in enumerate(infos):
        merge([info if other == row else None for other in range(len(infos))], into)
    for row, info in enumerate(infos):
        for held in (columns, into):
            assert_holds(split_rows(held, row), info or {})
    for key, column in columns.items():
        assert f"_{key}" in columns or key.startswith("_")
        assert isinstance(column, dict) or len(column) == len(infos)


NESTED = st.recursive(
    st.one_of(st.integers(0, 3), st.floats(allow_nan=False), st.text(max_size=2), st.none(), st.just(np.ones(2))),
    lambda inner: st.dictionaries(st.sampled_from(["a", "b"]), inner),
    max_leaves=6,
)
# An env's own "_a" next to its "a" gives way to the mask wherever infos are merged; here, in different envs.
WORKER_INFOS = st.one_of(st.dictionaries(st.sampled_from(names), NESTED) for names in (["a", "b"], ["_a", "b"]))


@settings(deadline=None, max_examples=400)
@given(st.lists(WORKER_INFOS, min_size=1, max_size=4))
@example([{"a": {"a": 1, "b": "x"}}, {"a": "text"}])
@example([{"a": {"a": {"a": 1, "b": "x"}}}, {"a": {"a": None}}])
@example([{"a": 5}, {"_a": np.ones(2)}])
@example([{"a": "x"}, {"_a": 5}])
def test_the_infos_of_workers_are_joined_as_those_of_one_pool(infos):
    expected, joined = merge(infos), merge_of_workers(infos)
    assert set(joined) == set(expected)
    for row in range(len(infos)):
        assert_holds(split_rows(joined, row), split_rows(expected, row))


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2.5], np.float64),
        ([2.5, 1], np.float64),
        ([True, 2], np.int64),
        ([True, np.bool_(False)], np.bool_),
        ([np.float32(0.1), 0.1], np.float64),
        ([np.uint8(1), 300], np.int64),
        ([np.int8(1), np.uint8(2)], np.int16),
        ([1.0, 1j], object),  # Python's complex is no number to Gymnasium
        ([1.0, np.complex64(1j)], np.complex128),
        ([2**53 + 1, 0.5], object),
        ([2**70, 1], object),
        ([1, 2**70], object),
        ([1.0, "2.0"], object),
        ([1.0, None], object),
        ([np.zeros(2), np.zeros(3)], object),
        ([np.zeros(2), 1.0], object),
        ([np.zeros(2, int), np.zeros(2)], np.float64),
        ([np.array(["a"]), np.array(["abc"])], "<U3"),
        ([np.array("a"), np.array("abc")], "<U3"),
        ([np.array("a"), "abc"], object),
        ([np.datetime64("2026-01-01"), np.array("a")], object),
        ([{"a": 1}, 2], object),
        ([2, {"a": 1}], object),
        ([{}, "x"], object),
    ],
    ids=str,
)
def test_values_that_differ_between_envs(values, dtype):
    infos = [{"k": value} for value in values]
    step_by_step = merge([None, infos[1]], merge([infos[0], None]))
    for columns in (merge(infos), step_by_step, merge_of_workers(infos)):
        assert columns["k"].dtype == dtype
        assert columns["_k"].tolist() == [True, True]
        for row, value in enumerate(values):
            np.testing.assert_array_equal(split_rows(columns, row)["k"], value)


def test_the_first_bool_decides():
    """As in Gymnasium, where np.bool_ is an object. Across Ray workers it may be either: each merges its own rows."""
    assert merge([{"k": np.bool_(True)}, {"k": True}])["k"].dtype == object
    assert merge([{"k": True}, {"k": np.bool_(True)}])["k"].dtype == bool


def test_numbers_of_a_column_that_becomes_objects_are_plain():
    """Columns of several workers are merged one after the other; the result is that of one merge."""
    infos = [{"n": 2**61, "x": 0.5}, {"n": 2**65, "x": "half"}]
    first = merge([infos[0], None])
    for columns in (merge([None, infos[1]], first), merge(infos)):
        assert [type(value) for key in ("n", "x") for value in columns[key]] == [int, int, float, str]
        assert columns["n"].tolist() == [2**61, 2**65]


def test_a_dict_that_gives_way_to_objects_keeps_its_rows():
    columns = merge([{"k": {"a": 1, "b": {"c": 2.0}}}, {"k": {"a": 2}}, None])
    merge([None, None, {"k": "over"}], columns)
    assert columns["k"].tolist() == [{"a": 1, "b": {"c": 2.0}}, {"a": 2}, "over"]


def test_a_later_value_of_a_row_wins():
    columns = merge([{"k": 1.0}, {"k": 2.0}])
    merge([{"k": 3.0}, None], columns)
    assert columns["k"].tolist() == [3.0, 2.0]
    merge([None, {"k": "x"}], columns)
    assert columns["k"].tolist() == [3.0, "x"]


def test_columns_that_cannot_be_written_or_have_no_mask_are_taken():
    column, mask = np.array([1.0, 2.0]), np.array([True, False])
    column.flags.writeable = mask.flags.writeable = False
    columns = merge([None, {"k": 5.0, "full": 7}], {"k": column, "_k": mask, "full": np.array([1, 2])})
    assert columns["k"].tolist() == [1.0, 5.0]
    assert columns["_k"].tolist() == [True, True]
    assert columns["full"].tolist() == [1, 7]
    assert columns["_full"].tolist() == [True, True]
    assert column.tolist() == [1.0, 2.0]


def test_a_key_with_a_mask_s_name():
    columns = merge([{"x": 1.0, "_x": "mine"}, {"_y": 2}])
    assert columns["_x"].tolist() == [True, False]
    assert split_rows(columns, 0) == {"x": 1.0}
    assert split_rows(columns, 1) == {"_y": 2}
    merge([None, {"_x": "mine"}], columns)
    assert columns["_x"].tolist() == [True, False]


def test_nothing_said_is_no_column():
    assert merge([]) == {}
    assert merge([None, {}]) == {}
    into = {}
    assert merge([None], into) is into


def test_split_rows_of_columns_without_masks():
    assert split_rows({"env_id": np.arange(3), "elapsed_step": np.array([4, 5, 6])}, 1) == {
        "env_id": 1,
        "elapsed_step": 5,
    }
