"""EnvPoolMixin: what EnvPool's pools have in common, over any view of a Pool.

Code that asks isinstance(env, envpool.python.envpool.EnvPoolMixin) asks for this class.
"""

from __future__ import annotations

import warnings
from abc import ABC
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.batch import Batch
from envfleet.compat.envpool.env_spec import EnvPoolSpec, shown_options
from envfleet.compat.pictures import resized
from envfleet.errors import ConfigError
from envfleet.pool import Pool
from envfleet.seeding import Seed
from envfleet.spec import ArraySpec


class EnvPoolMixin(ABC):
    """Mixed into the views of envfleet.compat.envpool, before the view itself."""

    pool: Pool
    is_vector_env = True  # as gym's wrappers ask
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
    def config(self) -> dict[str, Any]:
        """The pool's options and the env's parameters, flat."""
        return self._spec.config_dict()

    def async_reset(self, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> None:
        """Starts a reset of all envs; recv() gives their rows."""
        self._reopen()
        self.pool.async_reset(seed=seed, options=options)
        self._unreset = None

    def send(self, action: Any, env_id: Any = None) -> None:
        """Starts a step of these envs and returns."""
        self.pool.send(*self._fitted(action, env_id))

    def seed(self, seed: Any = None) -> None:
        """EnvPool's own does nothing but say so."""
        warnings.warn("seed() does nothing, as in EnvPool; pass seed= to make() or to reset()", stacklevel=2)

    def xla(self) -> Any:
        """Raise: pools cannot be stepped inside XLA programs yet."""
        raise ConfigError("xla() is not supported; step the pool from Python, or call step() in a callback")

    def render(self, env_ids: Any = None, camera_id: int | None = None) -> Any:
        """Pictures of these envs (default: that of render_env_id), one array of (n, height, width, 3)."""
        if env_ids is None:
            env_ids = self._spec.options.render_env_id
        ids = np.atleast_1d(np.asarray(env_ids, dtype=np.int32))
        if getattr(self, "_is_shown_here", False):
            self.show_env(int(ids[0]))  # type: ignore[attr-defined]  # GymnasiumPool's
            return None
        frames = [self._draw(int(env_id)) for env_id in ids]
        width, height = self._spec.options.render_width, self._spec.options.render_height
        return np.stack([resized(frame, width, height) for frame in frames])

    def _draw(self, env_id: int) -> Any:
        raise NotImplementedError

    def _reset_rows(self, env_id: Any, seed: Seed, options: Mapping[str, Any] | None) -> Batch:
        """The rows of a reset. An asynchronous pool has batch_size of them, and the others are in flight."""
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
        """Whether none of these envs was ever reset: a step resets them then, as in EnvPool.

        Where some were, the others are reset here, and the step goes to all.
        """
        if self._unreset is None:
            return False
        ids = np.arange(self.pool.num_envs) if env_id is None else np.atleast_1d(np.asarray(env_id, dtype=np.int64))
        known = ids[(ids >= 0) & (ids < self.pool.num_envs)]  # the pool says what is wrong with the others
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
        """EnvPool's pools go on after close(), and TorchRL's collectors reset what they have closed."""
        if self.pool.closed:
            self.pool = self._make_pool()
            self._unreset = np.ones(self.pool.num_envs, dtype=np.bool_)

    def _fitted(self, action: Any, env_id: Any) -> tuple[Any, Any]:
        """EnvPool's dict of arrays taken apart; Box actions clipped and whole floats cast, as in EnvPool."""
        space = self.pool.spec.action_space
        if isinstance(action, Mapping) and not isinstance(space, spaces.Dict):
            if "action" not in action:
                raise ConfigError(f"a dict of actions expected the key 'action', got {sorted(map(str, action))}")
            env_id = action.get("env_id") if env_id is None else env_id
            action = action["action"]
        if isinstance(action, np.ndarray) and action.dtype.kind == "f":
            if isinstance(space, spaces.Box):
                if action.shape[1:] == space.shape:
                    action = np.clip(action, space.low, space.high, dtype=action.dtype)
            elif isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)) and (action == np.rint(action)).all():
                action = action.astype(np.int64)  # EnvPool casts; 0.5 is refused as ever
        return action, env_id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shown_options(self.config)})"

    __str__ = __repr__
