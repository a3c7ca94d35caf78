"""The Runner's contract: what generators are asked, what comes back and in which order. Serial is the reference."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from sampling_probes import BACKENDS, START_METHODS, counting, do, runner_of, told, turns, two_of_them
from support.traces import wait_until

import envfleet
from envfleet.sampling import Runner, weights

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


# --- order --------------------------------------------------------------------------------------------


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
    """And no further, while nothing is taken."""
    with runner_of(turns, 1, "processes", folder=tmp_path, prefetch=3) as runner:
        for count in range(1, 10):
            (tmp_path / f"go-0-{count}").touch()
        stream = runner.trajs()
        assert next(stream) == (0, 1)
        # Three more are finished without being asked for; then the runner's list does not grow.
        ready = runner._backend._queue.events
        assert wait_until(lambda: len(ready) == 3)
        assert list(islice(stream, 5)) == [(0, count) for count in range(2, 7)]


def test_memory_is_bounded_by_bytes_too():
    """Each trajectory is over the limit by itself: one is finished ahead, no more, whatever prefetch says."""
    with runner_of(counting, 1, "processes", size=500_000, prefetch=8, max_ahead_bytes=1_000_000) as runner:
        stream = runner.trajs()
        assert next(stream)["count"] == 1
        assert wait_until(lambda: len(runner._backend._queue.events) == 1)
        worker = runner._backend._workers[0]
        assert next(stream)["count"] == 2
        assert wait_until(lambda: worker.num_done == 3)
        assert (len(runner._backend._queue.events), worker.num_requested) == (1, 10)
        assert [t["count"] for t in islice(stream, 4)] == [3, 4, 5, 6]


# --- streams ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [1, 4])
def test_a_new_stream_never_returns_what_an_old_one_requested(backend, prefetch):
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
        assert next(runner.trajs()) == 3  # the second is never seen


def gated(folder):
    """Its second trajectory waits for weights."""
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
        assert list(runner.trajs()) == first  # started again
    functions = [partial(two_of_them, 0), partial(counting, 1)]
    with Runner(functions, backend=backend, ordered=True, prefetch=3) as runner:
        got = list(islice(runner.trajs(), 6))
        assert [t if type(t) is tuple else t["count"] for t in got] == [(0, 1), 1, (0, 2), 2, 3, 4]


# --- backends -----------------------------------------------------------------------------------------


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
