"""Emulator: one console with its game, seeded and reset like ale-py's own Gymnasium env."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.utils import seeding

from envfleet.core.errors import MissingExtraError, StateError
from envfleet.families.atari.games import CLEARED_BY_RESET
from envfleet.families.atari.options import AtariOptions
from envfleet.families.atari.roms import check_settings, rom_info, rom_path

# What reset_game() reached, by _reset_key(), followed by the states after every _NOOP_STRIDE no-ops. The consoles of a
# process share these states: resetting emulates some 70 frames and then the no-ops, 20 steps' time together, and in a
# synchronous batch every other env waits for it.
_first_states: dict[bytes, list[bytes]] = {}
_MAX_FIRST_STATES = 64
# Saving a state takes as long as half a frame.
_NOOP_STRIDE = 4


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
        # Those of _first_states that this game continues with; None: unknown.
        self._next_states: list[bytes] | None = None

    def loaded_console(self) -> Any:
        """Return the console with its game loaded. Loading is slow, so it is deferred until this call."""
        if not self._is_loaded:
            self._load_rom()
        return self.console

    def start(self, seed: int | None, *, shows_first_screen: bool = True) -> None:
        """Start a new game; with a seed, after loading the ROM again.

        Without shows_first_screen, the screen may be an old one until the next frame.
        """
        self._next_states = None
        if seed is not None or not self.has_started:
            self._seed_and_load(seed)
            self.has_started = True
            self.console.reset_game()
        elif shows_first_screen or not self._is_restorable:
            self.console.reset_game()
        else:
            self._reset_or_restore()

    def play_noops(self, count: int, *, num_shown: int) -> int:
        """Play no-ops until the game is over; return how many.

        Directly after start(), all but the last num_shown may be skipped by restoring a state, which has no screen.
        """
        from ale_py import Action

        states, self._next_states = self._next_states, None
        played = 0
        if states is not None:
            known = min((count - num_shown) // _NOOP_STRIDE, len(states) - 1)
            if known > 0:
                played = known * _NOOP_STRIDE
                self._restore(states[known], self.console.getFrameNumber() + played)
        while played < count:
            self.console.act(Action.NOOP)
            played += 1
            if self.console.game_over():
                break
            if states is not None and played == len(states) * _NOOP_STRIDE:
                states.append(self.console.cloneState().serialize())
        return played

    def _reset_or_restore(self) -> None:
        """Do what reset_game() does, by restoring the state that it reached before, if it did."""
        key = _reset_key(self.console.cloneState().serialize(), self._options.max_num_frames_per_episode)
        states = _first_states.get(key) if key else None
        if states is not None:
            self._restore(states[0], self.console.getFrameNumber())
        else:
            self.console.reset_game()
            if key:
                if len(_first_states) >= _MAX_FIRST_STATES:
                    del _first_states[next(iter(_first_states))]  # the oldest
                states = _first_states[key] = [self.console.cloneState().serialize()]
        self._next_states = states

    def _restore(self, state: bytes, frame_number: int) -> None:
        """Restore a state of another console, with this console's frame number."""
        from ale_py import ALEState

        self.console.restoreState(ALEState(state[:8] + struct.pack("<i", frame_number) + state[12:]))

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


def _reset_key(state: bytes, max_num_frames: int) -> bytes | None:
    """Return what a new game depends on: the game, its options and the system's random generator.

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
    options = mode_and_difficulty + struct.pack("<q", max_num_frames)
    return hashlib.blake2b(options + digest + generator, digest_size=16).digest()
