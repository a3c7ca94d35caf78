"""Test an installed wheel, in an environment that has nothing else: called by tools/wheels.py and cibuildwheel.

python wheel_smoke_test.py [ball_beam.cc] [--extras mujoco,atari]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import envfleet
from envfleet import _native

# A script without `if __name__ == "__main__":`, whose env is defined in the script itself.
GUARDLESS = """
import gymnasium, numpy as np, envfleet

class Echo(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        return action, float(action.sum()), False, False, {}

with envfleet.make(Echo, num_envs=4, backend="processes", num_workers=2) as envs:
    envs.reset(seed=0)
    actions = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)
    obs, reward, *_ = envs.step(actions)
    assert (obs == actions).all() and np.allclose(reward, actions.sum(axis=1))
"""

COMPILE = """
import sys, numpy as np, envfleet
(env_id,) = envfleet.compile(sys.argv[1])
with envfleet.make(env_id, num_envs=8) as envs:
    obs, _ = envs.reset(seed=0)
    obs, reward, *_ = envs.step(np.stack([envs.single_action_space.sample() for _ in range(8)]))
    assert np.isfinite(obs).all() and reward.shape == (8,)
"""

WITHOUT_COMPILER = """
import sys, envfleet
try:
    envfleet.compile(sys.argv[1])
except envfleet.CompileError as error:
    assert "expected a C++ compiler" in str(error) and "install one" in str(error), error
else:
    raise AssertionError("compile() expected to find no compiler")
"""


def test_native() -> None:
    """Step native CartPoles and compare them with Gymnasium's."""
    import gymnasium

    oracle = gymnasium.make("CartPole-v1")
    expected, _ = oracle.reset(seed=3)
    with envfleet.make("CartPole-v1", num_envs=64, seed=3) as envs:
        obs, _ = envs.reset()
        assert np.allclose(obs[0], expected, rtol=2.0**-22), (obs[0], expected)
        for _ in range(100):
            obs, *_ = envs.step(np.ones(64, dtype=np.int64))
    assert np.isfinite(obs).all()


def test_processes() -> None:
    """Run a pool of processes from a script without a guard."""
    _run(GUARDLESS)


def test_compile(source: str) -> None:
    """Compile an example env, and see the error where there is no compiler."""
    if any(map(shutil.which, ("c++", "g++", "clang++"))):
        _run(COMPILE, source)
    with tempfile.TemporaryDirectory() as empty:
        _run(WITHOUT_COMPILER, source, PATH=empty, CXX="", ENVFLEET_CACHE=empty)


def test_mujoco() -> None:
    """Step native Ants."""
    with envfleet.make("Ant-v5", num_envs=4, seed=0) as envs:
        envs.reset()
        obs, reward, *_ = envs.step(np.zeros((4, 8)))
        assert np.isfinite(obs).all()
        assert np.isfinite(reward).all()


def test_atari() -> None:
    """Step Pongs."""
    with envfleet.make("Pong-v5", num_envs=2, seed=0) as envs:
        obs, _ = envs.reset()
        obs, *_ = envs.step(np.zeros(2, dtype=np.int64))
        assert obs.dtype == np.uint8
        assert obs.max() > 0


def _run(program: str, *arguments: str, **environment: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "script.py")
        script.write_text(program)
        variables = {**os.environ, "ENVFLEET_CACHE": str(Path(folder, "cache")), **environment}
        subprocess.run([sys.executable, str(script), *arguments], check=True, env=variables, timeout=600)


def main() -> None:
    """Run the tests that the command line selects, and print each one's name."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", nargs="?", help="a C++ env to compile")
    parser.add_argument("--extras", default="", help="test these extras only")
    arguments = parser.parse_args()
    checkout = Path(__file__).resolve().parents[1] / "src"
    assert checkout not in Path(envfleet.__file__).parents, f"expected an installed wheel, got {envfleet.__file__}"
    if arguments.extras:
        tests = [{"mujoco": test_mujoco, "atari": test_atari}[name] for name in arguments.extras.split(",")]
    else:
        tests = [test_native, test_processes]
        if arguments.source:
            tests.append(lambda: test_compile(os.path.abspath(arguments.source)))
    for test in tests:
        test()
        print(f"ok  {test.__doc__ or 'Compile an example env, with and without a compiler.'}", flush=True)
    print(f"envfleet {envfleet.__version__}, Python {sys.version.split()[0]}, features: {', '.join(_native.features)}")


if __name__ == "__main__":
    main()
