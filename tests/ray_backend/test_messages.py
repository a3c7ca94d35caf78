"""Messages between the caller and an actor, at sizes that no test machine would like to send."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from envfleet.executors.ray.messages import STEP, ActionForm, Request, RowForm

TWO_GIB = 1 << 31


def test_a_reply_may_hold_more_than_2_gib_of_infos():
    """Its head can say so; a short one is read back."""
    form = RowForm(spaces.Box(0, 1, (2,), np.float32), has_finals=False)
    flags, phases = np.zeros(1, dtype=np.bool_), np.zeros(1, dtype=np.uint8)
    obs, reward, elapsed = np.ones((1, 2), np.float32), np.full(1, 3.0), np.full(1, 4, np.int32)
    extras = bytes(TWO_GIB + 3)  # pages that nothing touches take no memory
    encoded = form.encode([obs], reward, elapsed, flags, flags, phases, None, None, extras)
    assert sum(map(len, encoded.sealed)) > TWO_GIB
    assert int.from_bytes(encoded.sealed[0][16:24], "little") == len(extras)
    short = form.encode([obs], reward, elapsed, flags, flags, phases, None, None, b"infos")
    reply = form.decode(memoryview(b"".join((*short.sealed, *short.columns))))
    assert (reply.extras, reply.obs[0].tolist(), reply.reward.tolist()) == (b"infos", [[1, 1]], [3])
    assert all(column.flags.aligned for column in (*reply.obs, reply.reward, reply.elapsed_step))


def test_a_request_and_its_columns_come_back():
    form = ActionForm(spaces.Box(0, 1, (2,), np.float64))
    ids, actions = np.array([1, 3], np.int32), np.arange(4.0).reshape(2, 2)
    data = form.encode(Request(5, 4, STEP, 1, ids, [actions], {"options": {"a": 1}}))
    request = form.decode(memoryview(data), 8)
    assert (request.number, request.acknowledged, request.extras) == (5, 4, {"options": {"a": 1}})
    np.testing.assert_array_equal(request.local_ids, ids)
    np.testing.assert_array_equal(request.actions[0], actions)
