"""PufferLib 3's `pufferlib.vector` on envfleet's pools.

    from envfleet.compat import pufferlib_vector as vector  # instead of pufferlib.vector

    envs = vector.make(make_env, backend=vector.Multiprocessing, num_envs=8, num_workers=2, batch_size=4)
    envs.async_reset(seed=0)
    obs, rewards, terminals, truncations, infos, agent_ids, masks = envs.recv()
    envs.send(actions)

Creators make PufferEnvs, emulated envs (GymnasiumPufferEnv, PettingZooPufferEnv: PufferLib's or those here), or plain
envs of Gymnasium, gym and PettingZoo, which are emulated.
"""

from __future__ import annotations

import inspect
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.apis.pettingzoo.players import stacked_space
from envfleet.building.pools import make_pool
from envfleet.compat.pufferlib_vector.emulation import (
    APIUsageError,
    GymnasiumPufferEnv,
    PettingZooPufferEnv,
    PufferEnv,
    as_puffer_env,
    joint_space,
)
from envfleet.core.backends import find_backend
from envfleet.core.batch import Batch
from envfleet.core.infos import RestartMessage, split_rows
from envfleet.core.pool import Pool

__all__ = [
    "APIUsageError",
    "GymnasiumPufferEnv",
    "Multiprocessing",
    "PettingZooPufferEnv",
    "PufferEnv",
    "Ray",
    "Serial",
    "make",
    "reset",
    "step",
]

Received = tuple[Any, Any, Any, Any, list[Any], Any, Any]

_INFOS = "pufferlib_infos"  # the info key of a row's PufferLib infos
_DEFAULT_RESET_SEED = 42


def reset(vecenv: Any, seed: int | None = _DEFAULT_RESET_SEED) -> tuple[Any, list[Any]]:
    """Reset all envs and return (observations, infos)."""
    vecenv.async_reset(seed)
    obs, _, _, _, infos, _, _ = vecenv.recv()
    return obs, infos


def step(vecenv: Any, actions: Any) -> tuple[Any, Any, Any, Any, list[Any]]:
    """Step the envs of the last recv() and return (observations, rewards, terminals, truncations, infos)."""
    vecenv.send(actions)
    obs, rewards, terminals, truncations, infos, _, _ = vecenv.recv()
    return obs, rewards, terminals, truncations, infos


class _VecEnv:
    """PufferLib's vector env over one pool per block of batch_size envs.

    A block is stepped as a whole, and blocks come back in the order in which they were sent: agent_ids of a batch are
    contiguous, which PufferLib's trainer relies on. With zero_copy=False there is one asynchronous pool, and a batch
    has the envs that finished first.
    """

    backend = ""

    def __init__(
        self,
        env_creators: Sequence[Callable[..., Any]],
        env_args: Sequence[Sequence[Any]],
        env_kwargs: Sequence[Mapping[str, Any]],
        num_envs: int,
        num_workers: int | None = None,
        batch_size: int | None = None,
        zero_copy: bool = True,
        overwork: bool = False,
        seed: int | None = 0,
        **options: Any,
    ) -> None:
        batch_size = num_envs if batch_size is None else batch_size
        if zero_copy and num_envs % batch_size:
            raise APIUsageError(
                f"batch_size expected a divisor of num_envs={num_envs}, got {batch_size}; "
                "choose one, or pass zero_copy=False"
            )
        self.driver_env = as_puffer_env(env_creators[0](*env_args[0], **env_kwargs[0]))
        driver = self.driver_env
        self.emulated = driver.emulated
        self.single_observation_space = driver.single_observation_space
        self.single_action_space = driver.single_action_space
        self.num_environments, self.agents_per_env = num_envs, int(driver.num_agents)
        self.num_agents = num_envs * self.agents_per_env
        self.agents_per_batch = batch_size * self.agents_per_env
        self.observation_space = joint_space(self.single_observation_space, self.agents_per_batch)
        self.action_space = joint_space(self.single_action_space, self.agents_per_batch)
        self.agent_ids = np.arange(self.num_agents).reshape(num_envs, self.agents_per_env)
        self._actions_shape = (batch_size, self.agents_per_env, *(self.single_action_space.shape or ()))

        has_blocks = zero_copy or batch_size == num_envs
        self._block_size = batch_size if has_blocks else num_envs
        num_blocks = num_envs // self._block_size
        factories = [
            _Creator(creator, tuple(args), dict(kwargs), None if seed is None else seed + env_id)
            for env_id, (creator, args, kwargs) in enumerate(zip(env_creators, env_args, env_kwargs, strict=False))
        ]
        self._pools: list[Pool] = []
        try:
            for first in range(0, num_envs, self._block_size):
                own: dict[str, Any] = {"seed": None if seed is None else seed + first, **options}
                if find_backend(self.backend).is_parallel:
                    cores = len(os.sched_getaffinity(0))
                    own["num_workers"] = max(1, (num_workers or min(cores, num_envs)) // num_blocks)
                if not has_blocks:
                    own["batch_size"] = batch_size
                block = factories[first : first + self._block_size]
                self._pools.append(make_pool(block, **{"backend": self.backend, **own}))
        except BaseException:
            self.close()
            raise
        self.num_workers = num_workers or (num_envs if find_backend(self.backend).is_parallel else 1)
        self._pending: deque[int] = deque()  # blocks in flight, oldest first
        self._resetting: set[int] = set()
        self._current = 0
        self._row_env_ids: NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        self._rows_to_reset = 0
        self._next = "async_reset()"

    @property
    def num_envs(self) -> int:
        """The rows of a batch, as PufferLib counts them; num_environments is the number of envs."""
        return self.agents_per_batch

    def async_reset(self, seed: int | None = None) -> None:
        """Start a reset of all envs, env i with seed + i; recv() returns the first batch."""
        self._pending.clear()
        for block, pool in enumerate(self._pools):
            own = None if seed is None else seed + block * self._block_size
            if pool.num_in_flight:
                pool.reset()  # waits for results in flight and drops them
            pool.async_reset(seed=own)
            self._pending.append(block)
        self._resetting = set(self._pending)
        self._rows_to_reset = self.num_environments
        self._next = "recv()"

    def recv(self) -> Received:
        """Return (observations, rewards, terminals, truncations, infos, agent ids, masks), a row per agent."""
        self._check("recv()")
        block = self._current = self._pending[0]
        pool = self._pools[block]
        batch = pool.recv()
        if not pool.config.is_async:
            self._pending.popleft()
        self._next = "send()"
        self._row_env_ids = batch.env_id
        rows = batch.obs
        count = len(batch) * self.agents_per_env
        is_reset = self._is_reset(block, batch)
        rewards, terminals, truncations = rows["rewards"], rows["terminals"], rows["truncations"]
        if batch.truncated.any():  # an env that raised and was restarted: its row is its last one
            restarted = batch.truncated[:, None]
            rewards = np.where(restarted, np.zeros_like(rewards), rewards)
            terminals = np.where(restarted, np.zeros_like(terminals), terminals)
            truncations = truncations | restarted
        return (
            rows["observations"].reshape(count, *self.single_observation_space.shape),
            rewards.reshape(count),
            terminals.reshape(count).view(np.bool_),
            truncations.reshape(count).astype(np.bool_, copy=False),
            self._infos(batch, is_reset),
            self.agent_ids[batch.env_id + block * self._block_size].reshape(count),
            rows["masks"].reshape(count).view(np.bool_),
        )

    def send(self, actions: Any) -> None:
        """Start a step of the envs that the last recv() returned, with an action per agent."""
        self._check("send()")
        actions = np.asarray(actions)
        if actions.size != int(np.prod(self._actions_shape)):
            raise APIUsageError(
                f"send() expected actions of shape {self.action_space.shape}, got {actions.shape}; "
                "pass one per agent of the last recv()"
            )
        pool = self._pools[self._current]
        ids = self._row_env_ids if pool.config.is_async else None
        pool.send(actions.reshape(self._actions_shape), ids)
        if not pool.config.is_async:
            self._pending.append(self._current)
        self._next = "recv()"

    reset = reset
    step = step

    def close(self) -> None:
        """Close the envs. Idempotent."""
        for pool in self._pools:
            pool.close()
        driver, self.driver_env = self.driver_env, None
        if driver is not None:
            driver.close()

    def _check(self, call: str) -> None:
        if self._next != call:
            raise APIUsageError(
                f"expected {self._next}, got {call}; call async_reset(), then recv() and send() in turn"
            )

    def _is_reset(self, block: int, batch: Batch) -> bool:
        """Return whether these rows are the results of async_reset()."""
        if self._pools[block].config.is_async:
            was_reset = self._rows_to_reset > 0
            self._rows_to_reset -= len(batch)
            return was_reset
        was_reset = block in self._resetting
        self._resetting.discard(block)
        return was_reset

    def _infos(self, batch: Batch, is_reset: bool) -> list[Any]:
        infos: list[Any] = []
        if not batch.info and not is_reset:
            return infos
        for row in range(len(batch)):
            info = split_rows(batch.info, row)
            if _INFOS in info:
                infos += info[_INFOS].items
            elif isinstance(info.get("error"), RestartMessage):
                infos.append({"error": info["error"]})
            elif is_reset and self.emulated:
                infos.append({})  # PufferLib lists a reset's infos, empty ones too
        return infos


class Serial(_VecEnv):
    """All envs in this process, one after another."""

    backend = "serial"


class Multiprocessing(_VecEnv):
    """The envs in worker processes."""

    backend = "processes"


class Ray(_VecEnv):
    """The envs on the actors of a Ray cluster."""

    backend = "ray"


_BACKENDS = {cls.__name__: cls for cls in (Serial, Multiprocessing, Ray)}


def make(
    env_creator_or_creators: Callable[..., Any] | Sequence[Callable[..., Any]],
    env_args: Sequence[Any] | None = None,
    env_kwargs: Any = None,
    backend: Any = PufferEnv,
    num_envs: int = 1,
    seed: int | None = 0,
    **kwargs: Any,
) -> Any:
    """Make a vector env: num_envs envs of a creator, or of a list of creators with lists of arguments.

    backend: Serial, Multiprocessing or Ray, or their names; PufferEnv returns the creator's own PufferEnv. num_workers,
    batch_size (both take "auto"), zero_copy and overwork are PufferLib's; other keywords are envfleet.make()'s options.
    """
    if not isinstance(num_envs, (int, np.integer)) or num_envs < 1:
        raise APIUsageError(f"num_envs expected an integer of at least 1, got {num_envs!r}")
    name = backend if isinstance(backend, str) else getattr(backend, "__name__", repr(backend))
    if name == "PufferEnv":
        return _native_env(env_creator_or_creators, env_args, env_kwargs, num_envs)
    if name not in _BACKENDS:
        raise APIUsageError(f"backend expected PufferEnv or one of {', '.join(_BACKENDS)}, got {name!r}")
    kwargs.pop("backend", None)
    _check_batches(num_envs, kwargs)
    creators, args, keywords = _per_env(env_creator_or_creators, env_args, env_kwargs, num_envs)
    if name == "Serial":
        # One batch, as large as it would be on other backends.
        num_envs = kwargs.pop("batch_size", None) or num_envs
    return _BACKENDS[name](creators[:num_envs], args[:num_envs], keywords[:num_envs], num_envs, seed=seed, **kwargs)


def _native_env(creator: Any, args: Any, kwargs: Any, num_envs: int) -> Any:
    if num_envs != 1:
        raise APIUsageError(f"num_envs expected 1 for backend=PufferEnv, got {num_envs}; use Serial or Multiprocessing")
    env = creator(*(args or ()), **(kwargs or {}))
    if not (hasattr(env, "recv") and hasattr(env, "async_reset")):
        env.close()
        raise APIUsageError(
            f"backend=PufferEnv expected a creator of PufferEnvs, got {type(env).__name__}; "
            "use Serial or Multiprocessing"
        )
    return env


def _check_batches(num_envs: int, kwargs: dict[str, Any]) -> None:
    if kwargs.get("num_workers") == "auto":
        kwargs["num_workers"] = num_envs
    if kwargs.get("batch_size") == "auto":
        kwargs["batch_size"] = max(1, num_envs // 2)
    num_workers, batch_size = kwargs.get("num_workers"), kwargs.get("batch_size")
    if num_workers is not None and (num_workers < 1 or num_envs % num_workers):
        raise APIUsageError(f"num_workers expected a divisor of num_envs={num_envs}, got {num_workers!r}")
    if batch_size is not None and not 1 <= batch_size <= num_envs:
        raise APIUsageError(f"batch_size expected a number from 1 to num_envs={num_envs}, got {batch_size!r}")
    if num_workers is not None and batch_size is not None and batch_size % (num_envs // num_workers):
        raise APIUsageError(
            f"batch_size expected a multiple of the {num_envs // num_workers} envs per worker, got {batch_size}"
        )


def _per_env(creators: Any, args: Any, kwargs: Any, num_envs: int) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the creators, positional and keyword arguments, one of each per env."""
    if not isinstance(creators, (list, tuple)):
        lists = [creators] * num_envs, [args or ()] * num_envs, [kwargs or {}] * num_envs
    else:
        lists = list(creators), list(args or [()] * num_envs), list(kwargs or [{}] * num_envs)
    for name, own in zip(("env_creators", "env_args", "env_kwargs"), lists, strict=True):
        if len(own) != num_envs:
            raise APIUsageError(f"{name} expected a list of num_envs={num_envs}, got {len(own)}")
    for creator, own_args, own_kwargs in zip(*lists, strict=True):
        if not callable(creator):
            raise APIUsageError(f"env_creators expected callables that return an env, got {creator!r}")
        if not isinstance(own_args, (list, tuple)) or not isinstance(own_kwargs, Mapping):
            raise APIUsageError(f"expected env_args as lists and env_kwargs as dicts, got {own_args!r}, {own_kwargs!r}")
    return lists


# --- in the worker -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Creator:
    """Makes one env in its worker. PufferLib's creators take a seed; others are seeded by reset()."""

    creator: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    seed: int | None

    @property
    def __name__(self) -> str:
        return getattr(self.creator, "__name__", type(self.creator).__name__)

    def __call__(self) -> _Rows:
        kwargs = self.kwargs
        if self.seed is not None and "seed" not in kwargs and _names_seed(self.creator):
            kwargs = {**kwargs, "seed": self.seed}
        return _Rows(as_puffer_env(self.creator(*self.args, **kwargs)))


def _names_seed(creator: Callable[..., Any]) -> bool:
    try:
        return "seed" in inspect.signature(creator).parameters
    except (TypeError, ValueError):
        return False


class _Infos:
    """The infos of one env's step. A class, because a list would become an array."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items


class _Rows(gymnasium.Env[Any, Any]):
    """An env with PufferLib's rows as one Gymnasium env whose observation is those rows."""

    def __init__(self, env: Any) -> None:
        self.env = env
        count = int(env.num_agents)
        self.observation_space = spaces.Dict(
            {
                "observations": stacked_space(env.single_observation_space, count),
                "rewards": spaces.Box(-np.inf, np.inf, (count,), np.float32),
                "terminals": spaces.MultiBinary(count),
                "truncations": spaces.MultiBinary(count),
                "masks": spaces.MultiBinary(count),
            }
        )
        self.action_space = stacked_space(env.single_action_space, count)
        self._takes_floats = isinstance(env.single_action_space, spaces.Box)
        self.render_mode = getattr(env, "render_mode", None)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Reset the env."""
        _, infos = self.env.reset() if seed is None else self.env.reset(seed=seed)
        return self._rows(), _wrapped_infos(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the env. Only an emulated env ends: a PufferEnv resets its agents itself."""
        # PufferLib's emulated envs read the bytes of discrete actions as 32-bit integers.
        *_, infos = self.env.step(action if self._takes_floats else action.astype(np.int32))
        return self._rows(), 0.0, bool(self.env.done), False, _wrapped_infos(infos)

    def _rows(self) -> dict[str, Any]:
        env = self.env
        return {
            "observations": env.observations,
            "rewards": env.rewards,
            "terminals": env.terminals.view(np.int8),
            "truncations": env.truncations.view(np.int8),
            "masks": env.masks.view(np.int8),
        }

    def render(self) -> Any:
        """Render the env."""
        return self.env.render()

    def close(self) -> None:
        """Close the env."""
        self.env.close()


def _wrapped_infos(infos: Any) -> dict[str, Any]:
    if not infos:
        return {}
    return {_INFOS: _Infos(list(infos) if isinstance(infos, list) else [infos])}
