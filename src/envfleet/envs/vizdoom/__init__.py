"""ViZDoom: Doom's engine as environments.

ids            which names there are
files, trial   a game's files, checked before an engine sees them
game           one engine process, its folder, its end
keeper, keeping   what ends engines when their owner is killed
options, player   EnvPool's options; what a player sees, does and earns
frames, actions, rewards   their parts
env            DoomEnv: EnvPool's ids
scenario_env   ScenarioEnv: the vizdoom package's ids
multiplayer    MultiplayerEnv: several players in one game

Cheap to import: vizdoom is imported where a game is made.
"""

from envfleet.envs.simulators import Simulator
from envfleet.envs.vizdoom.ids import all_ids, spec_of

# A step waits for the engine, in C++ that releases the GIL: a thread for each core would leave cores idle.
SIMULATOR = Simulator("vizdoom", "vizdoom", "vizdoom", "threads", all_ids, spec_of, workers_per_core=2)

__all__ = ["SIMULATOR"]
