"""Atari envs with random games and options: against Gymnasium's preprocessing, in any order, and from saved states.

Rewards and ends are equal; pictures differ by one grey level at most, for the reason that tests/oracle/test_atari.py
gives. See random_cases.py for the environment variables.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fuzz.random_cases import NUM_CASES, run_cases
from hypothesis import strategies as st

import envfleet

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

from oracle.atari_rollouts import Preprocessed, compare

GAMES = ["Breakout", "Pong", "MsPacman", "Seaquest", "SpaceInvaders", "Freeway", "Enduro", "AirRaid", "Alien", "Tennis"]


@st.composite
def atari_cases(draw: Any, max_steps: int) -> dict[str, Any]:
    height, width = draw(st.tuples(st.integers(20, 100), st.integers(20, 100)))
    return {
        "game": draw(st.sampled_from(GAMES)),
        "stack": draw(st.integers(1, 5)),
        "frame_skip": draw(st.integers(1, 5)),
        "noop_max": draw(st.sampled_from([0, 1, 30])),
        "sticky": draw(st.sampled_from([0.0, 0.25, 0.9])),
        "max_frames": draw(st.sampled_from([40, 151, 108_000])),
        "is_gray": draw(st.booleans()),
        "size": (height, width),
        "seed": draw(st.integers(0, 2**31 - 1)),
        "num_envs": draw(st.integers(2, 4)),
        "batch_size": draw(st.integers(1, 2)),
        "backend": draw(st.sampled_from(["serial", "threads"])),
        "mode": draw(st.sampled_from(["next_step", "same_step"])),
        "episodic_life": draw(st.booleans()),
        "reward_clip": draw(st.booleans()),
        "num_steps": draw(st.integers(10, max_steps)),
    }


def options_of(case: dict[str, Any]) -> dict[str, Any]:
    height, width = case["size"]
    return {
        "stack_num": case["stack"],
        "frame_skip": case["frame_skip"],
        "noop_max": case["noop_max"],
        "repeat_action_probability": case["sticky"],
        "max_num_frames_per_episode": case["max_frames"],
        "gray_scale": case["is_gray"],
        "img_height": height,
        "img_width": width,
    }


def compare_with_gymnasium(case: dict[str, Any]) -> None:
    height, width = case["size"]
    reference = Preprocessed(
        case["game"],
        sticky=case["sticky"],
        max_frames=case["max_frames"],
        stack=case["stack"],
        frame_skip=case["frame_skip"],
        noop_max=case["noop_max"],
        grayscale_obs=case["is_gray"],
        screen_size=(width, height),
    )
    pool = envfleet.make(f"{case['game']}-v5", backend="serial", use_fire_reset=False, **options_of(case))

    def as_planes(obs: Any) -> Any:
        return obs if case["is_gray"] else np.moveaxis(obs, -1, 1).reshape(-1, *obs.shape[1:3])

    compare(reference, pool, case["num_steps"], seed=case["seed"], as_planes=as_planes)


def compare_orders_and_states(case: dict[str, Any]) -> None:
    """An asynchronous pool against a synchronous one, whose state goes on a detour and comes back."""
    options = {
        **options_of(case),
        **{name: case[name] for name in ("num_envs", "episodic_life", "reward_clip", "seed", "backend")},
        "autoreset_mode": case["mode"],
    }
    random = np.random.default_rng(case["seed"])
    num_envs, num_steps = case["num_envs"], case["num_steps"]
    with envfleet.make_pool(f"{case['game']}-v5", **options) as pool:
        actions = random.integers(pool.spec.action_space.n, size=(num_steps, num_envs))
        first = pool.reset()
        rows = []
        for step, own in enumerate(actions):
            # ale-py saves no action that a sticky one repeats, so the future of such a state may differ.
            if step == num_steps // 2 and not case["sticky"]:
                saved = pool.get_state()
                for other in actions[::-1][:5]:
                    pool.step(other)
                pool.set_state(saved)
            rows.append(pool.step(own))
    with envfleet.make_pool(f"{case['game']}-v5", **options, batch_size=case["batch_size"]) as pool:
        pool.async_reset()
        counts = np.zeros(num_envs, np.int64)
        while (counts <= num_steps).any():
            batch = pool.recv()
            for position, env_id in enumerate(batch.env_id.tolist()):
                if counts[env_id] <= num_steps:
                    expected = first if counts[env_id] == 0 else rows[counts[env_id] - 1]
                    for name in ("obs", "reward", "terminated", "truncated", "elapsed_step"):
                        own, theirs = getattr(batch, name)[position], getattr(expected, name)[env_id]
                        np.testing.assert_array_equal(own, theirs, err_msg=f"env {env_id}, step {counts[env_id]}")
                    np.testing.assert_array_equal(batch.info["lives"][position], expected.info["lives"][env_id])
            pool.send(actions[counts[batch.env_id] % num_steps, batch.env_id], batch.env_id)
            counts[batch.env_id] += 1


def test_random_options_are_as_in_gymnasium() -> None:
    run_cases(compare_with_gymnasium, atari_cases(15), 2, "Atari")


def test_any_order_and_states() -> None:
    run_cases(compare_orders_and_states, atari_cases(10), 2, "Atari, asynchronous")


@pytest.mark.soak
@pytest.mark.timeout(24 * 3600)
@pytest.mark.parametrize("check", [compare_with_gymnasium, compare_orders_and_states])
def test_many_random_options(check: Any) -> None:
    # A case takes one to two seconds.
    run_cases(check, atari_cases(60), max(1, NUM_CASES // 4), f"Atari: {check.__name__}")
