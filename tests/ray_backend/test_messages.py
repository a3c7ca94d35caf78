"""Messages between the caller and an actor, at sizes that no test machine would like to send."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from envfleet.executors.ray.messages import STEP, Request, RequestCodec, ResponseCodec, ResponseColumns

TWO_GIB = 1 << 31


def test_a_response_may_hold_more_than_2_gib_of_infos():
    """Its head can say so; a short one is read back."""
    codec = ResponseCodec(spaces.Box(0, 1, (2,), np.float32), has_finals=False)
    flags, phases = np.zeros(1, dtype=np.bool_), np.zeros(1, dtype=np.uint8)
    obs, reward, elapsed = np.ones((1, 2), np.float32), np.full(1, 3.0), np.full(1, 4, np.int32)
    extras = bytes(TWO_GIB + 3)  # pages that nothing touches take no memory
    encoded = codec.encode(ResponseColumns([obs], reward, elapsed, flags, flags, phases, extras=extras))
    assert sum(map(len, encoded.authenticated)) > TWO_GIB
    assert int.from_bytes(encoded.authenticated[0][16:24], "little") == len(extras)
    short = codec.encode(ResponseColumns([obs], reward, elapsed, flags, flags, phases, extras=b"infos"))
    response = codec.decode(memoryview(b"".join((*short.authenticated, *short.columns))))
    assert (response.extras, response.obs[0].tolist(), response.reward.tolist()) == (b"infos", [[1, 1]], [3])
    assert all(column.flags.aligned for column in (*response.obs, response.reward, response.elapsed_step))


def test_a_request_and_its_columns_come_back():
    codec = RequestCodec(spaces.Box(0, 1, (2,), np.float64))
    ids, actions = np.array([1, 3], np.int32), np.arange(4.0).reshape(2, 2)
    data = codec.encode(Request(5, 4, STEP, ids, [actions], {"options": {"a": 1}}))
    request = codec.decode(memoryview(data), 8)
    assert (request.number, request.acknowledged, request.extras) == (5, 4, {"options": {"a": 1}})
    np.testing.assert_array_equal(request.local_ids, ids)
    np.testing.assert_array_equal(request.actions[0], actions)
