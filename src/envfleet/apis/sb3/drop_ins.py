"""DummyVecEnv and SubprocVecEnv: Stable-Baselines3's, on the serial and the processes executor.

Envs are called as SB3 calls them: seeds only from seed(), actions unchecked and as they came,
attributes set on the outermost wrapper (apis/common/env_calls.py).
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import gymnasium
from gymnasium.vector.utils import batch_space
from stable_baselines3.common import vec_env as sb3
from stable_baselines3.common.preprocessing import check_for_nested_spaces

from envfleet import _native
from envfleet.apis.common.actions import ActionSplitter
from envfleet.apis.common.env_builders import ReadyEnvBuilder, make_pool_of_factories
from envfleet.apis.common.env_calls import call_method, has_attribute, is_wrapped, set_attribute
from envfleet.apis.common.env_errors import raise_cause
from envfleet.apis.sb3.vec_env import Indices, Info, PoolVecEnv, Step
from envfleet.core.errors import ActionError, ConfigError, DifferentSpacesError, EnvError
from envfleet.core.pool import Pool
from envfleet.envs.adapters import adapt

EnvFactory = Callable[[], Any]
Spaces = tuple[gymnasium.Space[Any], gymnasium.Space[Any]] | tuple[None, None]


class _ActionSplitter(ActionSplitter):
    """Splits actions as SB3 does: actions[i] is env i's, whatever the space."""

    def single_actions(self, actions: Any) -> list[Any]:
        singles = [actions[row] for row in range(len(actions))]
        self._check_count(len(singles))
        return singles


class _DropIn(PoolVecEnv):
    """The parts that both drop-ins share."""

    def __init__(self, pool: Pool, *, copies_objects: bool) -> None:
        space = pool.spec.action_space
        self._splitter = _ActionSplitter(space, batch_space(space, pool.num_envs), pool.num_envs)
        super().__init__(pool, copies_objects=copies_objects)

    def _send(self, actions: Any) -> None:
        columns = self._splitter.columns(actions)
        if columns is None:
            self.pool.send_objects(self._splitter.single_actions(actions))
            return
        try:
            self.pool.send(columns)
        except ActionError:
            # The columns are valid, so the envs cannot be stepped: one raised and must be reset.
            self.pool.check_can_step("step_async()")
            raise

    def _reset(self, seeds: Sequence[int | None], options: Sequence[Mapping[str, Any]]) -> tuple[Any, list[Info]]:
        # As SB3 does: the seed by name, options only if there are some.
        arguments = [
            {"seed": seed, "options": own} if own else {"seed": seed} for seed, own in zip(seeds, options, strict=True)
        ]
        batch = self.pool.reset(arguments=arguments)
        return batch.obs, self._infos.of_reset(batch)

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Return an attribute of each of these envs."""
        return self._for_each(self._ids(indices), lambda ids: self.pool.get_attr(attr_name, ids))

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of each of these envs."""
        return self._apply(indices, call_method, method_name, method_args, method_kwargs)

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: Indices = None
    ) -> list[bool]:
        """Return, for each of these envs, whether it is wrapped in an instance of this class."""
        return self._apply(indices, is_wrapped, wrapper_class)

    def has_attr(self, attr_name: str) -> bool:
        """Return whether all envs have this attribute."""
        return all(self._apply(None, has_attribute, attr_name))

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of the outermost wrapper of these envs."""
        self._apply(sorted(set(self._ids(indices))), set_attribute, attr_name, value)

    def _apply(self, indices: Indices, function: Callable[..., Any], *args: Any) -> list[Any]:
        try:
            return self._for_each(self._ids(indices), lambda ids: self.pool.apply(function, *args, env_ids=ids))
        except EnvError as error:
            # Such as the AttributeError for a method that the env lacks.
            raise_cause(error.faults[0], error)


class DummyVecEnv(_DropIn, sb3.DummyVecEnv):
    """Runs envs one after the other in the caller's thread; a drop-in for SB3's DummyVecEnv.

    Args:
        env_fns: Functions that each return a separate env.
    """

    def __init__(self, env_fns: Sequence[EnvFactory]) -> None:
        built = [adapt(env_fn()) for env_fn in _checked(env_fns)]
        if len({id(env.unwrapped) for env in built}) < len(built):
            raise ConfigError(
                "DummyVecEnv expected each function to return a separate env, got the same instance twice; "
                "make the env inside the function: [lambda: gymnasium.make('CartPole-v1')] * n"
            )
        check_for_nested_spaces(built[0].observation_space)  # raises what SB3's users know
        spaces = (built[0].observation_space, built[0].action_space)
        pool = _make_pool(env_fns, "serial", spaces, dict(enumerate(built)), num_workers=1)
        self.envs = built
        super().__init__(pool, copies_objects=True)
        self.metadata = built[0].metadata

    def step_async(self, actions: Any) -> None:
        """Start a step of all envs. Surplus actions are ignored, as in SB3."""
        super().step_async(actions[: self.num_envs] if len(actions) > self.num_envs else actions)

    def step_wait(self) -> Step:
        """Wait for the step. An env's exception is raised as it is."""
        try:
            return super().step_wait()
        except EnvError as error:
            self._raise(error)

    def reset(self) -> Any:
        """Reset all envs. An env's exception is raised as it is."""
        try:
            return super().reset()
        except EnvError as error:
            self._raise(error)

    def _raise(self, error: EnvError) -> NoReturn:
        # The envs belong to the caller and keep their states.
        self.pool.mark_running([fault.env_id for fault in error.faults])
        raise_cause(error.faults[0], error)


class SubprocVecEnv(_DropIn, sb3.SubprocVecEnv):
    """Runs envs in worker processes; a drop-in for SB3's SubprocVecEnv.

    Args:
        env_fns: Functions that each return an env.
        start_method: "forkserver" (the default), "spawn" or "fork".
        num_workers: None for the usable cores, at most one worker per env. Pass more for envs that wait more than they
            compute.
    """

    def __init__(
        self, env_fns: Sequence[EnvFactory], start_method: str | None = None, *, num_workers: int | None = None
    ) -> None:
        num_envs = len(_checked(env_fns))
        multiprocessing.get_context(start_method)  # raises the ValueError that SB3's callers know
        num_workers = max(1, min(num_envs, num_workers or _native.usable_cores()))
        pool = _processes(env_fns, num_workers=num_workers, start_method=start_method)
        super().__init__(pool, copies_objects=False)
        self.metadata = {**self.pool.spec.metadata, **self.metadata}

    @property
    def waiting(self) -> bool:  # type: ignore[override]  # nothing to set: the pool knows
        """Whether step_async() was called and step_wait() was not yet."""
        return self.pool.num_in_flight > 0

    @property
    def closed(self) -> bool:  # type: ignore[override]  # likewise
        """Whether close() was called."""
        return self.pool.closed


def _make_pool(
    env_fns: Sequence[EnvFactory], backend: str, spaces: Spaces, ready: dict[int, Any] | None = None, **options: Any
) -> Pool:
    def make_builder(env_fn: EnvFactory) -> ReadyEnvBuilder:
        return ReadyEnvBuilder(source=env_fn, observation_space=spaces[0], action_space=spaces[1], ready=ready)

    return make_pool_of_factories("VecEnv", env_fns, make_builder, backend, autoreset_mode="same_step", **options)


def _processes(env_fns: Sequence[EnvFactory], **options: Any) -> Pool:
    try:
        return _make_pool(env_fns, "processes", (None, None), **options)
    except DifferentSpacesError:
        # Spaces that differ, which SB3 allows as long as the shapes fit: those of the first env are for all.
        first = adapt(env_fns[0]())
        spaces = (first.observation_space, first.action_space)
        first.close()
        return _make_pool(env_fns, "processes", spaces, **options)


def _checked(env_fns: Sequence[EnvFactory]) -> Sequence[EnvFactory]:
    if not env_fns or not all(callable(env_fn) for env_fn in env_fns):
        raise ConfigError(
            f"expected a list of functions that each return an env, got {env_fns!r}; "
            "for example [lambda: gymnasium.make('CartPole-v1')] * 8"
        )
    return env_fns
