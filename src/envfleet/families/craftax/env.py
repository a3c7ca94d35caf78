"""CraftaxEnv: a single env of craftax in Gymnasium's API, compiled once per worker."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from envfleet.core.errors import ConfigError
from envfleet.envs.compiler import cache_folder
from envfleet.executors.processes.worker import is_worker


class CraftaxEnv(gymnasium.Env[Any, Any]):
    """An env of craftax.

    reset(seed=s) starts a stream of JAX keys at jax.random.PRNGKey(s): each reset and each step splits the key and
    passes the second half to the package.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 (Gymnasium's name)

    def __init__(
        self,
        name: str,
        env_params: Mapping[str, Any] | None = None,
        static_env_params: Mapping[str, Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """env_params, static_env_params: fields of the package's EnvParams and StaticEnvParams that differ."""
        if render_mode not in (None, "rgb_array"):
            raise ConfigError(f"render_mode expected 'rgb_array' or None, got {render_mode!r}")
        self.render_mode = render_mode
        self._jax = _import_jax()
        self._name = name
        static_params = tuple(sorted((static_env_params or {}).items()))
        # The package writes a cache of its textures when it is imported, which must not be read half-written.
        with _one_at_a_time():
            self._env = _package_env(name, static_params)
            self._compiled_reset, self._compiled_step = _compiled(name, static_params)
            self._params = _changed(self._env.default_params, env_params, "env_params")
            self._cpu = self._jax.devices("cpu")[0]
            box = self._env.observation_space(self._params)
            self.observation_space = spaces.Box(np.float32(box.low), np.float32(box.high), box.shape, np.float32)
            self.action_space = spaces.Discrete(self._env.num_actions)
            self._key: Any = None
            self._state: Any = None
            # Compiles: minutes the first time, seconds from JAX's cache afterwards.
            self.reset(seed=0)
            self.step(0)
        self._key = None

    @property
    def max_steps(self) -> int:
        """The time limit."""
        return int(self._params.max_timesteps)

    def envfleet_time_limit(self, limit: int | None) -> None:
        """Replace the package's time limit."""
        if limit is not None:
            self._params = self._params.replace(max_timesteps=limit)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Generate a world."""
        if seed is not None or self._key is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed % 2**32
            with self._jax.default_device(self._cpu):
                self._key = self._jax.random.PRNGKey(seed)
        with self._jax.default_device(self._cpu):
            self._key, observation, self._state = self._compiled_reset(self._key, self._params)
        return np.asarray(observation), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the game. The package reports its time limit as an end like any other; here it is a truncation."""
        with self._jax.default_device(self._cpu):
            self._key, observation, self._state, reward, done, infos = self._compiled_step(
                self._key, self._state, int(action), self._params
            )
            info: dict[str, Any] = {}
            truncated = terminated = False
            if done:
                truncated = bool(self._state.timestep >= self._params.max_timesteps)
                unlimited = self._params.replace(max_timesteps=2**31 - 1)
                terminated = not truncated or bool(self._env.is_terminal(self._state, unlimited))
                # Before the end of an episode, they are all 0.
                info = {name: float(value) for name, value in infos.items() if name != "discount"}
        return np.asarray(observation), float(reward), terminated, truncated, info

    def render(self) -> Any:
        """Render the player's view, 16 pixels per block."""
        render = _pixel_renderer("craftax.craftax_classic" if "Classic" in self._name else "craftax.craftax")
        with self._jax.default_device(self._cpu):
            return np.asarray(render(self._state)).clip(0, 255).astype(np.uint8)


def _import_jax() -> Any:
    if is_worker() and "jax" not in sys.modules:
        # On a GPU, each worker would reserve most of the memory.
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_jax_cache()))
        # The workers share the cores.
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1".strip()
        # The size of XLA's other thread pools, which the flags do not limit.
        os.environ.setdefault("NPROC", "1")
    import jax

    return jax


def _jax_cache() -> Path:
    return cache_folder() / "jax"


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Let one worker compile and the others take the result from the cache."""
    if not is_worker():
        yield
        return
    folder = _jax_cache()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed, also by the end of the process
        yield


@cache
def _package_env(name: str, static_env_params: tuple[tuple[str, Any], ...]) -> Any:
    """Return the package's env. It has no state, and all envs of a process share what JAX compiled for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the package's own dependencies
        from craftax.craftax_env import make_craftax_env_from_name

        try:
            env = make_craftax_env_from_name(name, auto_reset=False)
        except EOFError:
            # A process that was killed while it wrote the cache of textures left half a file.
            before = os.environ.get("CRAFTAX_RELOAD_TEXTURES")
            os.environ["CRAFTAX_RELOAD_TEXTURES"] = "1"
            try:
                env = make_craftax_env_from_name(name, auto_reset=False)
            finally:
                del os.environ["CRAFTAX_RELOAD_TEXTURES"]
                if before is not None:
                    os.environ["CRAFTAX_RELOAD_TEXTURES"] = before
    if static_env_params:
        changed = _changed(env.default_static_params(), dict(static_env_params), "static_env_params")
        env = type(env)(changed)
    return env


@cache
def _compiled(name: str, static_params: tuple[tuple[str, Any], ...]) -> tuple[Any, Any]:
    """Return the package's reset and step, each compiled together with the split of the key that it takes."""
    jax, env = _import_jax(), _package_env(name, static_params)

    def reset(key: Any, params: Any) -> Any:
        key, own_key = jax.random.split(key)
        return key, *env.reset(own_key, params)

    def step(key: Any, state: Any, action: Any, params: Any) -> Any:
        key, own_key = jax.random.split(key)
        return key, *env.step(own_key, state, action, params)

    return jax.jit(reset), jax.jit(step)


def _changed(params: Any, changes: Mapping[str, Any] | None, option: str) -> Any:
    unknown = [name for name in changes or {} if not hasattr(params, name)]
    if unknown:
        raise ConfigError(f"{option} expected fields of {params}, got {', '.join(unknown)}")
    return params.replace(**changes) if changes else params


@cache
def _pixel_renderer(module: str) -> Any:
    return _import_jax().jit(importlib.import_module(f"{module}.renderer").make_craftax_pixel_renderer(16))
