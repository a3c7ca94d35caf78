"""Parallel multi-agent envs (PettingZoo) in a pool.

    ParallelEnv -> PlayersEnv: one env whose players sit in fixed seats of fixed-size arrays
    PlayersEnv  -> Pool: as any Python env, on serial, threads and processes
    Pool        -> AgentsPool (dicts by agent) or PlayerRowsPool (rows of players, as EnvPool)

players     who may play, their spaces, and which seats they take
env         PlayersEnv, the worker's side
reading     what a batch of seats says of each agent
view        what both views share
agents, rows   the two views
making      make_pettingzoo()
"""

from envfleet.apis.pettingzoo.agents import AgentsPool
from envfleet.apis.pettingzoo.making import make_pettingzoo
from envfleet.apis.pettingzoo.players import Players
from envfleet.apis.pettingzoo.rows import PlayerRowsPool

__all__ = ["AgentsPool", "PlayerRowsPool", "Players", "make_pettingzoo"]
