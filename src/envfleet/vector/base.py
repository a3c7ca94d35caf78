"""PoolVectorEnv: what the two vector environments have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_differing_spaces, batch_space
from numpy.typing import NDArray

from envfleet.batch import Batch, Fault
from envfleet.errors import EnvError
from envfleet.executors.python.env_description import Portrait
from envfleet.executors.python.spec_of import SpecMaker
from envfleet.making.builders import EnvBuilders
from envfleet.pool import Pool
from envfleet.spec import EnvSpec, PoolConfig
from envfleet.vector.actions import ActionCutter
from envfleet.vector.executors import Lenient
from envfleet.vector.results import InfoMaker
from envfleet.vector.seats import NEXT_ACTION, SeatBuilder, Seeds, asked_reset

EnvFactory = Callable[[], Any]
Step = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]
MakeExecutor = Callable[[EnvBuilders, SpecMaker, PoolConfig, Sequence[Mapping[str, Any]]], Lenient]


class PoolVectorEnv(VectorEnv[Any, Any, NDArray[Any]]):
    """A pool that is called, and answers, as Gymnasium's vector environments."""

    env_fns: Sequence[EnvFactory]
    copy: bool
    observation_mode: str | tuple[gymnasium.Space[Any], gymnasium.Space[Any]]
    autoreset_mode: AutoresetMode
    pool: Pool

    # --- making ------------------------------------------------------------------------------

    def _describe(self, first: Any, observation_spaces: Callable[[], Iterable[gymnasium.Space[Any]]]) -> None:
        """Sets the public attributes from the first env; observation_spaces: of all, where they may differ."""
        # A copy: the env's own is its class's.
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

    def _start(
        self, make_executor: MakeExecutor, config: dict[str, Any], ready: dict[int, Any] | None = None
    ) -> Lenient:
        """Makes the pool. ready: envs that were built already."""
        builders: dict[int, SeatBuilder] = {}
        for env_fn in self.env_fns:
            # The same object for the same factory, so that a pickle of many holds it once.
            builders[id(env_fn)] = SeatBuilder(
                source=env_fn,
                class_name=type(self).__name__,
                observation_mode=self.observation_mode,
                observation_space=self.single_observation_space,
                action_space=self.single_action_space,
                ready=ready,
            )
        recipe = EnvBuilders("VectorEnv", tuple(builders[id(env_fn)] for env_fn in self.env_fns), None)
        pool_config = PoolConfig(
            num_envs=self.num_envs,
            batch_size=self.num_envs,
            autoreset_mode=self.autoreset_mode,
            render_mode=self.render_mode,
            check_actions=False,
            copy=self.copy,
            **config,
        )

        def make_spec(portrait: Portrait) -> EnvSpec:
            return EnvSpec(
                id=recipe.name,
                observation_space=portrait.observation_space,
                action_space=portrait.action_space,
                backend="vector",
                metadata=self.metadata,
                render_mode=self.render_mode,
            )

        try:
            executor = make_executor(recipe, make_spec, pool_config, [{}])
        except EnvError as error:
            # Gymnasium's callers expect what the env raised; without it, what is known.
            raise error.faults[-1].cause or error from None
        self.pool = Pool(executor, pool_config)
        executor.let_run(range(self.num_envs))
        self._cutter = ActionCutter(self.single_action_space, self.action_space, self.num_envs)
        self._infos = InfoMaker(self.single_observation_space, self.num_envs)
        return executor

    # --- stepping ----------------------------------------------------------------------------

    def _prepared(self, actions: Any) -> Any:
        """The actions as the pool takes them; those that no column holds are sent ahead."""
        columns = self._cutter.cut(actions)
        if columns is not None:
            return columns
        self.pool.set_attr(NEXT_ACTION, self._cutter.single_actions(actions))
        return self._cutter.blank

    def _step_of(self, batch: Batch) -> Step:
        return batch.obs, batch.reward, batch.terminated, batch.truncated, self._infos.info(batch)

    def _reset_of(self, batch: Batch) -> tuple[Any, dict[str, Any]]:
        if len(batch) < self.num_envs:
            return self.pool.observe(), self._infos.info_of_some(batch)
        return batch.obs, self._infos.info(batch)

    def _asked(self, seed: Seeds, options: Mapping[str, Any] | None) -> tuple[NDArray[np.int32] | None, dict[str, Any]]:
        """(env ids, None for all; the pool's options) of a reset. The caller's dict stays as it is."""
        if seed is None or isinstance(seed, (int, np.integer)):
            seeds: Seeds = None if seed is None else int(seed)
        else:
            seeds = list(seed)
            if len(seeds) != self.num_envs:
                raise ValueError(
                    f"If seeds are passed as a list the length must match num_envs={self.num_envs} but got "
                    f"length={len(seeds)}."
                )
        if options is None or "reset_mask" not in options:
            return None, asked_reset(seeds, options)
        mask = _checked_mask(options["reset_mask"], self.num_envs)
        others = {key: value for key, value in options.items() if key != "reset_mask"}
        return np.flatnonzero(mask).astype(np.int32), asked_reset(seeds, others)

    # --- calls by name -----------------------------------------------------------------------

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of each env; an attribute that is none is given as it is."""
        raise NotImplementedError

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of each env; a method is called, as Gymnasium does."""
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
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]  # a tuple, as Gymnasium's classes give it
        """The seed of each env's generator."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]  # nothing to set: the generators are the envs'
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]  # likewise a tuple
        """The generator of each env, or a copy of it where the env lives in another process."""
        return self.get_attr("np_random")

    # --- ends --------------------------------------------------------------------------------

    def _raise(self, error: EnvError) -> NoReturn:
        """Raises what the env raised."""
        raise NotImplementedError

    def _assert_is_running(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError(f"Trying to operate on `{type(self).__name__}`, after a call to `close()`.")

    def __enter__(self) -> PoolVectorEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # The pool closes itself; this stops VectorEnv's destructor from a half-made object.
        pass


def cause_of(fault: Fault, error: EnvError) -> BaseException:
    """What the env raised, where it could travel; else what is known of it."""
    return error if fault.cause is None else fault.cause


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
