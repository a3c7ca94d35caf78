"""EnvPool's dm dialect: TimeSteps whose observation has env_id, players and the env's own fields."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envfleet.apis.dm import DmPool
from envfleet.compat.envpool_mixin import EnvPoolMixin, every_key
from envfleet.compat.envpool_options import EnvPoolOptions
from envfleet.envs.family import Family
from envfleet.errors import ConfigError
from envfleet.pool import Pool
from envfleet.seeding import Seed


class Players(NamedTuple):
    """Whose rows the players' are."""

    env_id: NDArray[np.int32]


class DMEnvPool(EnvPoolMixin, DmPool):
    """env_type="dm": observation.obs, or a field for each key of a Dict observation; rewards float32."""

    def __init__(self, make_pool: Callable[[], Pool], family: Family, asked: EnvPoolOptions) -> None:
        DmPool.__init__(self, make_pool())
        self._start(asked, make_pool, old_gym_spaces=False)
        self.spec = self._spec  # type: ignore[assignment]  # EnvPool's own, which knows envfleet's
        self.observation_space = self._spec.observation_space
        self.action_space = self._spec.action_space

    def reset(self, env_id: Any = None, *, seed: Seed = None, options: Mapping[str, Any] | None = None) -> Any:
        """FIRST TimeSteps of all envs, or of those of env_id."""
        self._reopen()
        time_step = DmPool.reset(self, env_id, seed=seed, options=options)
        self._was_reset(env_id)
        return self._as_envpool(time_step)

    def step(self, action: Any, env_id: Any = None, *, timeout: float | None = None) -> Any:
        """Steps all envs, or those of env_id."""
        action, env_id = self._fitted(action, env_id)
        if self._never_reset(env_id):
            return self.reset(env_id)
        return self._as_envpool(DmPool.step(self, action, env_id, timeout=timeout))

    def recv(self, timeout: float | None = None) -> Any:
        """The rows that are ready; observation.env_id says whose they are."""
        return self._as_envpool(DmPool.recv(self, timeout))

    def observation_spec(self) -> Any:
        """Specs of one env's observation, in the fields of the TimeSteps'."""
        state = DmPool.observation_spec(self)
        return _state(state.obs, state.env_id, state.elapsed_step, state.info)

    def _as_envpool(self, time_step: Any) -> Any:
        state = time_step.observation
        info = every_key(state.info, self.pool.spec, len(state.env_id))
        observation = _state(state.obs, state.env_id, state.elapsed_step, info)
        return time_step._replace(reward=time_step.reward.astype(np.float32), observation=observation)

    def _draw(self, env_id: int) -> Any:
        frame = self.pool.render(env_id)
        if frame is None:
            raise ConfigError(f"{self.pool.spec.id} cannot draw itself here; render() it with env_type='gymnasium'")
        return frame


def _state(obs: Any, env_id: Any, elapsed_step: Any, info: Mapping[str, Any]) -> Any:
    info = dict(info)
    elapsed_step = info.pop("game_step", elapsed_step)  # as envpool_info() has it
    fields: dict[str, Any] = {"env_id": env_id, "players": Players(env_id), "elapsed_step": elapsed_step}
    own = obs if isinstance(obs, dict) else {"obs": obs}
    for name, value in [*info.items(), *own.items()]:
        fields[str(name)] = value
    # A key that is no name is found by its place.
    return namedtuple("State", list(fields), rename=True)(*fields.values())
