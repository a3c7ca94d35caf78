"""Suite `mujoco`: native MuJoCo envs against EnvPool's and against Gymnasium's AsyncVectorEnv.

Each contender runs in its own process, because EnvPool contains another version of MuJoCo.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import mujoco_peers as peers
import python_peers
from harness import Case, Contender, Loop, Target
from isolated import Isolated
from options import Options

ENVFLEET, ENVPOOL, ASYNC_VECTOR = "envfleet", "EnvPool", "Gymnasium AsyncVectorEnv"
_IDS = ("Ant-v5", "HalfCheetah-v5")
_NUM_ENVS = 64


def mujoco(options: Options) -> list[Case]:
    return [case for env in _IDS for case in (_sync(env, options.num_threads), _async(env, options.num_threads))]


def _sync(env: str, num_threads: int) -> Case:
    common = {"env": env, "num_envs": _NUM_ENVS, "num_threads": num_threads}
    return Case(
        f"{env}, {_NUM_ENVS} envs, synchronous",
        "steps/s",
        [
            _contender(ENVFLEET, peers.envfleet_sync, **common),
            _contender(ENVPOOL, peers.envpool_sync, **common),
            _contender(ASYNC_VECTOR, python_peers.gymnasium_async, env=env, num_envs=_NUM_ENVS),
        ],
        ENVFLEET,
        [Target("ratio", ENVFLEET, 1.2, ENVPOOL), Target("ratio", ENVFLEET, 4, ASYNC_VECTOR)],
        facts={"num_envs": _NUM_ENVS, "num_threads": num_threads},
    )


def _async(env: str, num_threads: int) -> Case:
    batch_size = _NUM_ENVS // 2
    common = {"env": env, "num_envs": _NUM_ENVS, "num_threads": num_threads, "batch_size": batch_size}
    return Case(
        f"{env}, {_NUM_ENVS} envs, batches of {batch_size}",
        "steps/s",
        [
            _contender(ENVFLEET, peers.envfleet_async, **common),
            _contender(ENVPOOL, peers.envpool_async, **common),
        ],
        ENVFLEET,
        [Target("ratio", ENVFLEET, 1.05, ENVPOOL)],
        facts={"num_envs": _NUM_ENVS, "num_threads": num_threads, "batch_size": batch_size},
    )


def _contender(name: str, function: Callable[..., Loop], **arguments: Any) -> Contender:
    return Contender(name, partial(Isolated, function, **arguments))


SUITES: dict[str, Callable[[Options], list[Case]]] = {"mujoco": mujoco}
