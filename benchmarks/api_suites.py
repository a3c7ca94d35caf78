"""Suites on the cost of each API over the pool, and on what training libraries gain."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import api_peers as peers
from harness import Case, Contender, Loop, Target
from isolated import Isolated
from options import Options

_NUM_ENVS = 64


def _contender(name: str, function: Callable[..., Loop], **arguments: Any) -> Contender:
    return Contender(name, partial(Isolated, function, **arguments))


def apis(options: Options) -> list[Case]:
    """Compare a step of 64 native CartPoles through each API.

    Targets: dm and gym take at most 1.3 times as long as the Gymnasium API, SB3 at most 8 times, and SB3 is 10 times
    as fast as its own DummyVecEnv.
    """
    own = {"gymnasium": "gymnasium", "gym": "gym", "dm": "dm", "SB3": "sb3"}
    dummy = "SB3 DummyVecEnv"
    return [
        Case(
            f"a step of {_NUM_ENVS} native CartPoles",
            "us",
            [
                *(_contender(name, peers.step_of, api=api, num_envs=_NUM_ENVS) for name, api in own.items()),
                _contender(dummy, peers.sb3_dummy, num_envs=_NUM_ENVS),
            ],
            "gymnasium",
            [
                Target("ratio", "gym", 1 / 1.3, "gymnasium"),
                Target("ratio", "dm", 1 / 1.3, "gymnasium"),
                Target("ratio", "SB3", 1 / 8, "gymnasium"),
                Target("ratio", "SB3", 10, dummy),
            ],
            more_is_better=False,
            facts={"num_envs": _NUM_ENVS},
        )
    ]


def torchrl(options: Options) -> list[Case]:
    """Compare TorchRL's rollout(). Without ParallelEnv at 64 envs, which does not finish a round on two cores."""
    fleet, serial, parallel = "envfleet EnvFleetEnv", "TorchRL SerialEnv", "TorchRL ParallelEnv"
    makers = {fleet: peers.torchrl_envfleet, serial: peers.torchrl_serial, parallel: peers.torchrl_parallel}
    cases = []
    for num_envs, names in ((8, (fleet, serial, parallel)), (_NUM_ENVS, (fleet, serial))):
        cases.append(
            Case(
                f"TorchRL's rollout, {num_envs} CartPoles",
                "steps/s",
                [_contender(name, makers[name], num_envs=num_envs) for name in names],
                fleet,
                [Target("ratio", fleet, 5, name) for name in names[1:]],
                facts={"num_envs": num_envs},
            )
        )
    return cases


def training(options: Options) -> list[Case]:
    """Compare whole PPO loops, including the policy and its updates."""
    fleet = "envfleet"
    sb3 = {fleet: "envfleet", "SB3 DummyVecEnv": "dummy", "SB3 SubprocVecEnv": "subproc"}
    one_file = {fleet: "envfleet", "Gymnasium SyncVectorEnv": "sync", "Gymnasium AsyncVectorEnv": "async"}
    return [
        Case(
            f"{name}, 16 CartPoles",
            "frames/s",
            [_contender(label, function, vec_env=vec_env, num_envs=16) for label, vec_env in contenders.items()],
            fleet,
            facts={"num_envs": 16},
        )
        for name, function, contenders in (
            ("PPO of Stable-Baselines3", peers.sb3_ppo, sb3),
            ("PPO in one file (examples/ppo.py)", peers.one_file_ppo, one_file),
        )
    ]


SUITES: dict[str, Callable[[Options], list[Case]]] = {"apis": apis, "torchrl": torchrl, "training": training}
