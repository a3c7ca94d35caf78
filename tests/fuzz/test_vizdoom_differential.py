"""ViZDoom with random scenarios and options: a pool on threads, against a plain loop over the same envs.

See random_cases.py for the environment variables.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fuzz.random_cases import NUM_CASES, assert_same, run_cases
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import TimeLimit
from hypothesis import strategies as st
from support.reference import ReferenceEnv

import envfleet
from envfleet.core.infos import split_rows

pytest.importorskip("vizdoom")

SCENARIOS = ["Basic-v1", "HealthGathering-v1", "DefendTheLine-v1", "TakeCover-v1", "VizdoomBasic-v1"]


@st.composite
def doom_cases(draw: Any) -> dict[str, Any]:
    env_id = draw(st.sampled_from(SCENARIOS))
    options: dict[str, Any] = {"frame_skip": draw(st.integers(1, 6))}
    if not env_id.startswith("Vizdoom"):
        options["stack_num"] = draw(st.integers(1, 3))
        options["img_height"], options["img_width"] = draw(st.tuples(st.integers(20, 80), st.integers(20, 80)))
        options["gray_scale"] = draw(st.booleans())
        options["max_episode_steps"] = draw(st.sampled_from([3, 8, 100]))
    mode = draw(st.sampled_from(["next_step", "same_step"]))
    return {
        "id": env_id,
        "options": options,
        "mode": mode,
        "num_envs": draw(st.integers(1, 3)),
        "num_workers": draw(st.integers(1, 2)),
        "seed": draw(st.integers(0, 2**31 - 100)),
        "num_steps": draw(st.integers(5, 15)),
    }


def compare(case: dict[str, Any]) -> None:
    num_envs, seed = case["num_envs"], case["seed"]
    options = {"num_envs": num_envs, "num_workers": min(case["num_workers"], num_envs), **case["options"]}
    pool = envfleet.make_pool(case["id"], backend="threads", autoreset_mode=case["mode"], seed=seed, **options)
    plain = envfleet.make_pool(case["id"], backend="serial", num_envs=num_envs, **case["options"])
    with pool, plain:
        plain.reset(seed=seed)
        # The envs themselves: what counts their steps is around them.
        envs = [TimeLimit(env, options.get("max_episode_steps", 10_000)) for env in plain.get_attr("unwrapped")]
        references = [ReferenceEnv(env, AutoresetMode[case["mode"].upper()]) for env in envs]
        space = pool.spec.action_space
        space.seed(seed)
        batch = pool.reset(seed=seed)
        rows = [reference.reset(seed=seed + i) for i, reference in enumerate(references)]
        for step in range(case["num_steps"] + 1):
            for i, row in enumerate(rows):
                where = f"step {step}, env {i}"
                is_dict = isinstance(batch.obs, dict)
                obs = {key: batch.obs[key][i] for key in batch.obs} if is_dict else batch.obs[i]
                assert_same(row.obs, obs, where, strict=False)
                assert (row.reward, row.terminated, row.truncated) == (
                    batch.reward[i],
                    batch.terminated[i],
                    batch.truncated[i],
                ), where
                own = split_rows(batch.info, i)
                assert_same(row.info, {key: own[key] for key in row.info}, f"{where}: info", strict=False)
            actions = np.array([space.sample() for _ in range(num_envs)], space.dtype)
            batch = pool.step(actions)
            rows = [reference.step(action) for reference, action in zip(references, actions, strict=True)]


def test_threads_are_like_a_plain_loop() -> None:
    run_cases(compare, doom_cases(), 2, "ViZDoom")


@pytest.mark.soak
@pytest.mark.timeout(24 * 3600)
def test_threads_are_like_a_plain_loop_in_many_cases() -> None:
    # A case starts several engines, which takes a second.
    run_cases(compare, doom_cases(), max(1, NUM_CASES // 4), "ViZDoom")
