"""EnvPoolMixin: the API that EnvPool's pools share, over any view of a Pool.

It is the class behind isinstance(env, envpool.python.envpool.EnvPoolMixin).
"""

from __future__ import annotations

import sys
import warnings
from abc import ABC
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.compat.envpool.env_spec import EnvPoolSpec, shown_options
from envfleet.compat.modules import AliasModule
from envfleet.core.batch import Batch
from envfleet.core.errors import CallOrderError, ConfigError
from envfleet.core.infos import declared_column
from envfleet.core.pool import Pool
from envfleet.core.rendering import resized
from envfleet.core.seeding import Seed
from envfleet.core.spec import ArraySpec

_TORCHRL = "torchrl.envs.libs.envpool"  # the module of its MultiThreadedEnvWrapper


class EnvPoolMixin(ABC):
    """Mixed into the views of envfleet.compat.envpool, before the view itself."""

    pool: Pool
    is_vector_env = True  # read by gym's wrappers
    _make_pool: Callable[[], Pool]
    _spec: EnvPoolSpec
    _info_arrays: dict[str, ArraySpec]
    _unreset: NDArray[np.bool_] | None  # the envs that were never reset; None when there are none

    def _start(self, spec: EnvPoolSpec, make_pool: Callable[[], Pool]) -> None:
        self._make_pool = make_pool
        self._spec = spec
        self._info_arrays = spec.info_arrays
        self._unreset = np.ones(self.pool.num_envs, dtype=np.bool_)

    @property
    def envpool_spec(self) -> EnvPoolSpec:
        """The task and its options, in EnvPool's terms."""
        return self._spec

    @property
    def config(self) -> dict[str, Any]:
        """The pool's options and the env's parameters, flat."""
        # The first that TorchRL's class reads. It then imports `envpool` and refuses the pools of any other module,
        # with an error that says neither why nor what to do.
        if sys._getframe(1).f_globals.get("__name__") == _TORCHRL and not isinstance(
            sys.modules.get("envpool"), AliasModule
        ):
            raise CallOrderError(
                "TorchRL's MultiThreadedEnvWrapper expected a pool of the EnvPool that is installed, got envfleet's; "
                "run the script with `python -m envfleet.compat`, call envfleet.compat.envpool.install() at its top, "
                "or use envfleet.compat.torchrl.MultiThreadedEnvWrapper"
            )
        return self._spec.config_dict()

    def async_reset(self, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> None:
        """Start a reset of all envs; recv() returns their rows."""
        self._reopen()
        self.pool.async_reset(seed=seed, options=options)
        self._unreset = None

    def send(self, action: Any, env_id: Any = None) -> None:
        """Start a step of these envs without waiting for it."""
        self.pool.send(*self._fitted(action, env_id))

    def seed(self, seed: Any = None) -> None:
        """Warn and do nothing, as in EnvPool."""
        warnings.warn("seed() does nothing, as in EnvPool; pass seed= to make() or to reset()", stacklevel=2)

    def xla(self) -> Any:
        """Return (handle, recv, send, step) for use inside jax.jit; see docs/jax.md."""
        from envfleet.apis.common.xla import xla_functions

        return xla_functions(self.pool, self._traced_rows, self._traced_arguments)

    def _traced_rows(self, batch: Batch) -> Any:
        """Return a batch of traced arrays in the form of recv()."""
        raise NotImplementedError

    def _traced_arguments(self, action: Any, env_id: Any) -> tuple[Any, Any]:
        """Do what _fitted() does, for traced arrays: unpack a dict of arrays, and clip Box actions."""
        import jax.numpy as jnp

        space = self.pool.spec.action_space
        action, env_id = self._unpacked(action, env_id)
        if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
            action = jnp.asarray(action)
            if action.shape[1:] == space.shape and jnp.issubdtype(action.dtype, jnp.floating):
                action = jnp.clip(action, space.low.astype(action.dtype), space.high.astype(action.dtype))
        return action, env_id

    def render(self, env_ids: Any = None, camera_id: int | None = None) -> Any:
        """Return frames of these envs (default: render_env_id) as one array of shape (n, height, width, 3)."""
        if env_ids is None:
            env_ids = self._spec.options.render_env_id
        ids = np.atleast_1d(np.asarray(env_ids, dtype=np.int32))
        if self._show(int(ids[0])):
            return None
        frames = [self._draw(int(env_id)) for env_id in ids]
        width, height = self._spec.options.render_width, self._spec.options.render_height
        return np.stack([resized(frame, width, height) for frame in frames])

    def _show(self, env_id: int) -> bool:
        """Show an env in a window if the pool has one; return True if it did."""
        return False

    def _draw(self, env_id: int) -> Any:
        raise NotImplementedError

    def _reset_rows(self, env_id: Any, seed: Seed, options: Mapping[str, Any] | None) -> Batch:
        """Reset and return the batch. An asynchronous pool returns batch_size rows; the others stay in flight."""
        self._reopen()
        if env_id is None and self.pool.config.is_async:
            self.pool.drop_pending()
            self.pool.async_reset(seed=seed, options=options)
            self._unreset = None
            return self.pool.recv()
        batch = self.pool.reset(env_id, seed=seed, options=options)
        self._was_reset(env_id)
        return batch

    def _stepped(self, action: Any, env_id: Any, timeout: float | None) -> Batch:
        action, env_id = self._fitted(action, env_id)
        if self._never_reset(env_id):
            batch = self.pool.reset(env_id)
            self._was_reset(env_id)
            return batch
        return self.pool.step(action, env_id, timeout)

    def _never_reset(self, env_id: Any) -> bool:
        """Return whether none of these envs was ever reset: a step then resets them, as in EnvPool.

        If some were, the others are reset here, and the step goes to all of them.
        """
        if self._unreset is None:
            return False
        ids = np.arange(self.pool.num_envs) if env_id is None else np.atleast_1d(np.asarray(env_id, dtype=np.int64))
        known = ids[(ids >= 0) & (ids < self.pool.num_envs)]  # the pool refuses the others
        missing = known[self._unreset[known]]
        if len(missing) == len(ids):
            return True
        if len(missing):
            self.pool.reset(missing)
            self._was_reset(missing)
        return False

    def _was_reset(self, env_id: Any) -> None:
        if self._unreset is not None and env_id is not None and np.size(env_id):
            self._unreset[env_id] = False
        if env_id is None or (self._unreset is not None and not self._unreset.any()):
            self._unreset = None

    def _reopen(self) -> None:
        """Open a closed pool again, as EnvPool allows; TorchRL's collectors reset envs that they have closed."""
        if self.pool.closed:
            self.pool = self._make_pool()
            self._unreset = np.ones(self.pool.num_envs, dtype=np.bool_)

    def _fitted(self, action: Any, env_id: Any) -> tuple[Any, Any]:
        """Unpack EnvPool's dict of arrays; clip Box actions and cast integral floats, as EnvPool does."""
        space = self.pool.spec.action_space
        action, env_id = self._unpacked(action, env_id)
        if isinstance(action, np.ndarray) and action.dtype.kind == "f":
            if isinstance(space, spaces.Box):
                if action.shape[1:] == space.shape:
                    action = np.clip(action, space.low, space.high, dtype=action.dtype)
            elif isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)) and (action == np.rint(action)).all():
                action = action.astype(np.int64)  # EnvPool casts; 0.5 is refused
        return action, env_id

    def _unpacked(self, action: Any, env_id: Any) -> tuple[Any, Any]:
        if isinstance(action, Mapping) and not isinstance(self.pool.spec.action_space, spaces.Dict):
            if "action" not in action:
                raise ConfigError(
                    f"a dict of actions expected the key 'action', got the keys {sorted(map(str, action))}; add it"
                )
            env_id = action.get("env_id") if env_id is None else env_id
            action = action["action"]
        return action, env_id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shown_options(self.config)})"

    __str__ = __repr__


class EnvPoolInfo(dict[str, Any]):
    """A dict with its keys as attributes too: info["env_id"] is info.env_id."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"info has no key {name!r}; it has {', '.join(map(str, self))}") from None

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *map(str, self)]


# The source of a TimeStep's discount; EnvPool has no such info.
_NO_INFO = ("discount", "_discount")


def envpool_info(
    columns: Mapping[str, Any],
    env_id: NDArray[np.int32],
    elapsed_step: NDArray[np.int32],
    declared: Mapping[str, ArraySpec],
) -> EnvPoolInfo:
    """Return the columns of a batch as EnvPool has them.

    A declared key is always present, with zeros for rows without a value. Other keys, which Python envs may set, keep
    their mask if some rows have no value.
    """
    info = EnvPoolInfo(env_id=env_id, players=EnvPoolInfo(env_id=env_id))
    for key, array in declared.items():
        info[key] = declared_column(columns, array, len(env_id))
    for key, column in columns.items():
        if key in info or key in _NO_INFO:
            continue
        owner = key[1:] if isinstance(key, str) and key[:1] == "_" else None
        if owner is not None and owner in columns and (owner in declared or np.all(column)):
            continue
        info[key] = _nested(column) if isinstance(column, dict) else column
    # With episodic_life, EnvPool counts the steps of the whole game.
    info["elapsed_step"] = info.pop("game_step", elapsed_step)
    return info


def _nested(columns: Mapping[str, Any]) -> EnvPoolInfo:
    return EnvPoolInfo(
        {
            key: _nested(column) if isinstance(column, dict) else column
            for key, column in columns.items()
            if not (str(key)[:1] == "_" and str(key)[1:] in columns and np.all(column))
        }
    )
