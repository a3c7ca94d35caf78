"""MultiplayerEnv: several players in one game, as a parallel env of PettingZoo's kind.

Each player has an engine of its own; the first hosts the game, the others join it on this machine.
The engines wait for one another at every tic, so each must be advanced from a thread of its own, tic
by tic.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import seeding

from envfleet.envs.vizdoom.files import find_cfg
from envfleet.envs.vizdoom.game import Game, GameError
from envfleet.envs.vizdoom.options import DEATHMATCH_RULES, DoomOptions, make_game
from envfleet.envs.vizdoom.player import Player
from envfleet.envs.vizdoom.ports import Port
from envfleet.errors import ConfigError, MissingExtraError, StateError
from envfleet.making.options import integer_option

# What make_pettingzoo() takes: the scenarios of the package that are made for several.
MULTIPLAYER_SCENARIOS = {
    "VizdoomDuel-v1": "multi_duel.cfg",
    "VizdoomMultiDeathmatch-v1": "multi.cfg",
    "VizdoomCig-v1": "cig.cfg",
}
_MAX_PLAYERS = 8  # of the engine


def multiplayer_env(env_id: str) -> Callable[..., MultiplayerEnv]:
    """What builds an env of this id. Raises MissingExtraError."""
    from envfleet.envs.vizdoom import SIMULATOR

    if not SIMULATOR.is_installed:
        raise MissingExtraError(SIMULATOR.package, SIMULATOR.extra, env_id)
    return partial(MultiplayerEnv, MULTIPLAYER_SCENARIOS[env_id])


class MultiplayerEnv:
    """num_players in one game; all act at once, and an episode ends for all of them together.

    A seed begins a new game, with new engines; without one the game goes on to its next episode.
    """

    def __init__(
        self,
        scenario: str = "",
        num_players: int = 2,
        time_limit: int = 525,
        port: int = 0,
        render_mode: str | None = None,
        **kwargs: Any,
    ) -> None:
        """time_limit: in steps. port: of the game on this machine; 0 for any. kwargs: see DoomOptions."""
        if scenario and not kwargs.get("cfg_path"):
            kwargs["cfg_path"] = find_cfg(scenario)
        self.options = DoomOptions(**{"cfg_path": "", **kwargs})
        if self.options.episodic_life or self.options.lmp_save_dir:
            raise ConfigError("episodic_life and lmp_save_dir are for one player, got them for several; leave them out")
        num_players = integer_option("num_players", num_players, 2, _MAX_PLAYERS)
        self._time_limit = integer_option("time_limit", time_limit, 1, 2**31 - 1)
        self._wanted_port = integer_option("port", port, 0, 2**16 - 1)
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 35, "name": "vizdoom", "is_parallelizable": True}
        self.render_mode = render_mode
        self.possible_agents = [f"player_{number}" for number in range(num_players)]
        self.agents: list[str] = []
        self._random, _ = seeding.np_random(None)
        self._port: Port | None = None
        # Made and checked now, for their spaces; started, with a port in their arguments, at the first reset.
        self._seats = self._make_seats(0)
        self._threads = ThreadPoolExecutor(num_players, thread_name_prefix="vizdoom-player")
        self._all_here = threading.Barrier(num_players)
        self._steps = 0

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        """What a player sees."""
        return self._seats[0][1].observation_space

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        """What a player does."""
        return self._seats[0][1].action_space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """A new game with a seed, or at first; else the next episode of this one."""
        if seed is not None:
            self._random, _ = seeding.np_random(seed)
        if seed is not None or not all(game.is_started for game, _ in self._seats):
            self._start()
        else:
            self._together([game.doom.new_episode for game, _ in self._seats])
        self._steps = 0
        self.agents = list(self.possible_agents)
        begun = {agent: player.begin() for agent, (_, player) in zip(self.agents, self._seats, strict=True)}
        return {agent: obs for agent, (obs, _) in begun.items()}, {agent: info for agent, (_, info) in begun.items()}

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """frame_skip tics, in which every player keeps its buttons."""
        if not self.agents:
            raise GameError("no episode runs; call reset() first")
        calls: list[Callable[[], Any]] = []
        for agent, (game, player) in zip(self.possible_agents, self._seats, strict=True):
            buttons = player.buttons(actions[agent])
            calls.append(partial(_advance, game.doom, buttons, self.options.frame_skip, self._all_here))
        self._together(calls)
        self._steps += 1
        ended = any(game.doom.is_episode_finished() for game, _ in self._seats)
        is_over = ended or self._steps >= self._time_limit
        seen = {agent: player.look() for agent, (_, player) in zip(self.agents, self._seats, strict=True)}
        result = (
            {agent: obs for agent, (obs, _, _) in seen.items()},
            {agent: reward for agent, (_, reward, _) in seen.items()},
            dict.fromkeys(self.agents, ended),
            dict.fromkeys(self.agents, is_over and not ended),
            {agent: info for agent, (_, _, info) in seen.items()},
        )
        if is_over:
            self.agents = []
        return result

    def render(self) -> Any:
        """The players' screens beside one another."""
        if not all(game.is_started for game, _ in self._seats):
            return None
        return np.concatenate([player.picture() for _, player in self._seats], axis=1)

    def close(self) -> None:
        """Ends the engines for good."""
        self._end()
        self._threads.shutdown()

    @property
    def unwrapped(self) -> MultiplayerEnv:
        """This env."""
        return self

    def __reduce__(self) -> Any:
        raise StateError("a ViZDoom game cannot be saved: its state is in the engines' processes")

    # --- engines -------------------------------------------------------------------------------

    def _make_seats(self, port: int) -> list[tuple[Game, Player]]:
        count = len(self.possible_agents)
        seats = []
        for number, name in enumerate(self.possible_agents):
            hosting = f"-host {count} -port {port} {DEATHMATCH_RULES}"
            role = f"{hosting if number == 0 else f'-join 127.0.0.1:{port}'} +name {name} +colorset {number}"
            game = make_game(self.options, role)
            seats.append((game, Player(game, self.options)))
        return seats

    def _start(self) -> None:
        self._end()
        self._port = Port(self._wanted_port)
        self._seats = self._make_seats(self._port.number)
        seed = int(self._random.integers(0, 2**32, dtype=np.uint32))
        for game, _ in self._seats:
            game.doom.set_seed(seed)
        self._together([game.start for game, _ in self._seats])

    def _end(self) -> None:
        # Killed, not asked: one that says farewell waits for the others.
        for game, _ in self._seats:
            game.kill()
        for game, _ in self._seats:
            game.close()
        if self._port is not None:
            self._port.close()
            self._port = None
        self.agents = []

    def _together(self, calls: list[Callable[[], Any]]) -> None:
        """Makes these calls, one for each player, at once. When one fails, the others would wait for it for ever."""
        failures: list[tuple[str, Exception]] = []  # in the order in which they came

        def attempt(agent: str, call: Callable[[], Any]) -> None:
            try:
                call()
            except Exception as error:
                failures.append((agent, error))
                self._all_here.abort()
                for game, _ in self._seats:
                    game.kill()

        for future in [self._threads.submit(attempt, *own) for own in zip(self.possible_agents, calls, strict=True)]:
            future.result()
        if failures:
            agent, error = failures[0]
            self._all_here.reset()
            self._end()
            raise GameError(f"the engine of {agent} is gone: {error}; reset() starts a new game") from error


def _advance(doom: Any, buttons: list[float], tics: int, all_here: threading.Barrier) -> None:
    doom.set_action(buttons)
    # Tic by tic, and nobody ahead: engines that are out of step wait for one another for ever.
    for tic in range(tics):
        if tic:
            all_here.wait()
        doom.advance_action(1, tic == tics - 1)
