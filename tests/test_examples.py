"""Every script in examples/ runs, briefly, as its first lines say it is run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
FILES = sorted([*EXAMPLES.glob("*.py"), *EXAMPLES.glob("train/*ppo.py")])

# What an example needs beyond envfleet, and what it leaves behind.
NEEDS = {
    "ppo.py": ("torch", "rich", "matplotlib"),
    "train/ppo.py": ("torch",),
    "train/sb3_ppo.py": ("stable_baselines3",),
    "train/jax_ppo.py": ("jax",),
    "custom_cpp_env.py": ("imageio",),
    "sb3_ppo.py": ("stable_baselines3",),
    "torchrl_rollout.py": ("torchrl",),
    "tianshou_dqn.py": ("tianshou",),
    "ray_cluster.py": ("ray",),
    "rllib_ppo.py": ("ormsgpack", "torch"),  # ray[rllib] brings it and ray alone does not
    "pettingzoo_parallel.py": ("pettingzoo",),
}
# How to shorten those that have no --smoke.
BRIEF = {
    "sb3_ppo.py": ("--total-steps", "2000", "--num-eval-episodes", "2"),
    "train/ppo.py": (
        *("CartPole-v1", "--preset", "classic", "--target", "450", "--device", "cpu", "--log", "curve.json"),
        *("--num-envs", "8", "--num-groups", "2", "--total-steps", "1000"),
    ),
    "train/sb3_ppo.py": ("--total-steps", "2048", "--num-epochs", "1"),
    "train/jax_ppo.py": ("--total-steps", "4096"),
    "pettingzoo_parallel.py": ("--steps", "50"),
    "tianshou_dqn.py": ("--epochs", "1", "--steps-per-epoch", "500"),
    "torchrl_rollout.py": ("--total-frames", "4096"),
    "rllib_ppo.py": ("--iterations", "1", "--steps-per-iteration", "2048"),
}
LEAVES = {"ppo.py": "ppo_curve.png", "custom_cpp_env.py": "ball_beam.gif", "train/ppo.py": "curve.json"}
# The others bring frameworks along, whose own warnings are theirs.
OURS = {"ppo.py", "async_actors.py", "ray_cluster.py", "trajectories.py", "custom_python_env.py", "custom_cpp_env.py"}


def name_of(file: Path) -> str:
    return file.relative_to(EXAMPLES).as_posix()


def run(file: Path, folder: Path, *options: str) -> str:
    strict = ["-W", "error"] if name_of(file) in OURS else []
    result = subprocess.run(
        [sys.executable, *strict, str(file), *options],
        cwd=folder,
        env={**os.environ, "ENVFLEET_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_example_runs(file, tmp_path):
    name = name_of(file)
    for package in NEEDS.get(name, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    options = ("--smoke",) if "smoke" in file.read_text() else BRIEF[name]
    assert run(file, tmp_path, *options).strip()
    if name in LEAVES:
        assert (tmp_path / LEAVES[name]).stat().st_size > 500


def test_the_same_seed_gives_the_same_training(tmp_path):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    sys.path.insert(0, str(EXAMPLES))
    try:
        import ppo
        import torch
    finally:
        sys.path.remove(str(EXAMPLES))
    threads = torch.get_num_threads()
    try:
        args = ppo.Args(total_steps=4 * 8 * 128, num_envs=8)
        assert ppo.train(args) == ppo.train(args)
    finally:
        torch.set_num_threads(threads)


def test_every_example_is_listed():
    text = (EXAMPLES / "README.md").read_text()
    assert [name_of(file) for file in FILES if f"]({name_of(file)})" not in text] == []
