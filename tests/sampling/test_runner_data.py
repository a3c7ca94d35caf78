"""What travels between a Runner and its generators: trajectories, weights, a shared context, progress."""

from __future__ import annotations

import gc
import os
import threading
import time
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from sampling_probes import counting, runner_of, with_weights
from support.traces import wait_until

import envfleet
from envfleet.sampling import Runner, weights

# --- trajectories -------------------------------------------------------------------------------------


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


def keeps_the_request(index):
    """Changes its request."""
    request = yield "ready"
    while True:
        request["values"] += 1
        request = yield request.pop("limit"), float(request["values"].sum())


def test_each_generator_has_its_own_request(backend):
    values = np.zeros(2)
    with runner_of(keeps_the_request, 2, backend, ordered=True) as runner:
        assert list(islice(runner.trajs(limit=3, values=values), 6)) == [(3, 2.0)] * 6
    assert not values.any()


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


# --- weights ------------------------------------------------------------------------------------------


def test_generators_read_the_newest_weights(backend):
    with runner_of(with_weights, 3, backend) as runner:
        assert list(islice(runner.trajs(), 3)) == [(0, None)] * 3
        for version in (1, 2, 3):
            weights = {"layer": np.full(200_000, version, np.float32), "name": f"v{version}"}
            assert runner.broadcast(weights) == version
            weights["layer"][:] = -1  # training goes on, unseen by the workers
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
        timer = threading.Thread(
            target=lambda: (wait_until(lambda: (tmp_path / "running").exists()), runner.broadcast("second"))
        )
        timer.start()
        assert next(stream) == "second"
        timer.join()


def waits_for_weights(folder):
    yield "ready"
    while True:
        Path(folder, "running").touch()
        while weights().version < 2:
            time.sleep(0.005)
        yield weights().value


def test_weights_are_for_generators():
    with pytest.raises(envfleet.CallOrderError, match="generator that a Runner runs"):
        weights()


# --- progress -----------------------------------------------------------------------------------------


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


# --- shared context -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_left")
def test_context_fn_shares_objects(backend):
    with Runner([shares] * 3, backend=backend, context_fn=lambda manager: {"ledger": manager.list()}) as runner:
        seen = [next(runner.trajs()) for _ in range(4)]
        assert seen == sorted(seen)
        assert seen[-1] >= 4
    with pytest.raises(envfleet.ConfigError, match="context_fn"):
        Runner([shares], backend=backend, context_fn=lambda manager: 3)


def shares(ledger):
    yield "ready"
    while True:
        ledger.append(1)
        yield len(ledger)
