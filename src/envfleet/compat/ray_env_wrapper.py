"""The module `RayEnvWrapper`: `from RayEnvWrapper import WrapperRayVecEnv`, a vector env on Ray actors.

    import envfleet.compat.ray_env_wrapper
    envfleet.compat.ray_env_wrapper.install()

The classes are here too, for `from envfleet.compat.ray_env_wrapper import WrapperRayVecEnv`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from envfleet.compat import gym_stand_in
from envfleet.compat.env_wrappers.vec_env import PoolVecEnv, VecStep
from envfleet.compat.modules import WITHOUT_GYM, install_tree, remove_tree
from envfleet.compat.vec_env_adapter import EnvAdapter, SeededOnce
from envfleet.core.errors import ConfigError

__all__ = ["CustomRayRemoteVectorEnv", "WrapperRayVecEnv", "install", "uninstall"]

Indices = int | Iterable[int] | None


class WrapperRayVecEnv(PoolVecEnv):
    """num_workers actors with per_worker_env envs each, in the form of Stable-Baselines3's VecEnv.

    make_env(seed) makes the env of row seed, from 0: each row has its own seed. An env that it does not seed stays
    random. Ended episodes are reset in the same step; the last observation is info["terminal_observation"].
    make_and_seed, number_of_workers and envs_per_worker are the names in RayEnvWrapper's README. Other options are
    those of envfleet.make() with backend="ray".
    """

    def __init__(
        self,
        make_env: Callable[[int], Any] | None = None,
        num_workers: int | None = None,
        per_worker_env: int | None = None,
        *,
        make_and_seed: Callable[[int], Any] | None = None,
        number_of_workers: int | None = None,
        envs_per_worker: int | None = None,
        **options: Any,
    ) -> None:
        make_and_seed = _one_of("make_env", make_env, "make_and_seed", make_and_seed)
        if not callable(make_and_seed):
            raise ConfigError(
                f"make_env (or make_and_seed) expected a function from a seed to an env, got {make_and_seed!r}"
            )
        number_of_workers = _count("num_workers", num_workers, "number_of_workers", number_of_workers)
        envs_per_worker = _count("per_worker_env", per_worker_env, "envs_per_worker", envs_per_worker)
        factories = [_Factory(make_and_seed, row) for row in range(number_of_workers * envs_per_worker)]
        super().__init__(
            factories,
            adapter=_EnvAdapter,
            backend="ray",
            num_workers=number_of_workers,
            **options,
        )
        self.render_mode = self.pool.spec.render_mode
        self.reset_infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        _tell_sb3(type(self))

    def step_wait(self) -> VecStep:
        """Wait for the step; rewards are float32."""
        obs, rewards, dones, infos = super().step_wait()
        return obs, rewards.astype(np.float32), dones, infos

    def seed(self, seed: Any = None) -> list[int | None]:  # type: ignore[override]  # SB3's returns the seeds
        """Seed env i with seed + i at the next reset, and return the seeds."""
        super().seed(seed)
        return list(self._seeds)

    def set_options(self, options: Mapping[str, Any] | None = None) -> None:
        """Raise ConfigError unless options is empty: RayEnvWrapper's envs take none."""
        if options:
            raise ConfigError(
                f"set_options() expected no options, got {options!r}; set them with set_attr() or env_method()"
            )

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Return an attribute of these envs."""
        return list(self.pool.get_attr(attr_name, env_ids=self._chosen(indices)))

    def has_attr(self, attr_name: str) -> bool:
        """Return whether every env has the attribute."""
        try:
            self.get_attr(attr_name)
        except AttributeError:
            return False
        return True

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of these envs to one value."""
        chosen = self._chosen(indices)
        self.pool.set_attr(attr_name, [value] * len(chosen), env_ids=chosen)

    def env_method(  # type: ignore[override]  # SB3's signature
        self, method_name: str, *args: Any, indices: Indices = None, **kwargs: Any
    ) -> list[Any]:
        """Call a method of these envs."""
        return list(self.pool.call(method_name, *args, env_ids=self._chosen(indices), **kwargs))

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:
        """Return, for each of these envs, whether it is wrapped in this class."""
        return list(self.pool.call("is_wrapped_by", wrapper_class, env_ids=self._chosen(indices)))

    def getattr_depth_check(self, name: str, already_found: bool) -> str | None:
        """Return None, as Stable-Baselines3 does for a vector env that is not a wrapper."""
        return f"{type(self).__module__}.{type(self).__name__}" if hasattr(self, name) and already_found else None

    def _chosen(self, indices: Indices) -> list[int]:
        if indices is None:
            return list(range(self.num_envs))
        chosen = [indices] if isinstance(indices, (int, np.integer)) else list(indices)
        # Counted from the end too, as in a list.
        return [int(own) + self.num_envs if -self.num_envs <= own < 0 else int(own) for own in chosen]


class CustomRayRemoteVectorEnv:
    """The inner env of RayEnvWrapper's VecEnv: send_actions(), then poll(), as in RLlib's BaseEnv.

    The first poll() resets all envs. Rows, ends and infos are WrapperRayVecEnv's.
    """

    def __init__(
        self,
        make_env: Callable[[int], Any],
        num_workers: int,
        env_per_worker: int,
        multiagent: bool = False,
        **options: Any,
    ) -> None:
        if multiagent:
            raise ConfigError(
                "multiagent expected False, got True; envs of several agents are made with envfleet.make_pettingzoo()"
            )
        self._vec_env = WrapperRayVecEnv(make_env, num_workers, env_per_worker, **options)
        self.num_workers, self.env_per_worker, self.multiagent = num_workers, env_per_worker, multiagent
        self.num_envs = self._vec_env.num_envs
        self.observation_space, self.action_space = self._vec_env.observation_space, self._vec_env.action_space
        self._has_reset = False
        self._was_reset_alone = False

    def poll(self) -> VecStep:
        """Return (obs, rewards, dones, infos) of the actions; of a reset at first and after try_reset()."""
        if self._has_reset and not self._was_reset_alone:
            return self._vec_env.step_wait()
        obs = self._vec_env.pool.observe() if self._has_reset else self._vec_env.reset()
        self._has_reset, self._was_reset_alone = True, False
        rewards, dones = np.zeros(self.num_envs, dtype=np.float32), np.zeros(self.num_envs, dtype=np.bool_)
        return obs, rewards, dones, [{} for _ in range(self.num_envs)]  # type: ignore[return-value]  # float32

    def send_actions(self, action_list: Any) -> None:
        """Start a step of all envs."""
        self._vec_env.step_async(action_list)

    def try_reset(self, env_id: int | None = None) -> None:
        """Reset the envs of one worker (None: of all); poll() returns their observations."""
        if env_id is None or not self._has_reset:
            self._has_reset = False
            return
        first = int(env_id) * self.env_per_worker
        self._vec_env.pool.reset(np.arange(first, first + self.env_per_worker))
        self._was_reset_alone = True

    def stop(self) -> None:
        """Stop the actors."""
        self._vec_env.close()


def _one_of(name: str, value: Any, other_name: str, other: Any) -> Any:
    if value is not None and other is not None:
        raise ConfigError(f"expected {name} or {other_name}, which are synonyms, got both; pass one")
    return other if value is None else value


def _count(name: str, value: Any, other_name: str, other: Any) -> int:
    count = _one_of(name, value, other_name, other)
    if not isinstance(count, (int, np.integer)) or isinstance(count, bool) or count < 1:
        raise ConfigError(f"{name} (or {other_name}) expected an integer of at least 1, got {count!r}")
    return int(count)


class _Factory:
    """make_and_seed with one seed. A class, because closures in a loop would all use the last seed."""

    def __init__(self, make_and_seed: Callable[[int], Any], seed: int) -> None:
        self.make_and_seed, self.seed = make_and_seed, seed
        self.__name__ = getattr(make_and_seed, "__name__", "PythonEnv")

    def __call__(self) -> Any:
        return self.make_and_seed(self.seed)


class _EnvAdapter(EnvAdapter):
    """An adapter that knows the wrappers of its env."""

    def is_wrapped_by(self, wrapper_class: type[Any]) -> bool:
        """Return whether such a wrapper is among those around the env."""
        env: Any = self.env
        while env is not None:
            if isinstance(env, wrapper_class) and not isinstance(env, (EnvAdapter, SeededOnce)):
                return True
            env = getattr(env, "env", None)
        return False


def _tell_sb3(own: type[Any]) -> None:
    """Register the class as a VecEnv of Stable-Baselines3, if that is imported: its algorithms check for one."""
    vec_env = sys.modules.get("stable_baselines3.common.vec_env")
    if vec_env is not None:
        vec_env.VecEnv.register(own)


def install(*, old_gym: bool = True) -> Any:
    """Install the module `RayEnvWrapper`. A second call does nothing.

    old_gym: also install a stand-in for `gym`, unless the real one is installed, for factories that call gym.make().
    """
    vec_env: dict[str, Any] = {"WrapperRayVecEnv": WrapperRayVecEnv}
    remote: dict[str, Any] = {"CustomRayRemoteVectorEnv": CustomRayRemoteVectorEnv}
    members = {"": {**vec_env, **remote}, "CustomWrapperRayVecEnv": vec_env, "CustomRayRemoteEnv": remote}
    module = install_tree("RayEnvWrapper", members, __name__, __doc__ or "", WITHOUT_GYM)
    if old_gym:
        gym_stand_in.install()
    return module


def uninstall() -> bool:
    """Remove the module and the gym stand-in; return True if there was one. Existing vector envs keep working."""
    was_there = remove_tree("RayEnvWrapper", __name__)
    gym_stand_in.uninstall()
    return was_there
