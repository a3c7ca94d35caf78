"""Commands on envs of the user's own: module:attribute."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import pytest

from envfleet.cli import main

MODULE = """
import gymnasium
import numpy as np

class MyEnv(gymnasium.Env):
    observation_space = gymnasium.spaces.Discrete(100)
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, length=4, render_mode=None):
        self.length, self.render_mode, self.count = length, render_mode, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return 0, {}

    def step(self, action):
        self.count += 1
        return self.count, 1.0, self.count == self.length, False, {}

    def render(self):
        return np.full((16, 16, 3), 9 * self.count, np.uint8)

class Outside(MyEnv):
    def step(self, action):
        return 200, 1.0, False, False, {}

class envs:
    make = staticmethod(lambda **kwargs: MyEnv(**kwargs))

def make_env(length=3):
    return MyEnv(length)

number = 3
gymnasium.register("OwnEnvOfTheTests-v3", MyEnv)
"""


@pytest.fixture
def own_cli(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The script `envfleet`, which does not have the current folder in its path, in a folder with modules."""
    (tmp_path / "my_own_envs.py").write_text(MODULE)
    (tmp_path / "broken_envs.py").write_text("import json\nimport no_such_package\n")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        script = Path(sys.executable).with_name("envfleet")
        return subprocess.run(
            [script, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )

    return run


def figures_of(output: str) -> dict[str, str]:
    rows = ([part.strip() for part in line.split("│")] for line in output.splitlines() if "│" in line)
    return {name: value for _, name, value, _ in rows}


ENVS = {"MyEnv": 4, "make_env": 3, "envs.make": 4, "OwnEnvOfTheTests-v3": 4}


@pytest.mark.parametrize(
    ("name", "backend"), [*((name, "processes") for name in ENVS), ("MyEnv", "serial"), ("make_env", "threads")]
)
def test_run(name: str, backend: str, own_cli: Any) -> None:
    sizes = ["--num-envs", "4", "--num-workers", "1" if backend == "serial" else "2", "--steps", "400"]
    result = own_cli("run", f"my_own_envs:{name}", "--backend", backend, *sizes)
    assert (result.returncode, result.stderr) == (0, "")
    fields = figures_of(result.stdout)
    assert (fields["backend"], fields["length min / max"]) == (backend, f"{ENVS[name]} / {ENVS[name]}")


def test_parameters_and_a_recording(tmp_path: Path, own_cli: Any) -> None:
    picture = ["--record", "own.gif", "--record-envs", "1", "--record-steps", "5"]
    result = own_cli("run", "my_own_envs:MyEnv", "--set", "length=7", "--num-envs", "2", "--steps", "200", *picture)
    assert (result.returncode, result.stderr) == (0, "")
    assert figures_of(result.stdout)["length min / max"] == "7 / 7"
    assert len(imageio.imread(tmp_path / "own.gif")) == 5


def test_bench(tmp_path: Path, own_cli: Any) -> None:
    own = ["--backends", "serial", "--num-envs", "2", "--rounds", "1", "--seconds", "0.1", "--json", "own.json"]
    result = own_cli("bench", "my_own_envs:MyEnv", "--compare", "sync,async", *own)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("MyEnv: median")
    report = json.loads((tmp_path / "own.json").read_text())
    assert [peer["backend"] for peer in report["peers"]] == ["Gymnasium Sync", "Gymnasium Async"]


@pytest.mark.parametrize(
    ("name", "made", "after"),
    [
        ("make_env", "make_env", "from my_own_envs import make_env"),
        ("OwnEnvOfTheTests-v3", "'OwnEnvOfTheTests-v3'", "import my_own_envs"),
    ],
)
def test_tune(name: str, made: str, after: str, own_cli: Any) -> None:
    result = own_cli("tune", f"my_own_envs:{name}", "--backends", "serial", "--num-envs", "2", "--seconds", "0.5")
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[-2:] == [f"best: envfleet.make({made}, backend='serial', num_envs=2)", f"after: {after}"]


def test_check(own_cli: Any) -> None:
    result = own_cli("list", "--check", "my_own_envs:MyEnv")
    assert result.returncode == 0, result.stdout
    assert result.stdout.startswith("check_env(MyEnv): 0 errors")
    result = own_cli("list", "--check", "my_own_envs:MyEnv", "my_own_envs:Outside")
    assert result.returncode == 1
    assert "\ncheck_env(Outside): 1 error" in result.stdout


@pytest.mark.parametrize(
    ("command", "given", "said"),
    [
        (["run"], "my_own_env:MyEnv", "expected a module 'my_own_env' in "),
        (["run"], "my_own_envs.py:MyEnv", "found none; write my_own_envs:MyEnv$"),
        (["run"], "no_such.module:MyEnv", "expected a module 'no_such.module' in "),
        (["run"], "my_own_envs:MyEnf", "an env 'MyEnf' in module 'my_own_envs'.* did you mean my_own_envs:MyEnv?"),
        (["run"], "my_own_envs:envs.made", "expected an env 'envs.made'"),
        (["run"], "my_own_envs:", "expected an env ''"),
        (["run"], "my_own_envs:number", "expected a class or a factory, got int: 3"),
        (["run"], "broken_envs:MyEnv", r"No module named 'no_such_package' \(in .*broken_envs.py, line 2\)"),
        (["bench"], "my_own_envs:MyEnf", "an env 'MyEnf' in module 'my_own_envs'"),
        (["tune"], "my_own_envs:MyEnf", "an env 'MyEnf' in module 'my_own_envs'"),
        (["list", "--check"], "my_own_envs:MyEnf", "an env 'MyEnf' in module 'my_own_envs'"),
        (["list", "--check"], "my_own_env:MyEnv", "expected a module 'my_own_env' in "),
    ],
)
def test_what_does_not_exist(command: list[str], given: str, said: str, own_cli: Any) -> None:
    result = own_cli(*command, given)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert re.search(said, result.stderr.rstrip()), result.stderr


def test_check_needs_an_env(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--check"]) == 2
    assert "--check expected the envs to check" in capsys.readouterr().err


def test_help_says_the_same_of_seconds_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("run", "bench", "tune"):
        assert main([command, "--help"]) == 0
        assert "--seconds S how long the envs are stepped, in total" in " ".join(capsys.readouterr().out.split())
