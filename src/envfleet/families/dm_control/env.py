"""DmControlEnv: a task of dm_control's suite in Gymnasium's API."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.core.errors import ConfigError
from envfleet.core.option_checks import integer_option
from envfleet.envs.mujoco_rendering import OffscreenRenderer, choose_gl_backend, explained_errors
from envfleet.envs.rendering import shared

# Domains whose model is random: another seed is another model.
_RANDOM_MODELS = frozenset({"lqr"})


class DmControlEnv(gymnasium.Env[Any, Any]):
    """A task. Observations are a Dict of the task's arrays, in its order.

    An end with discount 0 is a termination; any other, that is the task's time limit, is a truncation. A seed is the
    seed of the task's random state.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (Gymnasium's name)

    def __init__(
        self,
        domain_name: str,
        task_name: str,
        task_kwargs: Mapping[str, Any] | None = None,
        environment_kwargs: Mapping[str, Any] | None = None,
        frame_skip: int = 1,
        render_mode: str | None = None,
        height: int = 240,
        width: int = 320,
        camera_id: int | str = 0,
    ) -> None:
        """task_kwargs, environment_kwargs: those of suite.load(). frame_skip: the task's steps per step."""
        if render_mode not in (None, "rgb_array"):
            raise ConfigError(f"render_mode expected 'rgb_array' or None, got {render_mode!r}")
        self.render_mode = render_mode
        self._frame_skip = integer_option("frame_skip", frame_skip, 1, 2**16)
        self._size = tuple(integer_option(name, own, 1, 2**14) for name, own in (("height", height), ("width", width)))
        self._camera_id = camera_id
        self._renderer: OffscreenRenderer | None = None
        self._name = (domain_name, task_name)
        self._kwargs = (dict(task_kwargs or {}), dict(environment_kwargs or {}))
        self.env = self._load(None)
        self.metadata = {**self.metadata, "render_fps": round(1 / self.env.control_timestep() / self._frame_skip)}
        self.observation_space = spaces.Dict([(name, _box(spec)) for name, spec in self.env.observation_spec().items()])
        self.action_space = _box(self.env.action_spec())
        self.info_space = spaces.Dict({"discount": spaces.Box(0.0, 1.0, (), np.float64)})
        limit = getattr(self.env, "_step_limit", math.inf)  # dm_control has no public name for it
        if math.isfinite(limit):
            self.max_steps = math.ceil(limit / self._frame_skip)

    def _load(self, seed: int | None) -> Any:
        task_kwargs, environment_kwargs = self._kwargs
        kwargs = dict(task_kwargs) if seed is None else {**task_kwargs, "random": seed}
        return import_suite().load(*self._name, task_kwargs=kwargs, environment_kwargs=environment_kwargs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the task; with a seed, as suite.load(..., task_kwargs={"random": seed}) would start it."""
        if seed is not None:
            # dm_control's RandomState only takes 32 bits.
            seed = int(np.random.SeedSequence(seed).generate_state(1)[0]) if seed >= 2**32 else seed
            if self._name[0] in _RANDOM_MODELS:
                self.env.close()
                self.env = self._load(seed)
            else:
                self.env.task.random.seed(seed)
        return self._observed(self.env.reset()), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the task frame_skip times and add up the rewards."""
        reward = 0.0
        for _ in range(self._frame_skip):
            timestep = self.env.step(action)
            reward += timestep.reward or 0.0
            if timestep.last():
                break
        terminated = timestep.last() and timestep.discount == 0.0
        truncated = timestep.last() and not terminated
        return self._observed(timestep), reward, terminated, truncated, {"discount": float(timestep.discount)}

    def render(self) -> NDArray[np.uint8]:
        """Render the view of one camera."""
        model, data = self.env.physics.model.ptr, self.env.physics.data.ptr
        camera_id = self._camera_id
        if isinstance(camera_id, str):
            camera_id = self.env.physics.model.name2id(camera_id, "camera")
        camera_id = integer_option("camera_id", camera_id, -1, model.ncam - 1)
        with explained_errors():
            if self._renderer is None:
                key = (self._name, self._size, repr(self._kwargs))
                self._renderer = shared(key, lambda: OffscreenRenderer(model, *self._size))
            return self._renderer.render(model, data, camera_id)

    def close(self) -> None:
        """Free the simulation, and the renderer with the last env of this thread that uses it."""
        self._renderer = None
        self.env.close()

    def _observed(self, timestep: Any) -> dict[str, Any]:
        return {name: np.asarray(value) for name, value in timestep.observation.items()}


def _box(spec: Any) -> spaces.Box:
    low = getattr(spec, "minimum", -np.inf)
    high = getattr(spec, "maximum", np.inf)
    dtype = np.dtype(spec.dtype).type
    return spaces.Box(
        np.broadcast_to(low, spec.shape).astype(dtype),
        np.broadcast_to(high, spec.shape).astype(dtype),
        spec.shape,
        dtype,
    )


def import_suite() -> Any:
    """Import dm_control's suite, working around what newer versions of its dependencies broke."""
    choose_gl_backend()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from dm_control's own dependencies
        import mujoco
        from dm_control.mujoco.wrapper.mjbindings import sizes

        # dm_control 1.0.50 reads fields that MuJoCo 4 has dropped, of features that the suite does not use.
        for struct, kind in (("mjmodel", mujoco.MjModel), ("mjdata", mujoco.MjData)):
            fields = sizes.array_sizes[struct]
            for name in [name for name in fields if not hasattr(kind, name)]:
                del fields[name]
        from dm_control import suite
    # It logs the deprecated settings of its own models on every load.
    logging.getLogger("absl").setLevel(logging.ERROR)
    return suite
