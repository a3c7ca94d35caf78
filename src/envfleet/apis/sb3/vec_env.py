"""EnvFleetVecEnv: any pool, native or Python, as a Stable-Baselines3 VecEnv."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from envfleet.apis.gymnasium import GymnasiumPool
from envfleet.apis.sb3.infos import Info, InfoLists
from envfleet.envs.families import native_family
from envfleet.envs.family import Family
from envfleet.errors import ConfigError
from envfleet.pool import Pool

Indices = int | Iterable[int] | None
Step = tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[Info]]

_ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class PoolVecEnv(VecEnv):
    """What EnvFleetVecEnv and the drop-ins have in common: stepping, attributes to set, and infos as lists of dicts."""

    pool: Pool

    def __init__(self, pool: Pool, *, copies_objects: bool = False) -> None:
        self.pool = pool
        self._infos = InfoLists(pool.spec.observation_space, pool.num_envs, copies_objects)
        VecEnv.__init__(self, pool.num_envs, pool.spec.observation_space, pool.spec.action_space)

    def step_async(self, actions: Any) -> None:
        """Starts a step of all envs."""
        self.pool.send(actions)

    def step_wait(self) -> Step:
        """The rows of the step; where an episode ended, the new one's first observation."""
        batch = self.pool.recv()
        dones = batch.terminated | batch.truncated
        infos = self._infos.of_step(batch, dones, self.reset_infos)
        return batch.obs, batch.reward.astype(np.float32), dones, infos

    def reset(self) -> Any:
        """The first observations of all envs. What seed() and set_options() left is used once."""
        obs, self.reset_infos = self._reset(self._seeds, self._options)
        self._reset_seeds()
        self._reset_options()
        return obs

    def _reset(self, seeds: Sequence[int | None], options: Sequence[Mapping[str, Any]]) -> tuple[Any, list[Info]]:
        raise NotImplementedError

    def set_options(self, options: list[dict[str, Any]] | dict[str, Any] | None = None) -> None:
        """Options for the next reset: one dict for all envs, or a list of one for each."""
        if options is not None and not isinstance(options, dict) and len(options) != self.num_envs:
            raise ConfigError(
                f"set_options() expected one dict or {self.num_envs}, one for each env, got {len(options)}"
            )
        super().set_options(options)

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """What each env draws."""
        if self.render_mode != "rgb_array":
            warnings.warn(
                f"get_images() expected render_mode='rgb_array', got {self.render_mode!r}; pass it when making the env",
                stacklevel=2,
            )
            return [None] * self.num_envs
        return self._frames()

    def _frames(self) -> list[NDArray[np.uint8] | None]:
        return list(self.pool.render_all())

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Sets an attribute of these envs: in a pool where they or what they wrap have it, in a drop-in outermost."""
        ids = sorted(set(self._ids(indices)))
        if ids:
            self.pool.set_attr(attr_name, [value] * len(ids), ids)

    def close(self) -> None:
        """Closes the pool."""
        self.pool.close()

    def _ids(self, indices: Indices) -> list[int]:
        """Env ids of SB3's indices: None for all, one or several, negative ones from the end."""
        every = range(self.num_envs)
        if indices is None:
            return list(every)
        chosen = [indices] if isinstance(indices, (int, np.integer)) else list(indices)
        return [every[index] for index in chosen]

    def _for_each(self, ids: list[int], ask: Callable[[list[int]], Sequence[Any]]) -> list[Any]:
        """The answers for these ids. A pool takes an id once, SB3 any number of times."""
        if len(set(ids)) == len(ids):
            return list(ask(ids)) if ids else []
        return [ask([env_id])[0] for env_id in ids]


class EnvFleetVecEnv(PoolVecEnv):
    """A pool as a VecEnv.

    envs: what envfleet.make() or envfleet.make_pool() gave, with autoreset_mode="same_step".
    make_vec_env() makes both.
    """

    def __init__(self, envs: Pool | GymnasiumPool) -> None:
        if isinstance(envs, Pool):
            is_native = bool(envs.spec.native_id)
            family = native_family(envs.spec.native_id) if is_native else Family("python", ())
            envs = GymnasiumPool(envs, family)
        if not isinstance(envs, GymnasiumPool):
            raise ConfigError(
                f"EnvFleetVecEnv expected a pool of envfleet.make() or make_pool(), got {type(envs).__name__}; "
                "make_vec_env() takes ids, classes and factories"
            )
        pool = envs.pool
        mode = pool.config.autoreset_mode
        if mode is not AutoresetMode.SAME_STEP:
            raise ConfigError(
                f"Stable-Baselines3 expects autoreset_mode='same_step', got {mode.name.lower()!r}; pass it to make()"
            )
        if pool.config.is_async:
            raise ConfigError(
                f"Stable-Baselines3 steps all envs together, got batch_size={pool.config.batch_size} of "
                f"{pool.num_envs} envs; leave batch_size out"
            )
        check_observation_space(pool.spec.observation_space)
        self.envs = envs
        self.spec = pool.spec
        self._is_native = bool(pool.spec.native_id)
        super().__init__(pool)
        # Beside what SB3 has found out: render_fps, which its video recorder asks for.
        self.metadata = {**pool.spec.metadata, **self.metadata}

    def _reset(self, seeds: Sequence[int | None], options: Sequence[Mapping[str, Any]]) -> tuple[Any, list[Info]]:
        given = None if all(seed is None for seed in seeds) else list(seeds)
        first = options[0]
        # set_options() with one dict leaves that very dict for each env.
        if all(own is first or not (own or first) for own in options):
            batch = self.pool.reset(seed=given, options=first or None)
            return batch.obs, self._infos.of_reset(batch)
        if self.pool.num_in_flight:
            self.pool.recv()
        infos: list[Info] = []
        for env_id, own in enumerate(options):
            seed = None if given is None else [given[env_id]]
            infos += self._infos.of_reset(self.pool.reset([env_id], seed=seed, options=own or None))
        return self.pool.observe(), infos

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """An attribute of each of these envs."""
        ids = self._ids(indices)
        if self._is_native:
            values = self.envs.get_attr(attr_name)
            return [values[env_id] for env_id in ids]
        return self._for_each(ids, lambda own: self.pool.get_attr(attr_name, own))

    def has_attr(self, attr_name: str) -> bool:
        """Whether all envs have this attribute."""
        if not self._is_native:
            try:  # without its value, which may not be fit to travel
                return all(self.pool.call("has_wrapper_attr", attr_name))
            except AttributeError:
                pass
        return super().has_attr(attr_name)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Calls a method of each of these envs. A native env has none but render."""
        ids = self._ids(indices)
        if self._is_native and method_name == "render":
            return [self.envs.render_env(env_id) for env_id in ids]
        for name in ("name", "env_ids"):
            if name in method_kwargs:
                raise ConfigError(f"env_method() cannot pass on an argument called {name!r}; pass it by position")
        return self._for_each(ids, lambda own: self.pool.call(method_name, *method_args, env_ids=own, **method_kwargs))

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: Indices = None
    ) -> list[bool]:
        """Whether each of these envs is wrapped so, by the names that str(env) gives of its wrappers."""
        ids = self._ids(indices)
        if self._is_native:
            return [False] * len(ids)
        names = _names_of(wrapper_class)
        shown = self._for_each(ids, lambda own: self.pool.call("__str__", env_ids=own))
        return [not names.isdisjoint(re.findall(r"<(\w+)", text)) for text in shown]

    def _frames(self) -> list[NDArray[np.uint8] | None]:
        return list(self.envs.render())


def _names_of(wrapper_class: type) -> set[str]:
    """The names of a class and of those that derive from it."""
    derived: list[type] = wrapper_class.__subclasses__()
    return {wrapper_class.__name__}.union(*map(_names_of, derived))


def check_observation_space(space: gymnasium.Space[Any]) -> None:
    """Raises when Stable-Baselines3 has no observations of such a space."""
    parts: Mapping[Any, gymnasium.Space[Any]] = {"": space}
    if isinstance(space, spaces.Dict):
        parts = space.spaces
    elif isinstance(space, spaces.Tuple):
        parts = dict(enumerate(space.spaces))
    for key, part in parts.items():
        if not isinstance(part, _ARRAY_SPACES):
            where = f"[{key!r}]" if part is not space else ""
            raise ConfigError(
                "Stable-Baselines3 expects a Box, Discrete, MultiDiscrete or MultiBinary observation, or one Dict or "
                f"Tuple of these, got observation_space{where} = {part}; wrap the env in "
                "gymnasium.wrappers.FlattenObservation, or use the gymnasium api"
            )
