"""The procgen package's own env, imported without gym, which the package only needs to register its ids."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

NEEDS_PROCGEN = pytest.mark.skipif(
    importlib.util.find_spec("procgen") is None,
    reason="needs Procgen: pip install --no-deps procgen-mirror==0.10.7 (Python 3.11 or 3.12)",
)
NEEDS_GYM3 = pytest.mark.skipif(
    importlib.util.find_spec("gym3") is None or importlib.util.find_spec("cffi") is None,
    reason="needs gym3: pip install --no-deps gym3==0.3.3 cffi imageio",
)


def gym3_env(**options: Any) -> Any:
    """Return the package's ProcgenGym3Env, which steps its games in the caller's thread."""
    return _package().ProcgenGym3Env(num_threads=0, **options)


def _package() -> Any:
    if "procgen" in sys.modules:
        return sys.modules["procgen"]
    registration: Any = ModuleType("gym.envs.registration")
    registration.register = lambda **_: None
    stand_ins = {"gym": ModuleType("gym"), "gym.envs": ModuleType("gym.envs"), "gym.envs.registration": registration}
    with mock.patch.dict(sys.modules, stand_ins), warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the package leaves a file open
        package = importlib.import_module("procgen")
        gym3 = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in ("procgen", "gym3")}
    sys.modules.update(gym3)  # mock.patch.dict has removed them
    return package
