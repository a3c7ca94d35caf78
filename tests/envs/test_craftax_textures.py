"""Craftax, when the package finds half a cache of textures: reloaded once. Runs without the package."""

from __future__ import annotations

import os
import sys
from types import ModuleType

import pytest

from envfleet.families.craftax.env import _package_env

VARIABLE = "CRAFTAX_RELOAD_TEXTURES"


@pytest.mark.parametrize("before", [None, "0", "1"])
@pytest.mark.parametrize("fails_again", [False, True])
def test_the_textures_are_reloaded_and_the_variable_is_restored(monkeypatch, before, fails_again):
    seen = []

    def make_craftax_env_from_name(name, auto_reset):
        seen.append(os.environ.get(VARIABLE))
        if len(seen) == 1 or fails_again:
            raise EOFError("Ran out of input")
        return name

    package, module = ModuleType("craftax"), ModuleType("craftax.craftax_env")
    module.make_craftax_env_from_name = make_craftax_env_from_name
    monkeypatch.setitem(sys.modules, "craftax", package)
    monkeypatch.setitem(sys.modules, "craftax.craftax_env", module)
    if before is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, before)
    make = _package_env.__wrapped__  # without the cache, which other tests share
    if fails_again:
        with pytest.raises(EOFError):
            make("Craftax-Symbolic-v1", ())
    else:
        assert make("Craftax-Symbolic-v1", ()) == "Craftax-Symbolic-v1"
    assert seen == [before, "1"]
    assert os.environ.get(VARIABLE) == before
