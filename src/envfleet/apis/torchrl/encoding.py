"""Spaces in TorchRL's terms: specs, keys, and the conversion between columns and tensors.

The encodings are those of TorchRL's GymEnv: Discrete and MultiDiscrete are one-hot, or categorical on request. Unlike
there, the start of a space is respected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from tensordict import TensorDictBase
from torch.nn.functional import one_hot
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, MultiOneHot, OneHot, Unbounded

from envfleet.apis.common.torch_transfer import Transfer
from envfleet.core.errors import ActionError, ConfigError
from envfleet.core.spaces import join, leaves_of, path_text, split

_DTYPES = {
    np.dtype(name): getattr(torch, name)
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
}


@dataclass(frozen=True)
class Codec:
    """The spec of a leaf for one env, and the conversion of its columns, which have one row per env.

    Both directions work on tensors of any device.
    """

    spec: Any
    encode: Callable[[torch.Tensor], torch.Tensor]
    decode: Callable[[torch.Tensor], torch.Tensor]


def codec_of(space: gymnasium.Space[Any], categorical: bool, where: str) -> Codec:
    """Return the codec of a leaf space. where: its name in error messages."""
    if isinstance(space, spaces.Discrete):
        dtype = _DTYPES.get(np.dtype(space.dtype), torch.int64)
        return _choices(int(space.n), (), np.int64(space.start), categorical, dtype)
    if isinstance(space, spaces.MultiDiscrete):
        return _multi_discrete(space, categorical, where)
    if isinstance(space, spaces.MultiBinary):
        shape = tuple(space.shape or ())
        return _plain(Binary(shape[-1], shape=shape, dtype=torch.int8))
    if isinstance(space, spaces.Box):
        return _box(space, where)
    raise ConfigError(
        f"the torchrl api expected {where} of Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple spaces, "
        f"got {space}, which has no tensor form; convert it to a Box with a wrapper: wrappers=[...]"
    )


def _plain(spec: Any) -> Codec:
    return Codec(spec, lambda column: column, lambda rows: rows)


def _box(space: spaces.Box, where: str) -> Codec:
    dtype = _DTYPES.get(np.dtype(space.dtype))
    if dtype is None:
        raise ConfigError(
            f"the torchrl api expected {where} of a dtype that torch supports, got {space}; "
            "change it with a wrapper such as gymnasium.wrappers.DtypeObservation: wrappers=[...]"
        )
    shape = tuple(space.shape)
    # A scalar is a row of one element, as in GymEnv.
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
    return Codec(spec, lambda column: column.unsqueeze(-1), lambda rows: rows.squeeze(-1))


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
            f"the torchrl api expected {where} of one-dimensional MultiDiscrete spaces, or of equal counts, "
            f"got {space}; flatten it with a wrapper: wrappers=[...]"
        )
    counts = [int(count) for count in nvec]
    offset = torch.from_numpy(start.astype(np.int64))
    if categorical:
        return Codec(
            MultiCategorical(counts, dtype=torch.int64),
            lambda column: column - offset.to(column.device),
            lambda rows: rows + offset.to(rows.device),
        )

    def encode(column: torch.Tensor) -> torch.Tensor:
        indices = column - offset.to(column.device)
        return torch.cat([one_hot(indices[:, i], count) for i, count in enumerate(counts)], -1)

    def decode(rows: torch.Tensor) -> torch.Tensor:
        indices = torch.stack([_chosen(part) for part in rows.split(counts, -1)], -1)
        return indices + offset.to(rows.device)

    return Codec(MultiOneHot(counts, dtype=torch.int64), encode, decode)


def _choices(
    count: int, shape: tuple[int, ...], start: Any, categorical: bool, dtype: torch.dtype = torch.int64
) -> Codec:
    """Return the codec of choices from 0 to count - 1, plus start, at each position of the shape."""
    offset = torch.as_tensor(start)
    has_start = bool(offset.any())
    if categorical:
        spec = Categorical(count, shape=shape, dtype=dtype)
        if not has_start:
            return _plain(spec)
        return Codec(spec, lambda column: column - offset.to(column.device), lambda rows: rows + offset.to(rows.device))
    spec = OneHot(count, shape=(*shape, count), dtype=torch.int64)
    if not has_start:
        return Codec(spec, lambda column: one_hot(column.to(torch.int64), count), _chosen)
    return Codec(
        spec,
        lambda column: one_hot((column - offset.to(column.device)).to(torch.int64), count),
        lambda rows: _chosen(rows) + offset.to(rows.device),
    )


def _chosen(rows: torch.Tensor) -> torch.Tensor:
    """Return the index that each one-hot row encodes; -1, which the pool refuses, for rows that are not one-hot."""
    # torch has no argmax of booleans.
    rows = rows.to(torch.uint8) if rows.dtype is torch.bool else rows
    # Not != 0: straight-through estimators leave rounding errors next to the 1.
    is_one_hot = (rows > 0.5).sum(-1) == 1
    return torch.where(is_one_hot, rows.argmax(-1), -1)


Key = str | tuple[str, ...]

_TAKEN = ("action", "next", "reward", "done", "terminated", "truncated", "_reset", "_step", "env_index", "collector")


class SpaceTree:
    """The leaves of a space with their keys and codecs.

    name: the key of a non-composite space, and its name in error messages. is_root: whether a Dict's keys are at the
    root, like those of observations, or below the name, like those of actions.
    """

    def __init__(self, space: gymnasium.Space[Any], name: str, categorical: bool, is_root: bool) -> None:
        stays = is_root and isinstance(space, spaces.Dict)
        self._name = name
        self._paths = list(_key_paths(space, () if stays else (name,)))
        self._keys: list[Key] = [path[0] if len(path) == 1 else path for path in self._paths]
        self._codecs = [
            codec_of(leaf.space, categorical, f"{name}s{path_text(leaf.path)}") for leaf in leaves_of(space)
        ]
        self._take_apart = split(space, name)
        self._put_together = join(space)
        clash = [path[0] for path in self._paths if stays and path[0] in _TAKEN]
        if clash:
            raise ConfigError(
                f"the torchrl api expected {name} keys other than {', '.join(_TAKEN)}, got {clash[0]!r}; "
                "rename it with a wrapper: wrappers=[...]"
            )

    def spec(self, num_rows: int, device: Any) -> Composite:
        """Return the Composite spec of num_rows rows."""
        nested: dict[str, Any] = {}
        for path, codec in zip(self._paths, self._codecs, strict=True):
            level = nested
            for step in path[:-1]:
                level = level.setdefault(step, {})
            level[path[-1]] = codec.spec.expand(num_rows, *codec.spec.shape)
        spec = _composite(nested, num_rows)
        return spec if device is None else spec.to(device)

    def columns(self, value: Any) -> list[NDArray[Any]]:
        """Return the columns of a batch of values, one per leaf."""
        return self._take_apart(value)

    def tensors(self, columns: Sequence[torch.Tensor]) -> dict[Key, torch.Tensor]:
        """Return the columns encoded, by key, without a copy if the encoding allows."""
        parts = zip(self._keys, self._codecs, columns, strict=True)
        return {key: codec.encode(column) for key, codec, column in parts}

    def arrays(self, rows: TensorDictBase, transfer: Transfer) -> list[NDArray[Any]]:
        """Return the columns of a tensordict as arrays, which the next call may overwrite."""
        columns = []
        for key, codec in zip(self._keys, self._codecs, strict=True):
            tensor = rows.get(key, None)
            if tensor is None:
                raise ActionError(f"step() expected a tensordict with {key!r}, got {sorted(map(str, rows.keys()))}")
            if tensor.shape[1:] != codec.spec.shape:
                expected = (len(rows), *codec.spec.shape)
                encoding = " (one-hot)" if isinstance(codec.spec, (OneHot, MultiOneHot)) else ""
                raise ActionError(
                    f"step() expected {key!r} of shape {expected}{encoding}, got {tuple(tensor.shape)}; "
                    "pass one row per env, in the form of action_spec"
                )
            columns.append(codec.decode(tensor.detach()))
        return list(transfer.to_host(tuple(columns))[0])

    def value(self, columns: list[NDArray[Any]]) -> Any:
        """Return the columns in the structure of the space."""
        return self._put_together(columns)


def _composite(nested: dict[str, Any], num_rows: int) -> Composite:
    parts = {key: _composite(part, num_rows) if isinstance(part, dict) else part for key, part in nested.items()}
    return Composite(parts, shape=(num_rows,))


def _key_paths(space: gymnasium.Space[Any], prefix: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the key path of each leaf, in the order of leaves_of()."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            if not isinstance(key, str):
                raise ConfigError(f"the torchrl api expected Dict spaces with str keys, got {key!r}; rename it")
            # GymEnv's name for it, so that the same policy fits.
            renamed = key == "state" and "observation" not in space.spaces
            yield from _key_paths(part, (*prefix, "observation" if renamed else key))
    elif isinstance(space, spaces.Tuple):
        for position, part in enumerate(space.spaces):
            yield from _key_paths(part, (*prefix, str(position)))
    else:
        yield prefix
