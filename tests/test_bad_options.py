"""Options of make() and reset() that are wrong: told by name, with the nearest and the valid ones."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from functools import partial

import gymnasium
import numpy as np
import pytest
from support.ray_session import ray_session

import envfleet
from envfleet import ConfigError, EnvError, RayConfig, SeedError, UnknownEnvError
from envfleet.core.backends import find_backend
from envfleet.core.options import pool_options, resolve_num_workers


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_threads": -1}, r"num_threads expected an integer from 0 to 1024, got -1"),
        ({"num_envs": 4, "batch_size": 5}, r"batch_size expected an integer from 1 to 4, got 5"),
        ({"num_envs": 4, "batch_size": -2}, r"batch_size .* got -2"),
        ({"num_envs": 0}, r"num_envs expected an integer from 1"),
        ({"num_envs": -3}, r"num_envs .* got -3"),
        ({"num_envs": 2.5}, r"num_envs .* got 2\.5"),
        ({"num_envs": True}, r"num_envs .* got True"),
        ({"num_envs": 2**40}, r"num_envs .* got 1099511627776"),
        ({"thread_affinity_offset": -2}, r"thread_affinity_offset"),
        ({"max_episode_steps": 0}, r"max_episode_steps expected an integer from 1"),
        ({"autoreset_mode": "sometimes"}, r"autoreset_mode expected one of .*next_step"),
        ({"on_error": "ignore"}, r"on_error expected one of \('raise', 'restart'\)"),
        ({"render_mode": "ansi"}, r"render_mode expected 'rgb_array'"),
        ({"num_evns": 3}, r"'num_evns'; did you mean 'num_envs'\?"),
        ({"sutton_barto_rewards": True}, r"did you mean 'sutton_barto_reward'\?"),
        ({"sutton_barto_reward": "yes"}, r"expected True or False for sutton_barto_reward, got str"),
        ({"num_envs": 3, "sutton_barto_reward": [True]}, r"expected 3 values of sutton_barto_reward"),
        ({"backend": "gpu"}, r"backend expected one of"),
        ({"env_type": "jax"}, r"env_type expected 'gymnasium', 'gym' or 'dm'"),
        ({"copy": "false"}, "copy expected True or False, got 'false'"),
        ({"check_actions": "no"}, "check_actions expected True or False, got 'no'"),
        ({"seed_envs": 0}, "seed_envs expected True or False, got 0"),
        ({"copy": None}, "copy expected True or False, got None"),
        ({"env_kwargs": [{}, {}]}, r"a list of 2 without num_envs, which is 1 by default; pass num_envs=2"),
        ({"num_envs": 3, "env_kwargs": [{}, {}]}, r"a list of 3 dicts, one per env, got a list of 2$"),
    ],
    ids=str,
)
def test_options_of_make(options, message):
    with pytest.raises(ConfigError, match=message):
        envfleet.make("CartPole-v1", **options)


def test_flags_may_be_of_numpy():
    config = pool_options(copy=np.False_, check_actions=np.True_, seed_envs=False).config
    assert (config.copy, config.check_actions, config.seed_envs) == (False, True, False)
    assert type(config.copy) is bool


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_envs": -3}, "num_envs expected an integer from 1 to 2147483647, got -3"),
        ({"num_envs": 4, "batch_size": 5}, "batch_size expected an integer from 1 to 4, got 5"),
        ({"num_workers": -1}, "num_workers expected an integer from 0"),
        ({"autoreset_mode": "sometimes"}, "autoreset_mode expected one of"),
        ({"max_episode_steps": 0}, "max_episode_steps expected an integer from 1"),
        ({"on_error": "ignore"}, "on_error expected one of"),
        ({"step_timeout": -1}, "step_timeout expected seconds above 0"),
        ({"start_method": "thread"}, "start_method expected one of"),
        ({"render_mode": 3}, "render_mode expected"),
        ({"copy": "false"}, "copy expected True or False, got 'false'"),
        ({"ray": {"address": "auto"}}, "ray expected an envfleet.RayConfig, got dict"),
    ],
    ids=str,
)
def test_a_pool_config_checks_itself(fields, message):
    with pytest.raises(ConfigError, match=message):
        pool_options(**fields)
    with pytest.raises(ConfigError, match=message):
        replace(pool_options().config, **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"envs_per_worker": 0}, "envs_per_worker expected an integer from 1"),
        ({"inner_backend": "gpu"}, "inner_backend expected one of"),
        ({"inner_num_workers": -1}, "inner_num_workers expected an integer from 0"),
        ({"address": 5}, "address expected an address"),
        ({"actor_options": 5}, "actor_options expected a dict"),
        ({"actor_options": {"max_restarts": 3}}, "actor_options cannot contain 'max_restarts'"),
        ({"runtime_env": "x"}, "runtime_env expected a dict"),
        ({"direct": "no"}, "direct expected True or False, got 'no'"),
        ({"placement_timeout_s": 0}, "placement_timeout_s expected seconds above 0"),
    ],
    ids=str,
)
def test_a_ray_config_checks_itself(fields, message):
    with pytest.raises(ConfigError, match=message):
        RayConfig(**fields)


class Swallowing(gymnasium.Env):
    """Takes any keyword, as envs do that pass theirs on; `num_envz` is one of its own."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, num_envz=0, **kwargs):
        self.given = {"num_envz": num_envz, **kwargs}

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 0, 0.0, False, False, {}


class Demanding(Swallowing):
    def __init__(self, port, seed):
        super().__init__(self.name_of(port))

    def name_of(self, port):
        return port


class FailsInside(Swallowing):
    def __init__(self):
        Demanding()


@pytest.mark.parametrize("backend", ["serial", "threads", "processes", "ray"])
def test_an_argument_that_an_env_requires_is_named(backend):
    if backend == "ray":
        ray_session()
    with pytest.raises(ConfigError, match=r"^Demanding expected the argument 'port', got none; pass port=\.\.\.$"):
        envfleet.make_pool(Demanding, num_envs=2, backend=backend, env_kwargs={"seed": 3})
    envfleet.make_pool(Demanding, num_envs=2, backend=backend, env_kwargs={"seed": 3}, port=8).close()
    # `seed` is an option of the pool: as a keyword of make() it would not reach the env.
    with pytest.raises(
        ConfigError, match=r"arguments 'port' and 'seed', got none; pass env_kwargs=\{'port': \.\.\., 'seed'"
    ):
        envfleet.make_pool(Demanding, num_envs=2, backend=backend)
    envfleet.make_pool(Demanding, num_envs=2, backend=backend, env_kwargs=[{"port": 8, "seed": 3}] * 2).close()
    with pytest.raises(ConfigError, match="expected the argument 'row'"):
        envfleet.make_pool(lambda row: Swallowing(), num_envs=2, backend=backend)


def test_a_misspelt_parameter_of_an_env_is_told_with_the_right_one():
    with pytest.raises(ConfigError, match="unknown option 'prot'; did you mean 'port'"):
        envfleet.make_pool(Demanding, num_envs=2, backend="serial", prot=8)
    with pytest.raises(ConfigError, match=r"unknown option 'gravity'; leave it out\."):
        envfleet.make_pool(Demanding, num_envs=2, backend="serial", gravity=8)


def test_an_argument_that_is_missing_inside_a_constructor_is_the_envs_exception():
    with pytest.raises(envfleet.EnvError, match=r"missing 2 required .*'port' and 'seed'"):
        envfleet.make_pool(FailsInside, num_envs=2, backend="serial")


@pytest.mark.parametrize("given", ["support.check_env_probes:CleanEnv", "functools:partial"])
def test_an_env_of_a_module_is_imported(given):
    module, _, name = given.partition(":")
    with pytest.raises(UnknownEnvError, match=re.escape(f"from {module} import {name}; make({name}, ...)")):
        envfleet.make(given)


class SwallowingBelow(Swallowing):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)


gymnasium.register("Swallowing-v0", Swallowing, kwargs={"batch_sizes": 3})


@pytest.mark.parametrize("backend", ["serial", "threads", "processes", "ray"])
def test_a_misspelt_option_that_an_env_swallows(backend):
    if backend == "ray":
        ray_session()
    with (
        pytest.warns(UserWarning, match=r"got 'step_timout' in its \*\*kwargs.*the option 'step_timeout'") as caught,
        envfleet.make_pool(Swallowing, backend=backend, step_timout=3) as pool,
    ):
        assert pool.get_attr("given") == ({"num_envz": 0, "step_timout": 3},)
    assert len(caught) == 1
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "make",
    [
        lambda **options: envfleet.make_spec("Swallowing-v0", backend="serial", **options),
        lambda **options: envfleet.make_spec(SwallowingBelow, **options),
        lambda **options: envfleet.make_spec(lambda **kwargs: Swallowing(**kwargs), **options),
        lambda **options: envfleet.make_spec(partial(Swallowing, num_envz=3), **options),
        lambda **options: envfleet.make_spec([SwallowingBelow] * 2, **options),
    ],
    ids=["id", "class", "function", "partial", "list"],
)
def test_a_misspelt_option_of_any_kind_of_env(make):
    with pytest.warns(UserWarning, match="the option 'num_envs'"):
        make(nun_envs=3)
    with pytest.warns(UserWarning, match="the option 'autoreset_mode'"):
        make(autoreset_mod=3)


def test_names_that_only_look_like_options(recwarn):
    # Its own, of a base class, of the registration, in env_kwargs, and other names.
    envfleet.make_spec(Swallowing, num_envz=3)
    envfleet.make_spec(SwallowingBelow, num_envz=3)
    envfleet.make_spec("Swallowing-v0", backend="serial", batch_sizes=4)
    envfleet.make_spec(Swallowing, env_kwargs={"step_timout": 3})
    envfleet.make_spec(Swallowing, num_agents=3, speed=1, gray=True, max_steps=4, num_walkers=2)
    assert not recwarn.list
    with pytest.raises(ConfigError, match="did you mean 'step_timeout'"):  # an env that takes no such keyword
        envfleet.make_spec("CartPole-v1", backend="serial", step_timout=3)
    assert not recwarn.list


def test_options_of_worker_processes_name_the_backend_that_has_them():
    for options in ({"step_timeout": 3}, {"start_method": "spawn"}):
        with pytest.raises(ConfigError, match="pass backend='processes', which runs them in Python, or leave it out"):
            envfleet.make("CartPole-v1", num_envs=2, **options)
        with envfleet.make("NChain-v0", num_envs=2, backend="processes", **options) as envs:
            envs.reset(seed=0)
        with pytest.raises(ConfigError, match=r"run on threads in C\+\+; leave it out"):  # no worker has a plug-in
            envfleet.make("Faulty-v0", num_envs=2, **options)


def test_an_attribute_is_no_parameter():
    with pytest.raises(ConfigError, match=r"'gravity', which is an attribute .* with set_attr\('gravity', value\)$"):
        envfleet.make("CartPole-v1", num_envs=2, gravity=3)
    with envfleet.make("CartPole-v1", num_envs=2) as envs:
        envs.set_attr("gravity", 3)
        assert envs.get_attr("gravity") == (3, 3)
    for options in ({"friction": 3}, {"backend": "serial", "gravity": 3}):
        with pytest.raises(ConfigError) as caught:
            envfleet.make("CartPole-v1", num_envs=2, **options)
        assert "did you mean" not in str(caught.value)


def test_seeds_of_make():
    for seed in (-1, 2**128, 1.5, "7", [1, 2, 3], [1, "2"]):
        with pytest.raises(SeedError):
            envfleet.make("CartPole-v1", num_envs=2, seed=seed)


def test_a_misspelt_option_does_not_hide_that_an_env_cannot_be_imported():
    gymnasium.register("Unimportable-v0", "no_such_module:Env")
    try:
        with pytest.raises(
            EnvError, match=r"ModuleNotFoundError: No module named 'no_such_module'; install the package"
        ):
            envfleet.make("Unimportable-v0", backend="serial", step_timout=3)
    finally:
        del gymnasium.registry["Unimportable-v0"]


def test_unknown_ids_come_with_the_nearest_names():
    with pytest.raises(UnknownEnvError, match="got 'CartPole-v11'; did you mean CartPole-v1"):
        envfleet.make("CartPole-v11")
    with pytest.raises(UnknownEnvError, match="list_all_envs"):
        envfleet.make("Xyzzy")
    with pytest.raises(UnknownEnvError, match="got int: 7"):
        envfleet.make(7)


def test_parameters_that_the_env_itself_refuses():
    with pytest.raises(ConfigError, match="no licence for this simulator"):
        envfleet.make("Faulty-v0", fail_construction=True)
    with pytest.raises(ConfigError, match="size expected a positive number, got 0"):
        envfleet.make("Sink-v0", size=0)
    with pytest.raises(ConfigError, match="same spaces for all envs, env 1"):
        envfleet.make("Sink-v0", num_envs=2, size=[2, 3])


def test_reset_options():
    envs = envfleet.make("CartPole-v1", num_envs=2)
    obs, _ = envs.reset(seed=0, options={"low": 0.01, "high": 0.02})
    assert ((obs >= 0.01) & (obs <= 0.02)).all()
    assert not ((envs.reset(seed=0)[0] >= 0.01).all())
    with pytest.raises(ConfigError, match=r"options among \['low', 'high'\]"):
        envs.reset(options={"hihg": 1})
    with pytest.raises(ConfigError, match="expected a finite number for option 'low'"):
        envs.reset(options={"low": "x"})
    for mask in ([True, False], np.array([1, 0]), np.array([True]), np.array([False, False])):
        with pytest.raises(ConfigError, match="reset_mask"):
            envs.reset(options={"reset_mask": mask})


@pytest.mark.parametrize(
    "options",
    [{"low": 0.2, "high": 0.1}, {"low": -np.inf, "high": np.inf}, {"low": 10**400}, {"low": np.nan}, 5, ["low"], "low"],
    ids=str,
)
def test_bad_reset_options_move_nobody(options):
    envs, twin = envfleet.make("CartPole-v1", num_envs=2, seed=1), envfleet.make("CartPole-v1", num_envs=2, seed=1)
    envs.reset()
    twin.reset()
    with pytest.raises(ConfigError):
        envs.reset(seed=5, options=options)
    np.testing.assert_array_equal(envs.reset()[0], twin.reset()[0])


@pytest.mark.parametrize(
    "options",
    [
        {"env_kwargs": "abc"},
        {"env_kwargs": 5},
        {"reward_threshold": "x"},
        {"batch_size": ""},
        {"seed": {1, 2}},
        {"seed": {0: 1}},
        {"backend": "bogus"},
    ],
    ids=str,
)
def test_options_of_other_types(options):
    for make in (envfleet.make, envfleet.make_spec):
        with pytest.raises(envfleet.InputError):
            make("CartPole-v1", num_envs=2, **options)


def test_numpy_scalars_and_arrays_of_no_dimension_are_numbers():
    envs = envfleet.make("Pendulum-v1", num_envs=np.int64(2), g=np.array(9.0), seed=np.array(3))
    assert envs.config["g"] == 9.0
    np.testing.assert_array_equal(envs.reset()[0], envfleet.make("Pendulum-v1", num_envs=2, g=9).reset(seed=3)[0])
    assert envfleet.make("FrozenLake-v1", is_slippery=np.array(False)).config["is_slippery"] is False


def test_numpy_scalars_are_numbers_of_the_pool_too():
    spec = envfleet.make_spec("CartPole-v1", reward_threshold=np.float32(400))
    assert spec.reward_threshold == 400.0
    with envfleet.make_pool(gymnasium.make, num_envs=1, id="CartPole-v1", step_timeout=np.int64(30)) as pool:
        assert pool.config.step_timeout == 30.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_envs": 3}, "expected parameters of the env, got num_envs, an option of make"),
        ({"env_kwargs": {"fast_math": True}}, "got env_kwargs, an option of make"),
        ({"reward_threshold": "x"}, "reward_threshold expected a number or None, got 'x'"),
    ],
    ids=str,
)
def test_wrong_defaults_of_a_registered_id(options, said):
    with pytest.raises(ConfigError, match=said):
        envfleet.register("WrongDefaults-v0", "CartPole-v1", **options)
    assert "WrongDefaults-v0" not in envfleet.list_all_envs()


def test_frozen_lakes_maps_in_every_form():
    rows = ["SFF", "FHF", "FFG"]
    forms = [
        rows,
        tuple(rows),
        [row.encode() for row in rows],
        [list(row) for row in rows],
        np.array([list(row.encode()) for row in rows], dtype=np.uint8).view("S1"),
        np.array([list(row) for row in rows]),
    ]
    for desc in forms:
        envs = envfleet.make("FrozenLake-v1", desc=desc, num_envs=2)
        assert envs.config["desc"] == "SFF\nFHF\nFFG"
        assert envs.single_observation_space.n == 9
    per_env = envfleet.make("FrozenLake-v1", desc=[["SFF", "FHF", "FFG"], ["SHF", "FFF", "FFG"]], num_envs=2)
    assert [per_env.pool.params_of(i)["desc"] for i in (0, 1)] == ["SFF\nFHF\nFFG", "SHF\nFFF\nFFG"]
    for desc in ([], [""], 5, ["SF", 3], ["S\0", "FG"], ["SX", "FG"], ["SFF", "FG"], ["FF", "FG"]):
        with pytest.raises(ConfigError):
            envfleet.make("FrozenLake-v1", desc=desc)


@pytest.mark.parametrize(
    ("num_envs", "batch_size", "backend", "per_core"),
    [
        (1, 0, "processes", None),
        (8, 0, "processes", 1),
        (28, 0, "processes", 1),
        (32, 0, "processes", 2),
        (60, 0, "processes", 3),
        (640, 0, "processes", 4),
        (640, 320, "processes", 1),
        (640, 0, "threads", 1),
    ],
)
def test_envs_with_slow_steps_have_several_workers_per_core(monkeypatch, num_envs, batch_size, backend, per_core):
    monkeypatch.setattr("envfleet.core.options._native.usable_cores", lambda: 4)
    runs_on = find_backend(backend)
    config = pool_options(num_envs=num_envs, batch_size=batch_size).config
    expected = 4 * per_core if per_core else 1
    assert resolve_num_workers(config, runs_on, has_slow_steps=True) == expected
    assert resolve_num_workers(config, runs_on) == min(num_envs, 4)
    assert resolve_num_workers(replace(config, num_workers=3), runs_on, has_slow_steps=True) == min(num_envs, 3)
    pinned = replace(config, thread_affinity_offset=0)
    assert resolve_num_workers(pinned, runs_on, has_slow_steps=True) == min(num_envs, 4)


def test_the_default_number_of_workers_is_one_that_may_be_passed(monkeypatch):
    monkeypatch.setattr("envfleet.core.options._native.usable_cores", lambda: 384)
    config = pool_options(num_envs=8192, num_workers=1024).config
    assert resolve_num_workers(replace(config, num_workers=0), find_backend("processes"), has_slow_steps=True) == 1024


def test_num_threads_is_envpools_name_of_num_workers():
    assert envfleet.make_pool("CartPole-v1", num_envs=8, num_threads=2).config.num_workers == 2
    assert envfleet.make_pool("CartPole-v1", num_envs=8, num_workers=2).config.num_workers == 2
    assert envfleet.make_pool("CartPole-v1", num_envs=8, num_workers=2, num_threads=2).config.num_workers == 2
    assert envfleet.make_spec("CartPole-v1", num_envs=8, num_workers=3).config["num_threads"] == 3
    assert envfleet.make_spec("CartPole-v1", num_envs=8, num_threads=3, backend="threads").config["num_workers"] == 3
    assert envfleet.make_spec("CartPole-v1", num_envs=8, num_workers=3, backend="serial").config["num_workers"] == 1
    with pytest.raises(ConfigError, match=r"num_workers=3 and num_threads=2; pass one of them"):
        envfleet.make("CartPole-v1", num_envs=8, num_workers=3, num_threads=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"envs_per_worker": 1},
            r"did you mean 'ray=RayConfig\(envs_per_worker=...\)'",
        ),
        ({"ray_adress": "auto"}, r"did you mean 'ray=RayConfig\(address=...\)'"),
        ({"ray": {"address": "auto"}}, "ray expected an envfleet.RayConfig, got dict"),
        ({"backend": "native", "ray": RayConfig(address="auto")}, "expected backend='ray'"),
        ({"backend": "processes", "ray": RayConfig(direct=False)}, r"ray=RayConfig\(...\) expected backend='ray'"),
    ],
    ids=str,
)
def test_options_of_ray(options, message):
    with pytest.raises(ConfigError, match=message):
        envfleet.make("CartPole-v1", **{"backend": "ray", "num_envs": 2, **options})


def test_a_ray_config_completes_the_numbers():
    config = RayConfig(None, "threads", 2, "auto", {"num_cpus": 1}, {"env_vars": {}}, False, 5.0)
    assert pool_options(backend="ray", ray=config).config.ray == config
    assert pool_options(backend="serial", ray=RayConfig()).config.ray == RayConfig()
    for sizes in ({"num_workers": 2}, {"num_envs": 6}, {"num_envs": 6, "num_threads": 2}):
        parsed = pool_options(backend="ray", ray=RayConfig(envs_per_worker=3), **sizes).config
        assert (parsed.num_envs, parsed.num_workers) == (6, 2)


# In a process of its own: the limit of memory stays.
TOO_MANY_ENVS = """
import pathlib, resource
import envfleet

in_use = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (in_use + 2**30, resource.RLIM_INFINITY))
for seed in (None, 7):
    try:
        envfleet.make("CartPole-v1", num_envs=50_000_000, seed=seed)
    except MemoryError as error:
        print(error)
try:
    envfleet.make("CartPole-v1", num_envs=50_000_000, seed=2**128 - 1)
except envfleet.SeedError:
    print("SeedError")
with envfleet.make("CartPole-v1", num_envs=4) as envs:
    print(envs.reset()[0].shape)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads and limits the memory of a process as Linux does")
def test_more_envs_than_fit_in_memory():
    result = subprocess.run([sys.executable, "-c", TOO_MANY_ENVS], capture_output=True, text=True, check=False)
    too_many = "expected as many envs as fit in memory, got num_envs=50000000; pass a smaller num_envs"
    assert result.stdout.splitlines() == [too_many, too_many, "SeedError", "(4, 4)"], result.stderr[-2000:]


# The stacks of 64 threads do not fit.
TOO_MANY_THREADS = """
import pathlib, resource, threading
import envfleet, gymnasium

envs = envfleet.make("CartPole-v1", num_envs=128, num_threads=64, batch_size=64)
in_use = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (in_use + 2**28, resource.RLIM_INFINITY))
for call in (
    lambda: envfleet.make(lambda: gymnasium.make("CartPole-v1"), num_envs=64, backend="threads", num_workers=64),
    envs.async_reset,
):
    try:
        call()
    except envfleet.EnvfleetError as error:
        print(error)
print(threading.active_count(), envs.pool.num_in_flight)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
envs.async_reset()
print(envs.recv()[0].shape)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads and limits the memory of a process as Linux does")
def test_more_threads_than_can_be_started():
    result = subprocess.run([sys.executable, "-c", TOO_MANY_THREADS], capture_output=True, text=True, check=False)
    python, native, *others = result.stdout.splitlines()
    limits = r"or raise the limits of threads and memory \(ulimit -u, ulimit -v\)"
    assert re.fullmatch(rf"thread \d+ of 64 could not be started: .+; pass a smaller num_threads, {limits}", native)
    assert re.fullmatch(rf"worker \d+ of 64 could not be started: .+; pass a smaller num_workers, {limits}", python)
    assert others == ["1 0", "(64, 4)"], result.stderr[-2000:]
