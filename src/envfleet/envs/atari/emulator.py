"""Emulator: one console with its game, seeded and reset like ale-py's own Gymnasium env."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.utils import seeding

from envfleet.envs.atari.options import AtariOptions
from envfleet.envs.atari.roms import check_settings, rom_info, rom_path
from envfleet.errors import MissingExtraError, StateError


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

    def loaded_console(self) -> Any:
        """Return the console with its game loaded. Loading is slow, so it is deferred until this call."""
        if not self._is_loaded:
            self._load_rom()
        return self.console

    def start(self, seed: int | None) -> None:
        """Start a new game; with a seed, after loading the ROM again."""
        if seed is not None or not self.has_started:
            self._seed_and_load(seed)
            self.has_started = True
        self.console.reset_game()

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
