"""envfleet: thousands of reinforcement-learning environments behind one pool."""

from envfleet.apis.gymnasium import make_gymnasium
from envfleet.building.compiling import compile, load_plugin  # noqa: A004 (the name that users expect)
from envfleet.building.gymnasium_ids import register_ids as _register_ids
from envfleet.building.pools import make_pool, make_spec
from envfleet.building.registry import list_all_envs, register
from envfleet.core.batch import Batch, Fault, FinalRows
from envfleet.core.errors import (
    ActionError,
    CallOrderError,
    CompileError,
    ConfigError,
    EnvError,
    EnvfleetError,
    EnvIdError,
    ForkedPoolError,
    InputError,
    MissingExtraError,
    PlacementError,
    PoolClosedError,
    RecvTimeout,
    SeedError,
    StateError,
    UnknownEnvError,
    UnsupportedVersionError,
    WorkerDied,
)
from envfleet.core.options import PoolConfig, RayConfig
from envfleet.core.pool import Pool, PoolState
from envfleet.core.spec import EnvSpec
from envfleet.core.statistics import EnvStats, PoolStats, WorkerStats
from envfleet.envs.compiler import get_include
from envfleet.making import make, make_dm, make_gym, make_pettingzoo
from envfleet.tuning import Tuning, tune

__version__ = "0.1.0"

__all__ = [
    "ActionError",
    "Batch",
    "CallOrderError",
    "CompileError",
    "ConfigError",
    "EnvError",
    "EnvIdError",
    "EnvSpec",
    "EnvStats",
    "EnvfleetError",
    "Fault",
    "FinalRows",
    "ForkedPoolError",
    "InputError",
    "MissingExtraError",
    "PlacementError",
    "Pool",
    "PoolClosedError",
    "PoolConfig",
    "PoolState",
    "PoolStats",
    "RayConfig",
    "RecvTimeout",
    "SeedError",
    "StateError",
    "Tuning",
    "UnknownEnvError",
    "UnsupportedVersionError",
    "WorkerDied",
    "WorkerStats",
    "compile",
    "get_include",
    "list_all_envs",
    "load_plugin",
    "make",
    "make_dm",
    "make_gym",
    "make_gymnasium",
    "make_pettingzoo",
    "make_pool",
    "make_spec",
    "register",
    "tune",
]

_register_ids()
