"""Layout: where each column lies in the memory that the caller and the workers share.

It follows from the spaces and counts alone. Both sides compute it, so that no pointer is ever sent.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet import _native
from envfleet.core.errors import EnvfleetError
from envfleet.core.options import PoolConfig
from envfleet.core.spaces import Leaf, leaves_of, plain_array_leaf
from envfleet.executors.python.building import EnvDescription

_ALIGNMENT = 64
# Numeric infos of one row; what does not fit goes through the side channel.
INFO_BYTES = 4096

# ef_kind and ef_dtype in abi.h.
_KINDS = {spaces.Box: 0, spaces.Discrete: 1, spaces.MultiDiscrete: 2, spaces.MultiBinary: 3}
_DTYPES = {
    name: number
    for number, name in enumerate(
        ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64")
    )
}

KeptViews = tuple["NDArray[Any]", "NDArray[Any]", "NDArray[Any]"]


def align_up(offset: int, alignment: int) -> int:
    """Return the first multiple of the alignment from this offset on."""
    return -(-offset // alignment) * alignment


@dataclass(frozen=True)
class Layout:
    """The shared memory of num_envs envs with these spaces on num_workers workers.

    check_finite: workers write no rewards and observations into it that are NaN or infinite; PoolConfig says more.
    """

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    num_envs: int
    num_workers: int
    autoreset_mode: AutoresetMode
    keeps_last_obs: bool  # on_error="restart": the row of an env that fails has its last observation
    check_finite: bool

    @staticmethod
    def of(description: EnvDescription, num_workers: int, config: PoolConfig) -> Layout:
        """Return the layout of a pool of such envs."""
        return Layout(
            description.observation_space,
            description.action_space,
            config.num_envs,
            num_workers,
            config.autoreset_mode,
            config.restarts_envs,
            config.check_finite,
        )

    @cached_property
    def obs_leaves(self) -> tuple[Leaf, ...]:
        """The leaves of an observation, in the order of their columns."""
        return leaves_of(self.observation_space)

    @cached_property
    def action_leaves(self) -> tuple[Leaf, ...]:
        """The leaves of an action, in the order of their columns."""
        return leaves_of(self.action_space)

    @property
    def has_finals(self) -> bool:
        """Whether final observations are delivered next to the first ones of the next episodes."""
        return self.autoreset_mode is AutoresetMode.SAME_STEP

    @property
    def num_bytes(self) -> int:
        """The size of the whole memory."""
        return self._placed[1]

    @cached_property
    def _placed(self) -> tuple[dict[tuple[str, int], tuple[int, np.dtype[Any], tuple[int, ...]]], int]:
        """(offset, dtype, shape) of each column, and the end of the last one."""
        columns: dict[tuple[str, int], tuple[int, np.dtype[Any], tuple[int, ...]]] = {}
        offset = _native.segment_bytes(self.num_envs, self.num_workers)
        sections = [("obs", self.obs_leaves), ("action", self.action_leaves)]
        if self.has_finals:
            sections.append(("final", self.obs_leaves))
        if self.keeps_last_obs:
            sections += [("last 0", self.obs_leaves), ("last 1", self.obs_leaves)]
        for name, leaves in sections:
            for position, leaf in enumerate(leaves):
                if leaf.kind == "object":
                    continue
                dtype, shape = column_type(leaf)
                offset = align_up(offset, _ALIGNMENT)
                columns[name, position] = (offset, dtype, (self.num_envs, *shape))
                offset += self.num_envs * int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        offset = align_up(offset, _ALIGNMENT)
        columns["info", 0] = (offset, np.dtype(np.uint8), (self.num_envs, 2 * INFO_BYTES))
        return columns, offset + 2 * INFO_BYTES * self.num_envs

    def columns(self, buffer: NDArray[np.uint8]) -> Columns:
        """Return the columns as arrays over this memory."""

        def view(name: str, position: int) -> NDArray[Any] | None:
            if (name, position) not in self._placed[0]:
                return None
            offset, dtype, shape = self._placed[0][name, position]
            count = int(np.prod(shape, dtype=np.int64))
            return np.frombuffer(buffer, dtype=dtype, count=count, offset=offset).reshape(shape)

        def kept_views(position: int) -> KeptViews | None:
            views = view("obs", position), view("last 0", position), view("last 1", position)
            return None if any(own is None for own in views) else cast(KeptViews, views)

        num_obs = len(self.obs_leaves)
        info = view("info", 0)
        assert info is not None
        return Columns(
            obs=tuple(view("obs", k) for k in range(num_obs)),
            final=tuple(view("final", k) for k in range(num_obs)) if self.has_finals else (),
            action=tuple(view("action", k) for k in range(len(self.action_leaves))),
            info=info,
            kept=[kept for k in range(num_obs) if (kept := kept_views(k)) is not None],
        )


@dataclass(frozen=True)
class Columns:
    """Arrays in shared memory, row i for env i; None for a leaf that goes through the side channel.

    kept: each column of obs with two copies of it, of which one holds the last observation of each env
    (native/bindings/kept_column.h).
    """

    obs: tuple[NDArray[Any] | None, ...]
    final: tuple[NDArray[Any] | None, ...]
    action: tuple[NDArray[Any] | None, ...]
    info: NDArray[np.uint8]
    kept: list[KeptViews]


def anonymous_memory(num_bytes: int) -> NDArray[np.uint8]:
    """Return zeroed, page-aligned memory of this process."""
    try:
        return np.frombuffer(mmap.mmap(-1, num_bytes), dtype=np.uint8)
    except (OSError, OverflowError) as error:
        raise EnvfleetError(
            f"expected {num_bytes} bytes of memory for the rows of all envs, got {error}; use fewer envs per pool, or "
            "smaller observations"
        ) from error


def column_type(leaf: Leaf) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the dtype and row shape of a leaf's column. A text is its length, its code points, then zeros."""
    if leaf.kind == "text":
        assert isinstance(leaf.space, spaces.Text)
        # The length comes first, since a text may contain a zero itself.
        return np.dtype(np.uint32), (leaf.space.max_length + 1,)
    return leaf.dtype, leaf.shape


def write_text(row: NDArray[np.uint32], text: str) -> None:
    """Write a text into its row."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    row[0] = len(points)
    row[1 : 1 + len(points)] = points


def read_text(row: NDArray[np.uint32]) -> str:
    """Read the text of a row."""
    return row[1 : 1 + int(row[0])].astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")


def native_action_space(leaves: tuple[Leaf, ...]) -> Mapping[str, Any] | None:
    """Return the action space as the native check takes it; None if only Python can check it."""
    leaf = plain_array_leaf(leaves)
    if leaf is None or len(leaf.shape) > 8 or leaf.dtype.name not in _DTYPES:
        return None
    space = leaf.space
    kind = next((number for known, number in _KINDS.items() if type(space) is known), None)
    raw: dict[str, Any] = {
        "kind": kind,
        "dtype": _DTYPES[leaf.dtype.name],
        "shape": list(leaf.shape),
        "low": [],
        "high": [],
        "nvec": [],
        "start": 0,
        "count": 0,
    }
    if type(space) is spaces.Discrete and leaf.dtype == np.int64:
        return {**raw, "start": int(space.start), "count": int(space.n)}
    if type(space) is spaces.MultiDiscrete and leaf.dtype == np.int64 and not space.start.any():
        return {**raw, "nvec": space.nvec.ravel().tolist()}
    if type(space) is spaces.MultiBinary:
        return raw
    # 64-bit integers cannot be compared exactly with the bounds as float64.
    if type(space) is spaces.Box and leaf.dtype.name in ("float32", "float64", "uint8", "int8", "int32"):
        low, high = (side.astype(np.float64).ravel().tolist() for side in (space.low, space.high))
        return {**raw, "low": low, "high": high}
    return None
