"""Scripts written from the documented usage of each predecessor run unchanged, with the gym that is there.

Without gym installed, that is the light one; `make test-gym` runs them beside gym 0.26.2.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
HAS_GYM = importlib.util.find_spec("gym") is not None


@dataclass(frozen=True)
class Script:
    """A script, what has to be installed for it, and which gym it is for: "both", or "light" (the dialect of 0.25)."""

    name: str
    needs: tuple[str, ...] = ()
    gym: str = "both"
    after: str = ""  # a script that runs before it, in the same folder
    is_slow: bool = False  # it starts a Ray cluster; tests/ray_backend covers the same in `make test`


ALL = [
    Script("envpool_gymnasium"),
    Script("envpool_gym", gym="light"),
    Script("env_wrappers_vec_env"),
    Script("env_wrappers_sampler", needs=("pygame",), gym="light"),
    Script("ray_env_wrapper_example", needs=("ray",), is_slow=True),
    Script("envpool_wrapper_train", after="envpool_wrapper_env"),
    Script("gymnasium_vector"),
    Script("sb3_vec_env", needs=("stable_baselines3",)),
    Script("pufferlib_usage"),
    Script("pufferlib_differential", needs=("pufferlib",)),
]


# Those that take arguments: test_envpool_examples.py runs them.
ELSEWHERE = {"envpool_examples", "gym_wrappers_around_envpool"}


def test_every_script_is_run():
    listed = {name for script in ALL for name in (script.name, script.after) if name} | ELSEWHERE
    assert listed == {path.stem for path in SCRIPTS.glob("*.py")}


@pytest.mark.parametrize(
    "script",
    [pytest.param(own, id=own.name, marks=[pytest.mark.soak] if own.is_slow else []) for own in ALL],
)
def test_script(script, tmp_path):
    missing = [name for name in script.needs if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    if script.gym == "light" and HAS_GYM:
        pytest.skip("speaks the dialect before gym 0.26")
    for name in filter(None, (script.after, script.name)):
        shutil.copy(SCRIPTS / f"{name}.py", tmp_path)
        # Other packages' warnings are theirs; ours are errors where no other gym warns.
        warnings = [] if HAS_GYM or script.needs else ["-W", "error"]
        result = subprocess.run(
            [sys.executable, *warnings, "-m", "envfleet.compat", f"{name}.py"],
            cwd=tmp_path,
            env={**os.environ, "ENVFLEET_DATA": str(tmp_path / "data"), "PYTHONPATH": str(SCRIPTS.parent)},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        assert result.stdout.splitlines()[-1] == "done"
