"""Emulator: one console with its game, seeded and reset as ale-py's own Gymnasium env does it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.utils import seeding

from envfleet.envs.atari.options import AtariOptions
from envfleet.envs.atari.roms import check_settings, facts_of, rom_path
from envfleet.errors import MissingExtraError, StateError


def new_console(settings: Mapping[str, int | float]) -> Any:
    """An ale-py console without a game, quiet."""
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
    """A console, its game and the generator that draws no-ops and frame skips."""

    def __init__(self, game: str, options: AtariOptions) -> None:
        self.path: Path = rom_path(game)
        self.facts = facts_of(self.path)
        check_settings(game, options, self.facts)
        self._game = game
        self._options = options
        settings: dict[str, int | float] = {"repeat_action_probability": options.repeat_action_probability}
        if options.max_num_frames_per_episode:
            settings["max_num_frames_per_episode"] = options.max_num_frames_per_episode
        # Until a game is loaded, ale-py answers most calls with a segmentation fault: loaded_console() is for others.
        self.console = new_console(settings)
        self.actions = self.facts.legal_actions if options.full_action_space else self.facts.minimal_actions
        self.seeds: tuple[int, int] | None = None
        self.generator: np.random.Generator = np.random.default_rng(0)  # the first reset brings its own
        self.has_started = False
        self._is_loaded = False

    def loaded_console(self) -> Any:
        """The console with its game in it. Loading takes a while, so a console has none until it is asked for."""
        if not self._is_loaded:
            self._insert()
        return self.console

    def start(self, seed: int | None) -> None:
        """A new game. With a seed, on a console that was just switched on."""
        if seed is not None or not self.has_started:
            self._load(seed)
            self.has_started = True
        self.console.reset_game()

    def _load(self, seed: int | None) -> None:
        # Gymnasium's env draws both of its seeds so; the emulator takes its own when a ROM is loaded.
        drawn = np.random.SeedSequence(seed).generate_state(n_words=2)
        self.seeds = int(drawn[0]), int(drawn[1])
        self.generator = seeding.np_random(self.seeds[0])[0]
        self.console.setInt("random_seed", int(drawn[1].astype(np.int32)))
        self._insert()

    def _insert(self) -> None:
        self.console.loadROM(self.path)
        if self._options.mode != -1:
            self.console.setMode(self._options.mode)
        if self._options.difficulty != -1:
            self.console.setDifficulty(self._options.difficulty)
        self._is_loaded = True

    def save(self) -> tuple[Any, ...]:
        """Everything that decides the game's future; None for the console before its first game."""
        state = self.console.cloneSystemState().serialize() if self.has_started else None
        return self._game, self.seeds, self.generator, state

    def load(self, saved: tuple[Any, ...]) -> None:
        """Goes on where save() was."""
        from ale_py import Action, ALEState

        game, self.seeds, self.generator, state = saved
        if game != self._game:
            raise StateError(f"expected the state of {self._game}, got one of {game}")
        if state is None:
            return
        self._insert()
        self.has_started = True
        # A console that has not drawn a frame yet draws its first one otherwise, whatever state it is given.
        self.console.reset_game()
        self.console.act(Action.NOOP)
        self.console.restoreSystemState(ALEState(state))
