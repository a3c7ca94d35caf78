"""The minigrid package's envs with the options of the native ones, for Python backends."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator
from minigrid import wrappers
from minigrid.core.mission import MissionSpace

from envfleet.core.errors import ConfigError
from envfleet.families.minigrid import missions


def make_env(
    package_class: str, observation: str = "partial", obs_tile_size: int = 8, mission: str = "text", **kwargs: Any
) -> gymnasium.Env[Any, Any]:
    """Return an env of this class, in the package's own wrappers where an option requires them."""
    make: Any = load_env_creator(package_class)
    env: gymnasium.Env[Any, Any] = make(**kwargs)
    package: Any = wrappers
    if observation == "full":
        env = package.FullyObsWrapper(env)
    elif observation == "rgb":
        env = package.RGBImgObsWrapper(env, obs_tile_size)
    elif observation == "rgb_partial":
        env = package.RGBImgPartialObsWrapper(env, obs_tile_size)
    elif observation != "partial":
        raise ConfigError(f"observation expected 'partial', 'full', 'rgb' or 'rgb_partial', got {observation!r}")
    if mission == "code":
        return MissionCode(env)
    if mission != "text":
        raise ConfigError(f"mission expected 'text' or 'code', got {mission!r}")
    return env


class MissionCode(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Replaces the mission by its code: its index in the mission space."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, spaces.Dict)
        if type(space["mission"]) is not MissionSpace:
            raise ConfigError(f"mission='code' expected an env with a finite set of missions, got {env}; leave it out")
        texts = missions(space["mission"])
        self._codes = {text: code for code, text in enumerate(texts)}
        self.observation_space = spaces.Dict({**space.spaces, "mission": spaces.Discrete(len(texts))})

    def observation(self, observation: Any) -> Any:
        """Replace the mission by its code."""
        return {**observation, "mission": self._codes[observation["mission"]]}
