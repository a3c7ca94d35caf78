"""The time limits and spaces of env ids, known without building an env.

tools/write_catalogue.py builds every env whose package is installed and records them in catalogue.json.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class EnvSummary:
    """What `envfleet list` shows of an env. The spaces are written as cli/list_envs.py:brief does."""

    max_episode_steps: int | None
    observation: str
    action: str


@cache
def summaries() -> dict[str, EnvSummary]:
    """Return the summary of every recorded id."""
    families = json.loads(FILE.read_text(encoding="utf-8"))
    return {
        env_id: EnvSummary(group["limit"], group["observation"], group["action"])
        for groups in families.values()
        for group in groups
        for env_id in group["ids"]
    }
