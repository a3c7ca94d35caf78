"""Everything is killed at random, for a while: every row is accounted for, and nothing is left behind.

ENVFLEET_CHAOS_SECONDS: how long the long form runs. ENVFLEET_CHAOS_SEED: of the kills; else it is drawn and printed.
"""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
from pathlib import Path

import pytest
from support.script_runs import TESTS, assert_no_files, command_of, family
from support.traces import shared_files, wait_until

SECONDS = float(os.environ.get("ENVFLEET_CHAOS_SECONDS", 600))


def chaos(tmp_path: Path, seconds: float, *options: str) -> None:
    seed = os.environ.get("ENVFLEET_CHAOS_SEED", str(random.SystemRandom().randrange(10**6)))
    before = shared_files()
    arguments = [str(TESTS / "fuzz" / "chaos.py"), "--seconds", str(seconds), "--seed", seed, *options]
    command = command_of(tmp_path, *arguments, folders=[TESTS / "sampling"])
    # Ray's sockets need a short path, and its own folder is not one of ours.
    command["env"]["RAY_TMPDIR"] = "/tmp"
    process = subprocess.Popen(**command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        out, _ = process.communicate(timeout=seconds + 240)
        print(out)
        assert process.returncode == 0, f"seed {seed}: {out}"
        assert wait_until(lambda: not family(tmp_path), 30), f"left behind: {family(tmp_path)}"
    finally:
        for survivor in family(tmp_path):
            survivor.kill()
        process.communicate()
    assert_no_files(tmp_path, before)


def test_pools_survive_kills(tmp_path):
    chaos(tmp_path, 8)


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray: pip install envfleet[ray]")
def test_pools_survive_kills_for_long(tmp_path):
    chaos(tmp_path, SECONDS, "--ray")
