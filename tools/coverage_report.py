"""Print the line coverage of the Python and the C++ code, in total and per folder (`make coverage`).

python tools/coverage_report.py PYTHON_JSON CPP_JSON

The files are those of `coverage json` and of `gcovr --json-summary`.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path, PurePath


def main(python_json: str, cpp_json: str) -> None:
    """Print both tables."""
    python_files = json.loads(Path(python_json).read_text())["files"]
    print_table(
        "Python",
        {
            name: (file["summary"]["covered_lines"], file["summary"]["num_statements"])
            for name, file in python_files.items()
        },
    )
    cpp_files = json.loads(Path(cpp_json).read_text())["files"]
    print_table("C++", {file["filename"]: (file["line_covered"], file["line_total"]) for file in cpp_files})


def print_table(language: str, files: dict[str, tuple[int, int]]) -> None:
    """Print covered lines, lines and their ratio of each folder, and of all of them."""
    folders: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for name, counts in files.items():
        folders[str(PurePath(name).parent)].append(counts)
    print(f"{language:<44} {'covered':>8} {'lines':>8} {'%':>7}")
    for folder in sorted(folders):
        print_row(folder, folders[folder])
    print_row("total", list(files.values()))
    print()


def print_row(name: str, files: list[tuple[int, int]]) -> None:
    """Print the sums over some files."""
    covered, lines = (sum(counts) for counts in zip(*files, strict=True))
    print(f"{name:<44} {covered:>8} {lines:>8} {100 * covered / max(1, lines):>7.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
