"""MkDocs hooks: put into the site what its pages link to outside docs/.

README.md becomes the first page, and each notebook becomes a page. Other Markdown files of the repository become pages
of their own (PAGES); any other file that a page links to becomes a page that shows its text. The site is complete
without a link to a repository.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
# Pages of the site by the file of the repository that they show.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "examples/README.md": "project/examples.md",
}
NOT_IN_NAV = InclusionLevel.NOT_IN_NAV
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
LANGUAGES = {".py": "python", ".cc": "cpp", ".h": "cpp", ".json": "json", ".yaml": "yaml", ".yml": "yaml"}

# A picture for each theme, as GitHub shows it.
PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*'
    r'<img alt="([^"]+)" src="([^"]+)">\s*</picture>'
)

# What the site shows in full, and the table for readers of the repository: see tools/write_reference.py.
REFERENCE = re.compile(r"<!-- reference: (\S+)(.*?)-->\n.*?<!-- end of reference -->", re.DOTALL)

_shown: dict[str, str] = {}  # pages of this build that show a file: path in the site -> path in the repository


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside docs/."""
    _shown.clear()
    sources = {file.src_uri: Path(file.abs_src_path or "") for file in files.documentation_pages()}
    for source, uri in PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / source).read_text()))
        sources[uri] = ROOT / source
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, _notebook_uri(path), content=_notebook_page(path), inclusion=NOT_IN_NAV))
    for uri, path in list(sources.items()):
        for _, target, _ in LINK.findall(REFERENCE.sub("", path.read_text())):
            linked = _repository_path(uri, target)
            if linked is not None and linked not in PAGES and not linked.startswith("docs/"):
                shown_uri = _uri_of(linked)
                if shown_uri not in _shown:
                    _shown[shown_uri] = linked
                    files.append(File.generated(config, shown_uri, content=_text_page(linked), inclusion=NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to files of the repository at their pages of the site, and show pictures in the theme that is on."""
    uri = page.file.src_uri
    markdown = REFERENCE.sub(r"::: \1\2", markdown)
    markdown = PICTURE.sub(r"![\2](\3#only-light)\n![\2](\1#only-dark)", markdown)
    if uri == "notebooks/index.md":
        markdown = markdown.replace(".ipynb)", ".md)")

    def rewrite(match: re.Match[str]) -> str:
        before, target, after = match.groups()
        linked = _repository_path(uri, target)
        if linked is None:
            return match.group(0)
        return f"{before}{posixpath.relpath(_uri_of(linked), posixpath.dirname(uri) or '.')}{after}"

    return LINK.sub(rewrite, markdown) if uri not in _shown else markdown


def _repository_path(uri: str, target: str) -> str | None:
    """Return what a link leads to, as a path in the repository; None for other pages of docs/ and for addresses."""
    if re.match(r"\w+:", target):
        return None
    own = next((source for source, page in PAGES.items() if page == uri), f"docs/{uri}")
    path = os.path.normpath(posixpath.join(posixpath.dirname(own), target))
    if not (ROOT / path).exists() or (path.startswith("docs/") and own.startswith("docs/")):
        return None
    return path


def _uri_of(path: str) -> str:
    """Return the page of the site that shows a file or folder of the repository."""
    if path in PAGES:
        return PAGES[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}.md"


def _notebook_uri(path: Path) -> str:
    return f"notebooks/{path.stem}.md"


def _notebook_page(path: Path) -> str:
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    # After the title: where to get the notebook itself.
    parts[0] = parts[0].replace("\n", f"\n\n[Download the notebook]({path.name})\n", 1)
    return "\n\n".join(parts)


def _text_page(path: str) -> str:
    full = ROOT / path
    title = f"---\nsearch: {{exclude: true}}\nhide: [navigation, toc]\n---\n# {path}\n\n"
    if full.is_dir():
        names = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in full.iterdir())
        return title + "\n".join(f"- `{name}`" for name in names if not name.startswith((".", "__")))
    return f"{title}``````{LANGUAGES.get(full.suffix, 'text')}\n{full.read_text()}\n``````\n"
