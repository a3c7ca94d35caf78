"""MultiplayerEnv: several players in one game, as a parallel env in PettingZoo's API.

Each player has an engine; the first one hosts the game, the others join it on this machine. The engines wait for each
other at every tic, so each must be advanced from its own thread, tic by tic.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import seeding

from envfleet.core.errors import ConfigError, StateError
from envfleet.core.option_checks import integer_option
from envfleet.families.vizdoom.files import find_cfg
from envfleet.families.vizdoom.game import Game, GameError
from envfleet.families.vizdoom.options import DEATHMATCH_RULES, DoomOptions, make_game
from envfleet.families.vizdoom.player import Player

# The ids that make_pettingzoo() accepts: the package's scenarios for several players.
MULTIPLAYER_SCENARIOS = {
    "VizdoomDuel-v1": "multi_duel.cfg",
    "VizdoomMultiDeathmatch-v1": "multi.cfg",
    "VizdoomCig-v1": "cig.cfg",
}
_MAX_PLAYERS = 8  # the engine's limit
_PORT_ATTEMPTS = 100


def multiplayer_env(env_id: str) -> Callable[..., MultiplayerEnv]:
    """Return the factory of an id in MULTIPLAYER_SCENARIOS. Raises MissingExtraError."""
    from envfleet.families.vizdoom import FAMILY

    FAMILY.check_installed(env_id)
    return partial(MultiplayerEnv, MULTIPLAYER_SCENARIOS[env_id])


class MultiplayerEnv:
    """num_players in one game; all act at once, and an episode ends for all of them together.

    reset(seed=...) starts a new game, with new engines; without a seed, the game continues with its next episode.
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
        """time_limit: in steps. port: the UDP port of the game on this machine; 0 for any. kwargs: see DoomOptions."""
        if scenario and not kwargs.get("cfg_path"):
            kwargs["cfg_path"] = find_cfg(scenario)
        self.options = DoomOptions(**{"cfg_path": "", **kwargs})
        if self.options.episodic_life or self.options.lmp_save_dir:
            raise ConfigError(
                "episodic_life and lmp_save_dir are for a single player, got them with several; leave them out"
            )
        num_players = integer_option("num_players", num_players, 2, _MAX_PLAYERS)
        self._time_limit = integer_option("time_limit", time_limit, 1, 2**31 - 1)
        self._wanted_port = integer_option("port", port, 0, 2**16 - 1)
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 35, "name": "vizdoom", "is_parallelizable": True}
        self.render_mode = render_mode
        self.possible_agents = [f"player_{number}" for number in range(num_players)]
        self.agents: list[str] = []
        self._random, _ = seeding.np_random(None)
        self._port: Port | None = None
        # Made and checked now, for their spaces; started at the first reset, with a port in their arguments.
        self._players = self._make_players(0)
        self._threads = ThreadPoolExecutor(num_players, thread_name_prefix="vizdoom-player")
        self._barrier = threading.Barrier(num_players)
        self._steps = 0

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        """Return the observation space, the same for every player."""
        return self._players[0][1].observation_space

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        """Return the action space, the same for every player."""
        return self._players[0][1].action_space

    @property
    def player_info_space(self) -> gymnasium.spaces.Dict:
        """The space of a player's info, the same for every player."""
        return self._players[0][1].info_space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start a new game, with a seed or the first time; else the next episode of the current game."""
        if seed is not None:
            self._random, _ = seeding.np_random(seed)
        if seed is not None or not all(game.is_started for game, _ in self._players):
            self._start()
        else:
            self._together([game.doom.new_episode for game, _ in self._players])
        self._steps = 0
        self.agents = list(self.possible_agents)
        first = {agent: player.begin() for agent, (_, player) in zip(self.agents, self._players, strict=True)}
        return {agent: obs for agent, (obs, _) in first.items()}, {agent: info for agent, (_, info) in first.items()}

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Advance by frame_skip tics, for which every player holds its buttons."""
        if not self.agents:
            raise GameError("no episode is running; call reset() first")
        calls: list[Callable[[], Any]] = []
        for agent, (game, player) in zip(self.possible_agents, self._players, strict=True):
            buttons = player.buttons(actions[agent])
            calls.append(partial(_advance, game.doom, buttons, self.options.frame_skip, self._barrier))
        self._together(calls)
        self._steps += 1
        ended = any(game.doom.is_episode_finished() for game, _ in self._players)
        is_over = ended or self._steps >= self._time_limit
        results = {agent: player.observe() for agent, (_, player) in zip(self.agents, self._players, strict=True)}
        result = (
            {agent: obs for agent, (obs, _, _) in results.items()},
            {agent: reward for agent, (_, reward, _) in results.items()},
            dict.fromkeys(self.agents, ended),
            dict.fromkeys(self.agents, is_over and not ended),
            {agent: info for agent, (_, _, info) in results.items()},
        )
        if is_over:
            self.agents = []
        return result

    def render(self) -> Any:
        """Return the players' screens side by side."""
        if not all(game.is_started for game, _ in self._players):
            return None
        return np.concatenate([player.render() for _, player in self._players], axis=1)

    def close(self) -> None:
        """End the engines."""
        self._end()
        self._threads.shutdown()

    @property
    def unwrapped(self) -> MultiplayerEnv:
        """This env."""
        return self

    def __reduce__(self) -> Any:
        raise StateError("the state of a ViZDoom game cannot be saved: it is in the engines' processes")

    # --- engines -------------------------------------------------------------------------------

    def _make_players(self, port: int) -> list[tuple[Game, Player]]:
        count = len(self.possible_agents)
        players = []
        for number, name in enumerate(self.possible_agents):
            hosting = f"-host {count} -port {port} {DEATHMATCH_RULES}"
            role = f"{hosting if number == 0 else f'-join 127.0.0.1:{port}'} +name {name} +colorset {number}"
            game = make_game(self.options, role)
            players.append((game, Player(game, self.options)))
        return players

    def _start(self) -> None:
        self._end()
        self._port = Port(self._wanted_port)
        self._players = self._make_players(self._port.number)
        seed = int(self._random.integers(0, 2**32, dtype=np.uint32))
        for game, _ in self._players:
            game.doom.set_seed(seed)
        self._together([game.start for game, _ in self._players])

    def _end(self) -> None:
        # Killed, not closed: an engine that closes waits for the others.
        for game, _ in self._players:
            game.kill()
        for game, _ in self._players:
            game.close()
        if self._port is not None:
            self._port.close()
            self._port = None
        self.agents = []

    def _together(self, calls: list[Callable[[], Any]]) -> None:
        """Run these calls, one per player, in parallel. If one fails, kill all engines: they would wait forever."""
        failures: list[tuple[str, Exception]] = []  # in the order in which they happened

        def attempt(agent: str, call: Callable[[], Any]) -> None:
            try:
                call()
            except Exception as error:
                failures.append((agent, error))
                self._barrier.abort()
                for game, _ in self._players:
                    game.kill()

        for future in [self._threads.submit(attempt, *own) for own in zip(self.possible_agents, calls, strict=True)]:
            future.result()
        if failures:
            agent, error = failures[0]
            self._barrier.reset()
            self._end()
            raise GameError(f"the engine of {agent} died: {error}; reset() starts a new game") from error


def _advance(doom: Any, buttons: list[float], tics: int, barrier: threading.Barrier) -> None:
    doom.set_action(buttons)
    # Tic by tic, with no engine ahead: engines that are out of step wait for each other forever.
    for tic in range(tics):
        if tic:
            barrier.wait()
        doom.advance_action(1, tic == tics - 1)


class Port:
    """A UDP port that is reserved for one game, among all processes of this machine, until close().

    The engine must bind the UDP port itself, and ends if it is taken. So the TCP port of the same number serves as a
    lock: the engine does not use it, and two games cannot both bind it.
    """

    def __init__(self, number: int = 0) -> None:
        """number: 0 for any."""
        for _ in range(_PORT_ATTEMPTS if number == 0 else 1):
            self._lock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                self._lock.bind(("127.0.0.1", number))
                self.number: int = self._lock.getsockname()[1]
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                    probe.bind(("", self.number))
            except OSError:
                self._lock.close()
                continue
            return
        raise ConfigError(f"port expected a free UDP port, got {number}, which is in use; leave it out for any port")

    def close(self) -> None:
        """Release the port."""
        self._lock.close()
