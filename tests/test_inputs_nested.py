"""Actions of every space: taken in canonical form, or refused with what, where, for whom and what to do."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import Space, spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from envfleet import ActionError, EnvIdError
from envfleet.core.autoreset import AutoresetMode, Phase
from envfleet.core.spaces import leaves_of, split
from envfleet.core.validation import check_actions, check_step

ROWS = 3


class Even(Space):
    def sample(self, mask=None, probability=None):
        return 2

    def contains(self, x):
        return x % 2 == 0  # raises for what has no remainder


DEEP = spaces.Dict(
    {
        "move": spaces.Box(-1, 1, (2,)),
        "pick": spaces.Tuple([spaces.Discrete(3), spaces.Dict({"say": spaces.Text(4, charset="abc")})]),
        "plan": spaces.Sequence(spaces.Discrete(2)),
    }
)
NESTED = [
    DEEP,
    spaces.Dict({"a": spaces.Discrete(2)}),
    spaces.Tuple([spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3])]),
    spaces.Tuple([spaces.Discrete(2), spaces.Text(4), Even()]),
    spaces.Text(4),
    spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3)),
    spaces.OneOf([spaces.Discrete(2), spaces.Box(0, 1, (2,))]),
    spaces.Tuple([]),
    Even(),
]


def check(actions, space, rows=ROWS, ids=None):
    return check_actions("step()", actions, space, rows, None if ids is None else np.array(ids, dtype=np.int32))


def good(**changes):
    actions = {
        "move": np.zeros((3, 2), np.float32),
        "pick": (np.array([0, 1, 2]), {"say": ("a", "bc", "c")}),
        "plan": [(0,), (), (1, 1)],
    }
    return {**actions, **changes}


@pytest.mark.parametrize("space", NESTED, ids=lambda space: type(space).__name__)
@pytest.mark.parametrize("form", ["batched", "rows", "tuple of rows"])
def test_samples_are_taken(space, form):
    space.seed(1)
    rows = 4  # no Tuple here has as many items
    singles = [space.sample() for _ in range(rows)]
    given = {"rows": singles, "tuple of rows": tuple(singles)}.get(form)
    if given is None:
        given = concatenate(space, singles, create_empty_array(space, rows))
    taken = check(given, space, rows)
    leaves = leaves_of(space)
    assert type(taken) is list
    assert len(taken) == len(leaves)
    if leaves:
        columns = zip(*map(split(space), singles), strict=True)
        for leaf, column, mine in zip(leaves, columns, taken, strict=True):
            if leaf.kind == "array":
                assert (mine.dtype, mine.shape) == (leaf.dtype, (rows, *leaf.shape))
                assert mine.flags.c_contiguous
                np.testing.assert_array_equal(mine, np.stack(column))
            else:
                assert type(mine) is list
                assert all(a is b or a == b for a, b in zip(mine, column, strict=True))


def test_leaves_are_converted():
    taken = check(
        good(move=[[0, 1], [1, 0], [0, 0]], pick=[[0, 1, 2], {"say": np.array(["a", "b", "c"])}], plan=((), (), ())),
        DEEP,
    )
    assert [column.dtype for column in taken[:2]] == [np.float32, np.int64]
    assert taken[2:] == [["a", "b", "c"], [(), (), ()]]
    assert [type(text) for text in taken[2]] == [str] * 3
    objects = np.empty(3, dtype=object)
    objects[:] = [(0,), (), (1,)]
    assert check(good(plan=objects), DEEP)[3] == [(0,), (), (1,)]


HINT = "pass one row per env"


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (None, r"expected actions as a dict with the keys 'move', 'pick', 'plan', got NoneType; pass .* 3 single"),
        (np.zeros((3, 2)), r"got an array of shape \(3, 2\)"),
        ([good(), good()], r"got a list of 2 items; pass .* 3 single actions"),
        ({"move": 1}, r"got one without 'pick', 'plan'"),
        (good(more=1), r"got one with an extra 'more'"),
        (good(pick=(0,)), r"expected actions\['pick'\] as a tuple of 2 items, got 1 items"),
        (good(pick=([0, 1, 2], 0)), r"expected actions\['pick'\]\[1\] as a dict with the keys 'say', got int"),
        (good(move=np.zeros((2, 2))), rf"expected actions\['move'\] of shape \(3, 2\), got \(2, 2\); {HINT}"),
        (good(move=[[0, 0], [0], [0, 0]]), r"actions\['move'\] as an array.*env 1 has shape \(1,\), not \(2,\)"),
        (good(move=np.full((3, 2), "x")), r"expected actions\['move'\] of dtype float32, got <U1"),
        (good(move=[[0, 0], [0, 0], [0, 2]]), r"actions\['move'\] of a Box \(here from -1.0 to 1.0.*got 2 for env 2"),
        (good(move=[[0, 0], [0, np.nan], [0, 0]]), r"no NaN\), got nan for env 1 \(index \(1, 1\)\); pass a number"),
        (good(move=[[0, 0], [0, np.inf], [0, 0]]), r"got inf for env 1"),
        (good(pick=([0, 1, 3], {"say": "abc"})), r"\['pick'\]\[0\] of Discrete\(3\) \(from 0 to 2\), got 3 for env 2"),
        (good(pick=([0.0, 1, 2], {"say": ["a"] * 3})), r"\['pick'\]\[0\] for Discrete\(3\), got dtype float64"),
        (good(pick=([0, 1, 2], {"say": "abc"})), r"\['pick'\]\[1\]\['say'\] as a list of 3 values.*got str: 'abc'"),
        (good(pick=([0, 1, 2], {"say": ["a"]})), r"as a list of 3 values of Text.*, got 1; pass one per env"),
        (good(pick=([0, 1, 2], {"say": ["a", "z", "a"]})), r"got str: 'z' for env 1 \(row 1\); check its leng"),
        (good(pick=([0, 1, 2], {"say": ["a", "", "a"]})), r"got str: '' for env 1"),
        (good(pick=([0, 1, 2], {"say": ["a", "abcab", "a"]})), r"got str: 'abcab' for env 1"),
        (good(pick=([0, 1, 2], {"say": ["a", 5, "a"]})), r"got int: 5 for env 1 \(row 1\); pass a str"),
        (good(plan=[(0,), (2,), ()]), r"expected actions\['plan'\] in Sequence.*got tuple: \(2,\) for env 1"),
        (good(plan=None), r"expected actions\['plan'\] as a list of 3 values.*got None"),
        ([{"move": 1}, 2, 3], r"as single actions, expected actions\[0\] as a dict .* without 'pick', 'plan'"),
    ],
    ids=str,
)  # fmt: skip
def test_nested_actions_that_are_refused(actions, message):
    with pytest.raises(ActionError, match=r"^step\(\) " + ".*" + message):
        check(actions, DEEP)


def test_single_actions_that_are_refused():
    space = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(0, 1, (2,))})
    rows = [{"a": 0, "b": [0, 0]} for _ in range(3)]
    assert [column.shape for column in check(rows, space)] == [(3,), (3, 2)]
    for change, message in [
        ({"a": 2}, r"actions\[row\]\['a'\] of Discrete\(2\) .*got 2 for env 7"),
        ({"a": [0]}, r"actions\[row\]\['a'\] as an array.*env 7 has shape \(1,\), not \(\)"),
        ({"b": [0]}, r"env 7 has shape \(1,\), not \(2,\)"),
        ({"b": [0, 5]}, r"got 5 for env 7"),
        ({"c": 1}, r"as single actions, expected actions\[1\] as a dict .* an extra 'c'"),
    ]:
        with pytest.raises(ActionError, match=message):
            check([rows[0], {**rows[1], **change}, rows[2]], space, ids=[5, 7, 1])


def test_a_custom_space_that_raises_refuses():
    assert check([2, 4, 6], Even()) == [[2, 4, 6]]
    with pytest.raises(ActionError, match=r"got int: 3 for env 1 \(row 1\); pass an element of the space"):
        check([2, 3, 4], Even())
    with pytest.raises(ActionError, match=r"for env 9 \(row 2\); its contains\(\) raised TypeError"):
        check([2, 4, None], Even(), ids=[1, 2, 9])

    class Wordless:
        def __repr__(self):
            raise RuntimeError

    with pytest.raises(ActionError, match=r"got Wordless: \(no repr\) for env 0"):
        check([Wordless(), 4, 4], Even())


def test_columns_or_rows_is_decided_by_structure_not_by_values():
    pair = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)])
    # As many rows as items: always columns, even where the values would fit rows only.
    assert [column.tolist() for column in check([(0, 1), (1, 2)], pair, 2)] == [[0, 1], [1, 2]]
    with pytest.raises(ActionError, match=r"actions\[0\] of Discrete\(2\).*got 2 for env 1"):
        check([(0, 2), (1, 0)], pair, 2)
    with pytest.raises(ActionError, match=r"integer actions\[0\]"):
        check([(0, 1.0), (1, 0)], pair, 2)
    assert [column.tolist() for column in check([(0, 1), (1, 2), (1, 0)], pair, 3)] == [[0, 1, 1], [1, 2, 0]]
    said = spaces.Tuple([spaces.Discrete(2), spaces.Text(3)])
    zero_one, words = check([(0, "a"), (1, "b")], said, 2)
    assert (zero_one.tolist(), words) == ([0, 1], ["a", "b"])
    uneven = spaces.Tuple([spaces.Box(0, 1, (2,)), spaces.Discrete(2)])
    assert [column.shape for column in check([([0, 0], 1), ([1, 1], 0)], uneven, 2)] == [(2, 2), (2,)]


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int8, np.uint16, np.int64, np.uint64, np.float16, np.float64])
def test_boxes_of_every_dtype(dtype):
    space = spaces.Box(0, 1, (2,), dtype)
    for given in ([[0, 1], [1, 0], [0, 0]], np.array([[0, 1], [1, 0], [0, 0]], dtype), np.ones((3, 2), np.uint64)):
        taken = check(given, space)
        assert taken.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(taken, given)
        np.testing.assert_array_equal(check({"x": given}, spaces.Dict({"x": space}))[0], given)
    for outside in (2, -1, 2**40):
        with pytest.raises(ActionError, match=rf"got {outside} for env 1"):
            check([[0, 0], [outside, 0], [0, 0]], space)
    if np.dtype(dtype).kind != "f":
        with pytest.raises(ActionError, match=rf"expected actions of dtype {np.dtype(dtype)}, got float64"):
            check(np.zeros((3, 2)), space)
    if np.dtype(dtype).kind != "b":
        with pytest.raises(ActionError, match="got bool"):
            check(np.zeros((3, 2), np.bool_), space)


def test_ranges_at_the_edge_of_their_dtype():
    assert check([127, 100, 28], spaces.Discrete(100, start=28, dtype=np.int8)).tolist() == [127, 100, 28]
    with pytest.raises(ActionError, match=r"from 28 to 127\), got 27 for env 0"):
        check([27, 100, 28], spaces.Discrete(100, start=28, dtype=np.int8))
    space = spaces.MultiDiscrete([100], dtype=np.int8, start=[28])
    assert check([[127], [28], [30]], space).tolist() == [[127], [28], [30]]
    with pytest.raises(ActionError, match=r"here from 28 to 127\), got 128 for env 0"):
        check([[128], [28], [30]], space)


def executor_of(space, num_envs=4):
    return SimpleNamespace(
        takes_leaves=False,
        num_envs=num_envs,
        num_in_flight=0,
        spec=SimpleNamespace(takes_leaves=False, action_space=space),
        in_flight=lambda: np.zeros(num_envs, dtype=bool),
        phases=lambda: np.full(num_envs, Phase.RUNNING),
    )


ASYNC = SimpleNamespace(takes_leaves=False, is_async=True, batch_size=2, autoreset_mode=AutoresetMode.NEXT_STEP)


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (spaces.Discrete(2), [0, 1]),
        (spaces.Discrete(2), range(2)),
        (spaces.Discrete(2), [[0], [0, 1]]),
        (spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Text(3)}), {"a": [0, 1], "b": ["a", "b"]}),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"a": np.zeros(2, np.int64)}),
        (spaces.Dict({"a": spaces.Discrete(2)}), [{"a": 0}, {"a": 1}]),
        (spaces.Tuple([spaces.Discrete(2)] * 3), ([0, 0], [0, 0], [0, 0])),
        (spaces.Text(3), ("a", "b")),
    ],
    ids=str,
)
def test_as_many_actions_as_a_batch_has_want_ids(space, actions):
    with pytest.raises(EnvIdError, match="got 2 actions and no env ids"):
        check_step("send()", actions, None, executor_of(space), ASYNC)


def test_check_step_gives_the_columns_and_ids():
    pair = spaces.Tuple([spaces.Discrete(2)] * 2)
    # Two items, as a batch has rows: but of four rows each.
    columns, ids = check_step("send()", ([0, 1, 0, 1], [1, 1, 1, 1]), None, executor_of(pair), ASYNC)
    assert [column.tolist() for column in columns] == [[0, 1, 0, 1], [1, 1, 1, 1]]
    assert ids is None
    columns, ids = check_step("send()", ([0, 1], [1, 1]), [3, 1], executor_of(pair), ASYNC)
    assert [column.tolist() for column in columns] == [[0, 1], [1, 1]]
    assert ids.tolist() == [3, 1]
    for odd in (None, 5, "ab", {}, {"a": 1}, object()):
        for space in (spaces.Discrete(2), spaces.Text(2), spaces.Dict({"a": spaces.Discrete(2)})):
            with pytest.raises(ActionError):
                check_step("send()", odd, None, executor_of(space), ASYNC)
