"""ArraySpec: EnvPool's description of one array of states or actions, and its translations to spaces and specs."""

from __future__ import annotations

import inspect
from collections import namedtuple
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

# Larger ranges of integers are described as boxes.
_MAX_DISCRETE = 2**20
# Gymnasium 1.1 has no such argument.
_DTYPE_INT32: dict[str, Any] = (
    {"dtype": np.int32} if "dtype" in inspect.signature(spaces.Discrete.__init__).parameters else {}
)


class ArraySpec:
    """One array: dtype, shape (-1 stands for the number of players), minimum and maximum.

    The bounds are scalars unless elements differ; element_wise_bounds, if given, replace them.
    """

    def __init__(
        self,
        dtype: Any,
        shape: list[int],
        bounds: tuple[Any, Any],
        element_wise_bounds: tuple[Any, Any] = ([], []),
        is_discrete: bool = False,
    ) -> None:
        self.dtype = np.dtype(dtype).type
        self.shape = list(shape)
        low, high = element_wise_bounds
        self.minimum = np.array(low, dtype) if len(low) else bounds[0]
        self.maximum = np.array(high, dtype) if len(high) else bounds[1]
        self.is_discrete = is_discrete

    @property
    def own_shape(self) -> tuple[int, ...]:
        """The shape for one player."""
        return tuple(size for size in self.shape if size != -1)

    def __repr__(self) -> str:
        return f"ArraySpec(shape={self.shape}, dtype={self.dtype}, minimum={self.minimum}, maximum={self.maximum})"


def array_spec_of(space: gymnasium.Space[Any], *, per_player: bool = False, dtype: Any = None) -> ArraySpec:
    """Return the ArraySpec of a non-composite space. Non-numeric spaces are arrays of objects."""
    shape = [-1] if per_player else []
    if isinstance(space, spaces.Discrete):
        bounds = (int(space.start), int(space.start + space.n - 1))
        return ArraySpec(dtype or space.dtype, shape, bounds, is_discrete=True)
    if isinstance(space, spaces.MultiDiscrete):
        low, high = space.start, space.start + space.nvec - 1
    elif isinstance(space, spaces.MultiBinary):
        low, high = np.zeros(space.shape, np.int8), np.ones(space.shape, np.int8)
    elif isinstance(space, spaces.Box):
        low, high = space.low, space.high
    else:
        return ArraySpec(np.object_, shape, (None, None))
    if low.size and (low == low.flat[0]).all() and (high == high.flat[0]).all():
        return ArraySpec(space.dtype, shape + list(low.shape), (low.flat[0].item(), high.flat[0].item()))
    return ArraySpec(space.dtype, shape + list(low.shape), (None, None), (low, high))


def with_int32(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """Return the space with int32 as the dtype of its Discrete parts, as EnvPool's arrays have it."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict([(key, with_int32(part)) for key, part in space.spaces.items()])
    if isinstance(space, spaces.Discrete):
        narrow = spaces.Discrete(int(space.n), start=int(space.start), **_DTYPE_INT32)
        narrow.dtype = np.dtype(np.int32)
        return narrow
    return space


def as_int32(space: gymnasium.Space[Any], obs: Any) -> Any:
    """Convert the observations of a space's Discrete parts to int32."""
    if isinstance(space, spaces.Dict):
        return {key: as_int32(part, obs[key]) for key, part in space.spaces.items()}
    return obs.astype(np.int32) if isinstance(space, spaces.Discrete) else obs


def unbounded(dtype: Any, shape: list[int]) -> ArraySpec:
    """Return the spec of an array that is bounded by its dtype alone."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return ArraySpec(kind, shape, (False, True))
    limits = np.finfo(kind) if kind.kind == "f" else np.iinfo(kind)
    return ArraySpec(kind, shape, (limits.min, limits.max))


def flat_spaces(space: gymnasium.Space[Any], prefix: str, separator: str = ":") -> dict[str, gymnasium.Space[Any]]:
    """Return the parts of a space by EnvPool's names: "obs" alone, or "obs:position", "obs:arm.angle"."""
    parts: Mapping[Any, gymnasium.Space[Any]]
    if isinstance(space, spaces.Dict):
        parts = space.spaces
    elif isinstance(space, spaces.Tuple):
        parts = dict(enumerate(space.spaces))
    else:
        return {prefix: space}
    flat: dict[str, gymnasium.Space[Any]] = {}
    for key, part in parts.items():
        flat.update(flat_spaces(part, f"{prefix}{separator}{key}", "."))
    return flat


# --- EnvPool's own helpers (envpool.python.data) -------------------------------------------------


def to_nested_dict(flatten_dict: Mapping[str, Any], generator: Any = dict) -> Any:
    """Return a flat mapping with dots in its keys as nested ones: {"a.b": 1} -> {"a": {"b": 1}}."""
    nested = generator()
    for path, value in flatten_dict.items():
        *parents, last = path.split(".")
        inner = nested
        for parent in parents:
            if parent not in inner:
                inner[parent] = generator()
            inner = inner[parent]
        inner[last] = value
    return nested


def to_namedtuple(name: str, hdict: Mapping[str, Any]) -> Any:
    """Return a nested mapping as nested named tuples."""
    values = [to_namedtuple(key, value) if isinstance(value, dict) else value for key, value in hdict.items()]
    return namedtuple(name, list(hdict))(*values)


def discrete_range(spec: ArraySpec, spec_type: str) -> tuple[int, int] | None:
    """Return the first value and the number of values of a scalar that counts, or None."""
    if spec.own_shape or np.ndim(spec.minimum) or spec.minimum is None:
        return None
    is_integer = np.issubdtype(spec.dtype, np.integer)
    if not (is_integer or (spec_type == "act" and spec.is_discrete)):
        return None
    if spec.maximum >= _MAX_DISCRETE or int(spec.minimum) != spec.minimum:
        return None
    return int(spec.minimum), int(spec.maximum) - int(spec.minimum) + 1


def dm_spec_transform(name: str, spec: ArraySpec, spec_type: str) -> Any:
    """Return the dm_env spec of an array; spec_type is "obs" or "act"."""
    from dm_env import specs

    if spec.dtype is np.object_:
        return specs.Array(spec.own_shape, np.object_, name)
    counted = discrete_range(spec, spec_type)
    if counted is not None and counted[0] == 0:
        dtype = spec.dtype if np.issubdtype(spec.dtype, np.integer) else np.int32
        return specs.DiscreteArray(counted[1], dtype, name)
    return specs.BoundedArray(spec.own_shape, spec.dtype, spec.minimum, spec.maximum, name)


def gymnasium_spec_transform(name: str, spec: ArraySpec, spec_type: str) -> gymnasium.Space[Any]:
    """Return the Gymnasium space of an array; spec_type is "obs" or "act"."""
    counted = discrete_range(spec, spec_type)
    if counted is not None:
        return spaces.Discrete(counted[1], start=counted[0])
    return spaces.Box(spec.minimum, spec.maximum, spec.own_shape, spec.dtype)


def gym_spec_transform(name: str, spec: ArraySpec, spec_type: str) -> Any:
    """Return the space of an array, of the gym package where that is in use."""
    from envfleet.compat.envpool.gym_module import to_gym_space

    return to_gym_space(gymnasium_spec_transform(name, spec, spec_type))


def check_key_duplication(cls: Any, keytype: str, keys: list[str]) -> None:
    """Raise RuntimeError when a key occurs twice."""
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise RuntimeError(f"{cls} expected distinct {keytype} keys, got {twice} more than once; rename them")
