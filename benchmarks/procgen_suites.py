"""Suite `procgen`: coinrun against EnvPool and the procgen package's own vector env, with the same frames."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from harness import Case, Loop, Options, Target
from isolated import isolated_contender
from loops import actions_for, sync_loop

ENVFLEET, ENVPOOL = "envfleet", "EnvPool"
_NUM_ENVS, _NUM_THREADS, _NUM_ACTIONS = 64, 2, 15
_PACKAGE_THREADS = (2, 4)  # 4 is its default


def procgen(options: Options) -> list[Case]:
    package = {num_threads: f"procgen, {num_threads} threads" for num_threads in _PACKAGE_THREADS}
    return [
        Case(
            f"coinrun, easy, {_NUM_ENVS} envs, {_NUM_THREADS} threads",
            "steps/s",
            [
                isolated_contender(ENVFLEET, envfleet_sync),
                isolated_contender(ENVPOOL, envpool_sync),
                *(isolated_contender(name, package_sync, num_threads=number) for number, name in package.items()),
            ],
            ENVFLEET,
            [Target("ratio", ENVFLEET, 1.0, peer) for peer in (ENVPOOL, *package.values())],
            facts={"num_envs": _NUM_ENVS, "num_threads": _NUM_THREADS},
        )
    ]


def envfleet_sync() -> Loop:
    import envfleet

    _add_package()
    options = {"distribution_mode": "easy", "num_threads": _NUM_THREADS, "seed": 0}
    pool = envfleet.make("procgen-coinrun", num_envs=_NUM_ENVS, **options)
    pool.reset()
    return _loop(pool.step, pool.close)


def envpool_sync() -> Loop:
    import envpool

    options = {"num_envs": _NUM_ENVS, "num_threads": _NUM_THREADS, "seed": 0, "channel_first": False}
    pool = envpool.make_gymnasium("CoinrunEasy-v0", **options)
    pool.reset()
    return _loop(pool.step, pool.close)


def package_sync(num_threads: int) -> Loop:
    env = _package().ProcgenGym3Env(
        num=_NUM_ENVS, env_name="coinrun", distribution_mode="easy", num_threads=num_threads, rand_seed=0
    )

    def step(actions: Any) -> Any:
        env.act(actions)
        return env.observe()

    return _loop(step, env.close)


def _add_package() -> None:
    """Make the package importable. `make bench` installs it apart: TorchRL would import it, which fails without gym."""
    sys.path.append(str(Path(sys.prefix) / "procgen"))


def _package() -> Any:
    """Import the package without gym, which it only needs to register its ids."""
    _add_package()
    registration: Any = ModuleType("gym.envs.registration")
    registration.register = lambda **_: None
    sys.modules.update(
        {"gym": ModuleType("gym"), "gym.envs": ModuleType("gym.envs"), "gym.envs.registration": registration}
    )
    return importlib.import_module("procgen")


def _loop(step: Callable[[Any], Any], close: Callable[[], None]) -> Loop:
    return sync_loop(step, _NUM_ENVS, close, actions=actions_for(_NUM_ENVS, _NUM_ACTIONS))


SUITES: dict[str, Callable[[Options], list[Case]]] = {"procgen": procgen}
