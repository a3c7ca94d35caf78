"""Scripts of every kind make pools of Python envs: without a guard, from standard input, from another folder."""

from __future__ import annotations

import subprocess

import pytest
from pool_scripts import run_pool_script, started_pool_script
from support.script_runs import command_of, run_script

START_METHODS = ["forkserver", "spawn", "fork"]

GUARDLESS = """
import gymnasium
import numpy as np
from gymnasium import spaces
import envfleet

print("main")  # once: no worker runs this file again
size = 5

class MyEnv(gymnasium.Env):
    observation_space = spaces.Box(0, 100, (2,), np.int64)
    action_space = spaces.Discrete(3)
    def __init__(self, size=1):
        self.size = size
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.array([self.size, 0]), {}
    def step(self, action):
        return np.array([self.size, action]), 1.0, False, False, {}

def closure(own):
    class Local(MyEnv):
        pass
    return lambda: Local(own + size)

def times_nine(env):
    return gymnasium.wrappers.TransformReward(env, lambda reward: reward * 9)

for env, options, sizes in [
    (MyEnv, {"num_envs": 2}, [1, 1]),
    (MyEnv, {"num_envs": 2, "size": 7}, [7, 7]),
    (lambda: MyEnv(size=size), {"num_envs": 3}, [5, 5, 5]),
    (closure(3), {"num_envs": 2}, [8, 8]),
    ([closure(1), closure(2), closure(3)], {}, [6, 7, 8]),
    (MyEnv, {"num_envs": 2, "wrappers": [times_nine]}, [1, 1]),
]:
    with envfleet.make_pool(env, backend="processes", start_method="METHOD", **options) as pool:
        assert pool.reset(seed=0).obs[:, 0].tolist() == sizes, (pool.observe(), sizes)
        batch = pool.step([2] * len(sizes))
        assert batch.obs[:, 1].tolist() == [2] * len(sizes)
        assert batch.reward[0] == (9 if "wrappers" in options else 1)
print("done")
"""


@pytest.mark.parametrize("start_method", START_METHODS)
def test_a_script_needs_no_guard(tmp_path, start_method):
    result = run_script(tmp_path, GUARDLESS.replace("METHOD", start_method))
    assert (result.returncode, result.stdout, result.stderr) == (0, "main\ndone\n", "")


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("way", ["stdin", "-c", "-m"])
def test_it_works_from_standard_input_and_the_command_line(tmp_path, start_method, way):
    code = GUARDLESS.replace("METHOD", start_method)
    (tmp_path / "guardless.py").write_text(code)
    arguments = {"stdin": ["-"], "-c": ["-c", code], "-m": ["-m", "guardless"]}[way]
    result = subprocess.run(
        **command_of(tmp_path, *arguments),
        input=code if way == "stdin" else "",
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "main\ndone\n", "")


def test_workers_find_the_modules_and_the_folder_of_their_parent(tmp_path):
    """sys.path as it is when the pool is made, and the folder; a fork server started earlier knows neither."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "found_later.py").write_text(
        "import os\nfrom support.faulty_env import MisbehavingEnv\n"
        "class Later(MisbehavingEnv):\n    def where(self):\n        return os.getcwd(), os.environ.get('LATER')\n"
    )
    code = """
        envfleet.make_pool(MisbehavingEnv, num_envs=2, backend="processes").close()
        sys.path.insert(0, os.path.abspath("elsewhere"))
        os.environ["LATER"] = "yes"
        os.chdir("elsewhere")
        from found_later import Later
        with envfleet.make_pool(Later, num_envs=2, backend="processes") as pool:
            print(pool.call("where") == ((os.getcwd(), "yes"),) * 2)
    """
    result = run_pool_script(tmp_path, code)
    assert (result.returncode, result.stdout, result.stderr) == (0, "True\n", "")


def test_an_env_that_prints_for_ever_into_a_pipe_that_nobody_reads(tmp_path):
    """The pipe fills and the worker hangs in its print(): step_timeout ends it."""
    code = """
        pool = envfleet.make_pool(
            MisbehavingEnv, num_envs=2, num_workers=2, backend="processes", step_timeout=1.0, on_error="restart"
        )
        pool.reset(seed=0)
        batch = pool.step([Misbehavior.PRINT_ENDLESSLY, Misbehavior.STEP])
        told = "step_timeout" in batch.info["error"][0]
        again = pool.step([Misbehavior.STEP] * 2)
        pool.close()
        print(told, batch.truncated.tolist(), again.elapsed_step.tolist(), file=sys.stderr, flush=True)
    """
    with started_pool_script(tmp_path, code) as process:
        assert process.stderr.readline() == "True [True, False] [0, 2]\n"
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert set(out.split()) <= {"tick", "t", "ti", "tic"}
