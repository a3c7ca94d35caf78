"""One leaf of a space in TorchRL's terms: its spec, and its columns to tensors and back.

The encodings are those of TorchRL's own GymEnv: Discrete and MultiDiscrete are one-hot, or
categorical on request. Unlike there, a space that starts above 0 is honoured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch.nn.functional import one_hot
from torchrl.data import Binary, Bounded, Categorical, MultiCategorical, MultiOneHot, OneHot, Unbounded

from envfleet.errors import ConfigError

_DTYPES = {
    np.dtype(name): getattr(torch, name)
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
}


@dataclass(frozen=True)
class Codec:
    """spec is of one env; the functions take columns, a row for each env."""

    spec: Any
    to_tensor: Callable[[NDArray[Any]], torch.Tensor]
    to_array: Callable[[torch.Tensor], NDArray[Any]]


def codec_of(space: gymnasium.Space[Any], categorical: bool, where: str) -> Codec:
    """The codec of a leaf; where says which, in messages."""
    if isinstance(space, spaces.Discrete):
        return _choices(int(space.n), (), np.int64(space.start), categorical)
    if isinstance(space, spaces.MultiDiscrete):
        return _multi_discrete(space, categorical, where)
    if isinstance(space, spaces.MultiBinary):
        shape = tuple(space.shape or ())
        return _plain(Binary(shape[-1], shape=shape, dtype=torch.int8))
    if isinstance(space, spaces.Box):
        return _box(space, where)
    raise ConfigError(
        f"the torchrl api expected {where} of Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple spaces, "
        f"got {space}, which no tensor holds; turn it into a Box with a wrapper: wrappers=[...]"
    )


def _plain(spec: Any) -> Codec:
    return Codec(spec, torch.from_numpy, torch.Tensor.numpy)


def _box(space: spaces.Box, where: str) -> Codec:
    dtype = _DTYPES.get(np.dtype(space.dtype))
    if dtype is None:
        raise ConfigError(
            f"the torchrl api expected {where} of a dtype that torch computes with, got {space}; "
            "change it with a wrapper such as gymnasium.wrappers.DtypeObservation: wrappers=[...]"
        )
    shape = tuple(space.shape)
    # A single number is a row of one, as in GymEnv.
    spec_shape = shape or (1,)
    if dtype is torch.bool:
        spec = Binary(spec_shape[-1], shape=spec_shape, dtype=dtype)
    elif _is_unbounded(space):
        spec = Unbounded(spec_shape, dtype=dtype)
    else:
        low, high = (torch.from_numpy(side.reshape(spec_shape).copy()) for side in (space.low, space.high))
        spec = Bounded(low, high, spec_shape, dtype=dtype)
    if shape:
        return _plain(spec)
    return Codec(spec, lambda column: torch.from_numpy(column).unsqueeze(-1), lambda rows: rows.squeeze(-1).numpy())


def _is_unbounded(space: spaces.Box) -> bool:
    if space.dtype is not None and np.issubdtype(space.dtype, np.integer):
        limits = np.iinfo(np.dtype(space.dtype).name)
        return bool((space.low == limits.min).all() and (space.high == limits.max).all())
    return bool(np.isinf(space.low).all() and np.isinf(space.high).all())


def _multi_discrete(space: spaces.MultiDiscrete, categorical: bool, where: str) -> Codec:
    nvec, start = space.nvec, space.start
    if (nvec == nvec.flat[0]).all():
        return _choices(int(nvec.flat[0]), nvec.shape, start if start.any() else np.int64(0), categorical)
    if nvec.ndim != 1:
        raise ConfigError(
            f"the torchrl api expected {where} of MultiDiscrete spaces of one dimension, or with the same count "
            f"everywhere, got {space}; flatten it with a wrapper: wrappers=[...]"
        )
    counts = [int(count) for count in nvec]
    offset = torch.from_numpy(start.astype(np.int64))
    if categorical:
        return Codec(
            MultiCategorical(counts, dtype=torch.int64),
            lambda column: torch.from_numpy(column) - offset,
            lambda rows: (rows + offset).numpy(),
        )

    def to_tensor(column: NDArray[Any]) -> torch.Tensor:
        indices = torch.from_numpy(column) - offset
        return torch.cat([one_hot(indices[:, i], count) for i, count in enumerate(counts)], -1)

    def to_array(rows: torch.Tensor) -> NDArray[Any]:
        indices = torch.stack([_argmax(part) for part in rows.split(counts, -1)], -1)
        return np.asarray(indices + offset)

    return Codec(MultiOneHot(counts, dtype=torch.int64), to_tensor, to_array)


def _choices(count: int, shape: tuple[int, ...], start: Any, categorical: bool) -> Codec:
    """One of count, at each place of the shape."""
    if categorical:
        spec = Categorical(count, shape=shape, dtype=torch.int64)
        if not np.any(start):
            return _plain(spec)
        return Codec(spec, lambda column: torch.from_numpy(column - start), lambda rows: rows.numpy() + start)
    spec = OneHot(count, shape=(*shape, count), dtype=torch.int64)
    if not np.any(start):
        return Codec(spec, lambda column: one_hot(torch.from_numpy(column), count), lambda rows: _argmax(rows).numpy())
    return Codec(
        spec,
        lambda column: one_hot(torch.from_numpy(column - start), count),
        lambda rows: _argmax(rows).numpy() + start,
    )


def _argmax(rows: torch.Tensor) -> torch.Tensor:
    # Of booleans torch has none.
    return (rows.to(torch.uint8) if rows.dtype is torch.bool else rows).argmax(-1)
