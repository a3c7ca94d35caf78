"""PoolVectorEnv: the common base of the two vector environments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_differing_spaces, batch_space
from numpy.typing import NDArray

from envfleet.apis.common.actions import ActionSplitter
from envfleet.apis.common.env_builders import make_pool_of_factories
from envfleet.apis.common.env_errors import raise_cause
from envfleet.apis.common.view import HasStats
from envfleet.core.batch import Batch
from envfleet.core.errors import ConfigError, EnvError
from envfleet.core.pool import Pool
from envfleet.vector.building import VectorEnvBuilder
from envfleet.vector.infos import VectorInfos

EnvFactory = Callable[[], Any]
Step = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]
Seeds = int | Sequence[int | None] | None


class PoolVectorEnv(HasStats, VectorEnv[Any, Any, NDArray[Any]]):
    """A pool with the methods and results of Gymnasium's vector environments.

    Its envs are called as Gymnasium calls them: seeds and options by name at every reset that the user asks for, None
    included, no arguments at an autoreset, no seeds of the pool's own, and actions unchanged.
    """

    env_fns: Sequence[EnvFactory]
    copy: bool
    observation_mode: str | tuple[gymnasium.Space[Any], gymnasium.Space[Any]]
    autoreset_mode: AutoresetMode
    pool: Pool

    # --- making ------------------------------------------------------------------------------

    def _set_factories(self, env_fns: Iterable[EnvFactory]) -> None:
        is_list = isinstance(env_fns, Iterable)
        self.env_fns = list(env_fns) if is_list else []
        wrong = [env_fn for env_fn in self.env_fns if not callable(env_fn)]
        if wrong or not self.env_fns:
            got = f"{wrong[0]!r} in it" if wrong else "an empty list" if is_list else repr(env_fns)
            raise ConfigError(f"expected a list of functions that build an env, got {got}; pass one function per env")
        self.num_envs = len(self.env_fns)

    def _describe(self, first: Any, observation_spaces: Callable[[], Iterable[gymnasium.Space[Any]]]) -> None:
        """Set the public attributes from the first env; observation_spaces: of all envs, for mode "different"."""
        # A copy: the env's own dict belongs to its class.
        self.metadata = {**first.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = first.render_mode
        self.single_action_space = first.action_space
        self.action_space = batch_space(first.action_space, self.num_envs)
        mode = self.observation_mode
        if isinstance(mode, tuple) and len(mode) == 2:
            if not all(isinstance(space, gymnasium.Space) for space in mode):
                raise TypeError(
                    "Expected both elements of observation_mode to be Spaces, got "
                    f"{type(mode[0])} and {type(mode[1])}; pass (batched space, single space)"
                )
            self.observation_space, self.single_observation_space = mode
        elif mode == "same":
            self.single_observation_space = first.observation_space
            self.observation_space = batch_space(first.observation_space, self.num_envs)
        elif mode == "different":
            spaces = list(observation_spaces())
            self.single_observation_space = spaces[0]
            self.observation_space = batch_differing_spaces(spaces)
        else:
            raise ValueError(
                "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch observation "
                f"space, actual got {mode}"
            )

    def _start(self, backend: str, ready: dict[int, Any] | None = None, **options: Any) -> None:
        """Make the pool. ready: envs that are already built."""

        def make_builder(env_fn: EnvFactory) -> VectorEnvBuilder:
            return VectorEnvBuilder(
                source=env_fn,
                class_name=type(self).__name__,
                observation_mode=self.observation_mode,
                observation_space=self.single_observation_space,
                action_space=self.single_action_space,
                ready=ready,
            )

        options = {"render_mode": self.render_mode, "autoreset_mode": self.autoreset_mode, "copy": self.copy, **options}
        try:
            self.pool = make_pool_of_factories("VectorEnv", self.env_fns, make_builder, backend, **options)
        except EnvError as error:
            # Gymnasium's callers expect the env's own exception, if it could be pickled.
            raise_cause(error.faults[-1], error)
        self._splitter = ActionSplitter(self.single_action_space, self.action_space, self.num_envs)
        self._infos = VectorInfos(self.single_observation_space, self.num_envs)

    # --- stepping ----------------------------------------------------------------------------

    def _step_pool(self, actions: Any) -> Batch:
        columns = self._splitter.columns(actions)
        if columns is not None:
            return self.pool.step(columns)
        return self.pool.step_objects(self._splitter.single_actions(actions))

    def _send_to_pool(self, actions: Any) -> None:
        columns = self._splitter.columns(actions)
        if columns is not None:
            self.pool.send(columns)
        else:
            self.pool.send_objects(self._splitter.single_actions(actions))

    def _step_result(self, batch: Batch) -> Step:
        return batch.obs, batch.reward, batch.terminated, batch.truncated, self._infos.info(batch)

    def _reset_result(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        if len(batch) < self.num_envs:
            return self.pool.observe(), self._infos.info_of_some(batch)
        return batch.obs, self._infos.info(batch)

    def _reset_arguments(
        self, seed: Seeds, options: Mapping[str, Any] | None
    ) -> tuple[NDArray[np.int32] | None, list[dict[str, Any]]]:
        """Return the env ids of a reset, None for all, and the arguments of each env's reset()."""
        if seed is None or isinstance(seed, (int, np.integer)):
            seeds = [None if seed is None else int(seed) + env_id for env_id in range(self.num_envs)]
        else:
            seeds = list(seed)
            if len(seeds) != self.num_envs:
                raise ValueError(
                    f"If seeds are passed as a list the length must match num_envs={self.num_envs} but got "
                    f"length={len(seeds)}."
                )
        if options is None or "reset_mask" not in options:
            return None, [{"seed": own_seed, "options": options} for own_seed in seeds]
        mask = _checked_mask(options["reset_mask"], self.num_envs)
        others = {key: value for key, value in options.items() if key != "reset_mask"}
        env_ids = np.flatnonzero(mask).astype(np.int32)
        return env_ids, [{"seed": seeds[env_id], "options": others} for env_id in env_ids]

    # --- calls by name -----------------------------------------------------------------------

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each env. Non-callable attributes are returned unchanged."""
        raise NotImplementedError

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each env. Methods are called, as in Gymnasium."""
        return self.call(name)

    def _set_attr(self, name: str, values: Any) -> None:
        per_env = values if isinstance(values, (list, tuple)) else [values] * self.num_envs
        if len(per_env) != self.num_envs:
            raise ValueError(
                "Values must be a list or tuple with length equal to the number of environments. "
                f"Got `{len(per_env)}` values for {self.num_envs} environments."
            )
        try:
            self.pool.set_attr(name, per_env)
        except EnvError as error:
            self._raise(error)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]  # a tuple, as in Gymnasium's classes
        """The seed of each env's generator."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]  # no setter: the generators belong to the envs
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]  # likewise a tuple
        """The generator of each env, or a copy of it if the env lives in another process."""
        return self.get_attr("np_random")

    # --- closing -----------------------------------------------------------------------------

    def _raise(self, error: EnvError) -> NoReturn:
        """Raise what the env raised."""
        raise NotImplementedError

    def _assert_is_running(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError(f"Trying to operate on `{type(self).__name__}`, after a call to `close()`.")

    def __enter__(self) -> PoolVectorEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # The pool closes itself; VectorEnv's destructor would fail on a half-made object.
        pass


def _checked_mask(mask: Any, num_envs: int) -> NDArray[np.bool_]:
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"`options['reset_mask']` must be a numpy array, got {type(mask)}")
    if mask.shape != (num_envs,):
        raise ValueError(f"`options['reset_mask']` must have shape `({num_envs},)`, got {mask.shape}")
    if mask.dtype != np.bool_:
        raise TypeError(f"`options['reset_mask']` must have `dtype=np.bool_`, got {mask.dtype}")
    if not mask.any():
        raise ValueError(
            f"`options['reset_mask']` must contain a boolean array with at least one True value, got reset_mask={mask}"
        )
    return mask
