"""Parallel multi-agent envs (PettingZoo) in a pool.

    ParallelEnv -> PlayersEnv: one Gymnasium env, whose agents have slots in fixed-size arrays
    PlayersEnv  -> Pool: as any Python env, on serial, threads, processes and ray
    Pool        -> AgentsPool (dicts by agent) or PlayerRowsPool (rows of players, as EnvPool)

players.py   the agents of an env, their spaces and slots, and what a batch says about each agent
env.py       PlayersEnv, which runs in the worker
pools.py     AgentsPool and PlayerRowsPool
making.py    make_pettingzoo()
"""

from envfleet.apis.pettingzoo.making import make_pettingzoo
from envfleet.apis.pettingzoo.players import Players
from envfleet.apis.pettingzoo.pools import AgentsPool, PlayerRowsPool

__all__ = ["AgentsPool", "PlayerRowsPool", "Players", "make_pettingzoo"]
