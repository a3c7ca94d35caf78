"""The Runner's contract: what generators are asked, what comes back and in which order. Serial is the reference."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import threading
from collections import Counter
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from sampling_probes import counting, do, told, turns, two_of_them, with_weights
from traces import Traces, wait_until

import envfleet
from envfleet.sampling import GeneratorError, Runner

BACKENDS = ["serial", "processes"]
START_METHODS = ["forkserver", "spawn", "fork"]


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


def runner_of(generator, count, backend, **options):
    return Runner([partial(generator, index) for index in range(count)], backend=backend, **options)


# --- requests -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs", "request_"),
    [
        ((), {}, None),
        (("A",), {}, ("A",)),
        (("A", 2), {}, ("A", 2)),
        ((), {"limit": 7}, {"limit": 7}),
        (("B",), {"limit": 7}, ["B", {"limit": 7}]),
        ((np.arange(20_000),), {}, None),
    ],
)
def test_the_generators_get_what_trajs_was_given(backend, args, kwargs, request_):
    with runner_of(counting, 2, backend) as runner:
        for trajectory in islice(runner.trajs(*args, **kwargs), 5):
            if args and isinstance(args[0], np.ndarray):
                np.testing.assert_array_equal(trajectory["request"][0], args[0])
            else:
                assert trajectory["request"] == request_
                assert type(trajectory["request"]) is type(request_)


def test_arguments_reach_every_generator(backend):
    with runner_of(counting, 2, backend, start=5, color="red", ordered=True) as runner:
        assert [(t["index"], t["count"], t["color"]) for t in islice(runner.trajs(), 2)] == [
            (0, 6, "red"),
            (1, 6, "red"),
        ]
    with Runner([counting] * 2, 9, "more", backend=backend) as runner:
        assert next(runner.trajs())["extra"] == ("more",)


def test_nothing_is_asked_before_the_first_next(backend):
    with runner_of(counting, 2, backend, ordered=True) as runner:
        unused = runner.trajs("unused")
        assert next(runner.trajs("used"))["count"] == 1
        assert iter(unused) is unused


def test_it_takes_any_iterable_of_functions(backend):
    with Runner((partial(counting, index) for index in range(3)), backend=backend) as runner:
        assert len(runner) == runner.num_generators == 3
        seen = set()
        for trajectory in runner.trajs():  # no fairness of the scheduler is expected
            seen.add(trajectory["index"])
            if len(seen) == 3:
                break


# --- order ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [1, 3])
def test_ordered_goes_in_turn_and_is_the_same_on_every_backend(backend, prefetch):
    with runner_of(counting, 3, backend, ordered=True, prefetch=prefetch) as runner:
        got = [(t["index"], t["count"]) for t in islice(runner.trajs(), 9)]
    assert got == [(index, count) for count in (1, 2, 3) for index in (0, 1, 2)]


def test_whichever_is_finished_first_comes_first(tmp_path):
    with runner_of(turns, 3, "processes", folder=tmp_path) as runner:
        stream = runner.trajs()
        for who in ((2, 1), (0, 1), (2, 2), (2, 3), (1, 1)):
            (tmp_path / f"go-{who[0]}-{who[1]}").touch()
            assert next(stream) == who


def test_ordered_waits_for_its_turn_and_keeps_what_came_before(tmp_path):
    with runner_of(turns, 3, "processes", folder=tmp_path, ordered=True) as runner:
        for who in ("2-1", "1-1", "2-2", "0-1"):
            (tmp_path / f"go-{who}").touch()
        assert list(islice(runner.trajs(), 3)) == [(0, 1), (1, 1), (2, 1)]


def test_the_workers_are_as_far_ahead_as_prefetch_says(tmp_path):
    """And no further, while nobody takes anything."""
    with runner_of(turns, 1, "processes", folder=tmp_path, prefetch=3) as runner:
        for count in range(1, 10):
            (tmp_path / f"go-0-{count}").touch()
        stream = runner.trajs()
        assert next(stream) == (0, 1)
        # Three more are finished without being asked for; then the runner's list does not grow.
        ready = runner._backend._ready
        assert wait_until(lambda: len(ready) == 3)
        assert list(islice(stream, 5)) == [(0, count) for count in range(2, 7)]


def test_memory_is_bounded_by_bytes_too():
    """Each trajectory is over the limit by itself: one is finished ahead, no more, whatever prefetch says."""
    with runner_of(counting, 1, "processes", size=500_000, prefetch=8, max_ahead_bytes=1_000_000) as runner:
        stream = runner.trajs()
        assert next(stream)["count"] == 1
        assert wait_until(lambda: len(runner._backend._ready) == 1)
        member = runner._backend._members[0]
        assert next(stream)["count"] == 2
        assert wait_until(lambda: member.num_done == 3)
        assert (len(runner._backend._ready), member.num_asked) == (1, 10)
        assert [t["count"] for t in islice(stream, 4)] == [3, 4, 5, 6]


# --- streams ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [1, 4])
def test_a_new_stream_never_gives_what_an_old_one_asked_for(backend, prefetch):
    with runner_of(counting, 3, backend, prefetch=prefetch) as runner:
        counts = Counter()
        for stream in range(20):
            for trajectory in islice(runner.trajs(stream), 1 + stream % 4):
                assert trajectory["request"] == (stream,)
                counts[trajectory["index"]] = max(counts[trajectory["index"]], trajectory["count"])


def test_an_old_stream_is_over_when_a_new_one_begins(backend):
    with runner_of(counting, 2, backend) as runner:
        old = runner.trajs("old")
        next(old)
        new = runner.trajs("new")
        assert next(old)["request"] == ("old",)
        assert next(new)["request"] == ("new",)
        with pytest.raises(envfleet.CallOrderError, match="newest trajs"):
            next(old)
        assert next(new)["request"] == ("new",)
        new.close()
        with pytest.raises(StopIteration):
            next(new)


def test_requests_of_a_dropped_stream_that_were_not_begun_are_not_done(tmp_path):
    with Runner([partial(gated, tmp_path)], prefetch=5) as runner:
        stream = runner.trajs()
        assert next(stream) == 1
        assert wait_until(lambda: (tmp_path / "second-begun").exists())
        del stream
        # The worker hears of it after it has heard that the stream is over.
        runner.broadcast("go on")
        assert next(runner.trajs()) == 3  # nobody sees the second


def gated(folder):
    """Its second trajectory waits for weights."""
    import time

    from envfleet.sampling import weights

    yield "ready"
    yield 1
    Path(folder, "second-begun").touch()
    while weights().version == 0:
        time.sleep(0.005)
    yield 2
    yield from range(3, 100)


def test_generators_that_return(backend):
    with runner_of(two_of_them, 2, backend, ordered=True) as runner:
        first = [(0, 1), (1, 1), (0, 2), (1, 2)]
        stream = runner.trajs()
        assert list(stream) == first
        assert next(stream, None) is None
        assert list(runner.trajs()) == first  # made anew
    functions = [partial(two_of_them, 0), partial(counting, 1)]
    with Runner(functions, backend=backend, ordered=True, prefetch=3) as runner:
        got = list(islice(runner.trajs(), 6))
        assert [t if type(t) is tuple else t["count"] for t in got] == [(0, 1), 1, (0, 2), 2, 3, 4]


# --- data -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 100, 5_000, 100_000, 13_000_000])
def test_arrays_of_any_size_arrive_and_stay(backend, size):
    """13 M floats are 52 MB."""
    with runner_of(counting, 2, backend, size=size) as runner:
        got = list(islice(runner.trajs(), 4))
    for trajectory in got:
        assert trajectory["data"].shape == (size,)
        assert (trajectory["data"] == trajectory["count"]).all()
        trajectory["data"][:] = -1  # they are the caller's
    assert len({(t["index"], t["count"]) for t in got}) == 4


def odd_ones(index):
    class Local:
        def __init__(self, value):
            self.value = value

    yield "ready"
    yield {"nested": [({"a": np.arange(1000)}, "text")], "local": Local(3), "objects": np.array([None, "x"], object)}
    frozen = np.arange(5000)
    frozen.flags.writeable = False
    yield {"frozen": frozen, "strided": np.arange(20_000)[::2], "fortran": np.asfortranarray(np.ones((300, 40)))}
    yield lambda x: x + index


def test_odd_trajectories_arrive_too(backend):
    with runner_of(odd_ones, 1, backend, ordered=True) as runner:
        first, second, third = runner.trajs()
    np.testing.assert_array_equal(first["nested"][0][0]["a"], np.arange(1000))
    assert first["local"].value == 3
    assert first["objects"].tolist() == [None, "x"]
    assert not second["frozen"].flags.writeable
    np.testing.assert_array_equal(second["strided"], np.arange(0, 20_000, 2))
    assert second["fortran"].flags.f_contiguous
    assert third(5) == 5


def tensors(index):
    import torch

    yield "ready"
    yield {
        "plain": torch.arange(100_000, dtype=torch.float64).reshape(100, 1000).T,
        "half": torch.ones(3000, dtype=torch.bfloat16),
        "flags": torch.tensor([True, False]),
        "scalar": torch.tensor(3.0),
        "none": torch.zeros((0, 4)),
        "grad": torch.ones(2000, requires_grad=True),
    }


def test_tensors_travel_as_arrays_do(backend):
    torch = pytest.importorskip("torch")
    with runner_of(tensors, 1, backend) as runner:
        got = next(runner.trajs())
    assert torch.equal(got["plain"], torch.arange(100_000, dtype=torch.float64).reshape(100, 1000).T)
    assert got["half"].dtype == torch.bfloat16
    assert got["half"].sum() == 3000
    assert got["flags"].tolist() == [True, False]
    assert got["scalar"].item() == 3.0
    assert got["none"].shape == (0, 4)
    assert got["grad"].requires_grad


def test_many_large_trajectories_can_be_kept():
    """No descriptor is held for any of them."""
    with runner_of(counting, 2, "processes", size=300_000) as runner:
        stream = runner.trajs()
        next(stream)
        before = len(os.listdir("/proc/self/fd"))
        kept = list(islice(stream, 60))
        assert len(os.listdir("/proc/self/fd")) <= before + 1
        assert len({(t["index"], t["count"]) for t in kept}) == 60
        assert all((t["data"] == t["count"]).all() for t in kept)


# --- weights ----------------------------------------------------------------------------------------------


def test_generators_read_the_newest_weights(backend):
    with runner_of(with_weights, 3, backend) as runner:
        assert list(islice(runner.trajs(), 3)) == [(0, None)] * 3
        for version in (1, 2, 3):
            weights = {"layer": np.full(200_000, version, np.float32), "name": f"v{version}"}
            assert runner.broadcast(weights) == version
            weights["layer"][:] = -1  # training goes on; nobody sees it
            for got, value in islice(runner.trajs(), 6):
                assert got == version
                assert value["name"] == f"v{version}"
                assert (value["layer"] == version).all()


def test_weights_are_one_copy_for_all_workers():
    """In the workers they are a private mapping: who writes into them changes his own copy."""
    with Runner([partial(scribbling, index) for index in range(2)], ordered=True) as runner:
        runner.broadcast(np.zeros(300_000))
        assert list(islice(runner.trajs(), 4)) == [0.0, 0.0, 1.0, 1.0]


def scribbling(index):
    from envfleet.sampling import weights

    yield "ready"
    while True:
        seen = float(weights().value[0])
        weights().value[0] += 1
        yield seen


def test_new_weights_reach_a_trajectory_that_is_under_way(tmp_path):
    with Runner([partial(waits_for_weights, tmp_path)]) as runner:
        stream = runner.trajs()
        runner.broadcast("first")
        assert wait_until(lambda: not (tmp_path / "seen").exists())
        import threading

        timer = threading.Thread(
            target=lambda: (wait_until(lambda: (tmp_path / "running").exists()), runner.broadcast("second"))
        )
        timer.start()
        assert next(stream) == "second"
        timer.join()


def waits_for_weights(folder):
    import time

    from envfleet.sampling import weights

    yield "ready"
    while True:
        Path(folder, "running").touch()
        while weights().version < 2:
            time.sleep(0.005)
        yield weights().value


def test_weights_are_for_generators():
    from envfleet.sampling import weights

    with pytest.raises(envfleet.CallOrderError, match="generator that a Runner runs"):
        weights()


# --- progress -----------------------------------------------------------------------------------------------


class Bar:
    made: list[Bar] = []  # noqa: RUF012 (a test's)

    def __init__(self, **options):
        self.options, self.count, self.closed = options, 0, False
        Bar.made.append(self)

    def update(self, count):
        self.count += count

    def close(self):
        self.closed = True


def test_a_bar_of_tqdms_protocol(backend):
    Bar.made.clear()
    with runner_of(counting, 2, backend, progress=Bar) as runner:
        assert len(list(islice(runner.trajs(), 5))) == 5
        stream = runner.trajs()
        next(stream)
        runner.trajs()
        next(stream)
        assert [(bar.count, bar.closed) for bar in Bar.made] == [(5, True), (2, False)]
        next(runner.trajs())
        gc.collect()
        assert [(bar.count, bar.closed) for bar in Bar.made] == [(5, True), (2, True), (1, True)]


def test_tqdm_itself(backend, capsys):
    pytest.importorskip("tqdm")
    with runner_of(counting, 1, backend, progress=True) as runner:
        list(islice(runner.trajs(), 3))
    assert "3traj" in capsys.readouterr().err


# --- shared context -------------------------------------------------------------------------------------------


def test_context_fn_shares_objects(backend):
    before = Traces.now()
    with Runner([shares] * 3, backend=backend, context_fn=lambda manager: {"ledger": manager.list()}) as runner:
        seen = [next(runner.trajs()) for _ in range(4)]
        assert seen == sorted(seen)
        assert seen[-1] >= 4
    del runner
    assert wait_until(lambda: Traces.now().children <= before.children)
    assert wait_until(lambda: not Traces.now().descriptors - before.descriptors)
    with pytest.raises(envfleet.ConfigError, match="context_fn"):
        Runner([shares], backend=backend, context_fn=lambda manager: 3)


def shares(ledger):
    yield "ready"
    while True:
        ledger.append(1)
        yield len(ledger)


# --- what is refused --------------------------------------------------------------------------------------------


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
        ([counting], {"backend": "serial", "ray_address": "auto"}, "ray_address"),
        ([counting], {"progress": 3}, "progress"),
        ([counting], {"max_ahead_bytes": 0}, "max_ahead_bytes"),
        ([counting], {"backend": "ray", "context_fn": dict}, "context_fn"),
        ([counting], {"backend": "serial", "context_fn": 5}, "context_fn expected a function"),
        ([counting], {"backend": "ray", "ray_options": {"num_cpus": "two"}}, "number of cores"),
    ],
)
def test_bad_options(gen_fns, options, message):
    with pytest.raises(envfleet.ConfigError, match=message):
        Runner(gen_fns, **options)


def test_weights_that_cannot_travel(backend):
    with runner_of(counting, 1, backend) as runner:
        with pytest.raises(envfleet.ConfigError, match=r"broadcast\(\) expected what cloudpickle can pickle"):
            runner.broadcast(threading.Lock())
        assert runner.broadcast(3) == 1


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


def test_what_cannot_travel_is_told_before_anything_starts():
    import threading

    with pytest.raises(envfleet.ConfigError, match="position 1"):
        Runner([partial(counting, 0), partial(counting, threading.Lock())])
    with runner_of(counting, 1, "processes") as runner:
        with pytest.raises(envfleet.ConfigError, match="trajs"):
            next(runner.trajs(threading.Lock()))
        with pytest.raises(envfleet.ConfigError, match="broadcast"):
            runner.broadcast(threading.Lock())
        assert next(runner.trajs())["count"] == 1


@pytest.mark.parametrize("start_method", START_METHODS)
def test_every_start_method(start_method):
    with runner_of(counting, 2, "processes", start_method=start_method, ordered=True) as runner:
        got = list(islice(runner.trajs(), 4))
        assert [t["pid"] for t in got] == runner.worker_pids * 2


def test_the_same_seeds_give_the_same_trajectories_on_both():
    streams = []
    for backend in BACKENDS:
        makers = [partial(cartpole, seed=100 * index) for index in range(3)]
        with Runner(makers, backend=backend, ordered=True) as runner:
            streams.append(list(islice(runner.trajs(limit=20), 9)))
    for one, other in zip(*streams, strict=True):
        np.testing.assert_array_equal(one["obs"], other["obs"])
        np.testing.assert_array_equal(one["actions"], other["actions"])
        assert len(one["actions"]) <= 20


def cartpole(seed):
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    env.action_space.seed(seed)
    request = yield "ready"
    while True:
        obs, _ = env.reset(seed=seed)
        seed = None
        trajectory = {"obs": [obs], "actions": []}
        for _ in range(request["limit"]):
            trajectory["actions"].append(env.action_space.sample())
            obs, _, terminated, truncated, _ = env.step(trajectory["actions"][-1])
            trajectory["obs"].append(obs)
            if terminated or truncated:
                break
        request = yield {key: np.stack(rows) for key, rows in trajectory.items()}


def test_probes_do_what_they_say():
    assert do(3, "raise", culprit=4) == 3
    assert next(told(1)) == "ready"
