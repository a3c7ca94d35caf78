"""The single-player games of ale-py's wheel, and the three ids of each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

# Listed here so that they are known without ale-py. A test compares them with the wheel.
_NAMES = """
    adventure air_raid alien amidar assault asterix asteroids atlantis atlantis2 backgammon bank_heist basic_math
    battle_zone beam_rider berzerk blackjack bowling boxing breakout carnival casino centipede chopper_command
    crazy_climber crossbow darkchambers defender demon_attack donkey_kong double_dunk earthworld elevator_action
    enduro entombed et fishing_derby flag_capture freeway frogger frostbite galaxian gopher gravitar hangman
    haunted_house hero human_cannonball ice_hockey jamesbond journey_escape kaboom kangaroo keystone_kapers
    king_kong klax koolaid krull kung_fu_master laser_gates lost_luggage mario_bros miniature_golf
    montezuma_revenge mr_do ms_pacman name_this_game othello pacman phoenix pitfall pitfall2 pong pooyan
    private_eye qbert riverraid road_runner robotank seaquest sir_lancelot skiing solaris space_invaders space_war
    star_gunner superman surround tennis tetris tic_tac_toe_3d time_pilot trondead turmoil tutankham up_n_down
    venture video_checkers video_chess video_cube video_pinball wizard_of_wor word_zapper yars_revenge zaxxon
"""
GAMES = tuple(_NAMES.split())

# What these start with after a reset does not depend on what was played before: they clear their memory. The other
# games leave some of it, often as a source of randomness. A soak test compares restored games with reset ones.
_NAMES_OF_CLEARED = """
    adventure alien assault asterix asteroids atlantis atlantis2 bank_heist battle_zone beam_rider blackjack
    bowling boxing breakout carnival casino centipede chopper_command crazy_climber darkchambers defender
    demon_attack donkey_kong earthworld elevator_action enduro et fishing_derby freeway frogger frostbite
    galaxian gopher gravitar hero jamesbond journey_escape kaboom kangaroo keystone_kapers king_kong klax krull
    laser_gates mario_bros montezuma_revenge mr_do ms_pacman phoenix pitfall pong private_eye riverraid
    road_runner robotank skiing solaris space_invaders star_gunner superman tennis turmoil tutankham up_n_down
    video_checkers video_chess video_cube video_pinball wizard_of_wor word_zapper zaxxon
"""
CLEARED_BY_RESET = frozenset(_NAMES_OF_CLEARED.split())


@dataclass(frozen=True)
class Naming:
    """The game of an id, and the style of its defaults: "envpool", "ale" (v5) or "noframeskip" (v4)."""

    game: str
    style: str


@cache
def _namings() -> dict[str, Naming]:
    namings = {}
    for game in GAMES:
        # The two projects capitalize a letter after a digit differently: TicTacToe3d, TicTacToe3D.
        theirs = game.title().replace("_", "")
        namings["".join(part.capitalize() for part in game.split("_")) + "-v5"] = Naming(game, "envpool")
        namings[f"ALE/{theirs}-v5"] = Naming(game, "ale")
        namings[f"{theirs}NoFrameskip-v4"] = Naming(game, "noframeskip")
    return namings


@cache
def ids() -> frozenset[str]:
    """Return every id of the family."""
    return frozenset(_namings())


def naming_of(env_id: str) -> Naming:
    """Return the game and style of an id of ids()."""
    return _namings()[env_id]
