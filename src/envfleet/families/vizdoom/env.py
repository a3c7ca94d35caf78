"""DoomEnv: a ViZDoom scenario as in EnvPool: stacked frames, shaped rewards, game variables as infos."""

from __future__ import annotations

import os
from typing import Any

import gymnasium
import numpy as np

from envfleet.core.errors import ConfigError, StateError
from envfleet.families.vizdoom.files import find_cfg
from envfleet.families.vizdoom.game import Game, GameError
from envfleet.families.vizdoom.options import DoomOptions, make_game
from envfleet.families.vizdoom.player import Player


class SingleGameEnv(gymnasium.Env[Any, Any]):
    """Base of the envs with one game: starts, seeds and ends it."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 35}  # noqa: RUF012 (Gymnasium's name)

    def __init__(self, game: Game, render_mode: str | None) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ConfigError(f"render_mode expected 'rgb_array' or None, got {render_mode!r}")
        self.game = game
        self.render_mode = render_mode

    def _new_episode(self, seed: int | None, recording: str = "") -> None:
        """Start an episode that depends on this env's random generator, and on no earlier episode."""
        super().reset(seed=seed)
        doom = self.game.doom
        if self.game.is_started and not doom.is_running():
            self.game.close()  # its engine has died
        # The engine's own generator would depend on what was played before.
        doom.set_seed(int(self.np_random.integers(0, 2**32, dtype=np.uint32)))
        if not self.game.is_started:
            self.game.start()
            if not recording:
                return
        try:
            doom.new_episode(recording)
        except Exception as error:
            raise self.game.died(error) from error

    def _advance(self, buttons: list[float], tics: int) -> float:
        if not self.game.is_started:
            raise GameError("the ViZDoom engine is not running; call reset() first")
        try:
            reward: float = self.game.doom.make_action(buttons, tics)
        except Exception as error:
            raise self.game.died(error) from error
        return reward

    def close(self) -> None:
        """End the engine; reset() starts another one."""
        self.game.close()

    def __reduce__(self) -> Any:
        raise StateError(
            "the state of a ViZDoom game cannot be saved: it is in the engine's process, which has no call for that"
        )


def read_options(scenario: str = "", **kwargs: Any) -> DoomOptions:
    """Return the options of a DoomEnv with these arguments."""
    if scenario and not kwargs.get("cfg_path"):
        kwargs["cfg_path"] = find_cfg(scenario)
    return DoomOptions(**{"cfg_path": "", **kwargs})


class DoomEnv(SingleGameEnv):
    """One player alone in a scenario. kwargs: see DoomOptions."""

    def __init__(self, scenario: str = "", render_mode: str | None = None, **kwargs: Any) -> None:
        """scenario: the name of a cfg file of the vizdoom package; or pass the path of one as cfg_path."""
        self.options = read_options(scenario, **kwargs)
        super().__init__(make_game(self.options), render_mode)
        self._player = Player(self.game, self.options)
        self.observation_space = self._player.observation_space
        self.action_space = self._player.action_space
        self.info_space = self._player.info_space
        self._lost_a_life = False  # the episode ended, but the game continues
        self._num_episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a new game; or, with episodic_life and without a seed, the next life in the same game."""
        if self._lost_a_life and seed is None and not self.game.doom.is_episode_finished():
            self._lost_a_life = False
            self._advance(self._player.idle, self.options.frame_skip)
            if not self.game.doom.is_episode_finished():
                return self._player.begin()
        self._lost_a_life = False
        self._new_episode(seed, self._recording())
        return self._player.begin()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Press the buttons for frame_skip tics. Any end of the game is a termination."""
        self._advance(self._player.buttons(action), self.options.frame_skip)
        obs, reward, info = self._player.observe()
        doom = self.game.doom
        terminated = doom.is_episode_finished()
        if self.options.episodic_life and not terminated and doom.is_player_dead():
            self._lost_a_life = terminated = True
        return obs, reward, terminated, False, info

    def render(self) -> Any:
        """Return the screen at full size."""
        return self._player.render() if self.game.is_started else None

    def _recording(self) -> str:
        if not self.options.lmp_save_dir:
            return ""
        folder = os.path.abspath(self.options.lmp_save_dir)
        os.makedirs(folder, exist_ok=True)
        self._num_episodes += 1
        return os.path.join(folder, f"env_{os.getpid()}_{id(self):x}_{self._num_episodes}.lmp")
