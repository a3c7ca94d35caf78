"""Suite `xla`: pools stepped inside lax.fori_loop, through xla(), against EnvPool's.

CartPole on the CPU; Pong on a GPU, where jax has one. Each contender runs in its own process, whose program is one loop
over all batches: the handle and the last observation are carried, and the actions are made in the program.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from harness import Case, Loop, Options, Skipped, Target, usable_cores
from isolated import isolated_contender

ENVFLEET, ENVPOOL, ENVPOOL_1 = "envfleet", "EnvPool", "EnvPool, 1 thread"
# By num_envs: the minimum speedup over EnvPool.
_CARTPOLE_TARGETS = {64: 10, 1024: 20}
_PONG_ENVS, _PONG_TARGET = 64, 1.3
# The batches of one program, by id: jax takes longer to start a program than a batch of CartPoles takes.
_BATCHES = {"CartPole-v1": 1000, "Pong-v5": 20}


def xla(options: Options) -> list[Case]:
    if importlib.util.find_spec("jax") is None:
        raise Skipped("jax is not installed")
    cases = [_cartpole(num_envs, options.num_threads) for num_envs in _CARTPOLE_TARGETS]
    return [*cases, _pong()] if _has_gpu() else cases


def _has_gpu() -> bool:
    return any(importlib.util.find_spec(f"jax_cuda{version}_plugin") is not None for version in (12, 13))


def _cartpole(num_envs: int, num_threads: int) -> Case:
    common = {"env_id": "CartPole-v1", "num_envs": num_envs, "platform": "cpu"}
    return Case(
        f"CartPole-v1, {num_envs} envs, inside lax.fori_loop on the CPU",
        "steps/s",
        [
            isolated_contender(ENVFLEET, envfleet_loop, **common, num_threads=num_threads),
            isolated_contender(ENVPOOL, envpool_loop, **common, num_threads=num_threads),
            isolated_contender(ENVPOOL_1, envpool_loop, **common, num_threads=1),
        ],
        ENVFLEET,
        [Target("ratio", ENVFLEET, _CARTPOLE_TARGETS[num_envs], ENVPOOL)],
        facts={"num_envs": num_envs, "num_threads": num_threads},
    )


def _pong() -> Case:
    num_threads = usable_cores()
    common = {"env_id": "Pong-v5", "num_envs": _PONG_ENVS, "platform": "cuda", "num_threads": num_threads}
    return Case(
        f"Pong-v5, {_PONG_ENVS} envs, inside lax.fori_loop on a GPU",
        "steps/s",
        [
            isolated_contender(ENVFLEET, envfleet_loop, **common),
            isolated_contender(f"{ENVFLEET}, copy=False", envfleet_loop, **common, copy=False),
            isolated_contender(ENVPOOL, envpool_loop, **common),
        ],
        ENVFLEET,
        [Target("ratio", ENVFLEET, _PONG_TARGET, ENVPOOL)],
        facts={"num_envs": _PONG_ENVS, "num_threads": num_threads},
    )


def envfleet_loop(env_id: str, num_envs: int, num_threads: int, platform: str, **options: Any) -> Loop:
    _use(platform)
    import envfleet

    return _loop(envfleet.make(env_id, num_envs=num_envs, num_threads=num_threads, seed=0, **options), env_id, num_envs)


def envpool_loop(env_id: str, num_envs: int, num_threads: int, platform: str) -> Loop:
    _use(platform)
    import envpool

    made = envpool.make(env_id, env_type="gymnasium", num_envs=num_envs, num_threads=num_threads, seed=0)
    return _loop(made, env_id, num_envs)


def _use(platform: str) -> None:
    import jax

    jax.config.update("jax_platforms", platform if platform == "cpu" else f"{platform},cpu")


def _loop(envs: Any, env_id: str, num_envs: int) -> Loop:
    import jax
    import jax.numpy as jnp

    first, _ = envs.reset()
    handle, _, _, step = envs.xla()

    @jax.jit
    def run_batches(num_batches: Any, handle: Any, obs: Any) -> Any:
        def body(i: Any, carry: Any) -> Any:
            handle, (obs, *_) = step(carry[0], jnp.full(num_envs, i % 2, jnp.int32))
            return handle, obs

        return jax.lax.fori_loop(0, num_batches, body, (handle, obs))

    carry = (jnp.asarray(handle), jnp.asarray(first))
    num_batches = _BATCHES[env_id]

    def run(num_programs: int) -> None:
        nonlocal carry
        for _ in range(num_programs):
            carry = jax.block_until_ready(run_batches(num_batches, *carry))

    run(1)  # compiles
    return Loop(run, num_envs * num_batches, envs.close)


SUITES = {"xla": xla}
