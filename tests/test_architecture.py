"""What docs/architecture.md says: paths and names exist, and no code asks which backend a pool has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from envfleet.core.backends import all_backends

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
FOLDERS = ("src", "native", "tests", "docs", "examples", "benchmarks", "tools")
REFERENCE = re.compile(rf"((?:{'|'.join(FOLDERS)})/[\w./-]*|CMakeLists\.txt|pyproject\.toml)(?::([\w.:]+))?")


def references() -> list[tuple[str, str | None]]:
    prose = re.sub(r"^```.*?^```", "", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = [REFERENCE.fullmatch(code) for code in CODE.findall(prose)]
    return sorted({(match[1], match[2]) for match in found if match}, key=str)


def defines_in_python(source: str, name: str) -> bool:
    """Whether a module defines a name, which may be dotted: Class.method."""
    body: list[ast.stmt] = ast.parse(source).body
    for part in name.split("."):
        definitions = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        node = next((node for node in body if isinstance(node, definitions) and node.name == part), None)
        if node is None:
            return False
        body = node.body
    return True


def defines_in_cpp(source: str, name: str) -> bool:
    """Whether a C++ file defines a class or function, by its qualified name as the file spells it."""
    return re.search(rf"\b(?:class|struct)\s+{name}\b|\b{re.escape(name)}\(", source) is not None


def test_the_page_names_paths_and_functions():
    assert len(references()) > 60
    assert sum(name is not None for _, name in references()) > 20


@pytest.mark.parametrize(("path", "name"), references())
def test_a_named_path_exists(path, name):
    target = ROOT / path
    assert target.is_dir() if path.endswith("/") else target.is_file(), (
        f"{PAGE.name} names {path}, which does not exist"
    )
    if name is not None:
        defines = defines_in_python if target.suffix == ".py" else defines_in_cpp
        assert defines(target.read_text(), name), f"{PAGE.name} names {name} in {path}, which does not define it"


@pytest.mark.parametrize(
    ("source", "name", "expected"),
    [
        ("class A:\n    def f(self): ...\n", "A.f", True),
        ("class A:\n    def f(self): ...\n", "A.g", False),
        ("def f(): ...\nA = f\n", "A", False),
    ],
)
def test_names_are_looked_up_in_their_class(source, name, expected):
    assert defines_in_python(source, name) is expected


def test_every_folder_of_the_source_is_in_the_tree():
    named = {path for path, _ in references()}
    parents = [ROOT / "src" / "envfleet", ROOT / "src" / "envfleet" / "executors", ROOT / "native"]
    folders = [child for parent in parents for child in parent.iterdir() if child.is_dir()]
    tracked = [
        folder for folder in folders if any(folder.rglob("*.*")) and folder.name not in ("__pycache__", "include")
    ]
    assert [str(folder.relative_to(ROOT)) for folder in tracked if f"{folder.relative_to(ROOT)}/" not in named] == []


# --- backends --------------------------------------------------------------------------------------


def names_in(node: ast.AST, names: set[str]) -> bool:
    """Whether an operand is one of these names, or a tuple, list or set that contains one."""
    elements = node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else [node]
    return any(isinstance(own, ast.Constant) and own.value in names for own in elements)


def comparisons_with(names: set[str], source: str) -> list[int]:
    """The lines that compare something with one of these names."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, ast.Compare) and any(names_in(own, names) for own in (node.left, *node.comparators)))
        or (isinstance(node, ast.MatchValue) and names_in(node.value, names))
    ]


@pytest.mark.parametrize(
    ("source", "is_found"),
    [
        ("x.backend == 'ray'", True),
        ("'serial' != x", True),
        ("x in ('serial', 'threads')", True),
        ("x not in {'ray'}", True),
        ("match x:\n    case 'ray' | 'native':\n        pass", True),
        ("make(env, backend='ray')", False),
        ("x == 'auto'", False),
        ("backend = 'serial'", False),
    ],
)
def test_comparisons_with_a_name_are_found(source, is_found):
    assert bool(comparisons_with({"native", "serial", "threads", "processes", "ray"}, source)) is is_found


def test_no_code_asks_which_backend_it_is():
    """It asks what the backend can do (see Backend), so that a new backend needs no change elsewhere."""
    names = {backend.name for backend in all_backends()}
    assert len(names) == 5
    package = ROOT / "src" / "envfleet"
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(package.rglob("*.py"))
        for line in comparisons_with(names, path.read_text())
    ]
    assert found == []
