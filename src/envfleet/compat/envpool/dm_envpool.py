"""DMEnvPool: env_type="dm". TimeSteps hold the observation, the infos and env_id in one named tuple."""

from __future__ import annotations

import keyword
import re
from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import dm_env
import gymnasium
import numpy as np
from dm_env import specs
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.apis.dm import DmPool, time_step
from envfleet.building import pools
from envfleet.compat.envpool.array_spec import array_spec_of, dm_spec_transform, unbounded
from envfleet.compat.envpool.env_spec import EnvPoolSpec
from envfleet.compat.envpool.pool_mixin import EnvPoolMixin
from envfleet.core.batch import Batch
from envfleet.core.errors import ConfigError
from envfleet.core.infos import declared_column
from envfleet.core.seeding import Seed

_NUMBERS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class Players(NamedTuple):
    """The env of each player's row."""

    env_id: NDArray[np.int32]


class StateType:
    """The named tuple that a pool's TimeSteps have as observation: always the same fields, on resets and steps.

    env_id, players, elapsed_step, the declared infos, then obs, or the keys of a Dict space; a nested Dict is a
    named tuple.
    """

    def __init__(self, spec: EnvPoolSpec) -> None:
        self._num_envs = spec.env_spec.config["num_envs"]
        self._infos = spec.info_arrays
        self._obs_of = spec.obs_of
        space = spec.obs_space
        self._parts = space.spaces if isinstance(space, spaces.Dict) else {"obs": space}
        self._is_dict = isinstance(space, spaces.Dict)
        self._of_part = [_converter(key, part) for key, part in self._parts.items()]
        names = _field_names(["env_id", "players", "elapsed_step", *self._infos, *self._parts])
        self._type: Any = namedtuple("State", names)  # type: ignore[misc]  # the fields are the spec's

    def of_batch(self, batch: Batch) -> Any:
        """Return the rows of a batch."""
        env_id, columns = batch.env_id, batch.info
        infos = [declared_column(columns, array, len(env_id)) for array in self._infos.values()]
        rows = self._obs_of(batch.obs)
        obs = rows if self._is_dict else {"obs": rows}
        values = [convert(obs[key]) for key, convert in zip(self._parts, self._of_part, strict=True)]
        # With episodic_life, EnvPool counts the steps of the whole game.
        elapsed_step = columns.get("game_step", batch.elapsed_step)
        return self._type(env_id, Players(env_id), elapsed_step, *infos, *values)

    def observation_spec(self) -> Any:
        """Return the same named tuple of dm_env specs for one env."""
        env_id = dm_spec_transform("env_id", unbounded(np.int32, []), "obs")
        elapsed_step = dm_spec_transform("elapsed_step", unbounded(np.int32, []), "obs")
        infos = [_spec_of(name, array.space) for name, array in self._infos.items()]
        values = [
            convert(_spec_of(key, part))
            for (key, part), convert in zip(self._parts.items(), self._of_part, strict=True)
        ]
        return self._type(env_id, Players(env_id), elapsed_step, *infos, *values)


class DMEnvPool(EnvPoolMixin, DmPool):
    """observation.obs, or a field for each key of a Dict observation; rewards float32."""

    def __init__(self, spec: EnvPoolSpec) -> None:
        make_pool = partial(pools.make_pool, spec.task_id, **spec.options.options)
        DmPool.__init__(self, make_pool())
        self._start(spec.of_pool(self.pool.spec, gym_spaces=False), make_pool)
        self.spec = self._spec  # type: ignore[assignment]  # EnvPool's own, which knows envfleet's
        self.observation_space = self._spec.observation_space
        self.action_space = self._spec.action_space
        self._state_type = StateType(self._spec)

    def reset(self, env_id: Any = None, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> Any:
        """Reset all envs, or those of env_id; an asynchronous pool returns batch_size FIRST TimeSteps."""
        return self._time_step(self._reset_rows(env_id, seed, options))

    def step(self, action: Any, env_id: Any = None, *, timeout: float | None = None) -> Any:
        """Step all envs, or those of env_id."""
        return self._time_step(self._stepped(action, env_id, timeout))

    def recv(  # type: ignore[override]  # EnvPool's arguments
        self, reset: bool = False, return_info: bool = True, *, timeout: float | None = None
    ) -> Any:
        """Receive the rows that are ready; observation.env_id tells which envs they belong to."""
        return self._time_step(self.pool.recv(timeout))

    def observation_spec(self) -> Any:
        """Return the specs of one env's observation, in the fields of the TimeSteps'."""
        return self._state_type.observation_spec()

    def action_spec(self) -> Any:
        """Return the spec of one env's action."""
        return self._spec.action_spec()

    def reward_spec(self) -> Any:
        """Return the spec of one env's reward."""
        return DmPool.reward_spec(self).replace(dtype=np.float32)

    def _time_step(self, batch: Batch) -> Any:
        made = time_step(batch)
        return made._replace(reward=made.reward.astype(np.float32), observation=self._state_type.of_batch(batch))

    def _traced_rows(self, batch: Batch) -> Any:
        from envfleet.apis.common.xla import dm_columns

        step_type, discount = dm_columns(batch)
        observation = self._state_type.of_batch(batch)
        return dm_env.TimeStep(step_type, batch.reward.astype(np.float32), discount, observation)

    def _draw(self, env_id: int) -> Any:
        frame = self.pool.render(env_id)
        if frame is None:
            raise ConfigError(f"{self.pool.spec.id} cannot be rendered with env_type='dm'; use env_type='gymnasium'")
        return frame


def _spec_of(name: str, space: gymnasium.Space[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _spec_of(key, part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_spec_of(f"{name}_{position}", part) for position, part in enumerate(space.spaces))
    if isinstance(space, spaces.Text):
        return specs.StringArray((), str, name)
    if isinstance(space, _NUMBERS):
        return dm_spec_transform(name, array_spec_of(space), "obs")
    return specs.Array((), np.object_, name)  # such as MiniGrid's mission


def _converter(name: str, space: gymnasium.Space[Any]) -> Callable[[Any], Any]:
    """Return a function that converts rows or specs of a space to fields: dicts become named tuples."""
    if isinstance(space, spaces.Tuple):
        items = [_converter(name, part) for part in space.spaces]
        return lambda value: tuple(convert(own) for convert, own in zip(items, value, strict=True))
    if isinstance(space, _NUMBERS):
        return lambda value: value
    if not isinstance(space, spaces.Dict):
        return _as_objects
    kind = namedtuple(_field_names([name])[0], _field_names(space.spaces))  # type: ignore[misc]  # likewise
    parts = [(key, _converter(key, part)) for key, part in space.spaces.items()]
    return lambda value: kind(*(convert(value[key]) for key, convert in parts))


def _as_objects(rows: Any) -> Any:
    """Return non-numeric rows, which come as a tuple, as one array of objects, so that they are one leaf."""
    if not isinstance(rows, (tuple, list)):
        return rows
    column = np.empty(len(rows), dtype=object)
    column[:] = rows
    return column


def _field_names(keys: Any) -> list[str]:
    """Return keys as distinct field names: "end-effector" becomes end_effector, a second one end_effector_2."""
    names: list[str] = []
    for key in keys:
        name = re.sub(r"\W", "_", str(key)).lstrip("_") or "field"
        if name[0].isdigit() or keyword.iskeyword(name):
            name = f"field_{name}"
        number = 2
        while name in names:
            name, number = f"{name.removesuffix(f'_{number - 1}')}_{number}", number + 1
        names.append(name)
    return names
