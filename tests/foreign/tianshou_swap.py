"""A pytest plug-in that puts pools in the place of Tianshou's vector envs.

Loaded with `-p tianshou_swap` before a test imports anything. Ray's is a pool on a cluster of its own, which each call
would start: it gets processes instead.
"""

from functools import partial

import tianshou.env

import envfleet.compat.envpool
from envfleet.apis.tianshou import make_vector_env

envfleet.compat.envpool.install()


def _make(backend, env_fns, wait_num=None, timeout=None, **options):
    # The synchronous class takes wait_num and timeout too, and ignores them.
    limits = {} if backend == "serial" else {"wait_num": wait_num, "timeout": timeout}
    return make_vector_env(env_fns, backend=backend, **limits, **options)


for _name, _backend in {
    "DummyVectorEnv": "serial",
    "SubprocVectorEnv": "processes",
    "ShmemVectorEnv": "processes",
    "RayVectorEnv": "processes",
}.items():
    setattr(tianshou.env, _name, partial(_make, _backend))


def pytest_report_header() -> str:
    return f"Tianshou's vector envs are made by {make_vector_env.__module__}"
