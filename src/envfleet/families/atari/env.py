"""AtariEnv: one game, with the options of EnvPool and the semantics of Gymnasium's wrappers."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from envfleet.core.errors import ConfigError
from envfleet.families.atari.emulator import Emulator
from envfleet.families.atari.observations import observer_for
from envfleet.families.atari.options import STYLES, options_as_dict, read_options

# NumPy scalars are immutable: one of each suffices, and infos are built at every step.
_INT32 = tuple(np.int32(i) for i in range(256))
_FLOAT32 = {float(i): np.float32(i) for i in range(-1000, 1001)}

Step = tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]


class AtariEnv(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """One game. See docs/atari.md for the options and the defaults of each id."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 60}  # noqa: RUF012 (Gymnasium's form)

    def __init__(self, game: str, style: str = "envpool", render_mode: str | None = None, **options: Any) -> None:
        if style not in STYLES:
            raise ConfigError(f"style expected one of {', '.join(STYLES)}, got {style!r}")
        if render_mode not in (None, "rgb_array"):
            raise ConfigError(f"render_mode of an Atari env expected 'rgb_array' or None, got {render_mode!r}")
        self._arguments = (game, style, render_mode, options)
        own = self._options = read_options(style, options)
        self.render_mode = render_mode
        self._emulator = Emulator(game, own)
        self._observer = observer_for(self._emulator, own)
        self.observation_space: spaces.Space[Any] = self._observer.observation_space
        self.action_space = spaces.Discrete(len(self._emulator.actions))
        if isinstance(own.frame_skip, int):
            self.metadata = {**self.metadata, "render_fps": max(1, round(60 / own.frame_skip))}
        fires = own.use_fire_reset and any(action.name == "FIRE" for action in self._emulator.actions)
        self._fire = _named(self._emulator.rom_info.legal_actions, "FIRE") if fires else None
        # Bound when a game starts: looking these up in each step would double the microsecond that a step takes besides
        # the emulation. Before that, the console has no game, and these calls would crash the process.
        self._act = self._is_over = self._lives = _refuse_before_reset
        self._actions = self._emulator.actions
        self._whole, self._take_before = self._observer.whole, self._observer.take_before
        self._skip = own.frame_skip if isinstance(own.frame_skip, int) else 0  # 0: sampled in each step
        self._frameskip = own.frame_skip  # read by Gymnasium's AtariPreprocessing
        self._tracks_lives = own.episodic_life or own.zero_discount_on_life_loss
        self._reports_raw_values = style == "envpool" or own.reward_clip or own.episodic_life
        self._ram = np.zeros(self._emulator.rom_info.ram_bytes, np.uint8)
        self._lives_before = 0
        self._game_step = 0
        self._step_limit: int | None = None
        self._continues = False  # a life was lost, and the next reset starts another life in the same game
        self._frame: NDArray[np.uint8] | None = None  # after load_state(), when the console has none
        self._copies = True

    def envfleet_time_limit(self, max_episode_steps: int | None) -> None:
        """Set the time limit of a whole game, whose lives may be episodes; called by the pool."""
        self._step_limit = max_episode_steps

    def envfleet_observe_into(self, row: NDArray[np.uint8]) -> None:
        """Write observations into this row, which the next step overwrites; called by the pool."""
        self._observer.observe_into(row)
        self._copies = False

    # --- Gymnasium's API -------------------------------------------------------------------------

    def step(self, action: Any) -> Step:
        """Repeat an action for frame_skip frames, or until the episode ends."""
        own = self._options
        act, is_over = self._act, self._is_over
        button = self._actions[action]
        skip = self._skip or int(self._emulator.generator.integers(*self._frameskip))  # type: ignore[misc]
        last_but_one = skip - 2
        score = 0
        has_ended = has_lost = False
        frame = 0
        for frame in range(skip):
            score += act(button)
            if is_over():
                has_ended = True
                if own.max_pool:
                    break
                continue  # as in ale-py's env: the console still samples sticky actions
            if self._tracks_lives and self._loses_life():
                has_lost = True
                if own.episodic_life:
                    break
            if frame == last_but_one:
                self._take_before()
        if has_ended or (has_lost and own.episodic_life):
            obs = self._observer.cut(0 <= last_but_one < frame)
        else:
            obs = self._whole() if last_but_one >= 0 else self._observer.alone()
        terminated = truncated = False
        if has_ended:
            terminated = bool(self._is_over(with_truncation=False))
            truncated = bool(self._emulator.console.game_truncated())
        reward = float(score)
        self._game_step += 1
        self._frame = None
        info = self._info(reward, terminated)
        if own.zero_discount_on_life_loss:
            info["discount"] = _FLOAT32[0.0 if has_lost or terminated else 1.0]
        if own.episodic_life:
            truncated = truncated or self._game_step == self._step_limit
            self._continues = has_lost and not truncated
            terminated = terminated or has_lost
        if own.reward_clip:
            reward = float(np.sign(reward))
        return obs.copy() if self._copies else obs, reward, terminated, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Start a new game; or, with episodic_life after the loss of a life, continue the same game."""
        emulator = self._emulator
        continues = self._continues and seed is None
        if not continues:
            self._start(seed, shows_first_screen=self._options.noop_max == 0 and self._fire is None)
        continues = self._play_noops(seed) and continues
        obs = self._observer.alone() if continues else self._observer.begin()
        self._continues = False
        self._frame = None
        self._lives_before = self._lives()
        info = self._info(0.0, False)
        if seed is not None and self._options.frames_in_info:
            info["seeds"] = tuple(np.uint32(own) for own in emulator.seeds or ())
        return obs.copy() if self._copies else obs, info

    def _start(self, seed: int | None, *, shows_first_screen: bool = True) -> None:
        self._emulator.start(seed, shows_first_screen=shows_first_screen)
        self._bind()
        self._np_random = self._emulator.generator
        self._game_step = 0

    def _bind(self) -> None:
        console = self._emulator.console
        self._act, self._is_over, self._lives = console.act, console.game_over, console.lives

    def _play_noops(self, seed: int | None) -> bool:
        """Play the no-ops, then fire if the game waits for that. Return False if the game ended meanwhile."""
        is_same_game = True
        num_noops = 0
        if self._options.noop_max > 0:
            # Sampled as in Gymnasium's AtariPreprocessing; fire replaces one of them.
            num_noops = int(self._emulator.generator.integers(1, self._options.noop_max + 1)) - (self._fire is not None)
        while num_noops > 0:
            # Two frames, fire included, follow a restored state: the console draws into two screens in turn.
            num_noops -= self._emulator.play_noops(num_noops, num_shown=1 if self._fire is not None else 2)
            if self._is_over():
                self._start(seed)
                is_same_game = False
        if self._fire is not None:
            self._act(self._fire)
            if self._is_over():
                self._start(None)
                is_same_game = False
        return is_same_game

    def _loses_life(self) -> bool:
        lives = self._lives()
        before, self._lives_before = self._lives_before, lives
        # A game that reports 0 lives for a while before it is over ends only once, when it is over.
        return bool(0 < lives < before)

    def _info(self, reward: float, is_over: bool) -> dict[str, Any]:
        own = self._options
        info: dict[str, Any]
        if own.frames_in_info:
            console = self._emulator.console
            info = {
                "lives": self._lives(),
                "episode_frame_number": console.getEpisodeFrameNumber(),
                "frame_number": console.getFrameNumber(),
            }
        else:
            info = {"lives": _INT32[self._lives()]}
        if self._reports_raw_values:
            info["reward"] = _FLOAT32[reward] if reward in _FLOAT32 else np.float32(reward)
            info["terminated"] = _INT32[is_over]
        if own.episodic_life:
            info["game_step"] = np.int32(self._game_step)
        if own.ram_in_info:
            self._emulator.console.getRAM(self._ram)
            info["ram"] = self._ram.copy() if self._copies else self._ram
        return info

    @property
    def info_space(self) -> spaces.Dict:
        """The infos that every row has."""
        own = self._options
        integer = np.int64 if own.frames_in_info else np.int32
        names = ["lives", "episode_frame_number", "frame_number"] if own.frames_in_info else ["lives"]
        known: dict[str, gymnasium.Space[Any]] = {name: _count(integer) for name in names}
        if self._reports_raw_values:
            known["reward"] = spaces.Box(-np.inf, np.inf, (), np.float32)
            known["terminated"] = spaces.Box(0, 1, (), np.int32)
        if own.episodic_life:
            known["game_step"] = _count(np.int32)
        if own.ram_in_info:
            known["ram"] = spaces.Box(0, 255, self._ram.shape, np.uint8)
        return spaces.Dict(list(known.items()))

    # --- other attributes ------------------------------------------------------------------------

    @property
    def ale(self) -> Any:
        """ale-py's console, under the name that Gymnasium's wrappers use."""
        return self._emulator.loaded_console()

    @property
    def options(self) -> dict[str, Any]:
        """Every option and its value."""
        return options_as_dict(self._options)

    def get_action_meanings(self) -> list[str]:
        """Return the name of each action."""
        return [action.name for action in self._actions]

    def render(self) -> NDArray[np.uint8] | None:
        """Return the screen at full size and in color."""
        if self.render_mode is None:
            return None
        if not self._emulator.has_started:
            _refuse_before_reset()
        if self._frame is not None:
            saved: NDArray[np.uint8] = self._frame.copy()
            return saved
        frame: NDArray[np.uint8] = self._emulator.console.getScreenRGB()
        return frame

    # --- state: pickling an env saves its game ---------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        emulator = self._emulator.save()
        frame = None if emulator[-1] is None else self._frame
        if frame is None and emulator[-1] is not None:
            frame = self._emulator.console.getScreenRGB()
        progress = (self._lives_before, self._game_step, self._continues, self._step_limit)
        state = (emulator, self._observer.save(), frame, progress, self.spec)
        return _restore, (type(self), self._arguments, state)

    def __deepcopy__(self, memo: dict[int, Any]) -> AtariEnv:
        restore, arguments = self.__reduce__()
        copied: AtariEnv = restore(*arguments)
        return copied

    def load_state(self, state: tuple[Any, ...]) -> None:
        """Restore the state of the env that was pickled."""
        emulator, observer, self._frame, progress, self.spec = state
        self._emulator.load(emulator)
        if self._emulator.has_started:
            self._bind()
        self._np_random = self._emulator.generator
        self._observer.load(observer)
        self._lives_before, self._game_step, self._continues, self._step_limit = progress


def _restore(kind: type[AtariEnv], arguments: tuple[Any, ...], state: tuple[Any, ...]) -> AtariEnv:
    game, style, render_mode, options = arguments
    env = kind(game, style, render_mode, **options)
    env.load_state(state)
    return env


def _refuse_before_reset(*args: Any, **kwargs: Any) -> Any:
    raise ResetNeeded("an Atari env expected reset() before step() or render(), got none; call reset() first")


def _named(actions: tuple[Any, ...], name: str) -> Any:
    return next(action for action in actions if action.name == name)


def _count(dtype: type[np.integer[Any]]) -> spaces.Box:
    return spaces.Box(0, np.iinfo(dtype).max, (), dtype)
