"""Run the commands of the Dockerfile without Docker, in a new virtual environment (`make docker-check`).

COPY copies the files that git knows, as .dockerignore does. pip and envfleet run from the new environment, and paths of
the image are replaced by folders of a temporary one. What needs root on the image itself (apt-get, useradd) is skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SKIPPED = ("apt-get", "useradd")


def run_lines(dockerfile: str) -> list[str]:
    """Return the RUN commands, with continued lines joined."""
    joined = re.sub(r"\s*\\\n\s*", " ", dockerfile)
    return re.findall(r"^RUN (.*)$", joined, re.MULTILINE)


def main() -> int:
    """Run the commands one after the other; the first failure ends it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tracked = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, check=True, text=True,
        ).stdout  # fmt: skip
        for path in filter(None, tracked.split("\0")):
            if (ROOT / path).is_file():
                (folder / "src" / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / path, folder / "src" / path)
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        environment = {**os.environ, "PATH": f"{folder / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        for line in run_lines((ROOT / "Dockerfile").read_text()):
            if line.startswith(SKIPPED):
                print(f"not run here: {line}", flush=True)
                continue
            command = line.replace("/wheels", str(folder / "wheels"))
            print(f"+ {command}", flush=True)
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=folder / "src", env=environment)
            if done.returncode != 0:
                print(f"the Dockerfile's command failed with exit status {done.returncode}: {line}")
                return 1
    print("every command of the Dockerfile ran")
    return 0


if __name__ == "__main__":
    sys.exit(main())
