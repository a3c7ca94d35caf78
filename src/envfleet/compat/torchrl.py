"""MultiThreadedEnv and MultiThreadedEnvWrapper: TorchRL's classes over EnvPool, by name, on envfleet's pools.

They have the arguments, attributes and specs of torchrl.envs.MultiThreadedEnv and need no `envpool` module. Unlike
there, every row is a real transition: the step in which EnvPool resets an ended env and ignores its action does not
enter rollouts, because ended envs are reset by mask, as in EnvFleetEnv.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from tensordict import TensorDictBase
from torchrl.envs.utils import _classproperty

from envfleet.apis.common.view import PoolView
from envfleet.apis.gym import GymPool
from envfleet.apis.torchrl.encoding import SpaceTree
from envfleet.apis.torchrl.env import EnvFleetEnv, with_env_checker
from envfleet.compat import envpool
from envfleet.compat.envpool.pool_mixin import EnvPoolMixin
from envfleet.core.errors import ConfigError
from envfleet.core.pool import Pool


class MultiThreadedEnvWrapper(EnvFleetEnv):
    """A synchronous pool, of envfleet.make() or of EnvPool's calls, as one EnvBase.

    categorical_action_encoding=None (default) and True mean indices, which TorchRL's class always uses; False means
    one-hot vectors.
    """

    # TorchRL's class has no dimension for the single reward of an env.
    _row_shape = ()
    _autoreset_modes = tuple(AutoresetMode)

    @_classproperty  # type: ignore[untyped-decorator]  # torchrl ships no types
    def lib(cls) -> ModuleType:  # noqa: N805 (a property of the class)
        """The module that makes the pools, with EnvPool's functions."""
        return envpool

    def __init__(
        self,
        env: Any = None,
        *,
        categorical_action_encoding: bool | None = None,
        disable_env_checker: bool | None = None,
        frame_skip: int = 1,
        device: Any = None,
        allow_done_after_reset: bool = False,
    ) -> None:
        view = env.envs if isinstance(env, GymPool) else env
        if not isinstance(view, (Pool, PoolView)):
            raise _NoPoolError(
                f"MultiThreadedEnvWrapper expected env as a pool of envfleet.make() or envfleet.compat.envpool.make(), "
                f"got {type(env).__name__}; use MultiThreadedEnv for a name"
            )
        super().__init__(
            view,
            device=device,
            categorical_action_encoding=categorical_action_encoding is not False,
            frame_skip=frame_skip,
            allow_done_after_reset=allow_done_after_reset,
        )
        self.num_workers = self.num_envs
        self._env = env
        # A step before the first reset resets first, as in EnvPool.
        self._waiting[:] = True
        space = self.pool.spec.action_space
        self._bounds = (space.low, space.high) if isinstance(space, spaces.Box) else None
        self.obs: TensorDictBase = self.observation_spec.zero()

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.obs = super()._reset(tensordict, **kwargs)
        return self.obs.clone(recurse=False)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.obs = super()._step(tensordict)
        return self.obs.clone(recurse=False)

    def _observation_tree(self, env: Any, pool: Pool, categorical: bool) -> SpaceTree:
        if isinstance(env, EnvPoolMixin):
            return _EnvPoolTree(env, categorical)
        return super()._observation_tree(env, pool, categorical)

    def _fitted(self, actions: list[NDArray[Any]]) -> list[NDArray[Any]]:
        """Clip Box actions, as EnvPool does."""
        return actions if self._bounds is None else [np.clip(actions[0], *self._bounds)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_workers={self.num_workers}, device={self.device})"


class MultiThreadedEnv(MultiThreadedEnvWrapper):
    """num_workers envs of one name as one EnvBase.

    Args:
        num_workers: The number of envs.
        env_name: Anything that envfleet.make() accepts. The prefix "ALE/" is dropped, as in TorchRL, so that the game
            has EnvPool's preprocessing.
        create_env_kwargs: Options of EnvPool's make() or of envfleet.make().
        categorical_action_encoding: False for one-hot vectors instead of indices.
        disable_env_checker: False wraps Python envs in Gymnasium's PassiveEnvChecker.
        frame_skip: How often each action is repeated.
        device: The device of the tensordicts.
        allow_done_after_reset: As in EnvBase.
    """

    def __init__(
        self,
        num_workers: int,
        env_name: str,
        *,
        create_env_kwargs: Mapping[str, Any] | None = None,
        categorical_action_encoding: bool | None = None,
        disable_env_checker: bool | None = None,
        frame_skip: int = 1,
        device: Any = None,
        allow_done_after_reset: bool = False,
    ) -> None:
        if create_env_kwargs is not None and not isinstance(create_env_kwargs, Mapping):
            raise ConfigError(f"create_env_kwargs expected a dict, got {type(create_env_kwargs).__name__}")
        name = env_name.replace("ALE/", "") if isinstance(env_name, str) else env_name
        asked = {"max_num_players": 1, **(create_env_kwargs or {}), "num_envs": num_workers}
        if disable_env_checker is False:
            asked = with_env_checker(name, asked)
        pool = envpool.make(name, env_type="gym", gym_reset_return_info=True, **asked)
        try:
            super().__init__(
                pool,
                categorical_action_encoding=categorical_action_encoding,
                frame_skip=frame_skip,
                device=device,
                allow_done_after_reset=allow_done_after_reset,
            )
        except BaseException:
            pool.close()
            raise
        self.env_name = name
        self.create_env_kwargs = dict(create_env_kwargs or {})

    def __repr__(self) -> str:
        return f"{type(self).__name__}(env={self.env_name}, num_workers={self.num_workers}, device={self.device})"


class _EnvPoolTree(SpaceTree):
    """The observations of a pool in EnvPool's dialect, in the spaces that EnvPool has: int32 in toy text."""

    def __init__(self, envs: EnvPoolMixin, categorical: bool) -> None:
        super().__init__(envs.envpool_spec.obs_space, "observation", categorical, True)
        self._spec = envs.envpool_spec

    def columns(self, value: Any) -> list[NDArray[Any]]:
        return super().columns(self._spec.obs_of(value))


class _NoPoolError(ConfigError, TypeError):
    """Raised for anything but a pool; a TypeError, as in TorchRL."""
