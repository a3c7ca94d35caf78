"""Emulator: one console with its game, seeded and reset like ale-py's own Gymnasium env."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.utils import seeding

from envfleet.envs.atari.games import CLEARED_BY_RESET
from envfleet.envs.atari.options import AtariOptions
from envfleet.envs.atari.roms import check_settings, rom_info, rom_path
from envfleet.errors import MissingExtraError, StateError

# What reset_game() reached, by _reset_key(). The consoles of a process share these states: resetting emulates some
# 70 frames, as many as 17 steps, and in a synchronous batch every other env waits for it.
_first_states: dict[bytes, bytes] = {}
_MAX_FIRST_STATES = 64


def new_console(settings: Mapping[str, int | float]) -> Any:
    """Return an ale-py console without a game, with logging off."""
    try:
        from ale_py import ALEInterface, LoggerMode
    except ImportError as error:
        raise MissingExtraError("ale_py", "atari", "an Atari env") from error
    ALEInterface.setLoggerMode(LoggerMode.Error)
    console = ALEInterface()
    for name, value in settings.items():
        if isinstance(value, int):
            console.setInt(name, value)
        else:
            console.setFloat(name, value)
    return console


class Emulator:
    """A console, its game, and the random generator of no-ops and frame skips."""

    def __init__(self, game: str, options: AtariOptions) -> None:
        self.path: Path = rom_path(game)
        self.rom_info = rom_info(self.path)
        check_settings(game, options, self.rom_info)
        self._game = game
        self._options = options
        settings: dict[str, int | float] = {"repeat_action_probability": options.repeat_action_probability}
        if options.max_num_frames_per_episode:
            settings["max_num_frames_per_episode"] = options.max_num_frames_per_episode
        # Until a game is loaded, most calls crash ale-py: other code must use loaded_console().
        self.console = new_console(settings)
        self.actions = self.rom_info.legal_actions if options.full_action_space else self.rom_info.minimal_actions
        self.seeds: tuple[int, int] | None = None
        self.generator: np.random.Generator = np.random.default_rng(0)  # replaced by the first reset
        self.has_started = False
        self._is_loaded = False
        # A restored console would repeat the last action before it, where actions are sticky.
        self._is_restorable = game in CLEARED_BY_RESET and options.repeat_action_probability == 0

    def loaded_console(self) -> Any:
        """Return the console with its game loaded. Loading is slow, so it is deferred until this call."""
        if not self._is_loaded:
            self._load_rom()
        return self.console

    def start(self, seed: int | None, *, shows_first_screen: bool = True) -> None:
        """Start a new game; with a seed, after loading the ROM again.

        Without shows_first_screen, the screen may be an old one until the next frame.
        """
        if seed is not None or not self.has_started:
            self._seed_and_load(seed)
            self.has_started = True
            self.console.reset_game()
        elif shows_first_screen or not self._is_restorable:
            self.console.reset_game()
        else:
            self._reset_or_restore()

    def _reset_or_restore(self) -> None:
        """Do what reset_game() does, by restoring the state that it reached before, if it did."""
        from ale_py import ALEState

        key = _reset_key(self.console.cloneState().serialize())
        first_state = _first_states.get(key) if key else None
        if first_state is not None:
            frame_number = struct.pack("<i", self.console.getFrameNumber())
            self.console.restoreState(ALEState(first_state[:8] + frame_number + first_state[12:]))
            return
        self.console.reset_game()
        if key:
            if len(_first_states) >= _MAX_FIRST_STATES:
                _first_states.clear()
            _first_states[key] = self.console.cloneState().serialize()

    def _seed_and_load(self, seed: int | None) -> None:
        # As ale-py's env derives its two seeds; the emulator reads its seed when a ROM is loaded.
        drawn = np.random.SeedSequence(seed).generate_state(n_words=2)
        self.seeds = int(drawn[0]), int(drawn[1])
        self.generator = seeding.np_random(self.seeds[0])[0]
        self.console.setInt("random_seed", int(drawn[1].astype(np.int32)))
        self._load_rom()

    def _load_rom(self) -> None:
        self.console.loadROM(self.path)
        if self._options.mode != -1:
            self.console.setMode(self._options.mode)
        if self._options.difficulty != -1:
            self.console.setDifficulty(self._options.difficulty)
        self._is_loaded = True

    def save(self) -> tuple[Any, ...]:
        """Return the complete state of the game; the console's part is None before the first game."""
        state = self.console.cloneSystemState().serialize() if self.has_started else None
        return self._game, self.seeds, self.generator, state

    def load(self, saved: tuple[Any, ...]) -> None:
        """Restore a state that save() returned."""
        from ale_py import Action, ALEState

        game, self.seeds, self.generator, state = saved
        if game != self._game:
            raise StateError(f"expected a state of {self._game}, got one of {game}")
        if state is None:
            return
        self._load_rom()
        self.has_started = True
        # A console that has not rendered a frame yet renders its first one differently, whatever its state.
        self.console.reset_game()
        self.console.act(Action.NOOP)
        self.console.restoreSystemState(ALEState(state))


def _reset_key(state: bytes) -> bytes | None:
    """Return what the outcome of reset_game() depends on: game, mode, difficulty and the system's random generator.

    The generator, which the seed does not touch, sets the timer's first value. None: ale-py's format is not the known
    one, in which six integers, of which the third counts frames, precede the system's state.
    """
    parts = []
    position = 28
    try:
        for has_clock in (False, True, False):  # the ROM's digest, the name "System" and a clock, the generator as text
            (length,) = struct.unpack_from("<I", state, position)
            parts.append(state[position + 4 : position + 4 + length])
            position += 4 + length + 4 * has_clock
    except struct.error:
        return None
    digest, name, generator = parts
    if name != b"System" or not generator.replace(b" ", b"").isdigit():
        return None
    mode_and_difficulty = state[16:24]
    return hashlib.blake2b(mode_and_difficulty + digest + generator, digest_size=16).digest()
