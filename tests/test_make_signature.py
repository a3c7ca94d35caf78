"""make() and its siblings at run time: every option is in the signature (typed_options.py: for type checkers)."""

from __future__ import annotations

import inspect
import pydoc
from dataclasses import fields
from typing import get_args

import pytest
from gymnasium.vector import AutoresetMode

import envfleet
from envfleet.core.backends import AUTO, all_backends, local_backends
from envfleet.core.options import POOL_OPTIONS, BackendName, InnerBackend, PoolConfig, RayConfig, pool_options

MAKERS = [
    envfleet.make,
    envfleet.make_dm,
    envfleet.make_gym,
    envfleet.make_gymnasium,
    envfleet.make_pettingzoo,
    envfleet.make_pool,
    envfleet.make_spec,
]


def test_every_option_is_a_field_of_the_config_or_has_a_use_of_its_own():
    has_own_use = {"num_threads", "backend", "seed", "env_kwargs", "wrappers"}
    assert {field.name for field in fields(PoolConfig)} | has_own_use == set(POOL_OPTIONS)


def test_the_config_takes_its_values_from_the_options():
    given = {
        "num_envs": 6,
        "batch_size": 3,
        "num_workers": 2,
        "autoreset_mode": AutoresetMode.SAME_STEP,
        "max_episode_steps": 7,
        "reward_threshold": 1.5,
        "render_mode": "human",
        "on_error": "restart",
        "max_restarts": 5,
        "step_timeout": 2.5,
        "start_method": "spawn",
        "thread_affinity_offset": 1,
        "check_actions": False,
        "check_finite": True,
        "copy": False,
        "seed_envs": False,
        "ray": RayConfig(direct=False),
    }
    config = pool_options(backend="ray", **given).config
    assert {name: getattr(config, name) for name in given} == given
    assert set(given) == {field.name for field in fields(PoolConfig)}
    assert not [name for name, value in given.items() if value == POOL_OPTIONS[name]]  # none of them is a default


def test_the_names_that_type_checkers_know_are_those_of_the_registry():
    assert set(get_args(BackendName)) == {AUTO, *(backend.name for backend in all_backends())}
    assert set(get_args(InnerBackend)) == {backend.name for backend in local_backends()}


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_every_option_is_in_the_signature_at_run_time(make):
    parameters = inspect.signature(make).parameters
    assert {name: parameters[name].default for name in POOL_OPTIONS} == POOL_OPTIONS
    assert parameters["env_params"].kind is inspect.Parameter.VAR_KEYWORD


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_help_describes_every_option(make):
    text = pydoc.render_doc(make, renderer=pydoc.plaintext)
    for line in (pool_options.__doc__ or "").split("\n\n", 2)[2].strip().splitlines():
        assert line.strip() in text
    assert "seed: env i gets seed + i" in text
    assert "pool_options" not in text  # what help() shows is complete


def test_every_option_is_documented():
    text = pool_options.__doc__ or ""
    for name in POOL_OPTIONS:
        assert f"\n    {name}: " in text, name
