"""The Runner on Ray actors: the same contract, and what only a cluster does."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from functools import partial
from itertools import islice

import numpy as np
import pytest
from sampling_probes import counting, dies_after_one, told, two_of_them, with_weights
from support.ray_session import ray_session, spare_nodes
from support.traces import wait_until

import envfleet
from envfleet import RayConfig
from envfleet.core.errors import PlacementError
from envfleet.sampling import GeneratorDied, GeneratorError, Runner

ray = pytest.importorskip("ray")
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # noqa: E402 (needs the line above)

pytestmark = [
    # Ray's own: sockets and files that it closes by garbage collection.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    # Of Ray's packages about themselves.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """One for all: the runners join it and leave it running."""
    yield ray_session()
    assert ray.is_initialized()


def runner_of(generator, count, **options):
    return Runner([partial(generator, index) for index in range(count)], backend="ray", **options)


@pytest.mark.parametrize("prefetch", [pytest.param(1, marks=pytest.mark.soak), 3])
def test_the_contract(prefetch):
    with runner_of(counting, 3, ordered=True, prefetch=prefetch, size=100_000, color="red") as runner:
        got = list(islice(runner.trajs("B", limit=7), 9))
        assert [(t["index"], t["count"]) for t in got] == [(i, count) for count in (1, 2, 3) for i in (0, 1, 2)]
        assert all(t["request"] == ["B", {"limit": 7}] and t["color"] == "red" for t in got)
        assert all((t["data"] == t["count"]).all() for t in got)
        assert [t["pid"] for t in got[:3]] == runner.worker_pids
        for stream in range(5):
            assert [t["request"] for t in islice(runner.trajs(stream), 2)] == [(stream,)] * 2
        old = runner.trajs("old")
        next(old)
        next(runner.trajs())
        with pytest.raises(envfleet.CallOrderError, match="newest"):
            next(old)


def test_each_gets_its_turn_where_several_are_finished():
    with runner_of(counting, 3) as runner:
        seen = set()
        for trajectory in runner.trajs():
            seen.add(trajectory["index"])
            if len(seen) == 3:
                break


def test_weights_and_ends():
    with runner_of(with_weights, 2) as runner:
        assert next(runner.trajs()) == (0, None)
        for version in (1, 2):
            assert runner.broadcast({"layer": np.full(100_000, version)}) == version
            for got, value in islice(runner.trajs(), 4):
                assert got == version
                assert (value["layer"] == version).all()
    with runner_of(two_of_them, 2, ordered=True, prefetch=3) as runner:
        assert list(runner.trajs()) == list(runner.trajs()) == [(0, 1), (1, 1), (0, 2), (1, 2)]


@pytest.mark.filterwarnings("ignore:generator 0 was lost:RuntimeWarning")
def test_a_restarted_generator_has_the_weights_at_its_start():
    with runner_of(dies_after_one, 1, on_error="restart") as runner:
        assert runner.broadcast("new") == 1
        assert list(islice(runner.trajs(), 3)) == [(0, None), (1, "new"), (1, "new")]


def test_finally_blocks_run_and_actors_end(tmp_path):
    runner = runner_of(counting, 2, log=str(tmp_path))
    next(runner.trajs())
    pids = runner.worker_pids
    runner.close()
    runner.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["closed-0", "closed-1"]
    assert wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), 20)
    with pytest.raises(envfleet.PoolClosedError):
        runner.trajs()


@pytest.mark.parametrize("prefetch", [pytest.param(1, marks=pytest.mark.soak), 3])
def test_faults(prefetch):
    with runner_of(told, 2, ordered=True, prefetch=prefetch) as runner:
        stream = runner.trajs("raise", 1)
        assert next(stream) == 0
        with pytest.raises(GeneratorError, match="trouble in 1") as caught:
            next(stream)
        assert isinstance(caught.value.__cause__, ValueError)
        text = "".join(traceback.format_exception(caught.value))
        assert text.startswith(caught.value.env_traceback)
        assert text.count("trouble in {index}") == 1
        assert "envfleet/sampling" not in caught.value.env_traceback
        assert list(islice(stream, 2)) == [0, 0]
        with pytest.raises(GeneratorError, match=r"pickle|serializ"):
            next(runner.trajs("lock", 0))
        assert list(islice(runner.trajs(), 2)) == [0, 1]
        stream = runner.trajs("kill", 1)
        assert next(stream) == 0
        with pytest.raises(GeneratorDied, match="its Ray actor") as died:
            next(stream)
        assert isinstance(died.value, envfleet.WorkerDied)
        assert next(stream) == 0
        assert list(islice(runner.trajs(), 2)) == [0, 1]


def test_restarts(tmp_path):
    with runner_of(counting, 2, ordered=True, on_error="restart") as runner:
        stream = runner.trajs()
        next(stream)
        os.kill(runner.worker_pids[1], signal.SIGKILL)
        with pytest.warns(RuntimeWarning, match="generator 1 was lost"):
            got = [(t["index"], t["count"]) for t in islice(stream, 7)]
        assert [index for index, _ in got] == [1, 0, 1, 0, 1, 0, 1]
        assert sorted({count for index, count in got if index == 1})[0] == 1


def test_traj_timeout(tmp_path):
    with runner_of(told, 2, ordered=True, traj_timeout=12.0, folder=tmp_path) as runner:
        stream = runner.trajs("hang", 0)
        with pytest.raises(GeneratorDied, match="traj_timeout=12 s"):
            next(stream)
        assert next(stream) == 1


def test_a_caller_who_takes_long_loses_no_worker_of_another_node():
    """What is finished lies on that node until it is fetched, which takes longer than no time at all."""
    with (
        spare_nodes(1),
        runner_of(
            counting,
            2,
            ordered=True,
            prefetch=2,
            size=1_250_000,
            traj_timeout=12.0,
            ray=RayConfig(actor_options={"num_cpus": 0, "resources": {"spare": 1}}),
        ) as runner,
    ):
        stream = runner.trajs()
        got = list(islice(stream, 2))
        threading.Event().wait(13.0)
        got += islice(stream, 4)
        assert [(t["index"], t["count"]) for t in got] == [(index, count) for count in (1, 2, 3) for index in (0, 1)]
        assert all((t["data"] == t["count"]).all() for t in got)
        assert [t["pid"] for t in got] == runner.worker_pids * 3


class Trial:
    """Makes runners where it runs, as the trials of Ray Tune do."""

    def groups(self):
        """The placement groups of a runner's actors."""
        generators = [partial(group_of, index) for index in range(2)]
        # Actors in a runtime env are new processes, which take long to start on a busy machine.
        config = RayConfig(actor_options={"num_cpus": 1}, placement_timeout_s=600.0)
        with Runner(generators, backend="ray", ordered=True, ray=config) as runner:
            return list(islice(runner.trajs(), 2))


def group_of(index):
    yield "ready"
    while True:
        yield ray.util.get_current_placement_group().id.hex()


def test_a_runner_inside_a_placement_group_uses_it():
    group = ray.util.placement_group([{"CPU": 1}, {"CPU": 1}])  # all that the cluster has
    ray.get(group.ready())
    try:
        strategy = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True)
        runtime_env = {"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}}  # where this module is found
        trial = ray.remote(num_cpus=0)(Trial).options(scheduling_strategy=strategy, runtime_env=runtime_env).remote()
        assert ray.get(trial.groups.remote()) == [group.id.hex()] * 2
        ray.kill(trial)
    finally:
        ray.util.remove_placement_group(group)


def no_start(index):
    raise KeyError("not today")
    yield


def test_what_cannot_start():
    with pytest.raises(GeneratorError, match="not today") as caught:
        runner_of(no_start, 2)
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(PlacementError, match="placement_timeout_s=2;"):
        runner_of(counting, 1, ray=RayConfig(actor_options={"resources": {"moon": 1}}, placement_timeout_s=2.0))
    with pytest.raises(envfleet.ConfigError, match="max_restarts"):
        runner_of(counting, 1, ray=RayConfig(actor_options={"max_restarts": 3}))
    with pytest.raises(envfleet.ConfigError, match="position 0"):
        Runner([partial(counting, (i for i in range(3)))], backend="ray")
