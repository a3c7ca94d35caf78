"""PufferLib's envs: PufferEnv, and the emulation that makes one of any Gymnasium or PettingZoo env.

Every agent has a row in flat arrays that the env fills in place: observations, rewards, terminals, truncations, masks.
Observations of a structured space are laid out as one aligned numpy record per agent and shown as a flat Box over those
bytes, as PufferLib 3 does it, so that policies which unpack them by `emulated` work unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.apis.pettingzoo.making import as_parallel
from envfleet.core.errors import EnvfleetError
from envfleet.envs.adapters import adapt, to_gymnasium_space


class APIUsageError(EnvfleetError, RuntimeError):
    """A call that PufferLib's API does not allow."""


def joint_space(space: gymnasium.Space[Any], count: int) -> gymnasium.Space[Any]:
    """Return the space of count agents' values, as PufferLib has it."""
    if isinstance(space, spaces.Discrete):
        return spaces.MultiDiscrete([space.n] * count)
    if isinstance(space, spaces.MultiDiscrete):
        high = np.repeat(space.nvec[None] - 1, count, axis=0)
        return spaces.Box(np.zeros_like(high), high, high.shape, np.dtype(space.dtype).type)
    if isinstance(space, spaces.Box):
        low, high = (np.repeat(side[None], count, axis=0) for side in (space.low, space.high))
        return spaces.Box(low, high, low.shape, np.dtype(space.dtype).type)
    raise APIUsageError(f"expected a Box, Discrete or MultiDiscrete space, got {space}; flatten it by emulation")


class PufferEnv:
    """num_agents agents that step and reset by themselves, with rows in the arrays of buf or in their own.

    A subclass sets single_observation_space, single_action_space and num_agents, then calls super().__init__(buf).
    """

    single_observation_space: Any
    single_action_space: Any
    num_agents: int
    emulated: Any = False
    done = False  # it resets its agents itself

    def __init__(self, buf: Mapping[str, Any] | None = None) -> None:
        for name in ("single_observation_space", "single_action_space", "num_agents"):
            if not hasattr(self, name):
                raise APIUsageError(f"PufferEnv expected {name}, got none; set it before super().__init__()")
        if self.num_agents < 1:
            raise APIUsageError(f"num_agents expected a number of at least 1, got {self.num_agents!r}")
        for name in ("observation_space", "action_space"):
            if hasattr(self, name):
                raise APIUsageError(f"PufferEnv expected single_{name}, got {name}; rename it")
        if not isinstance(self.single_observation_space, spaces.Box):
            raise APIUsageError(f"single_observation_space expected a Box, got {self.single_observation_space}")
        set_buffers(self, buf)
        self.observation_space = joint_space(self.single_observation_space, self.num_agents)
        self.action_space = joint_space(self.single_action_space, self.num_agents)
        self.agent_ids = np.arange(self.num_agents)
        self.infos: list[Any] = []

    @property
    def agents_per_batch(self) -> int:
        """All agents: they step together."""
        return self.num_agents

    @property
    def driver_env(self) -> Any:
        """The env itself."""
        return self

    def reset(self, seed: int | None = None) -> tuple[Any, list[Any]]:
        """Reset all agents and return (observations, infos)."""
        raise NotImplementedError

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, list[Any]]:
        """Step all agents and return (observations, rewards, terminals, truncations, infos)."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the env."""
        raise NotImplementedError

    def async_reset(self, seed: int | None = None) -> None:
        """Reset all agents; recv() returns their rows."""
        _, self.infos = self.reset(seed)

    def send(self, actions: Any) -> None:
        """Step all agents; recv() returns their rows."""
        *_, self.infos = self.step(actions)

    def recv(self) -> tuple[Any, ...]:
        """Return (observations, rewards, terminals, truncations, infos, agent ids, masks)."""
        return (
            self.observations,
            self.rewards,
            self.terminals,
            self.truncations,
            self.infos,
            self.agent_ids,
            self.masks,
        )

    observations: NDArray[Any]
    rewards: NDArray[np.float32]
    terminals: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    masks: NDArray[np.bool_]
    actions: NDArray[Any]


def set_buffers(env: Any, buf: Mapping[str, Any] | None = None) -> None:
    """Assign the arrays of buf, or new ones, to an env."""
    if buf is not None:
        for name in ("observations", "rewards", "terminals", "truncations", "masks", "actions"):
            setattr(env, name, buf[name])
        return
    count, space = env.num_agents, env.single_observation_space
    env.observations = np.zeros((count, *space.shape), dtype=space.dtype)
    env.rewards = np.zeros(count, dtype=np.float32)
    env.terminals = np.zeros(count, dtype=np.bool_)
    env.truncations = np.zeros(count, dtype=np.bool_)
    env.masks = np.ones(count, dtype=np.bool_)
    actions = env.single_action_space
    dtype = actions.dtype if isinstance(actions, spaces.Box) else np.int32
    env.actions = np.zeros((count, *actions.shape), dtype=dtype)


class _Emulated:
    """The parts that both emulated envs share: the constructor, flat spaces, and records written into the rows.

    seed is accepted and ignored, as in PufferLib.
    """

    def __init__(
        self,
        env: Any = None,
        env_creator: Callable[..., Any] | None = None,
        env_args: Sequence[Any] = (),
        env_kwargs: Mapping[str, Any] | None = None,
        buf: Mapping[str, Any] | None = None,
        seed: int | None = 0,
    ) -> None:
        if (env is None) == (env_creator is None):
            raise APIUsageError("expected either env or env_creator, got both or neither; pass one")
        self._start(env if env_creator is None else env_creator(*env_args, **(env_kwargs or {})), buf)
        self.render_mode = getattr(self.env, "render_mode", None)
        self.initialized = False

    def _start(self, env: Any, buf: Mapping[str, Any] | None) -> None:
        raise NotImplementedError

    def _emulate(self, observation_space: Any, action_space: Any, num_agents: int, buf: Any) -> None:
        self._inner_action_space = to_gymnasium_space(action_space)
        inner = to_gymnasium_space(observation_space)
        self.single_observation_space, self.obs_dtype = _flat_observations(inner)
        self.single_action_space = _flat_actions(self._inner_action_space)
        self.is_obs_emulated = not isinstance(inner, spaces.Box)
        self.is_atn_emulated = isinstance(self._inner_action_space, (spaces.Dict, spaces.Tuple))
        self.num_agents = num_agents
        self.emulated = {
            "observation_dtype": np.dtype(self.single_observation_space.dtype),
            "emulated_observation_dtype": self.obs_dtype,
        }
        set_buffers(self, buf)
        self._records = self.observations.view(self.obs_dtype)[:, 0] if self.is_obs_emulated else self.observations

    def _write(self, row: int, observation: Any) -> None:
        if self.is_obs_emulated:
            _fill(self._records[row : row + 1], observation)
        else:
            self.observations[row] = observation

    def _native_action(self, row: Any) -> Any:
        space = self._inner_action_space
        if self.is_atn_emulated:
            return _unflatten(space, iter(np.asarray(row).ravel()))
        if isinstance(space, spaces.Discrete):
            return np.asarray(row).ravel()[0]
        return np.asarray(row).reshape(space.shape)

    def render(self) -> Any:
        """Render the env."""
        return self.env.render()

    def close(self) -> None:
        """Close the env."""
        self.env.close()

    env: Any
    observations: NDArray[Any]
    rewards: NDArray[np.float32]
    terminals: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    masks: NDArray[np.bool_]


class GymnasiumPufferEnv(_Emulated, gymnasium.Env[Any, Any]):
    """A Gymnasium env (or one of gym) as a PufferEnv of one agent."""

    def _start(self, env: Any, buf: Mapping[str, Any] | None) -> None:
        self.env = adapt(env)
        self._emulate(self.env.observation_space, self.env.action_space, 1, buf)
        self.observation_space, self.action_space = self.single_observation_space, self.single_action_space
        self.done = True

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Reset the env and return (observations, info)."""
        observation, info = self.env.reset(seed=seed)
        self.initialized, self.done = True, False
        self._write(0, observation)
        self._set(0.0, False, False)
        return self.observations, info

    def step(self, action: Any) -> Any:
        """Step the env and return (observations, reward, terminal, truncation, info)."""
        if not self.initialized or self.done:
            raise APIUsageError("step() was called without a running episode; call reset() first")
        observation, reward, terminal, truncation, info = self.env.step(self._native_action(action))
        self._write(0, observation)
        self._set(reward, terminal, truncation)
        self.done = bool(terminal or truncation)
        return self.observations, reward, terminal, truncation, info

    def _set(self, reward: Any, terminal: Any, truncation: Any) -> None:
        self.rewards[0], self.terminals[0], self.truncations[0], self.masks[0] = reward, terminal, truncation, True


class PettingZooPufferEnv(_Emulated):
    """A PettingZoo env with one row per possible agent. masks is False for absent agents."""

    def _start(self, env: Any, buf: Mapping[str, Any] | None) -> None:
        self.env = as_parallel(env) if hasattr(env, "agent_iter") else env
        self.possible_agents = list(self.env.possible_agents)
        first = self.possible_agents[0]
        observation, action = self.env.observation_space(first), self.env.action_space(first)
        for agent in self.possible_agents:
            if self.env.observation_space(agent) != observation or self.env.action_space(agent) != action:
                raise APIUsageError(
                    f"expected all agents to have the same spaces, but those of {agent!r} and {first!r} differ; "
                    "use envfleet.make_pettingzoo()"
                )
        self._emulate(observation, action, len(self.possible_agents), buf)
        self._all_done = True

    @property
    def agents(self) -> list[Any]:
        """The agents that are left."""
        return list(self.env.agents)

    @property
    def done(self) -> bool:
        """Whether the episode is over for all agents."""
        return self._all_done or not self.env.agents

    def observation_space(self, agent: Any) -> Any:
        """Return the flat observation space of an agent."""
        return self.single_observation_space

    def action_space(self, agent: Any) -> Any:
        """Return the flat action space of an agent."""
        return self.single_action_space

    def reset(self, seed: int | None = None) -> tuple[Any, Any]:
        """Reset the env and return (observations, infos)."""
        observations, infos = self.env.reset(seed=seed)
        self.initialized, self._all_done = True, False
        self.observations[:] = 0
        for row, agent in enumerate(self.possible_agents):
            if agent in observations:
                self._write(row, observations[agent])
        self.rewards[:], self.terminals[:], self.truncations[:], self.masks[:] = 0, False, False, True
        return self.observations, infos

    def step(self, actions: Any) -> Any:
        """Step the agents that are left and return (observations, rewards, terminals, truncations, infos)."""
        if not self.initialized or self.done:
            raise APIUsageError("step() was called without a running episode; call reset() first")
        if not isinstance(actions, Mapping):
            actions = dict(zip(self.possible_agents, actions, strict=True))
        alive = set(self.env.agents)
        native = {agent: self._native_action(own) for agent, own in actions.items() if agent in alive}
        observations, rewards, terminals, truncations, infos = self.env.step(native)
        for row, agent in enumerate(self.possible_agents):
            is_here = self.masks[row] = agent in observations
            if is_here:
                self._write(row, observations[agent])
            else:
                self.observations[row] = 0
            self.rewards[row] = rewards[agent] if is_here else 0
            self.terminals[row] = terminals[agent] if is_here else True
            self.truncations[row] = truncations[agent] if is_here else False
        self._all_done = all(terminals.values()) or all(truncations.values())
        return self.observations, self.rewards, self.terminals, self.truncations, infos


def as_puffer_env(env: Any) -> Any:
    """Return the env itself if it has PufferLib's rows, else an emulated env around it."""
    if hasattr(env, "single_observation_space") and hasattr(env, "terminals"):
        return env
    return PettingZooPufferEnv(env) if hasattr(env, "possible_agents") else GymnasiumPufferEnv(env)


# --- flat spaces and records -------------------------------------------------------------------------------


def _record_dtype(space: gymnasium.Space[Any]) -> np.dtype[Any]:
    """Return the aligned record of a space's values; integers of discrete spaces take 32 bits."""
    fields: Any
    if isinstance(space, spaces.Tuple):
        fields = [(f"f{index}", _record_dtype(part)) for index, part in enumerate(space.spaces)]
    elif isinstance(space, spaces.Dict):
        fields = [(key, _record_dtype(part)) for key, part in space.spaces.items()]
    elif isinstance(space, spaces.Discrete):
        fields = (np.int32, ())
    elif isinstance(space, spaces.MultiDiscrete):
        fields = (np.int32, space.nvec.shape)
    elif isinstance(space, (spaces.Box, spaces.MultiBinary)):
        fields = (space.dtype, space.shape)
    else:
        raise APIUsageError(f"expected array spaces, got {space}, which cannot be flattened; use envfleet.make()")
    dtype: np.dtype[Any] = np.dtype(fields, align=True)
    return dtype


def _flat_observations(space: gymnasium.Space[Any]) -> tuple[spaces.Box, np.dtype[Any]]:
    record = _record_dtype(space)
    if isinstance(space, spaces.Box):
        return space, record
    leaves = list(_leaves(space))
    dtypes = {np.dtype(leaf.dtype) for leaf in leaves}
    dtype = dtypes.pop() if len(dtypes) == 1 else np.dtype(np.uint8)
    if record.itemsize % dtype.itemsize:
        # A lone Discrete: its dtype has 64 bits, its record 32. PufferLib's Box would be empty.
        dtype = np.dtype(np.int32)
    bounds: Any = (0, 1) if dtype == np.bool_ else np.finfo(np.float32) if dtype.kind == "f" else np.iinfo(dtype)
    low, high = bounds if isinstance(bounds, tuple) else (bounds.min, bounds.max)
    return spaces.Box(low, high, (record.itemsize // dtype.itemsize,), dtype.type), record


def _flat_actions(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    if isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete)):
        return space
    sizes: list[int] = []
    for leaf in _leaves(space):
        if isinstance(leaf, (spaces.Discrete, spaces.MultiDiscrete)):
            sizes += [int(leaf.n)] if isinstance(leaf, spaces.Discrete) else leaf.nvec.ravel().tolist()
        else:
            raise APIUsageError(f"expected composite actions with discrete parts, got {leaf}; use envfleet.make()")
    return spaces.MultiDiscrete(sizes)


def _leaves(space: gymnasium.Space[Any]) -> Iterator[gymnasium.Space[Any]]:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        for part in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
            yield from _leaves(part)
    else:
        yield space


def _fill(record: NDArray[Any], value: Any) -> None:
    """Write a value into an array of one record."""
    if record.dtype.names is None:
        record[0] = value
        return
    parts = value.items() if isinstance(value, Mapping) else ((f"f{place}", part) for place, part in enumerate(value))
    for key, part in parts:
        _fill(record[key], part)


def _unflatten(space: gymnasium.Space[Any], numbers: Iterator[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _unflatten(part, numbers) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_unflatten(part, numbers) for part in space.spaces)
    if isinstance(space, spaces.MultiDiscrete):
        count = int(np.prod(space.nvec.shape))
        return np.array([next(numbers) for _ in range(count)], dtype=space.dtype).reshape(space.nvec.shape)
    return int(next(numbers))
