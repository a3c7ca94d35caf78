"""Action spaces of ViZDoom, and the conversion of actions to one number per button."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from envfleet.core.errors import ConfigError

# Pairs of buttons of which EnvPool presses at most one.
_PAIRS = (
    ("MOVE_RIGHT", "MOVE_LEFT"),
    ("MOVE_BACKWARD", "MOVE_FORWARD"),
    ("TURN_RIGHT", "TURN_LEFT"),
    ("LOOK_UP", "LOOK_DOWN"),
    ("MOVE_UP", "MOVE_DOWN"),
    ("SELECT_NEXT_WEAPON", "SELECT_PREV_WEAPON"),
    ("SELECT_NEXT_ITEM", "SELECT_PREV_ITEM"),
)
_PARTNERS = {one: pair for pair in _PAIRS for one in pair}
_WEAPONS = tuple(f"SELECT_WEAPON{number}" for number in (1, 2, 3, 4, 5, 6, 7, 8, 9, 0))

Buttons = list[float]


def is_delta(button: str) -> bool:
    """Return whether the button takes any number, and not only pressed or not."""
    return button.endswith("_DELTA")


def button_space(buttons: Sequence[str]) -> spaces.Box:
    """Return the space with one number per button: from 0 to 1, or unbounded for a delta button."""
    delta = np.array([is_delta(button) for button in buttons])
    high = np.where(delta, np.inf, 1.0)
    return spaces.Box(np.where(delta, -np.inf, 0.0), high, (len(buttons),), np.float64)


def combined_actions(
    buttons: Sequence[str], force_speed: bool, delta_button_config: Mapping[str, Sequence[Any]]
) -> list[Buttons]:
    """Return EnvPool's combinations of buttons, in its order.

    Buttons are in ViZDoom's order, and the choice of a later button varies faster. The first choice of a button is
    not to press it.
    """
    import vizdoom

    for name, values in delta_button_config.items():
        if name not in buttons or not is_delta(name) or len(values) != 3:
            usable = [button for button in buttons if is_delta(button)]
            raise ConfigError(
                f"delta_button_config expected (number, low, high) for a delta button of this scenario, {usable}, "
                f"got {name!r}: {values!r}"
            )
    present = sorted(buttons, key=lambda name: int(getattr(vizdoom.Button, name)))
    groups: list[list[dict[str, float]]] = []
    seen: set[str] = set()
    for name in present:
        if name in seen:
            continue
        pair = _PARTNERS.get(name, ())
        together = [other for other in present if other in _WEAPONS] if name in _WEAPONS else [name]
        if pair and all(other in present for other in pair):
            together = list(pair)
        seen.update(together)
        if is_delta(name):
            number, low, high = delta_button_config.get(name, (1, 0.0, 0.0))
            steps = np.linspace(low, high, int(number)).tolist() if number > 1 else [0.0]
            groups.append([{name: value} for value in steps])
        elif name == "SPEED" and force_speed:
            groups.append([{name: 1.0}])
        else:
            groups.append([{}, *({other: 1.0} for other in together)])
    actions = []
    for choice in itertools.product(*groups):
        pressed = {name: value for part in choice for name, value in part.items()}
        actions.append([pressed.get(name, 0.0) for name in buttons])
    return actions


def button_combinations(num_buttons: int, max_pressed: int) -> list[Buttons]:
    """Return the vizdoom package's combinations of at most max_pressed buttons, in its order."""
    every = itertools.product((0.0, 1.0), repeat=num_buttons)
    return [list(combination) for combination in every if sum(combination) <= max_pressed]
