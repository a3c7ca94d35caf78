"""ViZDoom: Doom's engine as environments.

ids            the ids, and the spec of each
files          a game's files, checked before an engine reads them
preflight      starts an engine in a separate process, for files that may crash it
game           one engine process and its folder
options        EnvPool's options, and the game that they describe
player         what a player observes, may do and is rewarded for; its parts are frames, actions and rewards
env            DoomEnv: EnvPool's ids
scenario_env   ScenarioEnv: the vizdoom package's ids
multiplayer    MultiplayerEnv: several players in one game

Cheap to import: vizdoom is imported where a game is made.
"""

from collections.abc import Mapping
from typing import Any

from envfleet.core.family import Family
from envfleet.families.vizdoom.ids import all_ids, envpool_ids, spec_of


def _all_options(env_id: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return EnvPool's options. The package's ids have the settings of a cfg file, which ViZDoom does not list."""
    if env_id not in envpool_ids():
        return {}
    from envfleet.families.vizdoom.env import read_options
    from envfleet.families.vizdoom.options import options_as_dict

    return options_as_dict(read_options(**{**envpool_ids()[env_id], **params}))


FAMILY = Family(
    "vizdoom",
    package="vizdoom",
    extra="vizdoom",
    python_ids=all_ids,
    spec_of=spec_of,
    # A step waits for the engine in C++ code that releases the GIL: one thread per core would leave cores idle.
    python_backend="threads",
    workers_per_core=2,
    all_options=_all_options,
)

__all__ = ["FAMILY"]
