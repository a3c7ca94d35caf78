"""Every notebook in docs/notebooks runs from top to bottom, without Jupyter: its cells are Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
SOAK = {"cpp_env": "compiles an env", "ppo_video": "trains a policy"}


def code_of(notebook: Path) -> str:
    content = json.loads(notebook.read_text())
    assert content["nbformat"] == 4
    return "\n\n".join("".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code")


def run(code: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "ENVFLEET_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.stem, marks=[pytest.mark.soak] if path.stem in SOAK else [])
        for path in sorted(FOLDER.glob("*.ipynb"))
    ],
)
def test_notebook_runs(name: str, tmp_path: Path) -> None:
    if name == "ppo_video":
        pytest.importorskip("torch", reason="needs torch")
    done = run(code_of(FOLDER / f"{name}.ipynb"), tmp_path)
    assert done.returncode == 0, done.stderr


def test_ppo_video_bootstraps_where_only_the_time_limit_ends_an_episode(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch")
    functions, _, _ = code_of(FOLDER / "ppo_video.ipynb").partition('envs = envfleet.make("CartPole-v1"')
    check = """
envs = envfleet.make("CartPole-v1", num_envs=NUM_ENVS, autoreset_mode="same_step", max_episode_steps=5)
obs, _ = envs.reset(seed=0)
_, rows = collect(envs, obs)
assert rows["done"][4].all() and not rows["done"][:4].any()
assert (rows["reward"][:4] == 1).all() and (rows["reward"][4] != 1).all()
"""
    done = run(functions + check, tmp_path)
    assert done.returncode == 0, done.stderr


def test_notebooks_carry_no_outputs() -> None:
    for notebook in FOLDER.glob("*.ipynb"):
        cells = json.loads(notebook.read_text())["cells"]
        assert not any(cell.get("outputs") for cell in cells), f"clear the outputs of {notebook.name}"
