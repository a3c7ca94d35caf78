"""The step rule: what a step does at and after the end of an episode.

| mode      | the step that ends an episode                     | the next step of that env        |
|-----------|---------------------------------------------------|----------------------------------|
| next_step | returns the last observation                      | resets and ignores the action:   |
|           |                                                   | reward 0, elapsed_step 0         |
| same_step | returns the new episode's first observation, and  | steps                            |
|           | the last one as final                             |                                  |
| disabled  | returns the last observation                      | is refused until the env is reset|

The code that runs envs follows native/include/envfleet/step_rule.h, the same table in C++. This one is for the code
that explains or predicts a step. tests/test_autoreset.py compares it with what every executor does.
"""

from __future__ import annotations

from enum import Enum, IntEnum

from gymnasium.vector import AutoresetMode

from envfleet.core.errors import ConfigError


class Phase(IntEnum):
    """The state of an env between two calls, with the values of ef_phase in abi.h."""

    UNSTARTED = 0
    RUNNING = 1
    ENDED = 2
    BROKEN = 3


class StepRule(Enum):
    """What an executor does with one env in a step() call."""

    STEP = "step"
    STEP_THEN_RESET = "step, then reset if that ended the episode"
    RESET = "reset"
    REFUSE = "refuse"


_RULES = {
    (AutoresetMode.NEXT_STEP, Phase.RUNNING): StepRule.STEP,
    (AutoresetMode.NEXT_STEP, Phase.ENDED): StepRule.RESET,
    (AutoresetMode.SAME_STEP, Phase.RUNNING): StepRule.STEP_THEN_RESET,
    # Only after set_state() from a pool in another mode.
    (AutoresetMode.SAME_STEP, Phase.ENDED): StepRule.STEP_THEN_RESET,
    (AutoresetMode.DISABLED, Phase.RUNNING): StepRule.STEP,
    (AutoresetMode.DISABLED, Phase.ENDED): StepRule.REFUSE,
}

# The numbers of ef_autoreset in abi.h.
NATIVE_CODES = {AutoresetMode.NEXT_STEP: 0, AutoresetMode.SAME_STEP: 1, AutoresetMode.DISABLED: 2}

_NAMES = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}


def step_rule(mode: AutoresetMode, phase: Phase) -> StepRule:
    """Return what a step() does with an env in this phase."""
    return _RULES.get((mode, phase), StepRule.REFUSE)


def parse_mode(given: AutoresetMode | str) -> AutoresetMode:
    """Return the AutoresetMode for itself, Gymnasium's value ("NextStep") or envfleet's name ("next_step")."""
    if isinstance(given, AutoresetMode):
        return given
    for name, mode in _NAMES.items():
        if given in (name, mode.value):
            return mode
    raise ConfigError(f"autoreset_mode expected one of {sorted(_NAMES)}, got {given!r}")
