"""The one table of what a step does at and after an episode's end.

| mode      | the step that ends an episode                     | the next step of that env        |
|-----------|---------------------------------------------------|----------------------------------|
| next_step | gives the last observation                        | resets, ignores the action:      |
|           |                                                   | reward 0, elapsed_step 0         |
| same_step | gives the new episode's first observation, and    | steps                            |
|           | the last one beside it as final                   |                                  |
| disabled  | gives the last observation                        | refused until the env is reset   |

Executors in Python call decide(); native code mirrors it in include/envfleet/fleet.h and
tests/test_autoreset.py holds the two together.
"""

from __future__ import annotations

from enum import Enum, IntEnum

from gymnasium.vector import AutoresetMode

from envfleet.errors import ConfigError


class Phase(IntEnum):
    """Where an env stands between two calls. Same values as ef_phase in abi.h."""

    UNSTARTED = 0
    RUNNING = 1
    ENDED = 2
    BROKEN = 3


class Deed(Enum):
    """What the executor does with one env in a step() call."""

    STEP = "step"
    STEP_THEN_RESET = "step, and reset when that ends the episode"
    RESET = "reset"
    REFUSE = "refuse"


_DEEDS = {
    (AutoresetMode.NEXT_STEP, Phase.RUNNING): Deed.STEP,
    (AutoresetMode.NEXT_STEP, Phase.ENDED): Deed.RESET,
    (AutoresetMode.SAME_STEP, Phase.RUNNING): Deed.STEP_THEN_RESET,
    # Only after set_state() from a pool in another mode.
    (AutoresetMode.SAME_STEP, Phase.ENDED): Deed.STEP_THEN_RESET,
    (AutoresetMode.DISABLED, Phase.RUNNING): Deed.STEP,
    (AutoresetMode.DISABLED, Phase.ENDED): Deed.REFUSE,
}

# The numbers of ef_autoreset in abi.h.
NATIVE_CODES = {AutoresetMode.NEXT_STEP: 0, AutoresetMode.SAME_STEP: 1, AutoresetMode.DISABLED: 2}

_NAMES = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}


def decide(mode: AutoresetMode, phase: Phase) -> Deed:
    """What a step() does with an env that stands in this phase."""
    return _DEEDS.get((mode, phase), Deed.REFUSE)


def parse_mode(given: AutoresetMode | str) -> AutoresetMode:
    """An AutoresetMode from itself, Gymnasium's value ("NextStep") or our name ("next_step")."""
    if isinstance(given, AutoresetMode):
        return given
    for name, mode in _NAMES.items():
        if given in (name, mode.value):
            return mode
    raise ConfigError(f"autoreset_mode expected one of {sorted(_NAMES)}, got {given!r}")
