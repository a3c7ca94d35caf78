"""Suite `native_table`: every native env that EnvPool has too, against EnvPool, at two sizes, as one table.

The ids are those of envfleet's families, in their newest version, that EnvPool's list contains. If EnvPool is not
installed, all ids are measured, without the peer. compare.py runs this suite only if it is named: it takes about an
hour; --envs selects ids by their prefix.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable

from harness import Case, Options, Target
from isolated import isolated_contender
from mujoco_suites import envfleet_sync, envpool_sync  # of any env

ENVFLEET, ENVPOOL = "envfleet", "EnvPool"
_SIZES = (64, 1024)
_TARGETS = {64: 3.0}  # by num_envs: the minimum speedup over EnvPool
_LIST_ENVPOOL = "import envpool, json; print(json.dumps(envpool.list_all_envs()))"


def native_table(options: Options) -> list[Case]:
    ids = [env for env in common_ids() if options.envs is None or env.startswith(options.envs)]
    return [_case(env, num_envs, options.num_threads) for env in ids for num_envs in _SIZES]


def _case(env: str, num_envs: int, num_threads: int) -> Case:
    common = {"env": env, "num_envs": num_envs, "num_threads": num_threads}
    return Case(
        f"{env}, {num_envs} envs",
        "steps/s",
        [isolated_contender(ENVFLEET, envfleet_sync, **common), isolated_contender(ENVPOOL, envpool_sync, **common)],
        ENVFLEET,
        [Target("ratio", ENVFLEET, _TARGETS[num_envs], ENVPOOL)] if num_envs in _TARGETS else [],
        facts={**common, "row": env, "column": f"{num_envs} envs"},
    )


def common_ids() -> list[str]:
    """Return the native ids that EnvPool has too, newest versions only, in the order of the families."""
    from envfleet.core.families import FAMILIES

    theirs = _envpool_ids()
    ours = [env for family in FAMILIES for env in (*family.native_ids, *family.aliases)]
    return newest_versions([env for env in ours if theirs is None or env in theirs])


def newest_versions(ids: list[str]) -> list[str]:
    """Return the ids without those that also exist in a newer version, in their order."""
    newest: dict[str, str] = {}
    for env in ids:
        name, version = _split(env)
        if name not in newest or version >= _split(newest[name])[1]:
            newest[name] = env
    return list(newest.values())


def _split(env: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.*)-v(\d+)", env)
    return (match[1], int(match[2])) if match else (env, 0)


def _envpool_ids() -> frozenset[str] | None:
    """Return the ids of EnvPool; None if it is not installed."""
    if importlib.util.find_spec("envpool") is None:
        return None
    # In another process: EnvPool loads a MuJoCo of its own.
    listed = subprocess.run([sys.executable, "-c", _LIST_ENVPOOL], capture_output=True, text=True, check=True)
    return frozenset(json.loads(listed.stdout.splitlines()[-1]))


SUITES: dict[str, Callable[[Options], list[Case]]] = {"native_table": native_table}
