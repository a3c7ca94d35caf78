"""Pools and runners stepped side by side while their workers, actors and the fork server are killed at random.

    python chaos.py --seconds 600 --seed 7 [--ray]

Every row that was sent must come back, each env's steps must follow one another between restarts, and at the end no
process, descriptor or file of shared memory may be left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import threading
import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import psutil
from sampling_probes import counting
from support.ledger import Ledger
from support.python_probes import FaultyEnv
from support.traces import Traces, wait_until

import envfleet
from envfleet.sampling import Runner

LENGTH = 50
RECV_TIMEOUT_S = 120.0  # for a machine with too few cores: a restart takes milliseconds
PATIENCE_S = 60.0
RESTARTS = {"on_error": "restart", "max_restarts": 10**9}


class Subject(ABC):
    """Something that is stepped in a thread of its own until it is told to stop, and then accounts for its rows."""

    name: str

    @abstractmethod
    def step(self) -> None:
        """One step, or one trajectory; checks what came."""

    @abstractmethod
    def account(self) -> dict[str, int]:
        """Takes what is still under way, checks the counts, and tells them."""

    @abstractmethod
    def close(self) -> None:
        """Ends it."""

    def worker_pids(self) -> list[int]:
        """Processes that may be killed."""
        return []


class NativePair(Subject):
    """A native pool with a thread pool, compared row by row with one that steps in the caller's thread."""

    name = "native"

    def __init__(self) -> None:
        self._pools = [envfleet.make_pool("CartPole-v1", num_envs=64, num_threads=threads) for threads in (2, 1)]
        for pool in self._pools:
            pool.reset(seed=3)
        self._rng = np.random.default_rng(3)
        self._num_rows = 0

    def step(self) -> None:
        actions = self._rng.integers(0, 2, 64)
        one, other = (pool.step(actions) for pool in self._pools)
        for field in ("obs", "reward", "terminated", "truncated", "elapsed_step", "env_id"):
            assert np.array_equal(getattr(one, field), getattr(other, field)), field
        self._num_rows += len(one)
        time.sleep(0.001)  # leaves the interpreter to the others

    def account(self) -> dict[str, int]:
        return {"rows": self._num_rows}

    def close(self) -> None:
        for pool in self._pools:
            pool.close()


class Synchronous(Subject):
    """A pool of which each step takes and gives a row per env."""

    def __init__(self, name: str, num_envs: int, **options: Any) -> None:
        self.name = name
        self._pool = envfleet.make_pool(FaultyEnv, num_envs=num_envs, length=LENGTH, **RESTARTS, **options)
        assert self._pool.reset(seed=1).elapsed_step.tolist() == [0] * num_envs
        self._ledger = Ledger(num_envs, LENGTH)
        self._actions = np.zeros(num_envs, dtype=np.int64)
        self._num_steps = 0

    def step(self) -> None:
        self._ledger.enter(self._pool.step(self._actions, timeout=RECV_TIMEOUT_S))
        self._num_steps += 1

    def account(self) -> dict[str, int]:
        assert (self._ledger.num_rows == self._num_steps).all(), (self._ledger.num_rows, self._num_steps)
        return {"rows": int(self._ledger.num_rows.sum()), "errors": self._ledger.num_errors}

    def close(self) -> None:
        self._pool.close()

    def worker_pids(self) -> list[int]:
        return [int(pid) for pid in self._pool.executor.worker_pids]


class Asynchronous(Synchronous):
    """A pool of which whoever is finished first is sent on."""

    def __init__(self, name: str, num_envs: int, **options: Any) -> None:
        super().__init__(name, num_envs, **options)
        self._num_sent = np.zeros(num_envs, dtype=np.int64)
        self._send(np.arange(num_envs, dtype=np.int32))

    def _send(self, env_ids: np.ndarray) -> None:
        self._pool.send(self._actions[: len(env_ids)], env_ids)
        self._num_sent[env_ids] += 1

    def step(self) -> None:
        self._send(self._recv())

    def _recv(self) -> np.ndarray:
        batch = self._pool.recv(timeout=RECV_TIMEOUT_S)
        self._ledger.enter(batch)
        return batch.env_id

    def account(self) -> dict[str, int]:
        batch_size, rng = self._pool.config.batch_size, np.random.default_rng(0)
        # A batch is never given in part: the rest needs company.
        while (missing := int((self._num_sent - self._ledger.num_rows).sum())) > 0:
            if missing < batch_size:
                idle = np.flatnonzero(self._num_sent == self._ledger.num_rows).astype(np.int32)
                self._send(rng.permutation(idle)[: batch_size - missing])
            self._recv()
        assert (self._ledger.num_rows == self._num_sent).all(), (self._ledger.num_rows, self._num_sent)
        return {"rows": int(self._ledger.num_rows.sum()), "errors": self._ledger.num_errors}


class Trajectories(Subject):
    """A runner. Each generator counts its trajectories, from 1 where it was made anew."""

    def __init__(self, name: str, num_generators: int, **options: Any) -> None:
        self.name = name
        generators = [partial(counting, index) for index in range(num_generators)]
        self._runner = Runner(generators, size=50_000, prefetch=2, **RESTARTS, **options)
        self._stream = self._runner.trajs()
        self._last: Counter[int] = Counter()
        self._num_trajectories = self._num_restarts = 0

    def step(self) -> None:
        trajectory = next(self._stream)
        index, count = trajectory["index"], trajectory["count"]
        assert (trajectory["data"] == count).all()
        assert count in (1, self._last[index] + 1), (index, count, self._last[index])
        self._num_restarts += count == 1
        self._num_trajectories += 1
        self._last[index] = count

    def account(self) -> dict[str, int]:
        return {"trajectories": self._num_trajectories, "restarts": self._num_restarts - len(self._last)}

    def close(self) -> None:
        self._runner.close()

    def worker_pids(self) -> list[int]:
        return self._runner.worker_pids


class Killer:
    """Kills a worker, an actor or the fork server, whatever it is doing."""

    def __init__(self, subjects: list[Subject], seed: int) -> None:
        self._victims = [subject for subject in subjects if subject.worker_pids()]
        self._rng = random.Random(seed)
        self.num_kills: Counter[str] = Counter()

    def pause_s(self) -> float:
        return self._rng.uniform(0.02, 0.3)

    def kill_one(self) -> None:
        if self._rng.random() < 0.05:
            self._kill("fork server", fork_servers())
            return
        # An actor takes seconds to come back: with a fair share of the kills, Ray's would do nothing else.
        weights = [0.3 if "ray" in victim.name else 1.0 for victim in self._victims]
        victim = self._rng.choices(self._victims, weights)[0]
        pids = {pid for pid in victim.worker_pids() if pid > 0}
        self._kill(victim.name, [process for process in descendants() if process.pid in pids])

    def _kill(self, name: str, processes: list[psutil.Process]) -> None:
        if processes:
            with contextlib.suppress(psutil.NoSuchProcess):  # it was gone between the look and the shot
                self._rng.choice(processes).kill()
                self.num_kills[name] += 1


def descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def fork_servers() -> list[psutil.Process]:
    """This process's own: those of Ray's actors are not its children."""
    return [
        child for child in psutil.Process().children() if "executors.processes import fork_server" in _command(child)
    ]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def makers(with_ray: bool) -> Iterator[Callable[[], Subject]]:
    yield NativePair
    yield partial(Synchronous, "processes", 8, backend="processes", num_workers=3)
    yield partial(Asynchronous, "processes, asynchronous", 8, backend="processes", num_workers=4, batch_size=3)
    yield partial(Trajectories, "runner", 3)
    if with_ray:
        yield partial(Synchronous, "processes, spawned", 4, backend="processes", num_workers=2, start_method="spawn")
        ray = {"backend": "ray", "ray": envfleet.RayConfig(actor_options={"num_cpus": 0})}
        yield partial(Synchronous, "ray", 6, num_workers=3, **ray)
        yield partial(Asynchronous, "ray, asynchronous", 4, num_workers=2, batch_size=1, **ray)
        yield partial(Trajectories, "runner on ray", 2, **ray)


def serve(subject: Subject, stop: threading.Event, accounts: dict[str, Any]) -> None:
    try:
        while not stop.is_set():
            subject.step()
        accounts[subject.name] = subject.account()
    except BaseException:
        accounts[subject.name] = traceback.format_exc()
        stop.set()


def run(seconds: float, seed: int, with_ray: bool) -> dict[str, Any]:
    subjects: list[Subject] = []
    stop, accounts = threading.Event(), {}
    try:
        for make in makers(with_ray):
            subjects.append(make())
        killer = Killer(subjects, seed)
        threads = [threading.Thread(target=serve, args=(subject, stop, accounts)) for subject in subjects]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + seconds
        try:
            while time.monotonic() < deadline and not stop.wait(killer.pause_s()):
                killer.kill_one()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    finally:
        for subject in subjects:
            subject.close()
    return {"accounts": accounts, "kills": dict(killer.num_kills)}


@contextlib.contextmanager
def ray_cluster() -> Iterator[None]:
    """A cluster of this machine alone, which ends with the run: what it holds itself is not ours to count."""
    import ray

    for category in (ResourceWarning, DeprecationWarning, FutureWarning):  # of Ray's packages about themselves
        warnings.simplefilter("ignore", category)
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=200 * 2**20,
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        yield
    finally:
        ray.shutdown()


def processes_left() -> list[str]:
    """All but the fork server, which stays for later pools."""
    servers = fork_servers()
    return [_command(process) for process in descendants() if process not in servers]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ray", action="store_true")
    options = parser.parse_args()
    print(f"chaos: {options}", flush=True)
    # Of restarts, which are the point.
    warnings.simplefilter("ignore", RuntimeWarning)
    with ray_cluster() if options.ray else contextlib.nullcontext():
        for make in makers(options.ray):  # what stays for later: the fork server, Ray's own connections
            subject = make()
            subject.step()
            subject.close()
        before = Traces.now().descriptors
        result = run(options.seconds, options.seed, options.ray)
        wait_until(lambda: not Traces.now().descriptors - before, PATIENCE_S)
        result["descriptors left"] = dict(Traces.now().descriptors - before)
    wait_until(lambda: not processes_left(), PATIENCE_S)
    result["processes left"] = processes_left()
    print(json.dumps(result), flush=True)
    failures = [text for text in result["accounts"].values() if isinstance(text, str)]
    for text in failures:
        print(text, file=sys.stderr)
    return 1 if failures or result["descriptors left"] or result["processes left"] else 0


if __name__ == "__main__":
    sys.exit(main())
