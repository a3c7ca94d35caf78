"""highway-env: the ids of the package, with one reward per step."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any

from gymnasium.envs.registration import EnvSpec as GymnasiumSpec
from gymnasium.envs.registration import load_env_creator

from envfleet.core.family import Family, imported_spec

# Without intersection-multi-agent-v1 and v2, which return one reward per agent.
_IDS = """
exit-v0 exit-v1 highway-v0 highway-fast-v0 intersection-v0 intersection-v1 intersection-v2 intersection-multi-agent-v0
lane-keeping-v0 merge-v0 merge-v1 merge-generic-v0 merge-generic-v1 parking-v0 parking-ActionRepeat-v0
parking-parked-v0 racetrack-v0 racetrack-v1 racetrack-large-v0 racetrack-large-v1 racetrack-oval-v0 racetrack-oval-v1
roundabout-v0 roundabout-v1 roundabout-generic-v0 roundabout-generic-v1 two-way-v0 u-turn-v0 u-turn-v1
"""


@cache
def all_ids() -> frozenset[str]:
    """Return every id of highway-env 1.12 with one reward per step."""
    return frozenset(_IDS.split())


def spec_of(env_id: str) -> GymnasiumSpec:
    """Return the package's own spec, with a config per env."""
    spec = imported_spec("highway_env", env_id)
    spec.kwargs = {**spec.kwargs, "package_class": spec.entry_point}
    spec.entry_point = "envfleet.families.highway:make_env"
    return spec


def make_env(package_class: str, config: Any = None, **kwargs: Any) -> Any:
    """Return an env of this class. The package changes its config, which the envs of a worker must not share."""
    make: Any = load_env_creator(package_class)
    if config is not None:  # two of the package's classes take none
        kwargs["config"] = deepcopy(config)
    return make(**kwargs)


FAMILY = Family(
    "highway", package="highway_env", extra="highway", python_ids=all_ids, spec_of=spec_of, python_opens_windows=True
)
