"""Check a built site: every link and picture inside it leads somewhere, and nothing is loaded from other hosts.

python tools/check_site.py build/site
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Collects the ids, the links and the loaded files of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect from one tag."""
        values = dict(attrs)
        for name in ("id", "name"):
            if values.get(name):
                self.ids.add(str(values[name]))
        if tag == "a" and values.get("href"):
            self.links.append(str(values["href"]))
        if tag in ("img", "script", "source") and values.get("src"):
            self.loaded.append(str(values["src"]))
        if tag == "link" and values.get("rel") in ("stylesheet", "icon"):
            self.loaded.append(str(values["href"]))


def problems(site: Path) -> list[str]:
    """Return one line per link that leads nowhere."""
    pages = {path: Page(path) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are absolute, for any folder that a server shows it in
            continue
        for target in page.loaded:
            if urlsplit(target).netloc:
                found.append(f"{path.relative_to(site)} loads {target} from another host")
        for target in [*page.links, *page.loaded]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            linked = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            linked = linked / "index.html" if linked.is_dir() else linked
            if not linked.exists():
                found.append(f"{path.relative_to(site)} links to {target}, which does not exist")
            elif parts.fragment and linked.suffix == ".html" and not parts.fragment.startswith("__"):
                own = pages.get(linked) or next(page for other, page in pages.items() if other.resolve() == linked)
                if unquote(parts.fragment) not in own.ids:
                    found.append(f"{path.relative_to(site)} links to {target}, whose anchor does not exist")
    return found


def main() -> int:
    """Check the site that the command line names."""
    site = Path(sys.argv[1])
    found = problems(site)
    print("\n".join(found) or f"{len(list(site.rglob('*.html')))} pages, every link leads somewhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
