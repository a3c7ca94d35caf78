"""SpaceEnv: one kind of space after another, every kind of info, and values told apart to the last bit.

Workers import this module, so it depends on nothing of the tests.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.spaces import GraphInstance


def _boxes() -> spaces.Dict:
    shapes: dict[type[Any], tuple[int, ...]] = {
        np.float16: (3,),
        np.float32: (2, 3),
        np.float64: (),
        np.int8: (5,),
        np.int16: (1, 1, 3),
        np.int32: (),
        np.int64: (2,),
        np.uint8: (4, 4, 3),
        np.uint16: (3,),
        np.uint32: (2, 2),
        np.uint64: (3,),
    }
    boxes: dict[str, spaces.Space[Any]] = {
        np.dtype(dtype).name: spaces.Box(0 if np.issubdtype(dtype, np.unsignedinteger) else -100, 100, shape, dtype)
        for dtype, shape in shapes.items()
    }
    return spaces.Dict({**boxes, "bool": spaces.Box(0, 1, (3,), np.bool_)})


def _graph(with_edges: bool = True) -> spaces.Graph:
    return spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(4, start=1) if with_edges else None)


def _one_of() -> spaces.OneOf:
    return spaces.OneOf([spaces.Discrete(3, start=5), spaces.Box(-1, 1, (2, 2), np.float64), spaces.Text(4)])


def _deep() -> spaces.Dict:
    """Nested five levels deep, with every kind of space."""
    inner = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (3, 2, 1), np.uint8),
            "name": spaces.Text(5),
            "where": spaces.Tuple([spaces.MultiDiscrete([[2, 3], [4, 5]]), _graph(), spaces.Box(-1, 1, ())]),
        }
    )
    return spaces.Dict(
        {
            "zulu": spaces.Tuple([inner, spaces.Discrete(7, start=-3)]),
            "alpha": spaces.Dict({"inner": spaces.Dict({"bits": spaces.MultiBinary((2, 2)), "choice": _one_of()})}),
            "mike": spaces.Sequence(spaces.Dict({"x": spaces.Box(-1, 1, (2,)), "y": spaces.Discrete(3)})),
        }
    )


SPACES: dict[str, Callable[[], spaces.Space[Any]]] = {
    "boxes": _boxes,
    "box_scalar": lambda: spaces.Box(-1, 1, (), np.float32),
    "box_image": lambda: spaces.Box(0, 255, (8, 8, 3), np.uint8),
    "box_empty": lambda: spaces.Box(0, 1, (0, 3), np.float32),
    "discrete": lambda: spaces.Discrete(5, start=-2),
    "multi_discrete": lambda: spaces.MultiDiscrete(
        np.array([[2, 3, 4], [5, 6, 7]]), start=np.array([[0, -5, 1], [2, 3, -1]])
    ),
    "multi_binary": lambda: spaces.MultiBinary((2, 3)),
    "text": lambda: spaces.Text(6, min_length=0, charset="abcxyz\u00e9\u6f22\U0001f3b2"),
    "graph": _graph,
    "graph_without_edges": lambda: _graph(with_edges=False),
    "sequence": lambda: spaces.Sequence(spaces.Box(-1, 1, (2,), np.float64)),
    "sequence_stacked": lambda: spaces.Sequence(spaces.Box(-1, 1, (2,)), stack=True),
    "one_of": _one_of,
    "tuple": lambda: spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,)), spaces.Tuple([spaces.MultiBinary(2)])]),
    "deep": _deep,
}


def encode(value: Any) -> bytes:
    """Every bit of a value, its dtypes and its structure; equal encodings mean equal values."""
    if isinstance(value, GraphInstance):
        return b"graph(" + b",".join(encode(part) for part in value) + b")"
    if isinstance(value, dict):
        return b"dict(" + b",".join(key.encode() + b"=" + encode(value[key]) for key in sorted(value)) + b")"
    if isinstance(value, (tuple, list)):
        return b"tuple(" + b",".join(encode(part) for part in value) + b")"
    if isinstance(value, str):
        return b"str:" + value.encode("utf-8", "surrogatepass")
    if value is None:
        return b"none"
    array = np.asarray(value)
    return f"{array.dtype.str}{array.shape}:".encode() + array.tobytes()


def checksum(value: Any) -> int:
    """A number for a value."""
    return zlib.crc32(encode(value))


class SpaceEnv(gymnasium.Env[Any, Any]):
    """Observations and actions of one kind of SPACES. All that it does depends on its seed and actions alone.

    Its infos hold what infos can: numbers, arrays, text, dicts, and keys that some rows have and others not.
    """

    def __init__(self, kind: str) -> None:
        self.observation_space, self.action_space = SPACES[kind](), SPACES[kind]()
        self._left, self._count, self._actions = 0, 0, []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._left, self._count = int(self.np_random.integers(1, 7)), 0
        self._actions: list[Any] = []
        return self._draw(), {"count": 0, "length": self._left, "story": "begins"}

    def step(self, action: Any) -> Any:
        self._actions.append(action)
        self._count += 1
        self._left -= 1
        reward = float(self.np_random.standard_normal())
        is_over = self._left == 0
        terminated = is_over and self.np_random.random() < 0.6
        truncated = is_over and (not terminated or self.np_random.random() < 0.2)
        return self._draw(), reward, bool(terminated), bool(truncated), self._info(action, is_over)

    def _draw(self) -> Any:
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()

    def _info(self, action: Any, is_over: bool) -> dict[str, Any]:
        info: dict[str, Any] = {
            "count": self._count,
            "checksum": checksum(action),
            # An action that the env kept must not change under it when others come.
            "checksum_of_first": checksum(self._actions[0]),
            "ratio": self._count / 3,
            "is_even": self._count % 2 == 0,
            "vector": self.np_random.random(3, dtype=np.float32),
            "story": "ends" if is_over else f"goes on: {self._count}",
            "nested": {"depth": 0.5 * self._count, "deeper": {"label": "x" * self._count}},
        }
        if isinstance(self.action_space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
            info["echo"] = np.array(action)
        if self._count % 3 == 1:
            info["rarely"] = np.float32(self._count)
            info["nested"]["rarely"] = True
        if is_over:
            info["score"] = int(self.np_random.integers(100))
        return info
