"""A pool that takes and returns torch tensors on a device.

envs = TorchPool("CartPole-v1", num_envs=1024, device="cuda")
obs, info = envs.reset(seed=0)
obs, reward, terminated, truncated, info = envs.step(policy(obs))

On a GPU, a batch is copied from page-locked memory: native batches in one copy, rows of worker processes from the
shared memory in which they were written. The user's stream waits for the copy, the host does not. On the CPU, tensors
share the memory of the batch.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envfleet import _native
from envfleet.backends import find_backend
from envfleet.batch import Batch
from envfleet.errors import ActionError, ConfigError, MissingExtraError
from envfleet.infos import all_true, final_info_of, vector_info
from envfleet.option_checks import flag_option
from envfleet.pool import Pool
from envfleet.seeding import Seed
from envfleet.spaces import join, leaves_of, split
from envfleet.statistics import PoolStats, joined_stats
from envfleet.validation import check_actions

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "torch", "the torch api") from error

from envfleet.apis.torch_groups import JoinedGroups, make_pools  # after the check: it imports torch too

Tensors = Any  # a tensor, or a dict or tuple of Tensors, in the structure of a space
Step = tuple[Tensors, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]

# By dtype and not by its char: long and long long are two chars for one, and other byte orders have the same chars.
_TORCH_DTYPES = {np.dtype(char): torch.from_numpy(np.empty(0, char)).dtype for char in "?bBhHiIlLefd"}


class TorchPool:
    """Envs that are stepped with tensors on a device.

    Args:
        env: A Pool, or anything that envfleet.make_pool() accepts. A pool is used as it is and closed with this one.
        device: Where the tensors are.
        info_tensors: Return numeric infos as tensors on the device instead of numpy arrays. Batches share the masks of
            infos that all rows have.
        reward_dtype: The dtype of rewards; None keeps the pool's float64.
        static_shapes: Return the same tensors from every call, with capacity rows, as CUDA graphs need them. The next
            call overwrites them. info["mask"] is True for the rows that hold a result: all of them unless a call named
            some envs only.
        num_groups: Split the envs into groups that step independently of each other (see `groups`), so that the envs of
            one step while the policy computes the actions of another.
        **options: Options of envfleet.make_pool().
    """

    def __init__(
        self,
        env: Any,
        device: torch.device | str = "cuda",
        *,
        info_tensors: bool = False,
        reward_dtype: torch.dtype | None = torch.float32,
        static_shapes: bool = False,
        num_groups: int = 1,
        **options: Any,
    ) -> None:
        self.device = _checked_device(device)
        flag_option("info_tensors", info_tensors)
        flag_option("static_shapes", static_shapes)
        if reward_dtype is not None and not isinstance(reward_dtype, torch.dtype):
            raise ConfigError(
                f"reward_dtype expected a torch.dtype or None, got {reward_dtype!r}; pass for example torch.float32"
            )
        pools = make_pools(env, num_groups, self.device.type == "cuda", options)
        try:
            self.groups: tuple[TorchGroup, ...] = tuple(
                TorchGroup(pool, self.device, info_tensors, reward_dtype, static_shapes) for pool in pools
            )
        except BaseException:
            for pool in pools:
                if pool is not env:
                    pool.close()
            raise
        self.spec = pools[0].spec
        self.single_observation_space = self.spec.observation_space
        self.single_action_space = self.spec.action_space
        self.num_envs = sum(group.num_envs for group in self.groups)
        static = StaticTensors(self.device) if static_shapes else None
        self._joined = JoinedGroups(self.groups, static) if len(self.groups) > 1 else None

    def reset(
        self, env_ids: Any = None, *, seed: Seed = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Tensors, dict[str, Any]]:
        """Reset these envs (default: all) and return their observations and infos."""
        if self._joined is not None and env_ids is None:
            return self._joined.reset(seed, options)
        return self._only_group("reset() of some envs").reset(env_ids, seed=seed, options=options)

    def step(self, actions: Tensors, env_ids: Any = None, *, timeout: float | None = None) -> Step:
        """Step these envs (default: all); on an asynchronous pool, send the actions and receive the next batch."""
        if self._joined is not None and env_ids is None:
            return self._joined.step(actions, timeout)
        return self._only_group("step() of some envs").step(actions, env_ids, timeout=timeout)

    def send(self, actions: Tensors, env_ids: Any = None) -> None:
        """Start a step of these envs (default: all) and return."""
        self._only_group("send()").send(actions, env_ids)

    def recv(self, *, timeout: float | None = None) -> Step:
        """Wait for the next batch; info["env_id"] names its rows.

        With several groups: the rows of a step() that timed out or was interrupted.
        """
        if self._joined is not None:
            return self._joined.recv(timeout)
        return self.groups[0].recv(timeout=timeout)

    def async_reset(self, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> None:
        """Start a reset of all envs; recv() returns their rows."""
        self._only_group("async_reset()").async_reset(seed=seed, options=options)

    def drop_pending(self, timeout: float | None = None) -> None:
        """Wait for the envs in flight and discard their rows; see Pool.drop_pending()."""
        self._only_group("drop_pending()").drop_pending(timeout)

    def stats(self) -> PoolStats:
        """Return the steps, episodes, returns and times of all groups; see Pool.stats(). For any thread at any time."""
        return joined_stats([group.stats() for group in self.groups])

    def close(self) -> None:
        """Close the pool. Tensors that were returned stay valid."""
        for group in self.groups:
            group.close()

    def __enter__(self) -> TorchPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.num_envs

    def _only_group(self, call: str) -> TorchGroup:
        if len(self.groups) > 1:
            raise ConfigError(
                f"{call} expected num_groups=1, got {len(self.groups)} groups; call it on one of envs.groups"
            )
        return self.groups[0]


class TorchGroup:
    """One pool, stepped with tensors. Made by TorchPool."""

    def __init__(
        self,
        pool: Pool,
        device: torch.device,
        info_tensors: bool,
        reward_dtype: torch.dtype | None,
        static_shapes: bool,
    ) -> None:
        self._pool = pool
        self.num_envs = pool.num_envs
        self._device = device
        self._info_tensors = info_tensors
        self._reward_dtype = reward_dtype
        # A native batch is copied as it is. The small columns of others are gathered for one copy anyway. Converting
        # rewards there takes less time than launching a kernel.
        self._converts_rewards = reward_dtype is torch.float32 and find_backend(pool.spec.backend).runs_python_envs
        self._obs = _ObsColumns(pool.spec.observation_space)
        self._join_actions = join(pool.spec.action_space)
        self._transfer = transfer_for(device)
        self._static_rows = pool.config.batch_size if static_shapes else None
        self._static = StaticTensors(device)
        self.num_batches = 0  # returned so far
        self._everywhere = all_true(0)
        self._everywhere_tensor = torch.ones(0, dtype=torch.bool, device=device)

    @property
    def pool(self) -> Pool:
        """The pool. Waits until no copy reads the rows of the last batch, which the next call may overwrite."""
        self._transfer.wait_for_shared_rows()
        return self._pool

    def reset(
        self, env_ids: Any = None, *, seed: Seed = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Tensors, dict[str, Any]]:
        """Reset these envs (default: all) and return their observations and infos."""
        obs, _, _, _, info = self.tensors(self.reset_batch(env_ids, seed=seed, options=options))
        return obs, info

    def reset_batch(self, env_ids: Any = None, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> Batch:
        """Reset these envs (default: all) and return their rows on the host."""
        ids = _ids(env_ids)
        if self._static_rows is not None:
            num_rows = self.num_envs if ids is None else len(self._pool.check_env_ids("reset()", ids))
            if num_rows > self._static_rows:
                raise ConfigError(
                    f"reset() with static_shapes=True expected at most batch_size={self._static_rows} rows, got "
                    f"{num_rows}; call async_reset() and recv() instead"
                )
        self._transfer.wait_for_shared_rows()
        return self._pool.reset(ids, seed=seed, options=options)

    def step(self, actions: Tensors, env_ids: Any = None, *, timeout: float | None = None) -> Step:
        """Step these envs (default: all)."""
        host_actions, was_idle = self._transfer.to_host(actions)
        self._transfer.wait_for_shared_rows()
        return self.tensors(self._pool.step(host_actions, _ids(env_ids), timeout), was_idle)

    def send(self, actions: Tensors, env_ids: Any = None) -> None:
        """Start a step of these envs (default: all) and return."""
        host_actions, _ = self._transfer.to_host(actions, envs_run=True)
        self._transfer.wait_for_shared_rows()
        self._pool.send(host_actions, _ids(env_ids))

    def checked_columns(self, actions: Tensors, num_rows: int) -> list[Any]:
        """Return actions on the host as one column per leaf of the action space. Raises ActionError for wrong ones."""
        host_actions, _ = self._transfer.to_host(actions, envs_run=True)
        columns = check_actions("step()", host_actions, self._pool.spec.action_space, num_rows, None)
        return columns if isinstance(columns, list) else [columns]

    def send_columns(self, columns: list[Any]) -> None:
        """Start a step of all envs with one column per leaf of the action space."""
        self._transfer.wait_for_shared_rows()
        self._pool.send(self._join_actions(columns))

    def recv(self, *, timeout: float | None = None) -> Step:
        """Wait for the next batch."""
        return self.tensors(self._pool.recv(timeout))

    def async_reset(self, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> None:
        """Start a reset of all envs; recv() returns their rows."""
        self._transfer.wait_for_shared_rows()
        self._pool.async_reset(seed=seed, options=options)

    def drop_pending(self, timeout: float | None = None) -> None:
        """Wait for the envs in flight and discard their rows; see Pool.drop_pending()."""
        self._transfer.wait_for_shared_rows()
        self._pool.drop_pending(timeout)

    def stats(self) -> PoolStats:
        """Return the steps, episodes, returns and times; see Pool.stats(). For any thread at any time."""
        return self._pool.stats()

    def close(self) -> None:
        """Close the pool."""
        self._transfer.close()
        self._pool.close()

    def tensors(self, batch: Batch, is_idle: bool = False) -> Step:
        """Return the batch as tensors. is_idle: the current stream had nothing to do when the step began."""
        self.num_batches += 1
        rewards = batch.reward
        if self._converts_rewards:
            with np.errstate(over="ignore"):  # to infinity, as on the device
                rewards = rewards.astype(np.float32)
        arrays = [*self._obs.arrays(batch.obs), rewards, batch.terminated, batch.truncated]
        num_obs = len(arrays) - 3
        if batch.final is not None:
            arrays += self._obs.arrays(batch.final.obs)
        if len(self._everywhere) != len(batch):
            self._everywhere = all_true(len(batch))
            self._everywhere_tensor = torch.ones(len(batch), dtype=torch.bool, device=self._device)
        info: dict[str, Any] = {}
        numeric: list[tuple[dict[str, Any], str]] = []
        if self._info_tensors:
            info, places = _numeric_columns(self._info(batch))
            for columns, key in places:
                if columns[key] is self._everywhere:  # not copied: every key that all rows have has this mask
                    columns[key] = self._everywhere_tensor
                else:
                    numeric.append((columns, key))
            arrays += [columns[key] for columns, key in numeric]
        tensors = self._transfer.to_device(arrays, batch, is_idle)
        if not self._info_tensors:
            info = self._info(batch)  # while the copy runs
        obs = self._obs.put_back(batch.obs, tensors[:num_obs])
        reward, terminated, truncated = tensors[num_obs : num_obs + 3]
        if self._reward_dtype is not None:
            reward = reward.to(self._reward_dtype)
        if batch.final is not None:
            final_obs = self._obs.put_back(batch.final.obs, tensors[num_obs + 3 : 2 * num_obs + 3])
            info.update(final_obs=final_obs, _final_obs=terminated | truncated)
        for (columns, key), tensor in zip(numeric, tensors[len(tensors) - len(numeric) :], strict=True):
            columns[key] = tensor
        if self._static_rows is None:
            return obs, reward, terminated, truncated, info
        return self._keep_shapes((obs, reward, terminated, truncated, info), len(batch))

    def _info(self, batch: Batch) -> dict[str, Any]:
        return {**vector_info(batch, self._everywhere), **final_info_of(batch)}

    def with_info_tensors(self, info: dict[str, Any]) -> dict[str, Any]:
        """Return an info of all groups with its numeric columns as tensors, if infos are tensors."""
        if not self._info_tensors:
            return info
        joined, numeric = _numeric_columns(info)
        for columns, key in numeric:
            columns[key] = torch.as_tensor(columns[key], device=self._device)
        return joined

    def _keep_shapes(self, step: Step, num_rows: int) -> Step:
        """Copy the rows into tensors that every call returns."""
        capacity = self._static_rows
        assert capacity is not None, "only with static_shapes"
        mask = torch.zeros(capacity, dtype=torch.bool, device=self._device)
        mask[:num_rows] = True
        obs, reward, terminated, truncated, info = self._static.store(step, capacity)
        return obs, reward, terminated, truncated, {**info, "mask": self._static.store(mask, capacity, ("mask",))}


class StaticTensors:
    """Tensors with a fixed number of rows, which every batch is copied into."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tensors: dict[tuple[Any, ...], torch.Tensor] = {}  # by the keys that lead to a tensor

    def store(self, value: Any, num_rows: int, path: tuple[Any, ...] = ()) -> Any:
        """Return a value with its tensors replaced by those of every call. They hold its rows and have num_rows."""
        if isinstance(value, dict):
            return {key: self.store(own, num_rows, (*path, key)) for key, own in value.items()}
        if isinstance(value, tuple):
            return tuple(self.store(own, num_rows, (*path, i)) for i, own in enumerate(value))
        if not isinstance(value, torch.Tensor):
            return value
        shape = (num_rows, *value.shape[1:])
        kept = self._tensors.get(path)
        if kept is None or kept.shape != shape or kept.dtype != value.dtype:  # infos may change from step to step
            kept = self._tensors[path] = torch.zeros(shape, dtype=value.dtype, device=self._device)
        kept[: len(value)].copy_(value)
        return kept


class _ObsColumns:
    """Takes observations apart into the arrays that can be tensors, and puts tensors back in their places."""

    def __init__(self, space: Any) -> None:
        leaves = leaves_of(space)
        self._split, self._join = split(space, "obs"), join(space)
        self._positions = [
            position for position, leaf in enumerate(leaves) if leaf.kind == "array" and leaf.dtype in _TORCH_DTYPES
        ]
        self._is_single = len(leaves) == 1 and leaves[0].path == () and bool(self._positions)

    def arrays(self, obs: Any) -> list[NDArray[Any]]:
        if self._is_single:
            return [obs]
        columns = self._split(obs)
        return [columns[position] for position in self._positions]

    def put_back(self, obs: Any, tensors: Sequence[torch.Tensor]) -> Any:
        if self._is_single:
            return tensors[0]
        columns = self._split(obs)
        for position, tensor in zip(self._positions, tensors, strict=True):
            columns[position] = tensor
        return self._join(columns)


# --- between the host and a GPU ------------------------------------------------------------------


class DeviceTransfer:
    """Copies the arrays of batches to a GPU, and actions back. Both through page-locked memory.

    A batch is copied on a stream of its own, so that work of the user's stream runs meanwhile. Its device memory is
    allocated ahead, on the user's stream: whatever that stream still did with the memory has long been done when the
    copy writes to it, so the copy waits for nothing, and the allocator needs to know of one stream only.
    If the user's stream was idle, the copy goes there, which saves the events.

    Making tensors takes the host longer than anything else here. It makes those of the next batch while it waits for
    the actions.
    """

    def __init__(self, device: torch.device | str) -> None:
        self._device = torch.empty(0, device=device).device  # with its index
        with torch.cuda.device(self._device) if self._device.type == "cuda" else contextlib.nullcontext():
            self._uploads = _native.BatchUploader()
        # The layout of the last batch, and what Tensor.set_() takes for each of its arrays.
        self._layout: tuple[int, tuple[int, ...]] | None = None
        self._columns: list[tuple[torch.dtype, int, tuple[int, ...], tuple[int, ...]]] = []
        self._next: _DeviceBatch | None = None
        self._actions: dict[int, tuple[torch.dtype, NDArray[Any], _native.PageLock]] = {}

    def to_device(self, arrays: Sequence[NDArray[Any]], batch: object, is_idle: bool = False) -> list[torch.Tensor]:
        """Start the copy of these arrays and return their tensors. batch: what keeps the arrays' memory alive.

        is_idle: the current stream had nothing to do just now.
        """
        if not self._is_current():
            with torch.cuda.device(self._device):
                return self.to_device(arrays, batch, is_idle)
        stream = _current_stream(self._device)
        layout = self._uploads.plan(tuple(arrays))
        if layout is not self._layout:
            self._layout, self._columns = layout, _device_columns(arrays, layout[1])
        following = self._next
        if following is None or following.layout is not layout or following.stream != stream:
            following = self._allocate(stream)
        self._next = None
        self._uploads.start(stream, following.memory.data_ptr(), is_idle, batch)
        if not is_idle:  # otherwise when the host waits for the next actions
            self._next = self._allocate(stream)
        return following.tensors

    def _is_current(self) -> bool:
        return self._device.type != "cuda" or bool(torch._C._cuda_getDevice() == self._device.index)

    def _allocate(self, stream: int) -> _DeviceBatch:
        """Make the tensors of a batch like the last one."""
        assert self._layout is not None, "a batch was planned"
        device = self._device
        memory = torch.empty(self._layout[0], dtype=torch.uint8, device=device)
        self._uploads.mark_allocated(stream)
        storage = memory.untyped_storage()
        # Not views of one tensor: those would share its version counter, and autograd would take a change of one
        # column for a change of all.
        tensors = [
            torch.empty(0, dtype=dtype, device=device).set_(storage, offset, shape, strides)
            for dtype, offset, shape, strides in self._columns
        ]
        return _DeviceBatch(self._layout, stream, memory, tensors)

    def to_host(self, actions: Tensors, envs_run: bool = False) -> tuple[Any, bool]:
        """Return the actions as arrays, and whether the current stream was waited for.

        The next call overwrites the arrays. envs_run: envs may run meanwhile, which need the cores.
        """
        if not self._is_current():
            with torch.cuda.device(self._device):
                return self.to_host(actions, envs_run)
        stream = _current_stream(self._device)
        num_copies = 0

        def start(leaf: Any) -> Any:
            nonlocal num_copies
            if not isinstance(leaf, torch.Tensor) or leaf.device != self._device:
                return _leaf_to_numpy(leaf)
            leaf = _numpy_compatible(leaf)
            if not leaf.is_contiguous() or leaf.is_neg():
                leaf = leaf.clone(memory_format=torch.contiguous_format).resolve_neg()
            sources.append(leaf)
            array = self._action_array(num_copies, leaf)
            _native.copy_to_host(stream, array, leaf.data_ptr())
            num_copies += 1
            return array

        sources: list[torch.Tensor] = []  # alive until they are copied
        host = _map(start, actions)
        if num_copies:
            if self._next is None and self._layout is not None:
                self._next = self._allocate(stream)
            # The one wait of a step: the envs need their actions.
            if envs_run:
                self._uploads.wait_for_stream(stream)
            else:
                _native.synchronize_stream(stream)
        return host, num_copies > 0

    def _action_array(self, position: int, leaf: torch.Tensor) -> NDArray[Any]:
        known = self._actions.get(position)
        if known is not None and known[0] is leaf.dtype and known[1].shape == leaf.shape:
            return known[1]
        dtype = torch.empty(0, dtype=leaf.dtype).numpy().dtype
        # Memory of its own pages: two page-locked ranges may not share one.
        pages = np.frombuffer(mmap.mmap(-1, max(leaf.numel() * dtype.itemsize, 1)), np.uint8)
        array: NDArray[Any] = np.frombuffer(pages, dtype, leaf.numel()).reshape(tuple(leaf.shape))
        self._actions[position] = (leaf.dtype, array, _native.PageLock(pages))
        return array

    def wait_for_shared_rows(self) -> None:
        """Wait until no copy reads where workers write their next rows; the others give their batches back."""
        self._uploads.wait_for_shared_rows()

    def close(self) -> None:
        """Wait for the copies and unlock the memory."""
        self._uploads.close()
        self._actions.clear()


class _DeviceBatch(NamedTuple):
    """Device memory for a batch of this layout, allocated on this stream, and its tensors."""

    layout: object
    stream: int
    memory: torch.Tensor
    tensors: list[torch.Tensor]


def _current_stream(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    # A tenth of what torch.cuda.current_stream() costs, which makes an object; torch's own compiler uses it too.
    raw: int = torch._C._cuda_getCurrentRawStream(device.index)
    return raw


def _device_columns(
    arrays: Sequence[NDArray[Any]], offsets: Sequence[int]
) -> list[tuple[torch.dtype, int, tuple[int, ...], tuple[int, ...]]]:
    """Return what Tensor.set_() takes for each array: its dtype, offset, shape and strides."""
    columns = []
    for array, offset in zip(arrays, offsets, strict=True):
        strides = np.cumprod([1, *array.shape[:0:-1]], dtype=np.int64)[::-1].tolist() if array.ndim else []
        dtype = _TORCH_DTYPES[array.dtype]
        columns.append((dtype, offset // array.itemsize, array.shape, tuple(strides)))
    return columns


class _SharedMemory:
    """The same on the CPU: tensors share the memory of the arrays."""

    def to_device(self, arrays: Sequence[NDArray[Any]], batch: object, is_idle: bool = False) -> list[torch.Tensor]:
        # torch has no read-only tensors; the ids of a whole batch are one read-only array.
        return [torch.from_numpy(array if array.flags.writeable else array.copy()) for array in arrays]

    def to_host(self, actions: Tensors, envs_run: bool = False) -> tuple[Any, bool]:
        return _map(_leaf_to_numpy, actions), False

    def wait_for_shared_rows(self) -> None:
        """Do nothing: no copy runs."""

    def close(self) -> None:
        """Do nothing."""


Transfer = DeviceTransfer | _SharedMemory


def transfer_for(device: torch.device | str | None) -> Transfer:
    """Return what brings arrays to this device as tensors, and tensors back."""
    if device is None or torch.device(device).type != "cuda":
        return _SharedMemory()
    return DeviceTransfer(device)


# --- structures ---------------------------------------------------------------------------------


def _leaf_to_numpy(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    try:
        return _numpy_compatible(leaf).cpu().resolve_conj().resolve_neg().numpy()
    except (RuntimeError, TypeError) as error:
        raise ActionError(
            f"expected actions in a dense tensor that has values, got {leaf.dtype} with layout {leaf.layout} on "
            f"{leaf.device}: {error}; pass such a tensor, outside torch.func's transforms"
        ) from error


def _numpy_compatible(leaf: torch.Tensor) -> torch.Tensor:
    """Return the tensor without its graph, in a dtype that numpy has: float32 holds every bfloat16 and float8."""
    leaf = leaf.detach()
    is_float_without_numpy = leaf.is_floating_point() and leaf.dtype not in (
        torch.float16,
        torch.float32,
        torch.float64,
    )
    return leaf.to(torch.float32) if is_float_without_numpy else leaf


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to the leaves of dicts and tuples."""
    if isinstance(value, dict):
        return {key: _map(function, own) for key, own in value.items()}
    if isinstance(value, tuple) and not (value and isinstance(value[0], str)):
        return tuple(_map(function, own) for own in value)
    return function(value)


def _is_numeric(column: Any) -> bool:
    return isinstance(column, np.ndarray) and column.dtype in _TORCH_DTYPES


def _numeric_columns(info: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[dict[str, Any], str]]]:
    """Return a copy of an info, and where its columns that can be tensors are: in which dict, under which key."""
    places: list[tuple[dict[str, Any], str]] = []

    def copied(columns: dict[str, Any]) -> dict[str, Any]:
        own = {key: copied(column) if isinstance(column, dict) else column for key, column in columns.items()}
        places.extend((own, key) for key, column in own.items() if _is_numeric(column))
        return own

    return copied(info), places


def _ids(env_ids: Any) -> Any:
    return env_ids.cpu().numpy() if isinstance(env_ids, torch.Tensor) else env_ids


def _checked_device(device: torch.device | str) -> torch.device:
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device expected 'cpu', 'cuda' or 'cuda:0', got {device!r}") from error
    if found.type not in ("cpu", "cuda"):
        raise ConfigError(
            f"device expected 'cpu' or 'cuda', got {str(found)!r}; pass device='cpu' and move the tensors with to()"
        )
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device='cuda' expected a CUDA device that torch can use, got none; pass device='cpu'")
    if found.type == "cuda" and found.index is not None and found.index >= torch.cuda.device_count():
        raise ConfigError(f"device expected one of {torch.cuda.device_count()} CUDA devices, got {str(found)!r}")
    return found
