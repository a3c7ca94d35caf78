"""A pytest plug-in that puts envfleet's DummyVecEnv and SubprocVecEnv in the place of Stable-Baselines3's.

Loaded with `-p sb3_swap` before a test imports anything: then tests that were written for
SB3's classes, and SB3's own algorithms, run on envfleet's.
"""

import sys

import stable_baselines3.common.vec_env as sb3

import envfleet.apis.sb3

SWAPPED = {original: getattr(envfleet.apis.sb3, original.__name__) for original in (sb3.DummyVecEnv, sb3.SubprocVecEnv)}
for _name, _module in list(sys.modules.items()):
    if _name.startswith("stable_baselines3"):
        for _original, _ours in SWAPPED.items():
            if getattr(_module, _original.__name__, None) is _original:
                setattr(_module, _original.__name__, _ours)


def pytest_report_header() -> str:
    return f"DummyVecEnv and SubprocVecEnv are those of {sb3.DummyVecEnv.__module__}"
