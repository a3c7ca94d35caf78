"""Gymnasium's two vector environments, by their own names, on envfleet's executors.

    from envfleet.vector import AsyncVectorEnv, SyncVectorEnv

in the place of `from gymnasium.vector import ...`: same arguments, attributes, results and exceptions.
"""

from gymnasium.vector import AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState

from envfleet.vector.async_vector_env import AsyncVectorEnv
from envfleet.vector.sync_vector_env import SyncVectorEnv

__all__ = ["AsyncState", "AsyncVectorEnv", "AutoresetMode", "SyncVectorEnv"]
