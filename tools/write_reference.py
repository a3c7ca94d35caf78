"""Write the tables of docs/reference/ from the docstrings of the sources, without importing envfleet.

    python tools/write_reference.py

A page names objects in comments. Below each comment stands what the docstrings say in brief, for readers of the
repository; tools/docs_hooks.py has the site show the objects in full instead:

    <!-- reference: envfleet.Pool -->
    ...
    <!-- end of reference -->
"""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "reference"
# The comment: the object's name, then options of mkdocstrings, which the site uses.
BLOCK = re.compile(r"(<!-- reference: (\S+)(.*?)-->\n).*?(<!-- end of reference -->)", re.DOTALL)
HIDDEN = ("short_repr",)  # not of interest to users, in modules without __all__
MIXINS = ("PoolView", "HasStats")  # bases whose members the table of a class includes
OPTIONS = "envfleet.core.options.pool_options"

Definition = ast.ClassDef | ast.FunctionDef


@dataclass
class Found:
    """A module, or a definition in it."""

    path: Path
    tree: ast.Module
    node: Definition | None = None

    @property
    def doc(self) -> str:
        """The docstring."""
        return ast.get_docstring(self.tree if self.node is None else self.node) or ""


def find(name: str) -> Found:
    """Find an object by its dotted name, through the imports of packages."""
    parts = name.split(".")
    for size in range(len(parts), 0, -1):
        base = ROOT / "src" / Path(*parts[:size])
        path = next((own for own in (base / "__init__.py", base.with_suffix(".py")) if own.exists()), None)
        if path is not None:
            return _member(Found(path, ast.parse(path.read_text())), parts[size:], name)
    raise LookupError(f"{name} is not in src/")


def _member(module: Found, rest: list[str], name: str) -> Found:
    if not rest:
        return module
    for node in reversed(module.tree.body):  # overloads come first
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == rest[0]:
            return Found(module.path, module.tree, node)
        if isinstance(node, ast.ImportFrom) and any((own.asname or own.name) == rest[0] for own in node.names):
            source = next(own.name for own in node.names if (own.asname or own.name) == rest[0])
            return find(f"{node.module}.{source}")
    raise LookupError(f"{name} is not in {module.path}")


def summary(doc: str) -> str:
    """Return the first paragraph of a docstring as a cell of a table."""
    return " ".join(doc.split("\n\n")[0].split()).replace("|", r"\|")


def public_names(module: Found) -> list[str]:
    """Return what a module declares in __all__, else its own public definitions."""
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(own) for own in ast.literal_eval(node.value)]
    definitions = [node for node in module.tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
    return list(dict.fromkeys(node.name for node in definitions if not node.name.startswith("_")))


def call_of(node: Definition) -> str:
    """Return a definition as it is called: name(arguments), or the name alone for a property or a class."""
    if isinstance(node, ast.ClassDef) or any(ast.unparse(own) == "property" for own in node.decorator_list):
        return node.name
    arguments = ast.parse(ast.unparse(node)).body[0]
    assert isinstance(arguments, ast.FunctionDef)
    names = arguments.args
    for own in [*names.posonlyargs, *names.args, *names.kwonlyargs, names.vararg, names.kwarg]:
        if own is not None:
            own.annotation = None
    return f"{node.name}({ast.unparse(names).removeprefix('self, ').removeprefix('self')})"


def link(found: Found, text: str) -> str:
    """Return a link to the file of an object."""
    return f"[{text}](../../{found.path.relative_to(ROOT)})"


def options_table(found: Found) -> list[str]:
    """Return the options of make() with their defaults."""
    assert isinstance(found.node, ast.FunctionDef)
    names = found.node.args
    defaults = {
        own.arg: ast.unparse(value) for own, value in zip(names.kwonlyargs, names.kw_defaults, strict=True) if value
    }
    lines = ["| option | default | |", "|---|---|---|"]
    for text in re.split(r"\n(?=\w+: )", inspect.cleandoc(found.doc).split("\n\n", 2)[2]):
        name, _, meaning = text.partition(": ")
        lines.append(f"| `{name}` | `{defaults[name]}` | {summary(meaning)} |")
    return lines


def section(found: Found, name: str, hidden: list[str], *, has_title: bool) -> list[str]:
    """Return the lines about one object."""
    short = name.rpartition(".")[2]
    if found.node is None:
        lines = [f"**{link(found, name)}**: {summary(found.doc)}"] if has_title else []
        rows = []
        for own in (name for name in public_names(found) if name not in HIDDEN):
            member = _member(found, [own], own) if own not in _reexported(found) else Found(found.path, found.tree)
            if member.node is not None:
                rows.append(f"| {link(member, f'`{call_of(member.node)}`')} | {summary(member.doc)} |")
        return [*lines, *([""] if lines else []), "| name | |", "|---|---|", *rows]
    title = f"`{call_of(found.node)}`" if isinstance(found.node, ast.FunctionDef) else f"`{short}`"
    rows = class_rows(found, hidden)
    table = ["", "| member | |", "|---|---|", *rows] if rows else []
    return [f"**{link(found, title)}**: {summary(found.doc)}", *table]


def _reexported(module: Found) -> set[str]:
    """Return names that a package has from another library."""
    imported = [node for node in module.tree.body if isinstance(node, ast.ImportFrom)]
    return {
        own.asname or own.name
        for node in imported
        if not (node.module or "").startswith("envfleet")
        for own in node.names
    }


def class_rows(found: Found, hidden: list[str]) -> list[str]:
    """Return a row for each public method, property and field of a class; none for a function."""
    if not isinstance(found.node, ast.ClassDef):
        return []
    source = found.path.read_text().splitlines()
    rows = []
    for own in found.node.body:
        if isinstance(own, ast.FunctionDef):
            doc = ast.get_docstring(own) or ""
            is_setter = any(ast.unparse(decorator).endswith(".setter") for decorator in own.decorator_list)
            if doc and not is_setter and not any(re.search(pattern, own.name) for pattern in hidden):
                rows.append(f"| `{call_of(own)}` | {summary(doc)} |")
        elif isinstance(own, ast.AnnAssign) and isinstance(own.target, ast.Name) and not own.target.id.startswith("_"):
            name = own.target.id
            has_default = own.value is not None and not isinstance(own.value, ast.Call)
            field = f"{name} = {ast.unparse(own.value)}" if has_default and own.value is not None else name
            meaning = _meaning(name, found.doc, source[(own.end_lineno or own.lineno) - 1])
            if meaning or has_default:
                rows.append(f"| `{field}` | {meaning} |")
    for base in found.node.bases:
        if ast.unparse(base) in MIXINS:
            rows += class_rows(_member(found, [ast.unparse(base)], ast.unparse(base)), hidden)
    return rows


def _meaning(name: str, doc: str, line: str) -> str:
    """Return what the class's docstring, or the comment behind a field, says about the field."""
    described = re.search(rf"(?:^|\. )\s*{name}: (.*?)(?=\n\s*\w+: |\n\n|\. \w+: |\Z)", doc, re.DOTALL | re.MULTILINE)
    return summary(described[1] if described else line.partition("  # ")[2])


def rewritten(text: str) -> str:
    """Return a page with its tables written again."""

    def write(match: re.Match[str]) -> str:
        start, name, options, end = match.groups()
        found = find(name)
        has_title = "show_root_heading: false" not in options
        hidden = ["^_", *re.findall(r'"!(.*?)"', options)]
        lines = options_table(found) if name == OPTIONS else section(found, name, hidden, has_title=has_title)
        return "\n".join([f"{start}", *lines, "", end])

    return BLOCK.sub(write, text)


def main() -> None:
    """Run the tool."""
    for page in sorted(PAGES.glob("*.md")):
        page.write_text(rewritten(page.read_text()))


if __name__ == "__main__":
    main()
