"""A pool as a gymnasium.vector.VectorEnv, with EnvPool's calls beside it.

obs, info = envs.reset(seed=0)                                  # Gymnasium
obs, reward, terminated, truncated, info = envs.step(actions)

envs.async_reset()                                              # EnvPool
obs, reward, terminated, truncated, info = envs.recv()
envs.send(actions, info["env_id"])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envfleet.apis.view import PoolView
from envfleet.batch import Batch
from envfleet.envs.family import Family, Renderer
from envfleet.errors import CallOrderError, ConfigError, StateError
from envfleet.infos import masked_rows, spread_rows
from envfleet.pictures import tile
from envfleet.pool import Pool
from envfleet.pool_state import PoolState
from envfleet.seeding import Seed
from envfleet.spaces import row_getter
from envfleet.spec import EnvSpec
from envfleet.window import Window

Step = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class GymnasiumPool(PoolView, VectorEnv[Any, Any, NDArray[Any]]):
    """num_envs envs as one VectorEnv. Made by envfleet.make()."""

    spec: EnvSpec | None

    def __init__(self, pool: Pool, family: Family) -> None:
        self.pool = pool
        self.num_envs = pool.num_envs
        self.spec = pool.spec
        # A Python env may have chosen one itself.
        self.render_mode = pool.config.render_mode or pool.spec.render_mode
        self.autoreset_mode: AutoresetMode = pool.config.autoreset_mode
        self.metadata = {**pool.spec.metadata, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space = pool.spec.observation_space
        self.single_action_space = pool.spec.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._family = family
        self._row_of = row_getter(pool.spec.observation_space)
        self._is_native = bool(pool.spec.native_id)  # wherever it runs
        self._renderers: dict[str, Renderer] = {}  # by parameters: those of FrozenLake hold its map
        # Unless the envs open windows of their own, as a class of Gymnasium's does for an id that is native, too.
        opens_windows = family.opens_windows or pool.spec.render_mode == "human"
        self._is_shown_here = self.render_mode == "human" and not opens_windows
        self._window: Window | None = None
        # The mask of batches of the usual size, made once.
        self._usual_rows = pool.config.batch_size
        self._all_true = _all_true(self._usual_rows)

    # --- Gymnasium ---------------------------------------------------------------------------

    def reset(
        self, env_id: Any = None, *, seed: Seed = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets all envs, those of env_id (only their rows come back), or those of
        options["reset_mask"] (all rows come back)."""
        if isinstance(options, Mapping) and "reset_mask" in options:
            return self._reset_masked(env_id, seed, options)
        batch = self.pool.reset(env_id, seed=seed, options=options)
        return batch.obs, self._info(batch)

    def step(self, actions: Any, env_id: Any = None, *, timeout: float | None = None) -> Step:
        """Steps all envs, or those of env_id. On an asynchronous pool: send() and recv()."""
        batch = self.pool.step(actions, env_id, timeout)
        return batch.obs, batch.reward, batch.terminated, batch.truncated, self._info(batch)

    def render(self) -> tuple[Any, ...]:
        """What each env draws: an RGB picture, in render_mode rgb_array. With "human": shows env 0 in a window."""
        if self.render_mode is None:
            raise ConfigError("render() expected render_mode='rgb_array' at make(), got None; pass it there")
        if self._is_shown_here:
            self.show_env(0)
            return (None,) * self.num_envs
        frames = self.pool.render_all()
        if not self._is_native:
            return frames
        return tuple(self._drawn(env_id, frame) for env_id, frame in enumerate(frames))

    def render_tiled(self) -> NDArray[np.uint8]:
        """The pictures of all envs as one, in rows as wide as high."""
        return tile(self.render())

    def render_env(self, env_id: int) -> Any:
        """What one env draws: an RGB picture, in render_mode rgb_array."""
        frame = self.pool.render(env_id)
        return self._drawn(env_id, frame) if self._is_native else frame

    def show_env(self, env_id: int) -> None:
        """Shows what one env draws in this pool's window, as render() does with render_mode="human"."""
        if self._window is None:
            fps = int(self.pool.spec.metadata.get("render_fps") or 30)
            self._window = Window(f"envfleet: {self.pool.spec.id}, env {env_id}", fps)
        self._window.show(self.render_env(env_id))

    def _drawn(self, env_id: int, frame: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
        """A native env's own picture, or one that its family draws from its attributes."""
        if frame is not None:
            return frame
        if self._family.make_renderer is None:
            raise ConfigError(f"{self.pool.spec.id} cannot draw itself; give the env a render() hook")
        params = self.pool.params_of(env_id)
        key = repr(sorted(params.items()))
        if key not in self._renderers:
            self._renderers[key] = self._family.make_renderer(self.pool.spec.native_id, params)
        return self._renderers[key](self.pool.attributes_of(env_id))

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of each env; an attribute that is none is given as it is. A native env has
        no methods but render."""
        if name == "render" and self._is_native:
            return self.render()
        return self.pool.call(name, *args, **kwargs) if args or kwargs or not self._is_native else self.get_attr(name)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of each env."""
        if not self._is_native:
            return self.pool.get_attr(name)
        shared = {
            "render_mode": self.render_mode,
            "spec": self.spec,
            "metadata": self.pool.spec.metadata,
            "observation_space": self.single_observation_space,
            "action_space": self.single_action_space,
        }
        if name in shared:
            return (shared[name],) * self.num_envs
        if name == "unwrapped":
            return tuple(NativeEnv(self, env_id) for env_id in range(self.num_envs))
        if name in ("np_random", "np_random_seed"):
            return self.np_random if name == "np_random" else self.np_random_seed
        return self.pool.get_attr(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute: one value for all, or a list or tuple of one for each env."""
        self.pool.set_attr(name, values)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]  # a tuple, as SyncVectorEnv gives it
        """The seed that each env was last given."""
        return self.pool.seeds

    @property  # type: ignore[misc]  # nothing to set: the generators live in the native envs
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]  # likewise a tuple
        """A copy of each env's generator as it stands; drawing from it leaves the env alone, but for
        Python envs of this very process."""
        if not self._is_native:
            return self.pool.get_attr("np_random")
        return tuple(_generator_of(state) for state in self.pool.get_state().states)

    @property
    def closed(self) -> bool:
        """Whether the pool is closed."""
        return self.pool.closed

    @closed.setter
    def closed(self, value: bool) -> None:
        """VectorEnv.close() sets it; the pool knows already."""

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the pool."""
        self.pool.close()
        # A renderer may hold a window or the memory of a graphics driver.
        self._renderers.clear()
        if self._window is not None:
            self._window.close()

    def __del__(self) -> None:
        # The pool closes itself; this stops VectorEnv's destructor from a half-made object.
        pass

    def __enter__(self) -> GymnasiumPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- EnvPool -------------------------------------------------------------------------------

    def async_reset(self, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> None:
        """Starts a reset of all envs; recv() gives their rows."""
        self.pool.async_reset(seed=seed, options=options)

    def send(self, actions: Any, env_id: Any = None) -> None:
        """Starts a step of these envs and returns."""
        self.pool.send(actions, env_id)

    def recv(self, timeout: float | None = None) -> Step:
        """The rows that are ready; info["env_id"] says whose they are."""
        batch = self.pool.recv(timeout)
        return batch.obs, batch.reward, batch.terminated, batch.truncated, self._info(batch)

    def get_state(self) -> PoolState:
        """The state of every env; see Pool.get_state."""
        return self.pool.get_state()

    def set_state(self, state: PoolState | bytes) -> None:
        """Goes back to a state of get_state(); see Pool.set_state."""
        self.pool.set_state(state)

    # --- infos ---------------------------------------------------------------------------------

    def _info(self, batch: Batch) -> dict[str, Any]:
        """Gymnasium's vector info: arrays by key, and under _key which rows have a value."""
        env_id = batch.env_id
        everywhere = self._all_true if len(env_id) == self._usual_rows else _all_true(len(env_id))
        elapsed_step = batch.elapsed_step
        info = {"env_id": env_id, "_env_id": everywhere, "elapsed_step": elapsed_step, "_elapsed_step": everywhere}
        for key, column in batch.info.items():
            if key in info:  # whose the rows are is the pool's to say
                continue
            info[key] = column
            if not str(key).startswith("_") and f"_{key}" not in batch.info:
                info[f"_{key}"] = everywhere
        if batch.final is not None:
            self._add_final(info, batch)
        return info

    def _add_final(self, info: dict[str, Any], batch: Batch) -> None:
        ended = batch.terminated | batch.truncated
        final = batch.final
        if final is None or not ended.any():
            return
        last = np.full(len(batch), None, dtype=object)
        # Views: the rows of a batch never change, and they keep its buffer alive.
        for row in np.flatnonzero(ended):
            last[row] = self._row_of(final.obs, int(row))
        # A restarted env's row has ended too, without an episode's last info.
        columns = {key: column for key, column in final.info.items() if key not in ("elapsed_step", "_elapsed_step")}
        final_info = masked_rows({"elapsed_step": final.elapsed_step, **columns}, ended)
        info.update(final_obs=last, _final_obs=ended, final_info=final_info, _final_info=ended.copy())

    def _reset_masked(self, env_id: Any, seed: Seed, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Gymnasium's partial reset: all rows come back, infos of the reset envs alone."""
        if env_id is not None:
            raise ConfigError("reset() expected env_id or options['reset_mask'], got both; pass one")
        mask = options["reset_mask"]
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            got = f"{mask.dtype} of shape {mask.shape}" if isinstance(mask, np.ndarray) else type(mask).__name__
            kind = ConfigError if isinstance(mask, np.ndarray) and mask.dtype == np.bool_ else _MaskTypeError
            raise kind(f"options['reset_mask'] expected a bool array of shape ({self.num_envs},), got {got}")
        if not mask.any():
            raise ConfigError("options['reset_mask'] expected at least one True, got none; skip the call instead")
        if self.pool.num_in_flight:
            raise CallOrderError(
                "reset() with a reset_mask gives all rows and expected all envs idle, "
                f"{self.pool.num_in_flight} are in flight; recv() them first, or reset(env_id) the idle ones"
            )
        rows = np.flatnonzero(mask).astype(np.int32)
        others = {key: value for key, value in options.items() if key != "reset_mask"}
        part = self._info(self.pool.reset(rows, seed=seed, options=others))
        return self.pool.observe(), spread_rows(part, rows, self.num_envs)


class NativeEnv:
    """One env of a native pool, as get_attr("unwrapped") gives it: its attributes, read and set in place."""

    def __init__(self, envs: GymnasiumPool, env_id: int) -> None:
        self.__dict__.update(_envs=envs, _env_id=env_id)

    @property
    def unwrapped(self) -> NativeEnv:
        """Itself."""
        return self

    def render(self) -> Any:
        """What the env draws."""
        return self._envs.render_env(self._env_id)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._envs.get_attr(name)[self._env_id]

    def __setattr__(self, name: str, value: Any) -> None:
        self._envs.pool.set_attr(name, [value], [self._env_id])

    def __repr__(self) -> str:
        return f"<env {self._env_id} of {self._envs.pool.spec.id}>"


class _MaskTypeError(ConfigError, TypeError):
    """Gymnasium raises TypeError for a mask of the wrong type."""


def _all_true(count: int) -> NDArray[np.bool_]:
    mask = np.ones(count, dtype=np.bool_)
    # Shared between batches.
    mask.flags.writeable = False
    return mask


def _generator_of(state: bytes) -> np.random.Generator:
    """numpy's generator from the first bytes of a native env's state (Rng::State in rng.h)."""
    if len(state) < 40:
        raise StateError(f"expected a native env's state of at least 40 bytes, got {len(state)}")
    words = np.frombuffer(state[:32], dtype="<u8")
    has_spare, spare = np.frombuffer(state[32:40], dtype="<u4")
    generator = np.random.Generator(np.random.PCG64())
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": int(words[0]) << 64 | int(words[1]), "inc": int(words[2]) << 64 | int(words[3])},
        "has_uint32": int(has_spare),
        "uinteger": int(spare),
    }
    return generator
