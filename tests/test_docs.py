"""Every Python block in README.md and docs/ runs, in order, beside the files that the page shows."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


# Pages that need a package which may not be installed.
NEEDS = {
    "atari.md": "ale_py",
    "environments.md": "dm_control",
    "vizdoom.md": "vizdoom",
    "mujoco.md": "mujoco",
    "nethack.md": "nle",
    "python_families.md": "metaworld",  # and the other packages of make test-families
    "procgen.md": "procgen",
    "ray.md": "ray",
    "from_envpool_wrapper.md": "torchrl",
    "from_ray_env_wrapper.md": "ray",
    "rllib.md": "ormsgpack",  # comes with ray[rllib], but not with ray alone
    "sb3.md": "stable_baselines3",
    "torchrl.md": "torchrl",
    "tianshou.md": "tianshou",
    "pettingzoo.md": "pettingzoo",
    "jax.md": "jax",
    "tutorials/jax.md": "jax",
    "tutorials/many_machines.md": "ray",
    "tutorials/stable_baselines3.md": "stable_baselines3",
    "tutorials/training_loop.md": "torch",
}


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)).removeprefix("docs/"))
def test_page_runs(page, tmp_path):
    needed = NEEDS.get(page.relative_to(ROOT).as_posix().removeprefix("docs/"))
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    for source in blocks(page, "cpp") + blocks(page, "py"):
        if name := re.match(r"(?://|#) file: (\S+)", source):
            (tmp_path / name.group(1)).write_text(source)
    code = "\n".join(blocks(page, "python"))
    if not code:
        return
    result = subprocess.run(
        # Simulators import pygame, which imports pkg_resources; workers have the same filters.
        [sys.executable, "-W", "error", "-W", "ignore:pkg_resources is deprecated:UserWarning", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "ENVFLEET_CACHE": str(tmp_path / "cache"), "ENVFLEET_DATA": str(tmp_path / "data")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr


REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))


@pytest.mark.parametrize("page", REFERENCE, ids=lambda page: page.stem)
def test_the_reference_says_what_the_docstrings_say(page):
    tool = runpy.run_path(str(ROOT / "tools" / "write_reference.py"))
    assert page.read_text() == tool["rewritten"](page.read_text()), "run python tools/write_reference.py"


def test_the_reference_is_readable_without_the_site():
    text = "\n".join(page.read_text() for page in REFERENCE)
    assert "\n:::" not in text  # a directive of the site's generator
    for name in ("num_envs", "drop_pending(timeout=None)", "return_mean", "make_vec_env(", "`EnvError`"):
        assert name in text


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere():
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "examples" / "README.md"]:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", BLOCK.sub("", page.read_text())):
            if target.startswith("http"):
                continue
            linked = page.parent / target if target else page
            assert linked.exists(), f"{page.name} links to {target}"
            if anchor:
                assert anchor in anchors_of(linked), f"{page.name} links to {target}#{anchor}"


def test_pictures_exist_for_both_themes():
    shown = []
    for page in PAGES:
        shown += [page.parent / name for name in re.findall(r'(?:srcset|src)="([^"]+)"', page.read_text())]
        shown += [page.parent / name for name in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", BLOCK.sub("", page.read_text()))]
    assert len(shown) >= 4
    assert [path for path in shown if not path.exists()] == []
    light = [path for path in shown if not path.stem.endswith("_dark")]
    assert [path for path in light if path.with_stem(f"{path.stem}_dark") not in shown] == []


def test_every_claim_of_the_readme_has_its_evidence():
    claims = re.findall(r"^- \*\*([^*]+)\.\*\*", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(claims) >= 5
    evidence = (ROOT / "docs" / "why.md").read_text().partition("## The claims of the README")[2]
    rows = [line for line in evidence.splitlines() if line.startswith("| ") and "evidence |" not in line]
    assert [claim for claim in claims if not any(row.startswith(f"| {claim} |") for row in rows)] == []
    assert [row for row in rows if "](" not in row] == []


def test_the_readme_stays_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 125


def test_the_figures_in_brief_are_those_of_the_full_tables():
    brief = [line for line in (ROOT / "docs" / "benchmarks.md").read_text().splitlines() if line.startswith("| ")]
    full = "\n".join(page.read_text() for page in (ROOT / "docs" / "benchmarks").glob("*.md"))
    figures = re.findall(r"(?<![\w.-])\d[\d.]*(?:x| k| M)(?!\w)", "\n".join(brief))
    assert len(figures) > 70
    assert [figure for figure in figures if not re.search(rf"(?<![\d.]){re.escape(figure)}\b", full)] == []


THROUGHPUT = re.compile(r"(?<![\w.-])\d[\d.]*(?: k| M)(?!\w)")
DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")


def test_a_throughput_stands_in_one_place():
    """On the pages of benchmarks.md, or on a page with measurements of its own and their date."""
    undated = []
    for page in PAGES:
        name, text = page.relative_to(ROOT).as_posix(), BLOCK.sub("", page.read_text())
        if not name.startswith("docs/benchmarks") and THROUGHPUT.search(text) and not DATE.search(text):
            undated.append(name)
    assert undated == []


LINKED_FIGURE = re.compile(r"\[(\d+(?:\.(\d+))?)x[^\]]*\]\((benchmarks[^)#]*)[^)]*\)")


@pytest.mark.parametrize("name", ["why.md", "training.md"])
def test_linked_figures_are_those_of_the_linked_page(name):
    figures = LINKED_FIGURE.findall((ROOT / "docs" / name).read_text())
    assert figures
    for figure, decimals, page in figures:
        measured = re.findall(r"(?<![\w.])(\d[\d.]*)x(?!\w)", (ROOT / "docs" / page).read_text())
        rounded = [f"{float(value):.{len(decimals)}f}" for value in measured]
        assert figure in rounded, f"{name} says {figure}x, which is not in {page}"
