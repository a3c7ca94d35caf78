"""Player: what one player of a game sees, may do, and earns. It never moves the game."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.envs.vizdoom.actions import Buttons, button_space, combined_actions
from envfleet.envs.vizdoom.frames import Frames
from envfleet.envs.vizdoom.game import Game
from envfleet.envs.vizdoom.options import DoomOptions
from envfleet.envs.vizdoom.rewards import Score


class Player:
    """One player. After the game moved: begin() or look()."""

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
        # A game variable that rewards are made of may be any number.
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
            ("labels", options.labels, 1, "nearest"),  # the mean of two labels is a third one
            ("automap", options.automap, channels, smooth),
        ]
        return {
            name: Frames(raw, shape, planes, options.stack_num, resize)
            for name, is_on, planes, resize in wanted
            if is_on
        }

    def buttons(self, action: Any) -> Buttons:
        """The action as the engine takes it."""
        if self._actions is not None:
            return self._actions[int(action)]
        given: Buttons = np.asarray(action, dtype=np.float64).tolist()
        return given

    def begin(self) -> tuple[Any, dict[str, Any]]:
        """An episode, or a life, has begun."""
        state = self._doom.get_state()
        self._score.begin(self._values(state))
        return self._seen(state, is_first=True), self._info()

    def look(self) -> tuple[Any, float, dict[str, Any]]:
        """What the last step brought. After the end: the last picture, and what the end was worth."""
        state = self._doom.get_state()
        reward = self._score.step(self._values(state))
        if self._reward_of_game:
            reward = self._doom.get_last_reward()
        return self._seen(state, is_first=False), reward, self._info()

    def picture(self) -> NDArray[np.uint8]:
        """The screen in full size, height x width x 3."""
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
        # An ended game has no state, but its variables can still be asked for: the last kill counts.
        return [self._doom.get_game_variable(variable) for variable in self._variables]

    def _seen(self, state: Any, is_first: bool) -> Any:
        seen = {}
        for name, frames in self._frames.items():
            if state is None:
                seen[name] = frames.repeat()
            else:
                picture = getattr(state, f"{name}_buffer")
                seen[name] = frames.begin(picture) if is_first else frames.push(picture)
        return seen["screen"] if len(seen) == 1 else seen

    def _info(self) -> dict[str, Any]:
        values = self._score.values
        return {name: values[name] for name in self._names}
