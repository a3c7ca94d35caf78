"""ScenarioEnv: the vizdoom package's Gymnasium envs, with their spaces and semantics.

Observations are a Dict of every buffer that the cfg enables, and zeros on the last step; a timeout of the game is both
a termination and a truncation. envfleet manages the engine's process and files.
"""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.core.errors import ConfigError
from envfleet.core.option_checks import integer_option
from envfleet.families.vizdoom.actions import button_combinations
from envfleet.families.vizdoom.env import SingleGameEnv
from envfleet.families.vizdoom.files import find_cfg, new_doom
from envfleet.families.vizdoom.game import Game
from envfleet.families.vizdoom.options import check_files, hosting_args, load_cfg

_LABEL_COLORS = np.random.default_rng(42).uniform(25, 256, size=(256, 3)).astype(np.uint8)  # the package's own
_LARGEST = float(np.finfo(np.float32).max)


class ScenarioEnv(SingleGameEnv):
    """An env of the vizdoom package. kwargs: settings of a cfg file, which override the file's."""

    def __init__(
        self,
        scenario_config_file: str = "",
        config_file: str = "",
        frame_skip: int = 1,
        max_buttons_pressed: int = 0,
        render_mode: str | None = None,
        treat_episode_timeout_as_truncation: bool = True,
        use_multi_binary_action_space: bool = True,
        **kwargs: Any,
    ) -> None:
        import vizdoom

        doom = new_doom()
        cfg = load_cfg(doom, config_file or find_cfg(scenario_config_file))
        if kwargs and not doom.set_config(kwargs):
            raise ConfigError(
                f"expected settings of ViZDoom, got {kwargs}; it has printed the invalid ones on standard error"
            )
        self.frame_skip = integer_option("frame_skip", frame_skip, 1, 2**16)
        doom.set_window_visible(False)
        doom.set_audio_buffer_size(kwargs.get("audio_buffer_size", frame_skip))
        doom.set_notifications_buffer_size(kwargs.get("notifications_buffer_size", frame_skip))
        if doom.get_screen_format() not in (vizdoom.ScreenFormat.RGB24, vizdoom.ScreenFormat.GRAY8):
            doom.set_screen_format(vizdoom.ScreenFormat.RGB24)
        settings = {
            **kwargs,
            "audio_buffer_size": doom.get_audio_buffer_size(),
            "notifications_buffer_size": doom.get_notifications_buffer_size(),
        }
        # Maps are checked, and every skill works; any other setting may end the engine while it starts.
        files = check_files(doom, cfg, settings, is_custom=not kwargs.keys() <= {"doom_map", "doom_skill"})
        doom.add_game_args(hosting_args(cfg, doom.get_game_args()))
        super().__init__(Game(doom, files.engine), render_mode)
        self._is_gray = doom.get_screen_format() == vizdoom.ScreenFormat.GRAY8
        self._timeout_truncates = treat_episode_timeout_as_truncation
        self.action_space = self._make_action_space(
            integer_option("max_buttons_pressed", max_buttons_pressed, 0, 2**16), use_multi_binary_action_space
        )
        self._buffers = self._make_buffers()
        self.observation_space = spaces.Dict(self._buffers)

    # --- actions -------------------------------------------------------------------------------

    def _make_action_space(self, max_pressed: int, is_multi_binary: bool) -> gymnasium.Space[Any]:
        import vizdoom

        doom = self.game.doom
        delta: list[Any] = []
        binary: list[Any] = []
        for button in doom.get_available_buttons():
            (delta if vizdoom.is_delta_button(button) and button not in delta else binary).append(button)
        doom.set_available_buttons([*delta, *binary])
        self._num_delta, num_binary = len(delta), len(binary)
        self._combinations: list[list[float]] | None = None
        pressed: gymnasium.Space[Any]
        if max_pressed > num_binary > 0:
            warnings.warn(
                f"max_buttons_pressed expected at most {num_binary}, the number of buttons, got {max_pressed}; "
                f"using {num_binary}",
                stacklevel=3,
            )
            max_pressed = num_binary
        if max_pressed:
            self._combinations = button_combinations(num_binary, max_pressed)
            pressed = spaces.Discrete(len(self._combinations))
        else:
            pressed = spaces.MultiBinary(num_binary) if is_multi_binary else spaces.MultiDiscrete([2] * num_binary)
        deltas = spaces.Box(-_LARGEST, _LARGEST, (len(delta),), np.float32)
        self._has_both = bool(delta and binary)
        if self._has_both:
            return spaces.Dict({"binary": pressed, "continuous": deltas})
        return deltas if delta else pressed

    def _buttons(self, action: Any) -> list[float]:
        deltas: list[float] = []
        if self._has_both:
            deltas = np.asarray(action["continuous"], dtype=np.float64).tolist()
            action = action["binary"]
        elif self._num_delta:
            return np.asarray(action, dtype=np.float64).tolist()  # type: ignore[no-any-return]  # a list of floats
        pressed = self._combinations[int(action)] if self._combinations is not None else np.asarray(action).tolist()
        return [*deltas, *pressed]

    # --- observations --------------------------------------------------------------------------

    def _make_buffers(self) -> dict[str, Any]:
        doom = self.game.doom
        size = (doom.get_screen_height(), doom.get_screen_width())
        screen_shape = (*size, 1 if self._is_gray else 3)
        buffers: dict[str, Any] = {"screen": spaces.Box(0, 255, screen_shape, np.uint8)}
        if doom.is_depth_buffer_enabled():
            buffers["depth"] = spaces.Box(0, 255, (*size, 1), np.uint8)
        if doom.is_labels_buffer_enabled():
            buffers["labels"] = spaces.Box(0, 255, (*size, 1), np.uint8)
        if doom.is_automap_buffer_enabled():
            buffers["automap"] = spaces.Box(0, 255, screen_shape, np.uint8)
        if doom.is_audio_buffer_enabled():
            samples = int(doom.get_audio_sampling_rate() * 1 / 35 * self.frame_skip)
            buffers["audio"] = spaces.Box(-32768, 32767, (samples, 2), np.int16)
        if doom.is_notifications_buffer_enabled():
            buffers["notifications"] = spaces.Text(
                min_length=0, max_length=32768, charset=frozenset(map(chr, range(127)))
            )
        count = doom.get_available_game_variables_size()
        if count:
            buffers["gamevariables"] = spaces.Box(-_LARGEST, _LARGEST, (count,), np.float32)
        return buffers

    def _observation(self, state: Any) -> dict[str, Any]:
        observation: dict[str, Any] = {}
        for name, space in self._buffers.items():
            if state is None:
                observation[name] = "" if name == "notifications" else np.zeros(space.shape, space.dtype)
            elif name == "gamevariables":
                observation[name] = state.game_variables.astype(np.float32)
            elif name == "notifications":
                observation[name] = state.notifications_buffer
            else:
                buffer = getattr(state, f"{name}_buffer")
                observation[name] = buffer if buffer.ndim == len(space.shape) else buffer[..., None]
        return observation

    # --- Gymnasium -----------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a new episode."""
        self._new_episode(seed)
        return self._observation(self.game.doom.get_state()), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Press the buttons for frame_skip tics."""
        reward = self._advance(self._buttons(action), self.frame_skip)
        doom = self.game.doom
        truncated = doom.is_episode_timeout_reached() if self._timeout_truncates else False
        return self._observation(doom.get_state()), reward, doom.is_episode_finished(), truncated, {}

    def render(self) -> NDArray[np.uint8] | None:
        """Return all enabled buffers side by side."""
        doom = self.game.doom
        if not self.game.is_started:
            return None
        state = doom.get_state()
        extras = [name for name in ("depth", "labels", "automap") if name in self._buffers]
        if state is None:
            shape = (doom.get_screen_height(), doom.get_screen_width() * (1 + len(extras)), 3)
            return np.zeros(shape, dtype=np.uint8)
        images = [_rgb(state.screen_buffer)]
        for name in extras:
            if name == "labels":
                colored = np.zeros_like(images[0])
                for label in state.labels:
                    colored[state.labels_buffer == label.value] = _LABEL_COLORS[label.object_id % 256]
                images.append(colored)
            else:
                images.append(_rgb(getattr(state, f"{name}_buffer")))
        return np.concatenate(images, axis=1)


def _rgb(buffer: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.repeat(buffer[..., None], 3, axis=2) if buffer.ndim == 2 else buffer
