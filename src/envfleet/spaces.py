"""Structured values: a space's leaves, columns to what the space says, and back.

A leaf is a space that is neither Dict nor Tuple. Every order of leaves here is that of
leaves_of: a walk through the space in its own order of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

Path = tuple[str | int, ...]

_ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


@dataclass(frozen=True)
class Leaf:
    """One leaf of a space: where it is, and how its values travel.

    "array" has a fixed dtype and shape, so its rows are one array. "text" is str. "object" is
    any other Python value, of no fixed size.
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
        # Gymnasium gives Text a dtype and a shape too, which say nothing of its values.
        if self.kind != "array":
            raise TypeError(f"expected an array leaf to ask its {what}, got {self.space}, a leaf of kind {self.kind}")


def leaves_of(space: gymnasium.Space[Any]) -> tuple[Leaf, ...]:
    """The leaves of a space, Dict and Tuple walked to any depth."""
    return tuple(_walk(space, ()))


def path_text(path: Path) -> str:
    """A path as one would write it in Python: ['hand'][0]; nothing for the whole."""
    return "".join(f"[{step!r}]" for step in path)


def split(space: gymnasium.Space[Any], name: str = "value") -> Callable[[Any], list[Any]]:
    """A function from a value of the space, or a batch of the same structure, to its leaves' values.

    It looks at the structure only, not at the leaves. What does not have it is a ValueError that
    says what was expected and what came; name is what the value is called there. A Tuple's value
    may be a list or an array too, as in Tuple.contains.
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
    """The inverse of split: from a value or a column for each leaf to the structure of the space."""
    return _joiner(space, 0)[0]


def row_getter(space: gymnasium.Space[Any]) -> Callable[[Any, int], Any]:
    """A function from a batch and a row to the value of that row; its arrays are views."""
    take_apart, put_together = split(space), join(space)
    # Of a Box even a single number is an array.
    are_boxes = [isinstance(leaf.space, spaces.Box) for leaf in leaves_of(space)]

    def row_of(batch: Any, row: int) -> Any:
        columns = zip(are_boxes, take_apart(batch), strict=True)
        return put_together([column[row, ...] if is_box else column[row] for is_box, column in columns])

    return row_of


def batched_leaf(leaf: Leaf, values: Sequence[Any]) -> tuple[Any, ...]:
    """The rows of a text or object leaf as they are handed out: a tuple of Python values.

    gymnasium.vector.utils.concatenate does the same for Text, Graph, Sequence, OneOf and every
    Space that it does not know.
    """
    if leaf.kind == "array":
        raise TypeError(f"expected a text or object leaf, got {leaf.space}, whose rows are an array; stack them")
    return tuple(values)


def assembler_of(
    space: gymnasium.Space[Any], names: Sequence[str], texts: Mapping[int, Sequence[str]] | None = None
) -> Callable[[Sequence[Any]], Any]:
    """A function from the columns of an observation to its structure: array, dict or tuple.

    names are the columns', in their order: a Dict space sorts its keys, the columns do not. texts are what the
    numbers of a column stand for, by its position; its rows are handed out as batched_leaf() says.
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
    # The usual structured observation, and the one that is worth a path of its own.
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
    """A function that appends the leaves of a value to a list."""
    where = name + path_text(path)
    # None stands for a leaf: a call less for each.
    parts = [
        (step, _filler(part, (*path, step), name) if isinstance(part, (spaces.Dict, spaces.Tuple)) else None)
        for step, part in _parts(space)
    ]
    count = len(parts)
    if isinstance(space, spaces.Dict):
        keys = tuple(space.spaces)

        def fill_dict(value: Any, out: list[Any]) -> None:
            # Of the right length and with every key: no other key has room.
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
    """A function from all columns to the value of this part, and where the next part's columns start."""
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
