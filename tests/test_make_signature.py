"""make() and its siblings for type checkers and editors: every option is known, with its type."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import envfleet
from envfleet.making.options import BACKENDS, POOL_OPTIONS, pool_options
from envfleet.spec import RAY_OPTIONS, PoolConfig, RayConfig

MAKERS = [
    envfleet.make,
    envfleet.make_dm,
    envfleet.make_gym,
    envfleet.make_gymnasium,
    envfleet.make_pettingzoo,
    envfleet.make_pool,
    envfleet.make_spec,
]


def test_every_field_of_the_configs_is_an_option():
    assert {field.name for field in fields(PoolConfig)} <= POOL_OPTIONS
    assert set(RAY_OPTIONS) <= POOL_OPTIONS
    assert set(RAY_OPTIONS.values()) == {field.name for field in fields(RayConfig)}
    others = {"num_threads", "backend", "seed", "env_kwargs", "wrappers"}
    assert {field.name for field in fields(PoolConfig)} | set(RAY_OPTIONS) | others == POOL_OPTIONS


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_every_option_is_in_the_signature_at_run_time(make):
    parameters = inspect.signature(make).parameters
    assert set(parameters) >= POOL_OPTIONS
    assert parameters["env_params"].kind is inspect.Parameter.VAR_KEYWORD
    assert parameters["backend"].default == "auto"


def test_every_option_is_documented():
    text = pool_options.__doc__ or ""
    flat = text[text.index("flat name:") :]
    for name in POOL_OPTIONS:
        assert f"    {name}:" in text or name in flat, name


GOOD = """
import envfleet
from gymnasium.vector import AutoresetMode

{backends}
reveal_type(envfleet.make("CartPole-v1", num_envs=4, sutton_barto_reward=True))
reveal_type(envfleet.make("CartPole-v1", env_type="gym", seed=[1, 2]))
reveal_type(envfleet.make("CartPole-v1", "dm", render_mode="rgb_array"))
reveal_type(envfleet.make_pool("CartPole-v1", on_error="restart", autoreset_mode=AutoresetMode.SAME_STEP))
reveal_type(envfleet.make_spec("CartPole-v1", step_timeout=1.5, start_method="spawn"))
reveal_type(envfleet.make_pettingzoo("x", layout="rows", num_workers=2))
envfleet.make("CartPole-v1", backend="ray", ray=envfleet.RayConfig(inner_backend="threads", address="auto"))
"""
BAD = [
    'envfleet.make_pool("CartPole-v1", backend="gpu")',
    'envfleet.make("CartPole-v1", backend="gpu")',
    'envfleet.make_gymnasium("CartPole-v1", on_error="ignore")',
    'envfleet.make_dm("CartPole-v1", start_method="thread")',
    'envfleet.make_gym("CartPole-v1", autoreset_mode="sometimes")',
    'envfleet.make_spec("CartPole-v1", render_mode="pixels")',
    'envfleet.make_pool("CartPole-v1", num_envs="4")',
    'envfleet.RayConfig(inner_backend="gpu")',
]


def test_a_type_checker_knows_the_options(tmp_path):
    pytest.importorskip("mypy")
    source = Path(envfleet.__file__).parents[1]
    backends = "\n".join(f'envfleet.make_pool("CartPole-v1", backend="{backend}")' for backend in BACKENDS)
    (tmp_path / "good.py").write_text(GOOD.format(backends=backends))
    (tmp_path / "bad.py").write_text("import envfleet\n\n" + "\n".join(BAD) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--ignore-missing-imports"]
    result = subprocess.run(
        [*command, "--cache-dir", str(tmp_path / "cache"), "good.py", "bad.py"],
        cwd=tmp_path,
        env={"MYPYPATH": str(source), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    output = result.stdout
    errors = [line for line in output.splitlines() if ": error:" in line]
    assert sorted({int(line.split(":")[1]) for line in errors}) == list(range(3, 3 + len(BAD))), output + result.stderr
    assert all(line.startswith("bad.py:") for line in errors), output
    types = [
        line.rpartition(" ")[2].strip('"').rpartition(".")[2] for line in output.splitlines() if "Revealed" in line
    ]
    assert types == ["GymnasiumPool", "GymPool", "DmPool", "Pool", "EnvSpec", "PlayerRowsPool"]
