"""The table in autoreset.py and the native code that mirrors it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import envfleet
from envfleet.autoreset import NATIVE_CODES, Deed, Phase, decide, parse_mode

END = 4


def observed_deed(mode: AutoresetMode, phase: Phase) -> Deed:
    """What the native engine does with an env in this phase, seen from outside."""
    pool = envfleet.make_pool("Faulty-v0", num_envs=1, autoreset_mode=mode)
    if phase is not Phase.UNSTARTED:
        pool.reset(seed=0)
    if phase is Phase.ENDED:
        source = envfleet.make_pool("Faulty-v0", num_envs=1, autoreset_mode="disabled")
        source.reset(seed=0)
        source.step([END])
        pool.set_state(source.get_state())
    if phase is Phase.BROKEN:
        with pytest.raises(envfleet.EnvError):
            pool.step([1])
    assert pool.executor.phases()[0] == phase
    try:
        batch = pool.step([END])
    except envfleet.CallOrderError:
        return Deed.REFUSE
    if not batch.terminated[0]:
        return Deed.RESET
    return Deed.STEP_THEN_RESET if batch.elapsed_step[0] == 0 else Deed.STEP


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)
@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.name)
def test_native_code_does_what_the_table_says(mode, phase):
    assert observed_deed(mode, phase) is decide(mode, phase)


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
