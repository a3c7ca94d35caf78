"""What a Runner refuses: bad options, generators that do not get ready, what cannot travel, copies of itself."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import traceback
from functools import partial

import pytest
from sampling_probes import counting, runner_of

import envfleet
from envfleet import RayConfig
from envfleet.sampling import GeneratorError, Runner


@pytest.mark.parametrize(
    ("gen_fns", "options", "message"),
    [
        ([], {}, "at least one"),
        (counting, {}, "list of generator functions"),
        ([3], {}, "position 0"),
        ([counting], {"backend": "threads"}, "backend"),
        ([counting], {"prefetch": 0}, "prefetch"),
        ([counting], {"on_error": "ignore"}, "on_error"),
        ([counting], {"traj_timeout": -1}, "traj_timeout"),
        ([counting], {"start_method": "thread"}, "start_method"),
        ([counting], {"backend": "serial", "start_method": "fork"}, "start_method"),
        ([counting], {"backend": "serial", "ray": RayConfig(address="auto")}, "expected backend='ray'"),
        ([counting], {"backend": "ray", "ray": {"address": "auto"}}, "ray expected an envfleet.RayConfig"),
        ([counting], {"backend": "ray", "ray": RayConfig(inner_backend="serial")}, "expected no inner_backend"),
        ([counting], {"backend": "ray", "ray": RayConfig(direct=False)}, "expected no direct"),
        ([counting], {"ordered": "no"}, "ordered expected True or False"),
        ([counting], {"progress": 3}, "progress"),
        ([counting], {"max_ahead_bytes": 0}, "max_ahead_bytes"),
        ([counting], {"backend": "ray", "context_fn": dict}, "context_fn"),
        ([counting], {"backend": "serial", "context_fn": 5}, "context_fn expected a function"),
    ],
)
def test_bad_options(gen_fns, options, message):
    with pytest.raises(envfleet.ConfigError, match=message):
        Runner(gen_fns, **options)


def test_weights_that_cannot_travel(backend):
    with runner_of(counting, 1, backend) as runner:
        with pytest.raises(
            envfleet.ConfigError, match=r"broadcast\(\) expected an argument that cloudpickle can pickle"
        ):
            runner.broadcast(threading.Lock())
        assert runner.broadcast(3) == 1


def test_requests_that_cannot_travel(backend):
    with runner_of(counting, 1, backend) as runner:
        with pytest.raises(envfleet.ConfigError, match=r"trajs\(\) expected an argument that cloudpickle can pickle"):
            next(runner.trajs(threading.Lock()))
        assert next(runner.trajs()) is not None


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_runner_stays_where_it_is(backend, copied):
    with runner_of(counting, 1, backend) as runner:
        with pytest.raises(TypeError, match="expected to stay in its process"):
            copied(runner)
        gc.collect()  # no copy, so none that would close what is the runner's
        assert next(runner.trajs()) is not None


def no_generator(index):
    return [1, 2, 3]


def not_ready(index):
    yield "go"


def empty(index):
    return
    yield


def fails_at_once(index):
    if index == 1:
        raise KeyError("no such thing")
    yield "ready"


@pytest.mark.parametrize(
    ("generator", "message"),
    [
        (no_generator, "expected a generator function"),
        (not_ready, 'expected "ready" from the first yield'),
        (empty, "returned at once"),
        (fails_at_once, "no such thing"),
    ],
)
def test_generators_that_do_not_get_ready(backend, generator, message):
    with pytest.raises(GeneratorError, match=message) as caught:
        runner_of(generator, 2, backend)
    assert "its start" in str(caught.value)
    if generator is fails_at_once:
        assert caught.value.generator == 1
        assert isinstance(caught.value.__cause__, KeyError)
        assert "fails_at_once" in caught.value.env_traceback
        assert "envfleet/sampling" not in caught.value.env_traceback
        assert "".join(traceback.format_exception(caught.value)).startswith(caught.value.env_traceback)


def test_what_cannot_travel_is_told_before_anything_starts():
    with pytest.raises(envfleet.ConfigError, match="position 1"):
        Runner([partial(counting, 0), partial(counting, threading.Lock())])
    with runner_of(counting, 1, "processes") as runner:
        with pytest.raises(envfleet.ConfigError, match="trajs"):
            next(runner.trajs(threading.Lock()))
        with pytest.raises(envfleet.ConfigError, match="broadcast"):
            runner.broadcast(threading.Lock())
        assert next(runner.trajs())["count"] == 1
