"""The step rule: the table in autoreset.py, and what every executor does."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from support.subjects import SUBJECTS

import envfleet
from envfleet.core.autoreset import NATIVE_CODES, Phase, StepRule, parse_mode, step_rule

STEP, THROW, END = 0, 1, 4


def make(subject: str, mode: AutoresetMode) -> envfleet.Pool:
    return SUBJECTS[subject]("Faulty-v0", num_envs=len(Phase), num_threads=1, autoreset_mode=mode)


def bring_into_phases(pool: envfleet.Pool, subject: str) -> None:
    """Bring env i into the phase with the number i."""
    # By way of a state: in the same_step mode no step leaves an env ended.
    with closing(make(subject, AutoresetMode.DISABLED)) as source:
        source.reset([Phase.RUNNING, Phase.ENDED, Phase.BROKEN], seed=0)
        source.step([END], [Phase.ENDED])
        pool.set_state(source.get_state())
    with pytest.raises(envfleet.EnvError):
        pool.step([THROW], [Phase.BROKEN])
    assert pool.executor.phases().tolist() == list(Phase)


def observed_rule(pool: envfleet.Pool, env_id: int) -> StepRule:
    """Step one env, and tell from outside what the executor did with it."""
    try:
        batch = pool.step([END], [env_id])
    except envfleet.CallOrderError:
        return StepRule.REFUSE
    if not batch.terminated[0]:
        assert batch.elapsed_step[0] == 0
        return StepRule.RESET
    return StepRule.STEP_THEN_RESET if batch.elapsed_step[0] == 0 else StepRule.STEP


def cases():
    for subject in SUBJECTS:
        for mode in AutoresetMode:
            # An actor takes seconds to start: one mode in every run, the others in the long ones.
            is_slow = subject == "ray" and mode is not AutoresetMode.NEXT_STEP
            yield pytest.param(subject, mode, id=f"{subject}-{mode.value}", marks=[pytest.mark.soak] * is_slow)


@pytest.mark.parametrize(("subject", "mode"), list(cases()))
def test_every_executor_does_what_the_table_says(subject, mode):
    with closing(make(subject, mode)) as pool:
        bring_into_phases(pool, subject)
        observed = {phase: observed_rule(pool, int(phase)) for phase in Phase}
    assert observed == {phase: step_rule(mode, phase) for phase in Phase}


def test_the_numbers_are_those_of_the_abi():
    abi = (Path(envfleet.get_include()) / "envfleet" / "abi.h").read_text()
    codes = {name: int(value) for name, value in re.findall(r"EF_([A-Z_]+) = (\d+)", abi)}
    for phase in Phase:
        assert codes[phase.name] == phase
    for mode, code in NATIVE_CODES.items():
        assert codes[mode.name] == code
    assert envfleet._native.abi_version == int(re.search(r"ENVFLEET_ABI_VERSION (\d+)", abi).group(1))


def test_names_of_the_modes():
    for mode in AutoresetMode:
        assert parse_mode(mode) is parse_mode(mode.value) is parse_mode(mode.name.lower()) is mode


def test_same_step_shows_the_end_and_the_beginning():
    pool = envfleet.make_pool("Faulty-v0", num_envs=2, autoreset_mode="same_step")
    start = pool.reset(seed=0).obs
    pool.step([0, 0])
    batch = pool.step([END, 0])
    assert batch.terminated.tolist() == [True, False]
    assert batch.reward.tolist() == [2, 2]
    assert batch.obs[:, 1].tolist() == [0, 2]
    assert batch.obs[0, 0] != start[0, 0]
    np.testing.assert_array_equal(batch.final.obs[0], [start[0, 0], 2])
    assert batch.final.elapsed_step[0] == 2
    assert batch.final.info["last_action"][0] == END
