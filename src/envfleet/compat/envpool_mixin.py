"""EnvPoolMixin: what EnvPool's pools have in common, over any view of a Pool.

Ours, not EnvPool's: it is the class that `isinstance(env, envpool.python.envpool.EnvPoolMixin)` asks for.
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
from envfleet.compat.envpool_options import EnvPoolOptions
from envfleet.compat.envpool_spec import EnvPoolSpec
from envfleet.compat.pictures import resized
from envfleet.errors import ConfigError
from envfleet.pool import Pool
from envfleet.seeding import Seed
from envfleet.spec import EnvSpec


class EnvPoolMixin(ABC):
    """Mixed into the views of envfleet.compat.envpool, before the view itself."""

    pool: Pool
    _asked: EnvPoolOptions
    _make_pool: Callable[[], Pool]
    _spec: EnvPoolSpec
    _unreset: NDArray[np.bool_] | None  # the envs that were never reset; None when there are none

    def _start(self, asked: EnvPoolOptions, make_pool: Callable[[], Pool], old_gym_spaces: bool) -> None:
        self._asked = asked
        self._make_pool = make_pool
        self._spec = EnvPoolSpec(self.pool.spec, asked.given, old_gym_spaces)
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
        """Not here."""
        raise ConfigError("xla() is not there on envfleet's pools; step them from Python, or call step() in a callback")

    def render(self, env_ids: Any = None, camera_id: int | None = None) -> Any:
        """Pictures of these envs (default: that of render_env_id), one array of (n, height, width, 3)."""
        if env_ids is None:
            env_ids = self._asked.render_env_id
        ids = np.atleast_1d(np.asarray(env_ids, dtype=np.int32))
        frames = [self._draw(int(env_id)) for env_id in ids]
        width, height = self._asked.render_width, self._asked.render_height
        return np.stack([resized(frame, width, height) for frame in frames])

    def _draw(self, env_id: int) -> Any:
        raise NotImplementedError

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
        """EnvPool's dict of arrays taken apart; Box actions clipped, as EnvPool's own envs do with them."""
        space = self.pool.spec.action_space
        if isinstance(action, Mapping) and not isinstance(space, spaces.Dict):
            if "action" not in action:
                raise ConfigError(f"a dict of actions expected the key 'action', got {sorted(map(str, action))}")
            env_id = action.get("env_id") if env_id is None else env_id
            action = action["action"]
        is_float = isinstance(action, np.ndarray) and action.dtype.kind == "f"
        if isinstance(space, spaces.Box) and is_float and action.shape[1:] == space.shape:
            action = np.clip(action, space.low, space.high, dtype=action.dtype)
        return action, env_id

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.config.items())
        return f"{type(self).__name__}({options})"

    __str__ = __repr__


def every_key(info: Mapping[str, Any], spec: EnvSpec, num_rows: int) -> dict[str, Any]:
    """The info with a column for each key of the spec, as EnvPool always has it: zeros where no row has a value."""
    whole = dict(info)
    for array in spec.info_arrays:
        if array.name not in whole:
            whole[array.name] = np.zeros((num_rows, *(array.space.shape or ())), array.space.dtype)
    return whole


def envpool_info(info: dict[str, Any], env_id: NDArray[np.int32], spec: EnvSpec) -> dict[str, Any]:
    """Gymnasium's vector info as EnvPool has it: columns alone. The mask of a key that some rows lack stays."""
    plain = every_key(_without_full_masks(info), spec, len(env_id))
    plain["players"] = {"env_id": env_id}
    if "game_step" in plain:
        # An Atari game whose lives are episodes: EnvPool counts the steps of the game.
        plain["elapsed_step"] = plain.pop("game_step")
    return plain


def _without_full_masks(info: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_full_masks(column) if isinstance(column, dict) else column
        for key, column in info.items()
        if not (str(key)[:1] == "_" and str(key)[1:] in info and np.all(column))
    }
