"""A pytest plug-in that puts envfleet's vector environments in the place of Gymnasium's.

Loaded with `-p gymnasium_swap` before a test imports anything: then tests that were written for
Gymnasium's classes run on envfleet's.
"""

import gymnasium.vector
import gymnasium.vector.async_vector_env
import gymnasium.vector.sync_vector_env

import envfleet.vector

for _module in (gymnasium.vector, gymnasium.vector.async_vector_env, gymnasium.vector.sync_vector_env):
    for _name in ("AsyncVectorEnv", "SyncVectorEnv"):
        if hasattr(_module, _name):
            setattr(_module, _name, getattr(envfleet.vector, _name))


def pytest_report_header() -> str:
    return f"AsyncVectorEnv and SyncVectorEnv are those of {gymnasium.vector.AsyncVectorEnv.__module__}"
