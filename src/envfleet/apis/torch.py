"""A pool that takes and returns torch tensors on a device.

envs = TorchPool("CartPole-v1", num_envs=1024, device="cuda")
obs, info = envs.reset(seed=0)
obs, reward, terminated, truncated, info = envs.step(policy(obs))

On a GPU, a batch is copied from page-locked memory on a stream of its own: native batches in one copy, rows of worker
processes from the shared memory in which they were written. The user's stream waits for the copy, the host does not.
On the CPU, tensors share the memory of the batch.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet import _native
from envfleet.batch import Batch
from envfleet.errors import ConfigError, MissingExtraError
from envfleet.making.make import make_pool
from envfleet.pool import Pool
from envfleet.seeding import Seed, seeds_for

try:
    import torch
except ImportError as error:
    raise MissingExtraError("torch", "torch", "the torch api") from error

Tensors = Any  # a tensor, or a dict or tuple of Tensors, in the structure of a space
Step = tuple[Tensors, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]

_ALIGNMENT = 64  # of columns in device memory, as in the engine's buffers
# Below this, a column joins the staging buffer: a copy of its own costs more than its bytes.
_DIRECT_COPY_BYTES = 64 * 1024
_TORCH_DTYPES = {char: torch.from_numpy(np.empty(0, char)).dtype for char in "?bBhHiIlLefd"}


class TorchPool:
    """Envs that are stepped with tensors on a device.

    Parameters
    ----------
    env : Pool or what envfleet.make() takes
        A pool is used as it is and is closed with this one. Anything else is passed to envfleet.make_pool().
    device : torch.device or str
        Where the tensors are.
    info_tensors : bool
        Return numeric infos as tensors on the device instead of numpy arrays.
    reward_dtype : torch.dtype or None
        The dtype of rewards; None keeps the pool's float64.
    static_shapes : bool
        Return the same tensors from every call, with capacity rows, as CUDA graphs need them. The next call overwrites
        them. info["mask"] is True for the rows that hold a result: all of them unless a call named some envs only.
    num_groups : int
        Split the envs into groups that step independently of each other (see `groups`), so that the envs of one step
        while the policy computes the actions of another.
    **options
        Options of envfleet.make_pool().
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
        self.device = torch.device(device)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise ConfigError("device='cuda' expected a CUDA device that torch can use, got none; pass device='cpu'")
        pools = _pools_for(env, num_groups, self.device.type == "cuda", options)
        try:
            self.groups: tuple[TorchGroup, ...] = tuple(
                TorchGroup(pool, self.device, info_tensors, reward_dtype, static_shapes) for pool in pools
            )
        except BaseException:
            for pool in pools:
                pool.close()
            raise
        self.spec = pools[0].spec
        self.single_observation_space = self.spec.observation_space
        self.single_action_space = self.spec.action_space
        self.num_envs = sum(group.num_envs for group in self.groups)

    def reset(self, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> tuple[Tensors, dict[str, Any]]:
        """Reset all envs and return their observations and infos."""
        seeds = _split_seeds(seed, [group.num_envs for group in self.groups])
        results = [group.reset(seed=own, options=options) for group, own in zip(self.groups, seeds, strict=True)]
        return results[0] if len(results) == 1 else _join_results(results, self._first_ids())

    def step(self, actions: Tensors, *, timeout: float | None = None) -> Step:
        """Step all envs; on an asynchronous pool, send the actions and receive the next batch."""
        if len(self.groups) == 1:
            return self.groups[0].step(actions, timeout=timeout)
        first_ids = self._first_ids()
        for group, first in zip(self.groups, first_ids, strict=True):
            rows = slice(first, first + group.num_envs)
            group.send(_map(functools.partial(_take_rows, rows), actions))
        results = [group.recv(timeout=timeout) for group in self.groups]
        joined: Step = _join_results(results, first_ids)
        return joined

    def send(self, actions: Tensors, env_ids: Any = None) -> None:
        """Start a step of these envs (default: all) and return."""
        self._only_group("send()").send(actions, env_ids)

    def recv(self, *, timeout: float | None = None) -> Step:
        """Wait for the next batch; info["env_id"] names its rows."""
        return self._only_group("recv()").recv(timeout=timeout)

    def async_reset(self, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> None:
        """Start a reset of all envs; recv() returns their rows."""
        self._only_group("async_reset()").async_reset(seed=seed, options=options)

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

    def _first_ids(self) -> list[int]:
        ends = np.cumsum([group.num_envs for group in self.groups])
        return [0, *ends[:-1].tolist()]


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
        self.pool = pool
        self.num_envs = pool.num_envs
        self._device = device
        self._info_tensors = info_tensors
        self._reward_dtype = reward_dtype
        self._to_device = _CudaUploader(device) if device.type == "cuda" else _share_memory
        self._static_rows = pool.config.batch_size if static_shapes else None
        self._static: dict[str, torch.Tensor] = {}
        self._actions_to_host = _ActionDownloader(device) if device.type == "cuda" else _to_numpy

    def reset(
        self, env_ids: Any = None, *, seed: Seed = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Tensors, dict[str, Any]]:
        """Reset these envs (default: all) and return their observations and infos."""
        self._finish_uploads()
        obs, _, _, _, info = self._tensors(self.pool.reset(_ids(env_ids), seed=seed, options=options))
        return obs, info

    def step(self, actions: Tensors, env_ids: Any = None, *, timeout: float | None = None) -> Step:
        """Step these envs (default: all)."""
        host_actions = self._actions_to_host(actions)
        self._finish_uploads()
        return self._tensors(self.pool.step(host_actions, _ids(env_ids), timeout))

    def send(self, actions: Tensors, env_ids: Any = None) -> None:
        """Start a step of these envs (default: all) and return."""
        host_actions = self._actions_to_host(actions)
        self._finish_uploads()
        self.pool.send(host_actions, _ids(env_ids))

    def recv(self, *, timeout: float | None = None) -> Step:
        """Wait for the next batch."""
        return self._tensors(self.pool.recv(timeout))

    def async_reset(self, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> None:
        """Start a reset of all envs; recv() returns their rows."""
        self._finish_uploads()
        self.pool.async_reset(seed=seed, options=options)

    def close(self) -> None:
        """Close the pool."""
        if isinstance(self._to_device, _CudaUploader):
            self._to_device.close()
        self.pool.close()

    def _finish_uploads(self) -> None:
        # Workers write their next rows over those that a copy may still be reading.
        if isinstance(self._to_device, _CudaUploader):
            self._to_device.wait_for_shared_rows()

    def _tensors(self, batch: Batch) -> Step:
        columns: dict[str, Any] = {
            "obs": batch.obs,
            "reward": batch.reward,
            "terminated": batch.terminated,
            "truncated": batch.truncated,
        }
        if batch.final is not None:
            columns["final_obs"] = batch.final.obs
        info: dict[str, Any] = {"env_id": batch.env_id, "elapsed_step": batch.elapsed_step, **batch.info}
        if self._info_tensors:
            numeric = {key: column for key, column in info.items() if _is_numeric(column)}
            columns["info"] = numeric
            info = {key: column for key, column in info.items() if key not in numeric}
        tensors = self._to_device(columns, batch)
        if self._static_rows is not None:
            tensors = self._keep_shapes(tensors, len(batch))
        info.update(tensors.pop("info", {}))
        reward, terminated, truncated = tensors["reward"], tensors["terminated"], tensors["truncated"]
        if self._reward_dtype is not None:
            reward = reward.to(self._reward_dtype)
        if "final_obs" in tensors:
            info.update(final_obs=tensors["final_obs"], _final_obs=terminated | truncated)
        if "mask" in tensors:
            info["mask"] = tensors["mask"]
        return tensors["obs"], reward, terminated, truncated, info

    def _keep_shapes(self, tensors: dict[str, Any], num_rows: int) -> dict[str, Any]:
        """Copy the rows into tensors that every call returns."""
        assert self._static_rows is not None, "only with static_shapes"
        capacity = self._static_rows

        def keep(path: str, value: Any) -> Any:
            if isinstance(value, dict):
                return {key: keep(f"{path}.{key}", own) for key, own in value.items()}
            if isinstance(value, tuple):
                return tuple(keep(f"{path}.{i}", own) for i, own in enumerate(value))
            if not isinstance(value, torch.Tensor):
                return value
            if path not in self._static:
                self._static[path] = torch.zeros((capacity, *value.shape[1:]), dtype=value.dtype, device=self._device)
            kept = self._static[path]
            kept[:num_rows].copy_(value)
            return kept

        kept = {key: keep(key, value) for key, value in tensors.items()}
        mask = self._static.setdefault("mask", torch.zeros(capacity, dtype=torch.bool, device=self._device))
        mask[:num_rows] = True
        mask[num_rows:] = False
        return {**kept, "mask": mask}


# --- from the host to the device ----------------------------------------------------------------


class _CudaUploader:
    """Copies batches to the GPU on a stream of its own.

    The device memory of a batch is allocated one batch ahead, on the user's stream: whatever that stream still did with
    the memory has long been done when the copy writes to it, so the copy waits for nothing, and the allocator needs to
    know of one stream only.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = torch.empty(0, device=device).device  # with its index
        with torch.cuda.device(self._device):
            self._uploads = _native.UploadStream()
        self._next: torch.Tensor | None = None
        # Batches and staging buffers that a copy may still read, by the number of their upload.
        self._reading: deque[tuple[int, Batch, torch.Tensor | None]] = deque()
        self._free_staging: list[torch.Tensor] = []
        # The memory into which workers write their rows, locked once, by address.
        self._locks: dict[int, _native.PageLock] = {}
        self._last_of_shared_rows = 0

    def __call__(self, columns: dict[str, Any], batch: Batch) -> dict[str, Any]:
        if torch.cuda.current_device() == self._device.index:
            return self._upload(columns, batch)
        with torch.cuda.device(self._device):
            return self._upload(columns, batch)

    def _upload(self, columns: dict[str, Any], batch: Batch) -> dict[str, Any]:
        self.release_done()
        arrays: list[NDArray[Any]] = []
        template = _map(lambda column: _place(arrays, column), columns)
        offsets, num_bytes, copies, staging = self._plan(arrays)
        user_stream = _raw_current_stream(self._device)
        memory = self._next
        if memory is None or memory.numel() != num_bytes:
            memory = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
            self._uploads.mark_allocated(user_stream)
        number = self._uploads.start(user_stream, memory.data_ptr(), copies)
        self._reading.append((number, batch, staging))
        if self._locks:
            self._last_of_shared_rows = number
        views: dict[torch.dtype, torch.Tensor] = {}
        tensors: list[torch.Tensor] = []
        for offset, array in zip(offsets, arrays, strict=True):
            dtype = _TORCH_DTYPES[array.dtype.char]
            view = views.get(dtype)
            if view is None:
                view = views[dtype] = memory.view(dtype)
            tensors.append(view.as_strided(array.shape, _strides(array.shape), offset // dtype.itemsize))
        self._next = torch.empty_like(memory)
        self._uploads.mark_allocated(user_stream)
        found: dict[str, Any] = _map(lambda leaf: tensors[leaf.position] if type(leaf) is _Index else leaf, template)
        return found

    def _plan(self, arrays: list[NDArray[Any]]) -> tuple[list[int], int, list[tuple[int, int, int]], Any]:
        """Where each array comes to lie in device memory; the copies (offset, address, bytes); the staging buffer."""
        copies: list[tuple[int, int, int]] = []
        offsets = [-1] * len(arrays)
        num_bytes = 0
        whole = _native.page_locked_batch(arrays)
        if whole is not None and whole[2]:
            address, _, _, offsets = whole
            # From the first column that is wanted to the last: what lies between them comes along.
            first = min(offset for offset in offsets if offset >= 0)
            num_bytes = max(offset + array.nbytes for offset, array in zip(offsets, arrays, strict=True) if offset >= 0)
            copies.append((0, address + first, num_bytes - first))
            offsets = [offset - first if offset >= 0 else -1 for offset in offsets]
            num_bytes = _aligned(num_bytes - first)
        staged: list[tuple[int, NDArray[Any]]] = []
        for position, array in enumerate(arrays):
            if offsets[position] >= 0:
                continue
            offsets[position] = num_bytes
            if array.nbytes >= _DIRECT_COPY_BYTES and self._is_locked(array):
                copies.append((num_bytes, array.ctypes.data, array.nbytes))
            else:
                staged.append((num_bytes, array))
            num_bytes += _aligned(array.nbytes)
        staging = self._stage(staged, copies) if staged else None
        return offsets, _aligned(max(num_bytes, 1)), copies, staging

    def _stage(self, staged: list[tuple[int, NDArray[Any]]], copies: list[tuple[int, int, int]]) -> torch.Tensor:
        """Gather arrays that are not page-locked in a buffer that is; one copy for each run of neighbours."""
        size = sum(_aligned(array.nbytes) for _, array in staged)
        buffer = self._take_staging(size)
        flat, address = buffer.numpy(), buffer.data_ptr()
        position = 0
        runs: list[list[int]] = []  # [offset on the device, start, end]
        for offset, array in staged:
            flat[position : position + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            end = position + _aligned(array.nbytes)
            if runs and runs[-1][0] + runs[-1][2] - runs[-1][1] == offset:
                runs[-1][2] = end
            else:
                runs.append([offset, position, end])
            position = end
        copies += [(offset, address + start, end - start) for offset, start, end in runs]
        return buffer

    def _take_staging(self, size: int) -> torch.Tensor:
        if self._free_staging:
            buffer = self._free_staging.pop()
            if buffer.numel() >= size:
                return buffer
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def _is_locked(self, array: NDArray[Any]) -> bool:
        """Whether the array lies in memory that all batches share; lock it at its first use."""
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if owner is array or not array.flags.c_contiguous:  # an array of its own: the next batch has another one
            return False
        address = owner.ctypes.data
        if address not in self._locks:
            self._locks[address] = _native.PageLock(owner)
        return bool(self._locks[address].is_locked)

    def release_done(self) -> None:
        """Give back the buffers whose copies are done, so that the engine can use them again while they are cached."""
        num_done = self._uploads.num_done()
        while self._reading and self._reading[0][0] <= num_done:
            _, _, staging = self._reading.popleft()
            if staging is not None:
                self._free_staging.append(staging)

    def wait_for_shared_rows(self) -> None:
        """Wait until the last batch was copied, if it lies where workers write their next rows."""
        self._uploads.wait(self._last_of_shared_rows)
        self.release_done()

    def close(self) -> None:
        """Wait for the copies and unlock the memory."""
        if self._reading:
            self._uploads.wait(self._reading[-1][0])
        self._reading.clear()
        self._locks.clear()


def _raw_current_stream(device: torch.device) -> int:
    # A tenth of what torch.cuda.current_stream() costs, which makes an object; torch's own compiler uses it too.
    raw: int = torch._C._cuda_getCurrentRawStream(device.index)
    return raw


class _ActionDownloader:
    """Brings actions from the device to page-locked memory and waits for them."""

    def __init__(self, device: torch.device) -> None:
        self._device = torch.empty(0, device=device).device
        self._buffers: dict[int, torch.Tensor] = {}

    def __call__(self, actions: Tensors) -> Any:
        position = 0
        pending = False

        def start(leaf: Any) -> Any:
            nonlocal position, pending
            if not isinstance(leaf, torch.Tensor) or leaf.device.type != "cuda":
                return _leaf_to_numpy(leaf)
            buffer = self._buffers.get(position)
            if buffer is None or buffer.shape != leaf.shape or buffer.dtype != leaf.dtype:
                buffer = torch.empty(leaf.shape, dtype=leaf.dtype, pin_memory=True)
                self._buffers[position] = buffer
            buffer.copy_(leaf.detach(), non_blocking=True)
            position, pending = position + 1, True
            return buffer.numpy()

        host = _map(start, actions)
        if pending:
            # The one wait of a step: the envs need their actions.
            _native.synchronize_stream(_raw_current_stream(self._device))
        return host


# --- on the CPU ---------------------------------------------------------------------------------


def _share_memory(columns: dict[str, Any], _: Batch) -> dict[str, Any]:
    tensors: dict[str, Any] = _map(lambda leaf: _shared_tensor(leaf) if _is_numeric(leaf) else leaf, columns)
    return tensors


def _shared_tensor(array: NDArray[Any]) -> torch.Tensor:
    # torch has no read-only tensors; the ids of a whole batch are one read-only array.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _to_numpy(actions: Tensors) -> Any:
    return _map(_leaf_to_numpy, actions)


def _leaf_to_numpy(leaf: Any) -> Any:
    return leaf.detach().cpu().numpy() if isinstance(leaf, torch.Tensor) else leaf


# --- structures ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Index:
    """Stands for an array in a structure of columns."""

    position: int


def _place(arrays: list[NDArray[Any]], column: Any) -> Any:
    if not _is_numeric(column):
        return column
    arrays.append(column)
    return _Index(len(arrays) - 1)


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to the leaves of dicts and tuples."""
    if type(value) is np.ndarray or type(value) is _Index:
        return function(value)
    if isinstance(value, dict):
        return {key: _map(function, own) for key, own in value.items()}
    if isinstance(value, tuple) and not (value and isinstance(value[0], str)):
        return tuple(_map(function, own) for own in value)
    return function(value)


def _take_rows(rows: slice, column: Any) -> Any:
    return column[rows]


def _is_numeric(column: Any) -> bool:
    return isinstance(column, np.ndarray) and column.dtype.char in _TORCH_DTYPES


@functools.lru_cache(maxsize=256)
def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
    return tuple(strides)


def _aligned(num_bytes: int) -> int:
    return (num_bytes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT


def _ids(env_ids: Any) -> Any:
    return env_ids.cpu().numpy() if isinstance(env_ids, torch.Tensor) else env_ids


# --- groups -------------------------------------------------------------------------------------


def _pools_for(env: Any, num_groups: int, on_gpu: bool, options: Mapping[str, Any]) -> list[Pool]:
    if isinstance(env, Pool):
        if options or num_groups != 1:
            raise ConfigError(
                "TorchPool expected a pool without further options and num_groups=1, got "
                f"{sorted(options) or num_groups}; pass the env's id or class to have the pool made"
            )
        return [env]
    num_envs = options.get("num_envs", len(env) if isinstance(env, (list, tuple)) else 1)
    if not isinstance(num_groups, int) or not 1 <= num_groups <= num_envs:
        raise ConfigError(f"num_groups expected an integer from 1 to num_envs={num_envs}, got {num_groups!r}")
    # On a GPU the rows are copied from where the workers wrote them, and the workers wait for that.
    defaults = {"copy": False} if on_gpu else {}
    if num_groups == 1:
        return [make_pool(env, **{**defaults, **options})]
    for name in ("batch_size", "env_kwargs"):
        if isinstance(options.get(name), (int, list, tuple)) and options.get(name):
            raise ConfigError(
                f"num_groups={num_groups} expected no {name}, got {options[name]!r}; leave one of them out"
            )
    firsts = [num_envs * group // num_groups for group in range(num_groups + 1)]
    seeds = _split_seeds(options.get("seed"), np.diff(firsts).tolist())
    pools: list[Pool] = []
    try:
        for first, end, seed in zip(firsts[:-1], firsts[1:], seeds, strict=True):
            own = list(env[first:end]) if isinstance(env, (list, tuple)) else env
            pools.append(make_pool(own, **{**defaults, **options, "num_envs": end - first, "seed": seed}))
    except BaseException:
        for pool in pools:
            pool.close()
        raise
    return pools


def _split_seeds(seed: Seed, sizes: Sequence[int]) -> list[Any]:
    """The seeds of each group: env i of the whole has the seed that it has in one pool."""
    if seed is None or len(sizes) == 1:
        return [seed] * len(sizes)
    num_envs = sum(sizes)
    seeds = seeds_for(seed, np.arange(num_envs, dtype=np.int32), num_envs)
    ends = np.cumsum(sizes).tolist()
    return [seeds[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _join_results(results: Sequence[tuple[Any, ...]], first_ids: Sequence[int]) -> tuple[Any, ...]:
    """The results of all groups as one, row by row."""
    infos = [dict(result[-1]) for result in results]
    for info, first in zip(infos, first_ids, strict=True):
        info["env_id"] = info["env_id"] + first
    shared = [key for key in infos[0] if all(key in info for info in infos)]
    info = {key: _concatenate([own[key] for own in infos]) for key in shared}
    return (*(_concatenate(list(parts)) for parts in zip(*(result[:-1] for result in results), strict=True)), info)


def _concatenate(parts: list[Any]) -> Any:
    first = parts[0]
    if isinstance(first, dict):
        return {key: _concatenate([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple) and not (first and isinstance(first[0], str)):
        return tuple(_concatenate(list(own)) for own in zip(*parts, strict=True))
    if isinstance(first, torch.Tensor):
        return torch.cat(parts)
    return np.concatenate(parts) if isinstance(first, np.ndarray) else sum(map(tuple, parts), ())
