"""A pool as a gymnasium.vector.VectorEnv, with EnvPool's calls beside it.

obs, info = envs.reset(seed=0)                                  # Gymnasium
obs, reward, terminated, truncated, info = envs.step(actions)

envs.async_reset()                                              # EnvPool
obs, reward, terminated, truncated, info = envs.recv()
envs.send(actions, info["env_id"])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envfleet.apis.common.view import PoolView
from envfleet.building.gymnasium_ids import limits_of
from envfleet.building.pools import Env, make_pool, with_pool_options
from envfleet.building.registry import family_of
from envfleet.core.batch import Batch
from envfleet.core.errors import CallOrderError, ConfigError
from envfleet.core.family import Family
from envfleet.core.infos import all_true, final_info_of, final_obs_of, spread_rows, vector_info
from envfleet.core.options import pool_options
from envfleet.core.pool import Pool, PoolState
from envfleet.core.rendering import Window, tile
from envfleet.core.seeding import Seed
from envfleet.core.spaces import row_getter
from envfleet.core.spec import EnvSpec

Step = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class GymnasiumPool(PoolView, VectorEnv[Any, Any, NDArray[Any]]):
    """num_envs envs as one VectorEnv. Made by envfleet.make()."""

    spec: EnvSpec | None

    def __init__(self, pool: Pool, family: Family) -> None:
        self.pool = pool
        self.num_envs = pool.num_envs
        self.spec = pool.spec
        # A Python env may have its own.
        self.render_mode = pool.config.render_mode or pool.spec.render_mode
        self.autoreset_mode: AutoresetMode = pool.config.autoreset_mode
        self.metadata = {**pool.spec.metadata, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space = pool.spec.observation_space
        self.single_action_space = pool.spec.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._row_of = row_getter(pool.spec.observation_space)
        # Unless the envs open their own windows, as Gymnasium's classes do, even for ids with a native env.
        opens_windows = family.opens_windows or pool.spec.render_mode == "human"
        self._is_shown_here = self.render_mode == "human" and not opens_windows
        self._window: Window | None = None
        # The mask for batches of the usual size, made once.
        self._usual_rows = pool.config.batch_size
        self._all_true = all_true(self._usual_rows)

    # --- Gymnasium ---------------------------------------------------------------------------

    def reset(
        self, env_id: Any = None, *, seed: Seed = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, those of env_id (returns only their rows), or those of options["reset_mask"] (all rows)."""
        if isinstance(options, Mapping) and "reset_mask" in options:
            return self._reset_masked(env_id, seed, options)
        batch = self.pool.reset(env_id, seed=seed, options=options)
        return batch.obs, self._info(batch)

    def step(self, actions: Any, env_id: Any = None, *, timeout: float | None = None) -> Step:
        """Step all envs, or those of env_id. On an asynchronous pool: send() and recv()."""
        batch = self.pool.step(actions, env_id, timeout)
        return batch.obs, batch.reward, batch.terminated, batch.truncated, self._info(batch)

    def render(self) -> tuple[Any, ...]:
        """Return what each env renders: an RGB frame with render_mode="rgb_array". "human" shows env 0 in a window."""
        if self.render_mode is None:
            raise ConfigError("render() expected render_mode='rgb_array' at make(), got None; pass it there")
        if self._is_shown_here:
            self.show_env(0)
            return (None,) * self.num_envs
        return self.pool.render_all()

    def render_tiled(self) -> NDArray[np.uint8]:
        """Return the frames of all envs as one, in a nearly square grid."""
        return tile(self.render(), render_mode=self.render_mode)

    def render_env(self, env_id: int) -> Any:
        """Return what one env renders: an RGB frame with render_mode="rgb_array"."""
        return self.pool.render(env_id)

    def show_env(self, env_id: int) -> None:
        """Show what one env renders in this pool's window, as render() does with render_mode="human"."""
        if self._window is None:
            fps = int(self.pool.spec.metadata.get("render_fps") or 30)
            self._window = Window(f"envfleet: {self.pool.spec.id}, env {env_id}", fps)
        self._window.show(self.render_env(env_id))

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env. Non-callable attributes are returned unchanged.

        Native envs have no methods but render.
        """
        if name == "render" and self._is_shown_here:
            return self.render()
        return self._or_own_attribute(name, lambda: self.pool.call(name, *args, **kwargs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each env."""
        return self._or_own_attribute(name, lambda: self.pool.get_attr(name))

    def _or_own_attribute(self, name: str, ask_envs: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """Return the envs' attribute, or what this class knows about envs that are not Python objects."""
        try:
            return ask_envs()
        except AttributeError:
            if name == "unwrapped":
                return tuple(EnvProxy(self, env_id) for env_id in range(self.num_envs))
            if name == "np_random_seed":
                return self.np_random_seed
            raise

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute: one value for all envs, or a list or tuple with one value per env."""
        self.pool.set_attr(name, values)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]  # a tuple, as in SyncVectorEnv
        """The seed that each env was last given."""
        return self.pool.seeds

    @property  # type: ignore[misc]  # no setter: the generators belong to the envs
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]  # likewise a tuple
        """A copy of each env's generator in its current state; the generator itself for Python envs of this process."""
        return self.pool.get_attr("np_random")

    @property
    def closed(self) -> bool:
        """Whether the pool is closed."""
        return self.pool.closed

    @closed.setter
    def closed(self, value: bool) -> None:
        """Ignore what VectorEnv.close() sets: the pool has its own flag."""

    def close_extras(self, **kwargs: Any) -> None:
        """Close the pool."""
        self.pool.close()
        if self._window is not None:
            self._window.close()

    def __del__(self) -> None:
        # The pool closes itself; VectorEnv's destructor would fail on a half-made object.
        pass

    def __enter__(self) -> GymnasiumPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- EnvPool -------------------------------------------------------------------------------

    def async_reset(self, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> None:
        """Start a reset of all envs; recv() returns their rows."""
        self.pool.async_reset(seed=seed, options=options)

    def send(self, actions: Any, env_id: Any = None) -> None:
        """Start a step of these envs and return."""
        self.pool.send(actions, env_id)

    def recv(self, timeout: float | None = None) -> Step:
        """Return the rows that are ready; info["env_id"] identifies them."""
        batch = self.pool.recv(timeout)
        return batch.obs, batch.reward, batch.terminated, batch.truncated, self._info(batch)

    def xla(self) -> Any:
        """Return (handle, recv, send, step) for use inside jax.jit, as EnvPool's xla() does; see docs/jax.md."""
        from envfleet.apis.common.xla import gymnasium_rows, xla_functions

        return xla_functions(self.pool, gymnasium_rows)

    def get_state(self) -> PoolState:
        """Return the state of every env; see Pool.get_state."""
        return self.pool.get_state()

    def set_state(self, state: PoolState | bytes) -> None:
        """Restore a state of get_state(); see Pool.set_state."""
        self.pool.set_state(state)

    # --- infos ---------------------------------------------------------------------------------

    def _info(self, batch: Batch) -> dict[str, Any]:
        """Return Gymnasium's vector info: arrays by key, and under _key a mask of the rows that have a value."""
        everywhere = self._all_true if len(batch.env_id) == self._usual_rows else all_true(len(batch.env_id))
        if not batch.info and batch.final is None:  # as below, without another call: a step may take a microsecond
            own, steps = batch.env_id, batch.elapsed_step
            return {"env_id": own, "_env_id": everywhere, "elapsed_step": steps, "_elapsed_step": everywhere}
        info = vector_info(batch, everywhere)
        if batch.final is not None:
            # Views of rows: those of a batch never change, and a view keeps its buffer alive.
            info.update(final_obs_of(batch, self._row_of), **final_info_of(batch))
        return info

    def _reset_masked(self, env_id: Any, seed: Seed, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Reset some envs as in Gymnasium: returns all rows; of the others, the info has env_id and elapsed_step."""
        if env_id is not None:
            raise ConfigError("reset() expected env_id or options['reset_mask'], got both; pass one")
        mask = options["reset_mask"]
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            got = f"{mask.dtype} of shape {mask.shape}" if isinstance(mask, np.ndarray) else type(mask).__name__
            kind = ConfigError if isinstance(mask, np.ndarray) and mask.dtype == np.bool_ else _MaskTypeError
            raise kind(
                f"options['reset_mask'] expected a bool array of shape ({self.num_envs},), got {got}; "
                "pass np.array(mask, dtype=bool) with one element per env"
            )
        if not mask.any():
            raise ConfigError("options['reset_mask'] expected at least one True, got none; skip the call instead")
        if self.pool.num_in_flight:
            raise CallOrderError(
                f"reset() with a reset_mask expected all envs idle, got {self.pool.num_in_flight} in flight; "
                "recv() them first, or reset(env_id) the idle ones"
            )
        rows = np.flatnonzero(mask).astype(np.int32)
        others = {key: value for key, value in options.items() if key != "reset_mask"}
        part = self._info(self.pool.reset(rows, seed=seed, options=others))
        obs, elapsed_step = self.pool.observe_episodes()
        info = spread_rows(part, rows, self.num_envs)
        everywhere = all_true(self.num_envs)  # every env has these two, reset or not
        info.update(env_id=self.all_env_ids, _env_id=everywhere, elapsed_step=elapsed_step, _elapsed_step=everywhere)
        return obs, info


class EnvProxy:
    """One env that is not a Python object, as get_attr("unwrapped") returns it: reads and sets its attributes."""

    def __init__(self, envs: GymnasiumPool, env_id: int) -> None:
        self.__dict__.update(_envs=envs, _env_id=env_id)

    @property
    def unwrapped(self) -> EnvProxy:
        """Itself."""
        return self

    def render(self) -> Any:
        """Return what the env renders."""
        return self._envs.render_env(self._env_id)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._envs.get_attr(name)[self._env_id]

    def __setattr__(self, name: str, value: Any) -> None:
        self._envs.pool.set_attr(name, [value], [self._env_id])

    def __repr__(self) -> str:
        return f"<env {self._env_id} of {self._envs.pool.spec.id}>"


@with_pool_options(pool_options)
def make_gymnasium(task_id: Env, **options: Any) -> GymnasiumPool:
    """Make a pool that is a gymnasium.vector.VectorEnv. Options: see make()."""
    return GymnasiumPool(make_pool(task_id, **options), family_of(task_id))


def make_vector_env(task_id: str, *, max_episode_steps: int | None = None, **options: Any) -> GymnasiumPool:
    """Make a pool, for gymnasium.make_vec(), which passes the time limit of the spec if there is no other."""
    if max_episode_steps == limits_of(task_id)[0]:
        max_episode_steps = None  # the parameters may change it
    return make_gymnasium(task_id, max_episode_steps=max_episode_steps, **options)


class _MaskTypeError(ConfigError, TypeError):
    """Gymnasium raises TypeError for a mask of the wrong type."""
