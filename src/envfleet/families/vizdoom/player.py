"""Player: one player's observations, actions and rewards. It never advances the game."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.families.vizdoom.actions import Buttons, button_space, combined_actions
from envfleet.families.vizdoom.frames import Frames
from envfleet.families.vizdoom.game import Game
from envfleet.families.vizdoom.options import DoomOptions
from envfleet.families.vizdoom.rewards import Score


class Player:
    """One player of a game. Call begin() or observe() after the game has advanced."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]

    def __init__(self, game: Game, options: DoomOptions) -> None:
        self._doom = game.doom
        self._reward_of_game = options.reward_config is None
        self._names = options.variables
        self._variables = self._doom.get_available_game_variables()
        self._score = Score(
            [variable.name for variable in self._variables],
            options.reward_config or {},
            options.selected_weapon_reward_config,
            options.weapon_duration,
        )
        buttons = [button.name for button in self._doom.get_available_buttons()]
        self._actions: list[Buttons] | None = None
        if options.use_combined_action:
            self._actions = combined_actions(buttons, options.force_speed, options.delta_button_config)
            self.action_space = spaces.Discrete(len(self._actions))
        else:
            self.action_space = button_space(buttons)
        # Game variables are unbounded.
        self.info_space = spaces.Dict([(name, spaces.Box(-np.inf, np.inf, (), np.float64)) for name in self._names])
        self.idle: Buttons = [0.0] * len(buttons)
        self._frames = self._make_frames(options)
        boxes: dict[str, gymnasium.Space[Any]] = {
            name: spaces.Box(0, 255, frames.shape, np.uint8) for name, frames in self._frames.items()
        }
        self.observation_space = boxes["screen"] if len(boxes) == 1 else spaces.Dict(boxes)

    def _make_frames(self, options: DoomOptions) -> dict[str, Frames]:
        raw = (self._doom.get_screen_height(), self._doom.get_screen_width())
        shape = (options.img_height, options.img_width)
        channels = self._doom.get_screen_channels()
        smooth = "area" if options.use_inter_area_resize else "linear"
        wanted = [
            ("screen", True, channels, smooth),
            ("depth", options.depth, 1, smooth),
            ("labels", options.labels, 1, "nearest"),  # the mean of two labels would be a third label
            ("automap", options.automap, channels, smooth),
        ]
        return {
            name: Frames(raw, shape, planes, options.stack_num, resize)
            for name, is_on, planes, resize in wanted
            if is_on
        }

    def buttons(self, action: Any) -> Buttons:
        """Convert an action to the state of each button."""
        if self._actions is not None:
            return self._actions[int(action)]
        buttons: Buttons = np.asarray(action, dtype=np.float64).tolist()
        return buttons

    def begin(self) -> tuple[Any, dict[str, Any]]:
        """Return the first observation and info of an episode, or of a life."""
        state = self._doom.get_state()
        self._score.begin(self._values(state))
        return self._observation(state, is_first=True), self._info()

    def observe(self) -> tuple[Any, float, dict[str, Any]]:
        """Return observation, reward and info after a step. After the end, the observation is the last one."""
        state = self._doom.get_state()
        reward = self._score.step(self._values(state))
        if self._reward_of_game:
            reward = self._doom.get_last_reward()
        return self._observation(state, is_first=False), reward, self._info()

    def render(self) -> NDArray[np.uint8]:
        """Return the screen at full size, as (height, width, 3)."""
        state = self._doom.get_state()
        if state is None:
            return np.zeros((self._doom.get_screen_height(), self._doom.get_screen_width(), 3), dtype=np.uint8)
        screen: NDArray[np.uint8] = state.screen_buffer
        return (
            np.repeat(screen[..., None], 3, axis=2)
            if screen.ndim == 2
            else np.ascontiguousarray(screen.transpose(1, 2, 0))
        )

    def _values(self, state: Any) -> list[float]:
        if state is not None:
            values: list[float] = state.game_variables.tolist()
            return values
        # A game that has ended has no state, but still has its variables: the last kill counts.
        return [self._doom.get_game_variable(variable) for variable in self._variables]

    def _observation(self, state: Any, is_first: bool) -> Any:
        parts = {}
        for name, frames in self._frames.items():
            if state is None:
                parts[name] = frames.repeat()
            else:
                screen = getattr(state, f"{name}_buffer")
                parts[name] = frames.begin(screen) if is_first else frames.push(screen)
        return parts["screen"] if len(parts) == 1 else parts

    def _info(self) -> dict[str, Any]:
        values = self._score.values
        return {name: values[name] for name in self._names}
