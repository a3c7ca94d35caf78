"""The files around the package agree with it: version, workflows, site, containers. `make docs` and others do more."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import yaml

import envfleet

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli", reason="needs tomllib of Python 3.11")

ROOT = Path(__file__).parents[1]


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_is_the_same_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert {"title", "authors", "message"} <= set(citation)
    assert citation["version"] == project()["project"]["version"] == envfleet.__version__


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_workflows_and_templates_parse(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    if path.parent.name == "workflows":
        assert {"name", "permissions", "jobs"} <= set(content)
        for job in content["jobs"].values():
            assert all(("uses" in step) != ("run" in step) for step in job["steps"])


def test_files_that_the_wheel_workflow_uses_exist() -> None:
    command = project()["tool"]["cibuildwheel"]["test-command"]
    paths = re.findall(r"\{project\}/(\S+)", command)
    assert len(paths) == 2
    assert all((ROOT / path).is_file() for path in paths)


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"([\w/]+\.md)", (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]))
    own = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert own - listed == set()


def test_container_and_cluster_files_parse() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    assert {"head", "worker", "pool"} == set(services)
    cluster = yaml.safe_load((ROOT / "examples" / "cluster" / "kuberay.yaml").read_text())
    assert cluster["kind"] == "RayCluster"
    image = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["image"]
    assert image.endswith(f":{envfleet.__version__}")


def test_windows_is_refused_with_a_remedy() -> None:
    refusal = re.search(
        r"if\(WIN32\)\n  message\(FATAL_ERROR (.*?)\)\nendif", (ROOT / "CMakeLists.txt").read_text(), re.S
    )
    assert refusal is not None
    assert "WSL 2" in refusal.group(1)


def test_the_docker_check_sees_every_command() -> None:
    spec = importlib.util.spec_from_file_location("check_dockerfile", ROOT / "tools" / "check_dockerfile.py")
    assert spec is not None
    assert spec.loader is not None
    checker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(checker)
    commands = checker.run_lines((ROOT / "Dockerfile").read_text())
    assert [command.split()[0] for command in commands] == ["apt-get", "pip", "pip", "useradd", "envfleet"]
    assert checker.run_lines("RUN one \\\n  two\nCMD three\n") == ["one two"]
