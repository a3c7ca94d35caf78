"""render_mode="human": env 0 in a window, and a sentence where there is no screen."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import envfleet
from envfleet.core import rendering
from envfleet.core.errors import ConfigError

# SDL's "dummy" driver has a screen that nobody sees.
SCRIPT = """
import numpy as np
import pygame
import envfleet
from envfleet.compat import envpool

def seen():
    return np.swapaxes(pygame.surfarray.array3d(pygame.display.get_surface()), 0, 1)

for env_id, options in (("CartPole-v1", {}), ("Pong-v5", {"backend": "serial"})):
    with envfleet.make(env_id, num_envs=2, render_mode="human", **options) as envs:
        envs.reset(seed=0)
        assert envs.render() == (None, None)
        first = seen()
        assert (first == envs.render_env(0)).all()
        envs.action_space.seed(0)
        for _ in range(20):
            envs.step(envs.action_space.sample())
        envs.render()
        assert (seen() != first).any()
    assert not pygame.display.get_init()

pool = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=2, render_mode="human", render_env_id=1)
pool.reset(seed=0)
assert pool.render() is None
assert (seen() == pool.render_env(1)).all()
pool.close()
pool.close()
print("shown")
"""


def test_a_window_shows_env_0() -> None:
    pytest.importorskip("pygame")
    pytest.importorskip("ale_py")
    environment = {**os.environ, "SDL_VIDEODRIVER": "dummy"}
    ran = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert ran.stdout.strip().endswith("shown"), ran.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have a screen, or no way to ask")
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pong-v5", "NChain-v0"])
def test_without_a_screen_make_says_so(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if env_id == "Pong-v5":
        pytest.importorskip("ale_py")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(rendering, "_USER_DRIVER", None)
    with pytest.raises(ConfigError, match="machine without a screen, got 'human'"):
        envfleet.make(env_id, render_mode="human")
