"""PoolWrapper: a VectorWrapper that also knows send() and recv(), partial resets and rows in any order.

A wrapper says in _take() what it makes of a batch of rows, and the same for every way that rows come: reset() of
all or of some envs, step(), recv(), in every autoreset mode, and in an EnvError.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from envfleet.apis.gymnasium import GymnasiumPool, Step
from envfleet.errors import ConfigError, EnvError, StateError
from envfleet.seeding import Seed

Mask = NDArray[np.bool_]


class Rows(NamedTuple):
    """What the rows of a batch are; masks of one value for each row.

    A row that ended in same_step mode is both: the last of one episode, and the first of the next. One that was
    not asked for in a partial reset is nothing: its env stands where it stood.
    """

    env_id: NDArray[np.int32]
    first: Mask  # shows the first observation of an episode
    moved: Mask  # is the outcome of a step, so its reward counts
    ended: Mask  # ended an episode
    failed: Mask  # the env raised and was restarted; the reward and the last observation mean nothing
    at: Any  # what picks the rows' envs out of an array of all: env_id, or a slice where they are all, in order


@dataclass(frozen=True)
class WrapperState:
    """What a wrapper keeps of its envs, around the state of what it wraps. Pickles."""

    wrapper: str
    inner: Any
    own: dict[str, Any]


class PoolWrapper(VectorWrapper):
    """A wrapper around what envfleet.make() gives, or around another such wrapper."""

    # Names of the attributes that _take() changes: what get_state() saves.
    _kept: tuple[str, ...] = ()

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        if not isinstance(env, VectorEnv) or not isinstance(env.unwrapped, GymnasiumPool):
            raise ConfigError(
                f"{type(self).__name__} expected a pool of envfleet.make(), got {type(env).__name__}; "
                "gymnasium.wrappers.vector has wrappers for other vector envs"
            )
        super().__init__(env)
        pool = env.unwrapped.pool
        self._mode: AutoresetMode = pool.config.autoreset_mode
        self._restarts = pool.config.on_error == "restart"
        self._is_async = pool.config.is_async
        self._ids = np.arange(pool.num_envs, dtype=np.int32)
        self._none = np.zeros(pool.num_envs, dtype=np.bool_)

    def _take(
        self, rows: Rows, obs: Any, reward: NDArray[np.float64], info: dict[str, Any]
    ) -> tuple[Any, NDArray[np.float64]]:
        """What becomes of a batch: its observations and rewards; info may be changed in place.

        Of a reset the reward is zeros.
        """
        raise NotImplementedError

    # --- Gymnasium -------------------------------------------------------------------------------

    def reset(
        self, env_id: Any = None, *, seed: Seed = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets all envs, those of env_id, or those of options["reset_mask"]."""
        ids = () if env_id is None else (env_id,)
        obs, info = self._keeping_up(lambda: self.env.reset(*ids, seed=seed, options=options))  # type: ignore[arg-type]  # any Mapping and Seed
        if options is not None and "reset_mask" in options:
            env_ids, first = self._ids, options["reset_mask"]
        else:
            env_ids = info["env_id"]
            first = np.ones(len(env_ids), dtype=np.bool_)
        none = self._none[: len(env_ids)]
        obs, _ = self._take(Rows(env_ids, first, none, none, none, env_ids), obs, np.zeros(len(env_ids)), info)
        return obs, info

    def step(self, actions: Any, env_id: Any = None, *, timeout: float | None = None) -> Step:
        """Steps all envs, or those of env_id. On an asynchronous pool: send() and recv()."""
        # A wrapper of Gymnasium's in between takes actions and nothing else.
        ids = () if env_id is None else (env_id,)
        limit = {} if timeout is None else {"timeout": timeout}
        step = self._keeping_up(lambda: self.env.step(actions, *ids, **limit))
        return self._taken(step, slice(None) if env_id is None and not self._is_async else None)

    # --- EnvPool -----------------------------------------------------------------------------------

    def async_reset(self, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> None:
        """Starts a reset of all envs; recv() gives their rows."""
        self._inner("async_reset")(seed=seed, options=options)

    def send(self, actions: Any, env_id: Any = None) -> None:
        """Starts a step of these envs and returns."""
        self._inner("send")(actions, env_id)

    def recv(self, timeout: float | None = None) -> Step:
        """The rows that are ready; info["env_id"] says whose they are."""
        receive = self._inner("recv")
        return self._taken(self._keeping_up(lambda: receive(timeout)))

    # --- state and life ------------------------------------------------------------------------------

    def get_state(self) -> WrapperState:
        """The state of every env and of the wrappers around them."""
        own = {name: copy.deepcopy(getattr(self, name)) for name in self._kept}
        return WrapperState(type(self).__name__, self._inner("get_state")(), own)

    def set_state(self, state: WrapperState) -> None:
        """Goes back to a state of get_state() of a wrapper of this kind."""
        if not isinstance(state, WrapperState) or state.wrapper != type(self).__name__:
            got = state.wrapper if isinstance(state, WrapperState) else type(state).__name__
            raise StateError(
                f"set_state() expected a state that {type(self).__name__}.get_state() gave, got one of {got}; "
                "save and load at the same wrapper"
            )
        self._inner("set_state")(state.inner)
        for name, value in state.own.items():
            setattr(self, name, copy.deepcopy(value))

    def __getattr__(self, name: str) -> Any:
        # pool, render_tiled(), get_attr() ...: what Gymnasium's VectorWrapper does not hand on.
        if name.startswith("_") or name == "env":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.env, name)

    def __len__(self) -> int:
        return self.num_envs

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # The pool closes itself; VectorEnv's destructor would close it while others still use it.
        pass

    # --- rows ------------------------------------------------------------------------------------------

    def _taken(self, step: Step, at: slice | None = None) -> Step:
        obs, reward, terminated, truncated, info = step
        ended = terminated | truncated
        first = info["elapsed_step"] == 0
        if self._mode is not AutoresetMode.SAME_STEP:
            # The first step of an episode may fail, and then no step has elapsed.
            first &= ~ended
        failed = truncated & info["_error"] if self._restarts and "_error" in info else self._none[: len(ended)]
        env_id = info["env_id"]
        rows = Rows(env_id, first, ended | ~first, ended, failed, env_id if at is None else at)
        obs, reward = self._take(rows, obs, reward, info)
        return obs, reward, terminated, truncated, info

    def _keeping_up(self, call: Callable[[], Any]) -> Any:
        """The call's outcome. If an env raises, the rows of the others still count, and are in the error as wrapped."""
        try:
            return call()
        except EnvError as error:
            batch = error.batch
            if batch is not None:
                info = {"env_id": batch.env_id, "elapsed_step": batch.elapsed_step, **batch.info}
                rows = batch.obs, batch.reward, batch.terminated, batch.truncated, info
                batch.obs, batch.reward, *_ = self._taken(rows)
                batch.info = info
            raise

    def _inner(self, name: str) -> Any:
        if not hasattr(self.env, name):
            raise ConfigError(
                f"{name}() expected wrappers of envfleet.wrappers all the way to the pool, got "
                f"{type(self.env).__name__} within {type(self).__name__}; put it outside, or use reset() and step()"
            )
        return getattr(self.env, name)
