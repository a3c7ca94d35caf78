"""Record the time limits and spaces of env ids in src/envfleet/envs/catalogue.json, by building each env once.

    python tools/write_catalogue.py             every family whose package is installed
    python tools/write_catalogue.py nethack     these families; the others stay as they are

The packages do not all fit into one environment: run it in .venv, then in .venv-families with the families there.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from dataclasses import replace

import envfleet
from envfleet.building.native_envs import find_entry
from envfleet.building.registry import family_of
from envfleet.cli.list_envs import brief
from envfleet.envs.catalogue import FILE, EnvSummary, summaries

_CAMPAIGN = re.compile(r"Vizdoom(Doom|Freedoom1|Doom2|Freedoom2)(E\dM\d|MAP\d\d)-S\d-v0")


def build_summary(env_id: str) -> EnvSummary:
    """Return the summary of an id. Builds the env, or one of another id that is known to have the same spaces."""
    env_id = _representative(env_id)
    backend = "auto" if find_entry(env_id) is not None else "serial"
    spec = envfleet.make_spec(env_id, backend=backend)
    return EnvSummary(spec.max_episode_steps, brief(spec.observation_space), brief(spec.action_space))


def _representative(env_id: str) -> str:
    """Maps and skills do not change the spaces; Doom's files differ from Freedoom's in the game alone."""
    if found := _CAMPAIGN.fullmatch(env_id):
        return "VizdoomFreedoom1E1M1-S1-v0" if found[1] in ("Doom", "Freedoom1") else "VizdoomFreedoom2MAP01-S1-v0"
    return env_id


def _with_own_limit(built: EnvSummary, recorded: EnvSummary | None) -> EnvSummary:
    """Keep the limit that was recorded from the package's documentation if the env does not declare its own."""
    if recorded is None or built.max_episode_steps is not None:
        return built
    return replace(built, max_episode_steps=recorded.max_episode_steps)


def main() -> None:
    """Run the tool."""
    wanted = set(sys.argv[1:])
    found = dict(summaries()) if FILE.exists() else {}
    built: dict[str, EnvSummary] = {}
    for env_id in envfleet.list_all_envs():
        family = family_of(env_id)
        if not family.package or not family.is_installed or (wanted and family.name not in wanted):
            continue
        same = _representative(env_id)
        try:
            if same not in built:
                built[same] = build_summary(same)
            found[env_id] = _with_own_limit(built[same], found.get(env_id))
        except Exception as error:
            print(f"{env_id}: {type(error).__name__}: {error}", file=sys.stderr)
    write({env_id: found[env_id] for env_id in envfleet.list_all_envs() if env_id in found})


def write(found: dict[str, EnvSummary]) -> None:
    """Write the file: by family, one line per summary with the ids that have it."""
    families: dict[str, dict[EnvSummary, list[str]]] = {}
    for env_id, summary in sorted(found.items()):
        families.setdefault(family_of(env_id).name, {}).setdefault(summary, []).append(env_id)
    parts = []
    for family, groups in sorted(families.items()):
        lines = [
            json.dumps(
                {"limit": own.max_episode_steps, "observation": own.observation, "action": own.action, "ids": ids}
            )
            for own, ids in groups.items()
        ]
        parts.append(f"{json.dumps(family)}: [\n" + ",\n".join(lines) + "\n]")
    FILE.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of the packages
    main()
