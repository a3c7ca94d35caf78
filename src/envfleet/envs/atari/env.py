"""AtariEnv: one game, with the options of EnvPool and the semantics of Gymnasium's wrappers."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from envfleet.envs.atari.emulator import Emulator
from envfleet.envs.atari.observations import observer_for
from envfleet.envs.atari.options import STYLES, options_as_dict, read_options
from envfleet.errors import ConfigError

# numpy's scalars never change: one of each will do, and infos are built at every step.
_INT32 = tuple(np.int32(i) for i in range(256))
_FLOAT32 = {float(i): np.float32(i) for i in range(-1000, 1001)}

Step = tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]


class AtariEnv(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """One game. See docs/atari.md for the options and for what each name's defaults are."""

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
        self._noop = _named(self._emulator.facts.legal_actions, "NOOP")
        fires = own.use_fire_reset and any(action.name == "FIRE" for action in self._emulator.actions)
        self._fire = _named(self._emulator.facts.legal_actions, "FIRE") if fires else None
        # Bound when a game starts: a step takes a microsecond besides the emulation, and looking these up would double
        # it. Before, the console has no game, and these calls would end the process.
        self._act = self._is_over = self._lives = _refuse_before_reset
        self._actions = self._emulator.actions
        self._whole, self._take_before = self._observer.whole, self._observer.take_before
        self._skip = own.frame_skip if isinstance(own.frame_skip, int) else 0  # 0: drawn for each step
        self._frameskip = own.frame_skip  # where Gymnasium's AtariPreprocessing looks for it
        self._watches_lives = own.episodic_life or own.zero_discount_on_life_loss
        self._tells_truth = style == "envpool" or own.reward_clip or own.episodic_life
        self._ram = np.zeros(self._emulator.facts.ram_bytes, np.uint8)
        self._lives_before = 0
        self._game_step = 0
        self._step_limit: int | None = None
        self._goes_on = False  # a life was lost, and the next reset is another life in the same game
        self._picture: NDArray[np.uint8] | None = None  # where the console has forgotten its own
        self._copies = True

    def envfleet_time_limit(self, max_episode_steps: int | None) -> None:
        """Told by a pool: the limit of a whole game, whose lives may be episodes to the pool."""
        self._step_limit = max_episode_steps

    def envfleet_observe_into(self, row: NDArray[np.uint8]) -> None:
        """Told by a pool: where observations go. They are overwritten by the next step, which the pool knows."""
        self._observer.observe_into(row)
        self._copies = False

    # --- playing ---------------------------------------------------------------------------------

    def step(self, action: Any) -> Step:
        """Repeats an action for frame_skip frames, or until the episode ends."""
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
                continue  # as ale-py's env does: the console still draws for sticky actions
            if self._watches_lives and self._loses_life():
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
        self._picture = None
        info = self._info(reward, terminated)
        if own.zero_discount_on_life_loss:
            info["discount"] = _FLOAT32[0.0 if has_lost or terminated else 1.0]
        if own.episodic_life:
            truncated = truncated or self._game_step == self._step_limit
            self._goes_on = has_lost and not truncated
            terminated = terminated or has_lost
        if own.reward_clip:
            reward = float(np.sign(reward))
        return obs.copy() if self._copies else obs, reward, terminated, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """A new game; or, with episodic_life after the loss of a life, the same game where it stands."""
        emulator = self._emulator
        goes_on = self._goes_on and seed is None
        if not goes_on:
            self._start(seed)
        goes_on = self._wait(seed) and goes_on
        obs = self._observer.alone() if goes_on else self._observer.begin()
        self._goes_on = False
        self._picture = None
        self._lives_before = self._lives()
        info = self._info(0.0, False)
        if seed is not None and self._options.frames_in_info:
            info["seeds"] = tuple(np.uint32(own) for own in emulator.seeds or ())
        return obs.copy() if self._copies else obs, info

    def _start(self, seed: int | None) -> None:
        self._emulator.start(seed)
        self._bind()
        self._np_random = self._emulator.generator
        self._game_step = 0

    def _bind(self) -> None:
        console = self._emulator.console
        self._act, self._is_over, self._lives = console.act, console.game_over, console.lives

    def _wait(self, seed: int | None) -> bool:
        """Does nothing for a while, then fires where a game waits for that. False when a game ended over it."""
        is_same_game = True
        waits = 0
        if self._options.noop_max > 0:
            # Drawn as Gymnasium's AtariPreprocessing draws it; fire takes the place of one frame.
            waits = int(self._emulator.generator.integers(1, self._options.noop_max + 1)) - (self._fire is not None)
        for _ in range(waits):
            self._act(self._noop)
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
        # A game that shows 0 lives for a while before it is over ends once, when it is over.
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
        if self._tells_truth:
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
        """The infos of every row."""
        own = self._options
        integer = np.int64 if own.frames_in_info else np.int32
        names = ["lives", "episode_frame_number", "frame_number"] if own.frames_in_info else ["lives"]
        known: dict[str, gymnasium.Space[Any]] = {name: _count(integer) for name in names}
        if self._tells_truth:
            known["reward"] = spaces.Box(-np.inf, np.inf, (), np.float32)
            known["terminated"] = spaces.Box(0, 1, (), np.int32)
        if own.episodic_life:
            known["game_step"] = _count(np.int32)
        if own.ram_in_info:
            known["ram"] = spaces.Box(0, 255, self._ram.shape, np.uint8)
        return spaces.Dict(list(known.items()))

    # --- what else one may ask -------------------------------------------------------------------

    @property
    def ale(self) -> Any:
        """ale-py's console itself, where Gymnasium's wrappers look for it."""
        return self._emulator.loaded_console()

    @property
    def options(self) -> dict[str, Any]:
        """Every option and its value."""
        return options_as_dict(self._options)

    def get_action_meanings(self) -> list[str]:
        """The name of each action."""
        return [action.name for action in self._actions]

    def render(self) -> NDArray[np.uint8] | None:
        """The screen as it is, at full size and in colour."""
        if self.render_mode is None:
            return None
        if not self._emulator.has_started:
            _refuse_before_reset()
        if self._picture is not None:
            kept: NDArray[np.uint8] = self._picture.copy()
            return kept
        picture: NDArray[np.uint8] = self._emulator.console.getScreenRGB()
        return picture

    # --- state: pickling an env saves its game ---------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        emulator = self._emulator.save()
        picture = None if emulator[-1] is None else self._picture
        if picture is None and emulator[-1] is not None:
            picture = self._emulator.console.getScreenRGB()
        standing = (self._lives_before, self._game_step, self._goes_on, self._step_limit)
        state = (emulator, self._observer.save(), picture, standing, self.spec)
        return _restored, (type(self), self._arguments, state)

    def __deepcopy__(self, memo: dict[int, Any]) -> AtariEnv:
        restore, arguments = self.__reduce__()
        copied: AtariEnv = restore(*arguments)
        return copied

    def load_state(self, state: tuple[Any, ...]) -> None:
        """Goes on where the env that was pickled stood."""
        emulator, observer, self._picture, standing, self.spec = state
        self._emulator.load(emulator)
        if self._emulator.has_started:
            self._bind()
        self._np_random = self._emulator.generator
        self._observer.load(observer)
        self._lives_before, self._game_step, self._goes_on, self._step_limit = standing


def _restored(kind: type[AtariEnv], arguments: tuple[Any, ...], state: tuple[Any, ...]) -> AtariEnv:
    game, style, render_mode, options = arguments
    env = kind(game, style, render_mode, **options)
    env.load_state(state)
    return env


def _refuse_before_reset(*args: Any, **kwargs: Any) -> Any:
    raise ResetNeeded("an Atari env expected reset() before step() or render(); call reset() first")


def _named(actions: tuple[Any, ...], name: str) -> Any:
    return next(action for action in actions if action.name == name)


def _count(dtype: type[np.integer[Any]]) -> spaces.Box:
    return spaces.Box(0, np.iinfo(dtype).max, (), dtype)
