"""make() and its siblings at run time: every option is in the signature (typed_options.py: for type checkers)."""

from __future__ import annotations

import inspect
import pydoc
from dataclasses import fields

import pytest

import envfleet
from envfleet.making.options import POOL_OPTIONS, pool_options
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


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_help_describes_every_option(make):
    text = pydoc.render_doc(make, renderer=pydoc.plaintext)
    for line in (pool_options.__doc__ or "").split("\n\n", 2)[2].strip().splitlines():
        assert line.strip() in text
    assert "seed: env i gets seed + i" in text
    assert "pool_options" not in text  # what help() shows is complete


def test_every_option_is_documented():
    text = pool_options.__doc__ or ""
    flat = text[text.index("flat name:") :]
    for name in POOL_OPTIONS:
        assert f"    {name}:" in text or name in flat, name
