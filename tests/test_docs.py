"""Every Python block in README.md and docs/ runs, in order, beside the files that the page shows."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


# Pages about a framework that need not be there.
NEEDS = {
    "atari.md": "ale_py",
    "environments.md": "dm_control",
    "vizdoom.md": "vizdoom",
    "mujoco.md": "mujoco",
    "ray.md": "ray",
    "from_ray_env_wrapper.md": "ray",
    "rllib.md": "ormsgpack",  # what ray[rllib] brings and ray alone does not
    "sb3.md": "stable_baselines3",
    "torchrl.md": "torchrl",
    "tianshou.md": "tianshou",
    "pettingzoo.md": "pettingzoo",
}


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_runs(page, tmp_path):
    if page.name in NEEDS and importlib.util.find_spec(NEEDS[page.name]) is None:
        pytest.skip(f"{NEEDS[page.name]} is not installed")
    for source in blocks(page, "cpp"):
        if name := re.match(r"// file: (\S+)", source):
            (tmp_path / name.group(1)).write_text(source)
    code = "\n".join(blocks(page, "python"))
    if not code:
        return
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "ENVFLEET_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_links_lead_somewhere():
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_stays_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 125
