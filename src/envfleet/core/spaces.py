"""The leaves of nested spaces, and conversion between nested values and lists of leaf values.

A leaf is a space that is neither Dict nor Tuple. Leaves are always in the order of leaves_of: a walk through the
space in its own order of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem, itemgetter
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Path = tuple[str | int, ...]

_ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


@dataclass(frozen=True)
class Leaf:
    """One leaf of a space: its path, and the kind of its values.

    "array" has a fixed dtype and shape, so its rows form one array. "text" is str. "object" is any other Python value,
    of variable size.
    """

    path: Path
    space: gymnasium.Space[Any]
    kind: Literal["array", "text", "object"]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of an array leaf."""
        self._expect_array("dtype")
        return np.dtype(self.space.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one value of an array leaf; () for Discrete."""
        self._expect_array("shape")
        return tuple(self.space.shape or ())

    def _expect_array(self, what: str) -> None:
        # Gymnasium's Text has a dtype and a shape too, which do not describe its values.
        if self.kind != "array":
            raise TypeError(f"{what} expected an array leaf, got {self.space}, a leaf of kind {self.kind}")


def leaves_of(space: gymnasium.Space[Any]) -> tuple[Leaf, ...]:
    """Return the leaves of a space, nested to any depth."""
    return tuple(_walk(space, ()))


def fits(array: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Return whether an integer dtype can hold the values of an array of integers; True for all other dtypes."""
    if array.dtype.kind not in "iu" or dtype.kind not in "iu" or not array.size:
        return True
    limits = np.iinfo(dtype)
    return bool(array.min() >= limits.min and array.max() <= limits.max)


def dtype_remedy(array: NDArray[Any], dtype: np.dtype[Any], name: str, *, is_box: bool) -> str:
    """Return what to do about an observation that is not of its space's dtype: a cast only if it keeps these values.

    name: of the observation in the env's code. is_box: whether the space can be declared with another dtype.
    """
    if array.dtype.kind == "c":
        return f"return {name}.real and {name}.imag, or np.abs({name}), in a space of that shape and dtype"
    if array.dtype.kind not in "biuf" or dtype.kind not in "biuf":
        return "return an element of observation_space"
    own, wanted = f"np.{array.dtype.name}", f"np.{dtype.name}"
    declare = f"declare dtype={own} in the space" if is_box else f"declare a Box of dtype {own}"
    if array.dtype.kind == dtype.kind == "f":
        return f"return np.asarray({name}, dtype={wanted}), or {declare}"
    with np.errstate(all="ignore"):
        is_kept = bool(np.all(array.astype(dtype) == array))
    if is_kept:
        what = "are whole numbers" if array.dtype.kind == "f" else "fit"
        return f"{declare}, or return np.asarray({name}, dtype={wanted}) if all its values {what}, as these do"
    span = f", here from {array.min()} to {array.max()}," if np.isfinite(array).all() else ""
    rounding = "round them" if array.dtype.kind == "f" else "clip them"
    return f"{declare}, or scale the values{span} to the range of {dtype.name} and {rounding}; a mere cast changes them"


def plain_array_leaf(leaves: tuple[Leaf, ...]) -> Leaf | None:
    """Return the only leaf of a space that is a single array; None for other spaces."""
    return leaves[0] if len(leaves) == 1 and leaves[0].path == () and leaves[0].kind == "array" else None


def path_text(path: Path) -> str:
    """Return a path in Python's notation, such as ['hand'][0]; "" for the space itself."""
    return "".join(f"[{step!r}]" for step in path)


def split(space: gymnasium.Space[Any], name: str = "value") -> Callable[[Any], list[Any]]:
    """Return a function from an element of the space, or a batch of the same structure, to its leaves' values.

    The function checks the structure only, not the leaves. For another structure it raises a ValueError that says
    what was expected and what was passed, with `name` for the value. The value of a Tuple may be a list or an array
    too, as in Tuple.contains.
    """
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return lambda value: [value]
    if isinstance(space, spaces.Dict) and len(space.spaces) > 1 and not _nested(space.spaces.values()):
        return _split_plain_dict(tuple(space.spaces), name)
    fill = _filler(space, (), name)

    def split_any(value: Any) -> list[Any]:
        out: list[Any] = []
        fill(value, out)
        return out

    return split_any


def join(space: gymnasium.Space[Any]) -> Callable[[Sequence[Any]], Any]:
    """Return the inverse of split: a function from one value or column per leaf to the structure of the space."""
    return _joiner(space, 0)[0]


def row_getter(space: gymnasium.Space[Any]) -> Callable[[Any, int], Any]:
    """Return a function from a batch and a row to the value of that row; its arrays are views."""
    if isinstance(space, spaces.Box) and space.shape:
        return getitem
    take_apart, put_together = split(space), join(space)
    # A Box's value is an array even for shape ().
    are_boxes = [isinstance(leaf.space, spaces.Box) for leaf in leaves_of(space)]

    def row_of(batch: Any, row: int) -> Any:
        columns = zip(are_boxes, take_apart(batch), strict=True)
        return put_together([column[row, ...] if is_box else column[row] for is_box, column in columns])

    return row_of


def leaf_columns(leaves: Sequence[Leaf], stored: Sequence[Any], objects: Sequence[Sequence[Any] | None]) -> list[Any]:
    """Return one column per leaf of a batch, to be joined.

    stored: each leaf's column, or None for a leaf whose values are in objects.
    objects: for each row its values of those leaves, or None if the row has none because its env raised.
    """
    columns: list[Any] = []
    position = 0
    for leaf, column in zip(leaves, stored, strict=True):
        if column is None:
            columns.append(batched_leaf(leaf, [None if own is None else own[position] for own in objects]))
            position += 1
        else:
            columns.append(column)
    return columns


def batched_leaf(leaf: Leaf, values: Sequence[Any]) -> tuple[Any, ...]:
    """Return the rows of a text or object leaf in a batch: a tuple of Python values.

    gymnasium.vector.utils.concatenate does the same for Text, Graph, Sequence, OneOf and custom spaces.
    """
    if leaf.kind == "array":
        raise TypeError(f"expected a text or object leaf, got {leaf.space}; stack the rows of array leaves")
    return tuple(values)


def assembler_of(
    space: gymnasium.Space[Any], names: Sequence[str], texts: Mapping[int, Sequence[str]] | None = None
) -> Callable[[Sequence[Any]], Any]:
    """Return a function from the columns of an observation to its structure: array, dict or tuple.

    names: of the columns, in their order; a Dict space sorts its keys, the columns do not. texts: by position, the
    texts that the numbers of a column stand for; such a column becomes a batched_leaf().
    """
    if texts:
        assemble = assembler_of(space, names)

        def assemble_with_texts(columns: Sequence[Any]) -> Any:
            columns = list(columns)
            for position, own in texts.items():
                column = columns[position]
                columns[position] = (
                    tuple(map(own.__getitem__, column.tolist())) if len(own) > 1 else (own[0],) * len(column)
                )
            return assemble(columns)

        return assemble_with_texts
    if isinstance(space, spaces.Dict):
        return lambda columns: dict(zip(names, columns, strict=True))
    if isinstance(space, spaces.Tuple):
        return tuple
    return lambda columns: columns[0]


def _walk(space: gymnasium.Space[Any], path: Path) -> list[Leaf]:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return [leaf for step, part in _parts(space) for leaf in _walk(part, (*path, step))]
    if isinstance(space, _ARRAYS):
        return [Leaf(path, space, "array")]
    return [Leaf(path, space, "text" if isinstance(space, spaces.Text) else "object")]


def _parts(space: spaces.Dict | spaces.Tuple[Any]) -> list[tuple[Any, gymnasium.Space[Any]]]:
    return list(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))


def _nested(parts: Any) -> bool:
    return any(isinstance(part, (spaces.Dict, spaces.Tuple)) for part in parts)


def _split_plain_dict(keys: tuple[Hashable, ...], name: str) -> Callable[[Any], list[Any]]:
    # The most common structured observation, worth a fast path.
    pick = itemgetter(*keys)
    count = len(keys)

    def split_plain_dict(value: Any) -> list[Any]:
        if not (type(value) is dict or isinstance(value, Mapping)) or len(value) != count:
            raise _wrong_dict(value, keys, name)
        try:
            return list(pick(value))
        except KeyError:
            raise _wrong_dict(value, keys, name) from None

    return split_plain_dict


def _filler(space: spaces.Dict | spaces.Tuple[Any], path: Path, name: str) -> Callable[[Any, list[Any]], None]:
    """Return a function that appends the leaves of a value to a list."""
    where = name + path_text(path)
    # None stands for a leaf, which saves a call.
    parts = [
        (step, _filler(part, (*path, step), name) if isinstance(part, (spaces.Dict, spaces.Tuple)) else None)
        for step, part in _parts(space)
    ]
    count = len(parts)
    if isinstance(space, spaces.Dict):
        keys = tuple(space.spaces)

        def fill_dict(value: Any, out: list[Any]) -> None:
            # With this length and every key there can be no other key.
            if not (type(value) is dict or isinstance(value, Mapping)) or len(value) != count:
                raise _wrong_dict(value, keys, where)
            for key, fill in parts:
                try:
                    item = value[key]
                except KeyError:
                    raise _wrong_dict(value, keys, where) from None
                if fill is None:
                    out.append(item)
                else:
                    fill(item, out)

        return fill_dict

    fills = [fill for _, fill in parts]
    plain = not any(fills)

    def fill_tuple(value: Any, out: list[Any]) -> None:
        if not isinstance(value, (tuple, list)) and not (isinstance(value, np.ndarray) and value.ndim):
            raise ValueError(f"expected {where} as a tuple of {count} items, got {_kind_of(value)}")
        if len(value) != count:
            raise ValueError(f"expected {where} as a tuple of {count} items, got {len(value)} items")
        if plain:
            out.extend(value)
            return
        for item, fill in zip(value, fills, strict=True):
            if fill is None:
                out.append(item)
            else:
                fill(item, out)

    return fill_tuple


def _wrong_dict(value: Any, keys: tuple[Hashable, ...], where: str) -> ValueError:
    expected = f"expected {where} as a dict with the keys {_listed(keys)}"
    if not isinstance(value, Mapping):
        return ValueError(f"{expected}, got {_kind_of(value)}")
    missing = [key for key in keys if key not in value]
    extra = [key for key in value if key not in keys]
    faults = [f"{what} {_listed(which)}" for what, which in (("without", missing), ("with an extra", extra)) if which]
    return ValueError(f"{expected}, got one {' and '.join(faults)}")


def _listed(keys: Sequence[Any]) -> str:
    return ", ".join(map(repr, keys)) or "(none)"


def _kind_of(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)} items"
    return type(value).__name__


def _joiner(space: gymnasium.Space[Any], start: int) -> tuple[Callable[[Sequence[Any]], Any], int]:
    """Return a function from all columns to the value of this part, and the index of the next part's first column."""
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        return itemgetter(start), start + 1
    parts = []
    stop = start
    for step, part in _parts(space):
        build, stop = _joiner(part, stop)
        parts.append((step, build))
    if _nested(space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces):
        if isinstance(space, spaces.Dict):
            return lambda columns: {key: build(columns) for key, build in parts}, stop
        builds = [build for _, build in parts]
        return lambda columns: tuple([build(columns) for build in builds]), stop
    here = slice(start, stop)
    if isinstance(space, spaces.Dict):
        keys = tuple(space.spaces)
        return lambda columns: dict(zip(keys, columns[here], strict=True)), stop
    return lambda columns: tuple(columns[here]), stop
