"""SingleNativeEnv: one native env as a gymnasium.Env.

For gymnasium.make("envfleet/..."), for ids without a Python class on Python backends, and for pixel observations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envfleet.building.pools import make_pool
from envfleet.building.registry import family_of
from envfleet.core.errors import ConfigError
from envfleet.core.family import Renderer
from envfleet.core.option_checks import NO_LIMIT
from envfleet.core.rendering import Window
from envfleet.core.spaces import row_getter
from envfleet.envs.rendering import shared


class SingleNativeEnv(gymnasium.Env[Any, Any]):
    """A native env without its time limit, which the pool or a wrapper enforces.

    Its attributes are those of the native env. render_mode: None, "rgb_array", or "human", which shows each step.
    """

    metadata: dict[str, Any] = {"render_modes": ["human", "rgb_array"]}  # noqa: RUF012 (Gymnasium's name)

    def __init__(self, env_id: str, render_mode: str | None = None, **params: Any) -> None:
        self._pool = make_pool(
            env_id,
            backend="native",
            autoreset_mode="disabled",
            max_episode_steps=NO_LIMIT,
            **{**params, "render_mode": render_mode},
        )
        self._window: Window | None = None
        if render_mode == "human":
            fps = int(self._pool.spec.metadata.get("render_fps") or 30)
            self._window = Window(f"envfleet: {env_id}", fps)
        self._family = family_of(env_id)
        self._renderer: Renderer | None = None
        self.render_mode = render_mode
        self.metadata = dict(self._pool.spec.metadata)
        self.observation_space = self._pool.spec.observation_space
        self._row_of = row_getter(self.observation_space)
        self.action_space = self._pool.spec.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the env; without a seed, its random stream continues."""
        super().reset(seed=seed)  # for np_random, which the native env does not use
        batch = self._pool.reset(seed=seed, options=options)
        self._show()
        return self._row_of(batch.obs, 0), _info(batch.info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the env."""
        batch = self._pool.step(np.asarray(action)[np.newaxis])
        self._show()
        return (
            self._row_of(batch.obs, 0),
            float(batch.reward[0]),
            bool(batch.terminated[0]),
            bool(batch.truncated[0]),
            _info(batch.info),
        )

    def _show(self) -> None:
        if self._window is not None:
            self._window.show(self._frame())

    def render(self) -> NDArray[np.uint8] | None:
        """Return an RGB frame; None with render_mode="human", which has shown it."""
        if self.render_mode is None:
            raise ConfigError(
                "render() expected render_mode='rgb_array' when the env was made, got None; pass it there"
            )
        return None if self._window is not None else self._frame()

    def _frame(self) -> NDArray[np.uint8]:
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
        if self._window is not None:
            self._window.close()
        self._pool.close()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the native env, such as state or qpos."""
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._pool.get_attrs(0)[name]
        except KeyError:
            raise AttributeError(f"{self._pool.spec.id} has no attribute {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the native env, or of this object."""
        is_own = name.startswith("_") or name in vars(self) or hasattr(type(self), name)
        if not is_own and "_pool" in vars(self) and name in self._pool.get_attrs(0):
            self._pool.set_attr(name, [value])
        else:
            super().__setattr__(name, value)


def _info(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the only row of a batch's infos, without those that have no value."""
    return {
        name: column[0]
        for name, column in columns.items()
        if (not name.startswith("_") and f"_{name}" not in columns) or columns.get(f"_{name}", (False,))[0]
    }
