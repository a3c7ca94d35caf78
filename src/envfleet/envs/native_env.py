"""SingleNativeEnv: one native env as a gymnasium.Env, for ids without a Python class and for pixel observations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envfleet.envs.family import Renderer
from envfleet.envs.rendering import shared
from envfleet.errors import ConfigError
from envfleet.option_checks import NO_LIMIT


class SingleNativeEnv(gymnasium.Env[Any, Any]):
    """A native env without its time limit, which the pool or a wrapper enforces."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (Gymnasium's name)

    def __init__(self, env_id: str, render_mode: str | None = None, **params: Any) -> None:
        from envfleet.making.make import make_pool
        from envfleet.making.registry import family_of

        self._pool = make_pool(
            env_id,
            backend="native",
            autoreset_mode="disabled",
            max_episode_steps=NO_LIMIT,
            **{**params, "render_mode": render_mode},
        )
        self._family = family_of(env_id)
        self._renderer: Renderer | None = None
        self.render_mode = render_mode
        self.metadata = dict(self._pool.spec.metadata)
        self.observation_space = self._pool.spec.observation_space
        self.action_space = self._pool.spec.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the env; without a seed, its random stream continues."""
        batch = self._pool.reset(seed=seed, options=options)
        return _first(batch.obs), _info(batch.info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the env."""
        batch = self._pool.step(np.asarray(action)[np.newaxis])
        return (
            _first(batch.obs),
            float(batch.reward[0]),
            bool(batch.terminated[0]),
            bool(batch.truncated[0]),
            _info(batch.info),
        )

    def render(self) -> NDArray[np.uint8]:
        """Return an RGB frame."""
        make = self._family.make_shared_renderer or self._family.make_renderer
        if make is None:
            frame = self._pool.render(0)
            if frame is None:
                raise ConfigError(f"{self._pool.spec.id} cannot be rendered; leave render_mode out")
            return frame  # type: ignore[no-any-return]  # the executor's array
        if self._renderer is None:
            native_id, params = self._pool.spec.native_id, self._pool.params_of(0)
            key = (native_id, repr(sorted(params.items())))
            self._renderer = shared(key, lambda: make(native_id, params))
        return self._renderer(self._pool.get_attrs(0))

    def close(self) -> None:
        """Free the env, and the renderer with the last env of this thread that uses it."""
        self._renderer = None
        self._pool.close()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the native env, such as state or qpos."""
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._pool.get_attrs(0)[name]
        except KeyError:
            raise AttributeError(f"{self._pool.spec.id} has no attribute {name!r}") from None


def _first(obs: Any) -> Any:
    """Return the only row of a batch of observations."""
    if isinstance(obs, dict):
        return {name: _first(part) for name, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_first(part) for part in obs)
    return obs[0]


def _info(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the only row of a batch's infos, without those that have no value."""
    return {
        name: column[0]
        for name, column in columns.items()
        if (not name.startswith("_") and f"_{name}" not in columns) or columns.get(f"_{name}", (False,))[0]
    }
