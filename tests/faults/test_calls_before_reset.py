"""Every public call before the first reset() and after close(), on every family: an answer or an exception, no crash.

Each family has a process of its own, whose envs run in that very process: a simulator that dies takes it along.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

# What is imported, the id, the backend that runs the env in the caller's own process.
FAMILIES = [
    ("numpy", "CartPole-v1", "native"),
    ("numpy", "CartPole-v1", "serial"),
    ("numpy", "Catch-v0", "native"),
    ("mujoco", "Hopper-v5", "native"),
    ("mujoco", "Hopper-v5", "serial"),
    ("ale_py", "Pong-v5", "serial"),
    ("ale_py", "ALE/Breakout-v5", "serial"),
    ("vizdoom", "Basic-v1", "serial"),
    ("vizdoom", "VizdoomBasic-v1", "serial"),
    ("dm_control", "CartpoleSwingup-v1", "serial"),
    ("minigrid", "MiniGrid-Empty-5x5-v0", "native"),
    ("minigrid", "MiniGrid-Empty-5x5-v0", "serial"),
    ("procgen", "CoinrunEasy-v0", "native"),
    ("Box2D", "LunarLander-v3", "serial"),
    ("Box2D", "CarRacing-v3", "serial"),
]

SCRIPT = """
import inspect, sys, warnings
import envfleet

warnings.simplefilter("ignore")
env_id, backend = sys.argv[1:]


def attempt(what, call):
    print(what, flush=True)  # the last line names what has ended the process
    try:
        call()
    except Exception as error:
        assert str(error), f"{what} raised {type(error).__name__} without a word"


def try_everything(moment):
    for name, arguments in CALLS.items():
        attempt(f"{moment} {name}", lambda: getattr(pool, name)(*arguments))
    for name in ("seeds", "num_in_flight", "closed", "executor"):
        attempt(f"{moment} {name}", lambda: getattr(pool, name))
    for name in names:
        attempt(f"{moment} get_attr {name}", lambda: pool.get_attr(name))
        # What an env is asked for without arguments; a second reset() or close() too.
        attempt(f"{moment} call {name}", lambda: pool.call(name))


def new_pool():
    envs = envfleet.make(env_id, num_envs=2, backend=backend, render_mode="rgb_array")
    return envs, envs.pool


envs, pool = new_pool()
action = envs.single_action_space.sample()
actions = [action, action]
if backend == "native":
    names = [*pool.get_attrs(0), "reset", "nonsense"]
else:
    env = pool.get_attr("unwrapped")[0]
    names = [name for name in dir(env) if not name.startswith("_") and name not in ("play", "close")]
    names += ["nonsense", "__reduce__"]
CALLS = {
    "render": (0,), "render_all": (), "observe": (), "get_state": (), "get_attrs": (0,), "params_of": (0,),
    "stats": (), "recv": (1,), "step": (actions,), "send": (actions,), "set_attr": ("nonsense", 1),
}
attempt("before reset: set_state", lambda: pool.set_state(pool.get_state()))
attempt("before reset: call step", lambda: pool.call("step", action))
names = [name for name in names if name != "reset"]
try_everything("before reset:")
if backend != "native" and hasattr(env, "ale"):
    for name in ("getScreenRGB", "getRAM", "game_over", "cloneState", "reset_game", "getAvailableModes"):
        attempt(f"before reset: ale.{name}", getattr(pool.get_attr("ale")[0], name))
# A pool on which all that was tried still plays.
envs.reset(seed=1)
envs.step(actions)
pool.close()
try_everything("after close:")
attempt("after close: reset", lambda: pool.reset())
attempt("after close: async_reset", lambda: pool.async_reset())
attempt("after close: set_state", lambda: pool.set_state(b""))

envs, pool = new_pool()
pool.close()
try_everything("closed before its first reset:")
print("end")
"""


@pytest.mark.parametrize(("package", "env_id", "backend"), FAMILIES)
def test_no_call_ends_the_process(package: str, env_id: str, backend: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    command = [sys.executable, "-c", SCRIPT, env_id, backend]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    last = done.stdout.splitlines()[-1:]
    assert (done.returncode, last) == (0, ["end"]), f"ended with {done.returncode} in {last}: {done.stderr[-2000:]}"


def test_mujoco_without_a_screen_says_so_each_time() -> None:
    """MuJoCo itself ends the process at the second attempt to draw."""
    pytest.importorskip("mujoco")
    script = """
import warnings
import envfleet

warnings.simplefilter("ignore")
with envfleet.make("Hopper-v5", num_envs=2, render_mode="rgb_array") as envs:
    envs.reset(seed=0)
    for _ in range(2):
        try:
            envs.render()
        except envfleet.ConfigError as error:
            print(str(error).partition(":")[0])
"""
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    environment["MUJOCO_GL"] = "glfw"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    said = "MuJoCo cannot render with MUJOCO_GL='glfw'\n"
    assert (done.returncode, done.stdout) == (0, said * 2), done.stderr[-2000:]
