"""A space as TorchRL's keys and specs; batches as dicts of tensors and back.

A Dict's leaves have its keys, nested as it is; a Tuple's have "0", "1" and so on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from tensordict import TensorDictBase
from torchrl.data import Composite

from envfleet.apis.torchrl.codecs import codec_of
from envfleet.errors import ActionError, ConfigError
from envfleet.spaces import join, leaves_of, path_text, split

Key = str | tuple[str, ...]

_TAKEN = ("action", "next", "reward", "done", "terminated", "truncated", "_reset", "_step", "env_index", "collector")


class SpaceTree:
    """The leaves of a space with their keys and codecs.

    name: what the key of a plain space is, and what messages call it. is_root: whether a Dict's keys
    stand beside the others, as observations do, or below the name, as actions do.
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
        """The spec of num_rows rows, keys and all."""
        nested: dict[str, Any] = {}
        for path, codec in zip(self._paths, self._codecs, strict=True):
            level = nested
            for step in path[:-1]:
                level = level.setdefault(step, {})
            level[path[-1]] = codec.spec.expand(num_rows, *codec.spec.shape)
        spec = _composite(nested, num_rows)
        return spec if device is None else spec.to(device)

    def columns(self, value: Any) -> list[NDArray[Any]]:
        """The columns of a batch of values, one for each leaf."""
        return self._take_apart(value)

    def tensors(self, columns: list[NDArray[Any]]) -> dict[Key, torch.Tensor]:
        """The columns as tensors by key, not copied where their encoding allows."""
        parts = zip(self._keys, self._codecs, columns, strict=True)
        return {key: codec.to_tensor(column) for key, codec, column in parts}

    def arrays(self, rows: TensorDictBase) -> list[NDArray[Any]]:
        """The columns that this tensordict holds."""
        columns = []
        for key, codec in zip(self._keys, self._codecs, strict=True):
            tensor = rows.get(key, None)
            if tensor is None:
                raise ActionError(f"step() expected a tensordict with {key!r}, got {sorted(map(str, rows.keys()))}")
            tensor = tensor.detach().cpu()
            columns.append(codec.to_array(tensor))
        return columns

    def value(self, columns: list[NDArray[Any]]) -> Any:
        """The columns in the structure of the space."""
        return self._put_together(columns)


def _composite(nested: dict[str, Any], num_rows: int) -> Composite:
    parts = {key: _composite(part, num_rows) if isinstance(part, dict) else part for key, part in nested.items()}
    return Composite(parts, shape=(num_rows,))


def _key_paths(space: gymnasium.Space[Any], prefix: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The key of each leaf, in the order of leaves_of."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            if not isinstance(key, str):
                raise ConfigError(f"the torchrl api expected Dict spaces with str keys, got {key!r}; rename it")
            # As GymEnv names it, so that the same policy fits.
            renamed = key == "state" and "observation" not in space.spaces
            yield from _key_paths(part, (*prefix, "observation" if renamed else key))
    elif isinstance(space, spaces.Tuple):
        for position, part in enumerate(space.spaces):
            yield from _key_paths(part, (*prefix, str(position)))
    else:
        yield prefix
