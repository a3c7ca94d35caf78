"""env-wrappers' vector envs over a Pool: step -> (obs, rewards, dones, infos), autoreset in the same step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.apis.common.view import HasStats
from envfleet.building.pools import make_pool
from envfleet.compat.vec_env_adapter import EnvAdapter
from envfleet.core.batch import Batch
from envfleet.core.errors import CallOrderError, ConfigError
from envfleet.core.infos import split_rows
from envfleet.core.pool import Pool
from envfleet.core.rendering import tile
from envfleet.core.spaces import row_getter

VecStep = tuple[Any, NDArray[np.float64], NDArray[np.bool_], list[dict[str, Any]]]


class VecEnv(ABC):
    """The interface: num_envs envs with the spaces of a single env."""

    metadata: dict[str, Any] = {"render.modes": ["human", "rgb_array"]}  # noqa: RUF012 (the original's)
    closed = False

    def __init__(self, num_envs: int, observation_space: Any, action_space: Any) -> None:
        self.num_envs = num_envs
        self.observation_space = self.single_observation_space = observation_space
        self.action_space = self.single_action_space = action_space

    @abstractmethod
    def reset(self) -> Any:
        """Reset all envs and return their observations."""

    @abstractmethod
    def step_async(self, actions: Any) -> None:
        """Start a step of all envs."""

    @abstractmethod
    def step_wait(self) -> VecStep:
        """Wait for the step and return (obs, rewards, dones, infos)."""

    def step(self, actions: Any) -> VecStep:
        """Step all envs."""
        self.step_async(actions)
        return self.step_wait()

    def render(self, mode: str = "rgb_array", **kwargs: Any) -> Any:
        """Return a list with one frame per env."""
        raise NotImplementedError

    def get_images(self, **kwargs: Any) -> list[Any]:
        """Return the frames of render("rgb_array")."""
        return list(self.render("rgb_array", **kwargs))

    def close(self) -> None:
        """Close the envs. Idempotent."""
        if not self.closed:
            self.closed = True
            self.close_extras()

    def close_extras(self) -> None:  # noqa: B027 (who has nothing more to close leaves it)
        """Close other resources; for subclasses."""

    @property
    def unwrapped(self) -> Any:
        """The vector env without wrappers."""
        return self

    def __len__(self) -> int:
        return self.num_envs

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class VecEnvWrapper(VecEnv):
    """A vector env around another. Other attributes are those of the inner one."""

    def __init__(self, venv: VecEnv, observation_space: Any = None, action_space: Any = None) -> None:
        self.venv = venv
        super().__init__(
            venv.num_envs,
            venv.observation_space if observation_space is None else observation_space,
            venv.action_space if action_space is None else action_space,
        )

    def step_async(self, actions: Any) -> None:
        """Start a step of all envs."""
        self.venv.step_async(actions)

    def reset(self) -> Any:
        """Reset all envs and return their observations."""
        return self.venv.reset()

    def step_wait(self) -> VecStep:
        """Wait for the step and return (obs, rewards, dones, infos)."""
        return self.venv.step_wait()

    def render(self, mode: str = "rgb_array", **kwargs: Any) -> Any:
        """Render the inner vector env."""
        return self.venv.render(mode, **kwargs)

    def close(self) -> None:
        """Close the inner vector env."""
        self.closed = True
        self.venv.close()

    @property
    def unwrapped(self) -> Any:
        """The vector env without wrappers."""
        return self.venv.unwrapped

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "venv":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.venv, name)


class PoolVecEnv(HasStats, VecEnv):
    """A vector env on a pool. The factories seed their envs; seed() takes effect at the next reset."""

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        *,
        adapter: type[EnvAdapter] = EnvAdapter,
        wrappers: Sequence[Callable[[Any], Any]] = (),
        **options: Any,
    ) -> None:
        factories = list(env_fns)
        self.pool: Pool = make_pool(
            factories, autoreset_mode="same_step", wrappers=[*wrappers, adapter], seed_envs=False, **options
        )
        spec = self.pool.spec
        super().__init__(self.pool.num_envs, spec.observation_space, spec.action_space)
        self.spec = spec
        self._row_of = row_getter(spec.observation_space)
        self._seeds: list[int | None] = [None] * self.num_envs
        self._was_reset = False

    def seed(self, seed: int | Sequence[int | None] | None = None) -> None:
        """Seed env i with seed + i, or with item i of a list, at the next reset."""
        if seed is None or isinstance(seed, (int, np.integer)):
            self._seeds = [None if seed is None else int(seed) + env_id for env_id in range(self.num_envs)]
            return
        seeds = [None if own is None else int(own) for own in seed]
        if len(seeds) != self.num_envs:
            raise ConfigError(
                f"seed() expected an int or a list of {self.num_envs} ints, one per env, got {len(seeds)}"
            )
        self._seeds = seeds

    def reset(self) -> Any:
        """Reset all envs and return their observations."""
        seeds, self._seeds = self._seeds, [None] * self.num_envs
        self._was_reset = True
        return self.pool.reset(seed=None if seeds == self._seeds else seeds).obs

    def step_async(self, actions: Any) -> None:
        """Start a step of all envs."""
        if not self._was_reset:
            raise CallOrderError("step() was called before reset(); call reset() first")
        # A list with one action per env is accepted too.
        self.pool.send(np.asarray(actions) if isinstance(actions, (list, tuple)) else actions)

    def step_wait(self) -> VecStep:
        """Wait for the step. The last observation of an ended episode is in info["terminal_observation"]."""
        batch = self.pool.recv()
        ended = batch.terminated | batch.truncated
        infos = [self._info(batch, row, bool(ended[row])) for row in range(len(batch))]
        return batch.obs, batch.reward, ended, infos

    def _info(self, batch: Batch, row: int, has_ended: bool) -> dict[str, Any]:
        if not has_ended or batch.final is None:
            return split_rows(batch.info, row)
        info = split_rows(batch.final.info, row)
        info["terminal_observation"] = self._row_of(batch.final.obs, row)
        info["TimeLimit.truncated"] = bool(batch.truncated[row] and not batch.terminated[row])
        return info

    def render(self, mode: str = "rgb_array", **kwargs: Any) -> Any:
        """Return a list with what each env renders in this mode.

        width and height are passed to the env if it takes them; otherwise its frame is resized.

        Resets the envs if they were never reset. mode="tiled": all frames as one.
        """
        if not self._was_reset:
            self.reset()
        frames = list(self.pool.call("render_as", "rgb_array" if mode == "tiled" else mode, kwargs))
        return tile(frames) if mode == "tiled" else frames

    def get_attr(self, name: str) -> list[Any]:
        """Return an attribute of each env."""
        return list(self.pool.get_attr(name))

    def env_method(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of each env."""
        return list(self.pool.call(name, *args, **kwargs))

    def close_extras(self) -> None:
        """Close the pool."""
        self.pool.close()


class SubprocVecEnv(PoolVecEnv):
    """The envs in worker processes.

    context: "fork", "spawn" or "forkserver"; None means envfleet's own, which needs no `if __name__ == "__main__":`.
    in_series: how many envs share a process; None means one process per core.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        context: str | None = None,
        in_series: int | None = None,
        **options: Any,
    ) -> None:
        factories = list(env_fns)
        count = len(factories)
        if in_series is not None:
            if not isinstance(in_series, (int, np.integer)) or in_series < 1 or count % in_series:
                raise ConfigError(f"in_series expected a divisor of the number of envs, {count}, got {in_series!r}")
            options.setdefault("num_workers", count // int(in_series))
        super().__init__(factories, backend="processes", start_method=context, **options)


class DummyVecEnv(PoolVecEnv):
    """The envs in this process, one after another."""

    def __init__(self, env_fns: Sequence[Callable[[], Any]], **options: Any) -> None:
        super().__init__(env_fns, backend="serial", **options)
