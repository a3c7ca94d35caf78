"""EnvFleetVecEnv: any pool, native or Python, as a Stable-Baselines3 VecEnv."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from envfleet import _native
from envfleet.apis.common.view import HasStats
from envfleet.apis.gymnasium import GymnasiumPool
from envfleet.core.batch import Batch
from envfleet.core.errors import CallOrderError, ConfigError, EnvError, EnvfleetError, SeedError
from envfleet.core.families import native_family
from envfleet.core.family import Family
from envfleet.core.infos import RestartMessage, value_keys
from envfleet.core.pool import Pool
from envfleet.core.spaces import join, leaves_of, split

Info = dict[str, Any]
Indices = int | Iterable[int] | None
Step = tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[Info]]

_ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


_FINISH_TIMEOUT_S = 1.0  # how long an interrupted step may take to finish
_AFTER_LEARN = "After a learn() that was interrupted or raised, call model.set_env(envs): the next one resets all envs"


class PoolVecEnv(HasStats, VecEnv):
    """The parts that EnvFleetVecEnv and the drop-ins share: stepping, set_attr(), infos as lists of dicts."""

    pool: Pool

    # Takes observations apart into the arrays whose memory is page-locked.
    _pinned_columns: Callable[[Any], list[Any]] | None = None

    def __init__(self, pool: Pool, *, copies_objects: bool = False) -> None:
        self.pool = pool
        self._infos = InfoLists(pool.spec.observation_space, pool.num_envs, copies_objects)
        self._missed_error: EnvError | None = None  # of a step whose rows were lost with an interruption
        VecEnv.__init__(self, pool.num_envs, pool.spec.observation_space, pool.spec.action_space)

    def step_async(self, actions: Any) -> None:
        """Start a step of all envs."""
        if self.pool.num_in_flight and not self.pool.closed:
            raise CallOrderError(
                f"step_async() expected no step in progress, got one; call step_wait() first. {_AFTER_LEARN}"
            )
        missed, self._missed_error = self._missed_error, None
        if missed is not None:
            raise missed
        try:
            self._send(actions)
        except CallOrderError as error:
            if type(error) is not CallOrderError:
                raise
            raise CallOrderError(f"{error}. {_AFTER_LEARN}") from None

    def _send(self, actions: Any) -> None:
        self.pool.send(actions)

    def step_wait(self) -> Step:
        """Wait for the step. Where an episode ended, the observation is the first of the next one."""
        if not self.pool.num_in_flight and not self.pool.closed:
            raise CallOrderError("step_wait() expected a step in progress, got none; call step_async() first")
        try:
            batch = self.pool.recv()
        except EnvfleetError:
            raise
        except BaseException:
            self._drop_step()
            raise
        for column in self._pinned_columns(batch.obs) if self._pinned_columns is not None else ():
            _native.lock_pages(column)
        dones = batch.terminated | batch.truncated
        infos = self._infos.of_step(batch, dones, self.reset_infos)
        return batch.obs, batch.reward.astype(np.float32), dones, infos

    def _drop_step(self) -> None:
        """Let the envs finish an interrupted step, for at most a second, and drop its rows.

        To a pool, step_wait() is a recv(), which has not begun if it is interrupted. learn() goes on with step_async().
        """
        try:
            self.pool.recv(timeout=_FINISH_TIMEOUT_S)
        except EnvError as error:
            self._missed_error = error
        except EnvfleetError:  # late, interrupted or closed: step_async() says so
            pass

    def reset(self) -> Any:
        """Reset all envs with what seed() and set_options() left, once, and return the observations."""
        self._missed_error = None
        obs, self.reset_infos = self._reset(self._seeds, self._options)
        self._reset_seeds()
        self._reset_options()
        return obs

    def _reset(self, seeds: Sequence[int | None], options: Sequence[Mapping[str, Any]]) -> tuple[Any, list[Info]]:
        raise NotImplementedError

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seed env i with seed + i at the next reset; None draws a seed."""
        if seed is not None and (not isinstance(seed, (int, np.integer)) or seed < 0):
            raise SeedError(f"seed() expected an integer of at least 0, or None, got {seed!r}")
        return super().seed(seed)

    def set_options(self, options: list[dict[str, Any]] | dict[str, Any] | None = None) -> None:
        """Set the options of the next reset: one dict for all envs, or a list with one per env."""
        if options is not None and not isinstance(options, dict):
            if not isinstance(options, Sequence) or not all(isinstance(own, dict) for own in options):
                raise ConfigError(f"set_options() expected one dict or {self.num_envs}, one per env, got {options!r}")
            if len(options) != self.num_envs:
                raise ConfigError(
                    f"set_options() expected one dict or {self.num_envs}, one per env, got {len(options)}"
                )
        super().set_options(options)

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """Return what each env renders."""
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
        """Set an attribute of these envs: of a pool, where the wrappers have it; of a drop-in, on the outermost."""
        ids = sorted(set(self._ids(indices)))
        if ids:
            self.pool.set_attr(attr_name, [value] * len(ids), ids)

    def close(self) -> None:
        """Close the pool."""
        self.pool.close()

    def _ids(self, indices: Indices) -> list[int]:
        """Convert SB3's indices to env ids: None for all, an int or several, negative ones from the end."""
        every = range(self.num_envs)
        if indices is None:
            return list(every)
        chosen = [indices] if isinstance(indices, (int, np.integer)) else list(indices)
        try:
            return [every[index] for index in chosen]
        except IndexError:
            raise IndexError(f"expected indices below {self.num_envs}, the number of envs, got {chosen}") from None

    def _for_each(self, ids: list[int], ask: Callable[[list[int]], Sequence[Any]]) -> list[Any]:
        """Return the results for these ids. SB3 allows repeated ids, which a pool refuses."""
        if len(set(ids)) == len(ids):
            return list(ask(ids)) if ids else []
        return [ask([env_id])[0] for env_id in ids]


class EnvFleetVecEnv(PoolVecEnv):
    """A pool as a VecEnv.

    make_vec_env() makes the pool too.

    Args:
        envs: A pool of envfleet.make() or envfleet.make_pool() with autoreset_mode="same_step".
        pin_memory: Keep observations in page-locked memory, from which SB3's own copy to a GPU runs at the bus's speed.
    """

    def __init__(self, envs: Pool | GymnasiumPool, *, pin_memory: bool = False) -> None:
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
        if pin_memory:
            if not torch.cuda.is_available():
                raise ConfigError("pin_memory=True expected a CUDA device that torch can use, got none; leave it out")
            torch.cuda.synchronize()  # creates the context in which memory is locked
            self._pinned_columns = split(pool.spec.observation_space, "obs")
        # SB3's video recorder reads render_fps.
        self.metadata = {**pool.spec.metadata, **self.metadata}

    def _reset(self, seeds: Sequence[int | None], options: Sequence[Mapping[str, Any]]) -> tuple[Any, list[Info]]:
        given = None if all(seed is None for seed in seeds) else list(seeds)
        first = options[0]
        # set_options() with one dict stores the same dict for each env.
        if all(own is first or not (own or first) for own in options):
            batch = self.pool.reset(seed=given, options=first or None)
            return batch.obs, self._infos.of_reset(batch)
        self.pool.drop_pending()
        infos: list[Info] = []
        for env_id, own in enumerate(options):
            seed = None if given is None else [given[env_id]]
            infos += self._infos.of_reset(self.pool.reset([env_id], seed=seed, options=own or None))
        return self.pool.observe(), infos

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Return an attribute of each of these envs."""
        ids = self._ids(indices)
        if self._is_native:
            values = self.envs.get_attr(attr_name)
            return [values[env_id] for env_id in ids]
        return self._for_each(ids, lambda own: self.pool.get_attr(attr_name, own))

    def has_attr(self, attr_name: str) -> bool:
        """Return whether all envs have this attribute."""
        if not self._is_native:
            try:  # without its value, which may not be picklable
                return all(self.pool.call("has_wrapper_attr", attr_name))
            except AttributeError:
                pass
        return super().has_attr(attr_name)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of each of these envs. A native env has none but render."""
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
        """Return, for each of these envs, whether str(env) names this wrapper or one derived from it."""
        ids = self._ids(indices)
        if self._is_native:
            return [False] * len(ids)
        names = _names_of(wrapper_class)
        shown = self._for_each(ids, lambda own: self.pool.call("__str__", env_ids=own))
        return [not names.isdisjoint(re.findall(r"<(\w+)", text)) for text in shown]

    def _frames(self) -> list[NDArray[np.uint8] | None]:
        return list(self.envs.render())


def _names_of(wrapper_class: type) -> set[str]:
    """Return the names of a class and its subclasses."""
    derived: list[type] = wrapper_class.__subclasses__()
    return {wrapper_class.__name__}.union(*map(_names_of, derived))


def check_observation_space(space: gymnasium.Space[Any]) -> None:
    """Raise ConfigError if Stable-Baselines3 does not support this observation space."""
    parts: Mapping[Any, gymnasium.Space[Any]] = {"": space}
    if isinstance(space, spaces.Dict):
        parts = space.spaces
    elif isinstance(space, spaces.Tuple):
        parts = dict(enumerate(space.spaces))
    for key, part in parts.items():
        if not isinstance(part, _ARRAY_SPACES):
            where = f"[{key!r}]" if part is not space else ""
            if isinstance(part, (spaces.Dict, spaces.Tuple)):
                remedy = "wrap the env in gymnasium.wrappers.FlattenObservation"
            elif isinstance(space, spaces.Dict):
                remedy = "leave it out with gymnasium.wrappers.FilterObservation"
            else:
                remedy = "convert it with gymnasium.wrappers.TransformObservation"
            raise ConfigError(
                "Stable-Baselines3 expects a Box, Discrete, MultiDiscrete or MultiBinary observation, or one Dict or "
                f"Tuple of these, got observation_space{where} = {part}; {remedy}, or use the gymnasium api"
            )


_TIME_LIMIT = "TimeLimit.truncated"
_TERMINAL_OBS = "terminal_observation"
# The dtypes of Python's numbers in a column: they are converted back. Others stay NumPy scalars.
_PLAIN = frozenset(map(np.dtype, (np.float64, np.int64, np.bool_)))
_OBJECT = np.dtype(object)


class InfoLists:
    """Builds the info dicts of batches in which row i is env i.

    copies_objects: for envs of this process, which may modify an object after returning it.
    """

    def __init__(self, observation_space: gymnasium.Space[Any], num_envs: int, copies_objects: bool = False) -> None:
        self._rows = range(num_envs)
        self._copies_objects = copies_objects
        self._terminal_obs = _terminal_obs_of(observation_space)

    def of_reset(self, batch: Batch) -> list[Info]:
        """Return the infos of a reset."""
        infos: list[Info] = [{} for _ in range(len(batch))]
        self._add(batch.info, infos)
        return infos

    def of_step(self, batch: Batch, dones: NDArray[np.bool_], reset_infos: list[Info]) -> list[Info]:
        """Return the infos of a step; those of resets within the step are stored in reset_infos."""
        infos: list[Info] = [{_TIME_LIMIT: False} for _ in self._rows]
        if batch.info:
            self._add(batch.info, infos)
            if _TIME_LIMIT in batch.info:  # set by the env
                for info in infos:
                    info[_TIME_LIMIT] = False
        ended = dones.nonzero()[0].tolist()
        if ended:
            self._end(batch, ended, infos, reset_infos)
        return infos

    def _end(self, batch: Batch, ended: list[int], infos: list[Info], reset_infos: list[Info]) -> None:
        """Replace the infos of resets by those of the steps that ended the episodes."""
        final = batch.final
        assert final is not None, "a pool in same_step mode has final rows"
        for row in ended:
            first = infos[row]
            del first[_TIME_LIMIT]
            last = self._row(final.info, row) if final.info else {}
            last[_TIME_LIMIT] = bool(batch.truncated[row] and not batch.terminated[row])
            last[_TERMINAL_OBS] = self._terminal_obs(final.obs, row)
            if isinstance(first.get("error"), RestartMessage):
                last["error"] = first.pop("error")
            infos[row], reset_infos[row] = last, first

    def _add(self, columns: Mapping[str, Any], infos: list[Info]) -> None:
        """Add the columns' values to each row's info."""
        for key in value_keys(columns):
            column, mask = columns[key], columns.get(f"_{key}")
            if isinstance(column, dict):
                rows: Iterable[int] = self._rows if mask is None else mask.nonzero()[0].tolist()
                for row in rows:
                    infos[row][key] = self._row(column, row)
                continue
            values = self._values(column)
            if mask is None or mask.all():
                for info, value in zip(infos, values, strict=True):
                    info[key] = value
            else:
                for row in mask.nonzero()[0].tolist():
                    infos[row][key] = values[row]

    def _values(self, column: NDArray[Any]) -> list[Any]:
        if column.ndim == 1 and column.dtype in _PLAIN:
            values: list[Any] = column.tolist()
            return values
        if column.dtype == _OBJECT and self._copies_objects:
            return [deepcopy(value) for value in column]
        return list(column)

    def _row(self, columns: Mapping[str, Any], row: int) -> Info:
        """Return one row's values of the columns."""
        own: Info = {}
        for key in value_keys(columns):
            column, mask = columns[key], columns.get(f"_{key}")
            if mask is None or mask[row]:
                own[key] = (
                    self._row(column, row) if isinstance(column, dict) else self._values(column[row : row + 1])[0]
                )
        return own


def _terminal_obs_of(space: gymnasium.Space[Any]) -> Callable[[Any, int], Any]:
    """Return a function that extracts one row of the last observations, in the form that an env returns.

    It copies: an info that is kept must not keep a whole batch of observations alive.
    """
    if isinstance(space, (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)):
        return lambda batch, row: batch[row, ...].copy()
    take_apart, put_together = split(space), join(space)
    are_numbers = [isinstance(leaf.space, spaces.Discrete) for leaf in leaves_of(space)]

    def terminal_obs(batch: Any, row: int) -> Any:
        values: list[Any] = []
        for is_number, column in zip(are_numbers, take_apart(batch), strict=True):
            if is_number:
                values.append(int(column[row]))
            else:
                values.append(np.array(column[row]) if isinstance(column, np.ndarray) else column[row])
        return put_together(values)

    return terminal_obs
