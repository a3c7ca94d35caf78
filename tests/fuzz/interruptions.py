"""The interruption fuzzer: KeyboardInterrupt at random moments of every public call of a pool.

    python tests/fuzz/interruptions.py BACKEND NUM_INTERRUPTIONS [--seed N] [--plugin PROBE_LIBRARY]

Two ways to interrupt. By events: a call is run once to count the events that a profiler sees in envfleet's own code
(entries of functions, C calls and their ends: the places where CPython looks for signals), and KeyboardInterrupt is
raised at a random one of them. By signals: a timer goes off after a random part of the time that the call takes, which
also reaches the waits inside native code.

After each interruption: what is in flight is what num_in_flight says, recv() or reset() gets it, every env's next row
is the one after its last (an interrupted step was taken once or not at all), every public method answers, and a second
pool steps as if nothing had happened. At the end no worker, thread or file descriptor is left.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium
import numpy as np
import psutil
from gymnasium import spaces

import envfleet
from envfleet import CallOrderError, EnvError, Pool

NUM_ENVS = 4
LENGTH = 7  # steps of an episode; the next one resets the env
PACKAGE = str(Path(envfleet.__file__).parent)


class CountingEnv(gymnasium.Env[Any, Any]):
    """obs: [seed of its generator, steps of this episode]. The action says how many milliseconds a step takes."""

    observation_space = spaces.Box(0, 2**62, (2,), np.int64)
    action_space = spaces.Box(0, 1000, (), np.float32)
    render_mode = "rgb_array"
    start = count = level = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.start, self.count = int(self.np_random.integers(0, 1 << 40)), 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        if action > 0:
            time.sleep(float(action) / 1000)
        self.count += 1
        # A text does not fit in an info column: every row has something in the mail.
        return self._obs(), float(self.count), self.count >= LENGTH, False, {"text": str(self.count)}

    def slow_twice(self, value: int) -> int:
        time.sleep(0.0005)
        return 2 * value

    def render(self) -> Any:
        return np.full((2, 2, 3), self.count, np.uint8)

    def _obs(self) -> Any:
        return np.array([self.start, self.count], np.int64)


def next_count(count: int) -> int:
    return 0 if count >= LENGTH else count + 1


class Interrupter:
    """Runs a call and interrupts it at a random moment."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._is_armed = False
        self.num_interruptions = 0
        self._num_events: dict[str, int] = {}
        self._seconds: dict[str, float] = {}
        signal.signal(signal.SIGALRM, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_armed:
            self._is_armed = False
            raise KeyboardInterrupt

    def run(self, name: str, call: Callable[[], Any]) -> tuple[bool, Any]:
        """(whether it was interrupted, its result)."""
        try:
            if self._rng.random() < 0.7:
                return False, self._by_events(name, call)
            return False, self._by_signal(name, call)
        except KeyboardInterrupt:
            self.num_interruptions += 1
            return True, None

    def _by_events(self, name: str, call: Callable[[], Any]) -> Any:
        known = self._num_events.get(name)
        target = None if known is None else self._rng.randint(1, known + 2)
        count = 0

        def on_event(frame: FrameType, event: str, arg: Any) -> None:
            nonlocal count
            if event in ("return", "c_exception") or not frame.f_code.co_filename.startswith(PACKAGE):
                return
            count += 1
            if count == target:
                sys.setprofile(None)
                raise KeyboardInterrupt

        sys.setprofile(on_event)
        try:
            return call()
        finally:
            sys.setprofile(None)
            self._num_events[name] = max(count, self._num_events.get(name, 0))

    def _by_signal(self, name: str, call: Callable[[], Any]) -> Any:
        limit = self._seconds.get(name, 0.001)
        start = time.monotonic()
        self._is_armed = True
        try:
            signal.setitimer(signal.ITIMER_REAL, max(1e-6, self._rng.uniform(0, 1.2 * limit)))
            return call()
        finally:
            self._is_armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._seconds[name] = min(0.5, 0.8 * limit + 0.2 * (time.monotonic() - start))


class Fuzzer:
    """One pool that is interrupted, one that must not notice, and what each env may have counted up to."""

    def __init__(self, backend: str, seed: int, plugin: str | None) -> None:
        self.backend = backend
        self.rng = random.Random(seed)
        self.interrupter = Interrupter(self.rng)
        if plugin is not None:
            envfleet.load_plugin(plugin)
        self.witness = self.make(2)
        self.witness.reset(seed=3)
        self.witness_count = 0
        self.pool = self.make(NUM_ENVS)
        # What each env's last row may have been: its count.
        self.counts: list[set[int]] = [{0}] * NUM_ENVS
        self.start_over()

    # --- pools ---------------------------------------------------------------------------------

    def make(self, num_envs: int) -> Pool:
        options: dict[str, Any] = {"num_envs": num_envs, "seed": 0}
        if self.backend == "native":
            return envfleet.make_pool("Faulty-v0", num_threads=2, length=LENGTH, **options)
        return envfleet.make_pool(CountingEnv, backend=self.backend, num_workers=2, **options)

    def actions(self, rows: int) -> Any:
        if self.backend == "native":
            return np.zeros(rows, np.int64)
        return np.array([self.rng.choice([0, 0, 0.5]) for _ in range(rows)], np.float32)

    # --- what is expected ------------------------------------------------------------------------

    def start_over(self) -> None:
        """Resets all envs, which must work whatever happened."""
        batch = self.pool.reset(seed=7)
        assert self.pool.num_in_flight == 0
        assert batch.obs[:, 1].tolist() == [0] * NUM_ENVS, batch.obs
        assert self.pool.seeds == (7, 8, 9, 10), self.pool.seeds
        if not hasattr(self, "first_obs"):
            self.first_obs = batch.obs.copy()
        assert (batch.obs == self.first_obs).all(), "the same seed gave other rows"
        self.counts = [{0}] * NUM_ENVS

    def expect_broken(self, error: CallOrderError) -> None:
        """An env that Ctrl-C broke: the pool says so, and a reset rebuilds it."""
        if "must be reset" not in str(error):
            raise error
        self.start_over()

    def expect_fault(self, error: EnvError) -> None:
        """Ctrl-C in the middle of an env, which runs in the caller's thread on serial alone."""
        if self.backend != "serial":
            raise error
        self.start_over()

    def take(self, batch: Any, expected: list[set[int]] | None = None) -> None:
        """Rows that came: each is one that its env could give."""
        for row, env_id in enumerate(batch.env_id.tolist()):
            got = int(batch.obs[row, 1])
            possible = {next_count(own) for own in self.counts[env_id]} if expected is None else expected[env_id]
            assert got in possible, f"env {env_id} gave {got}, expected one of {possible}"
            self.counts[env_id] = {got}

    def step_once(self) -> None:
        """A step after an interruption: the rows follow on the last ones, or the pool says which env is broken."""
        try:
            self.take(self.pool.step(self.actions(NUM_ENVS)))
        except CallOrderError as error:
            self.expect_broken(error)

    # --- calls -----------------------------------------------------------------------------------

    def run_one(self) -> None:
        name = self.rng.choice(sorted(CALLS))
        # On Ray, every pool starts actors: a tenth of the makes and closes, and the other calls in their place.
        while name == "close" and self.backend == "ray" and self.rng.random() < 0.9:
            name = self.rng.choice(sorted(CALLS))
        before = self.interrupter.num_interruptions
        CALLS[name](self, name)
        if self.interrupter.num_interruptions > before:
            self.check(name)
        self.check_witness()

    def check(self, name: str) -> None:
        pool = self.pool
        num_in_flight = pool.num_in_flight
        assert int(pool.executor.in_flight().sum()) == num_in_flight, name
        if num_in_flight:
            assert num_in_flight == NUM_ENVS, (name, num_in_flight)
            if self.rng.random() < 0.5:
                self.start_over()
            else:
                try:
                    self.take(pool.recv(timeout=60))
                except EnvError as error:
                    self.expect_fault(error)
        else:
            try:
                pool.recv()
            except CallOrderError as error:
                text = str(error)
            else:
                text = "a batch that was not in flight"
            assert "nothing in flight" in text, f"recv() after {name} gave {text}"
        self.step_once()
        look = self.rng.choice(sorted(LOOKS))
        LOOKS[look](self)
        self.step_once()

    def check_witness(self) -> None:
        self.witness_count = next_count(self.witness_count)
        got = self.witness.step(self.actions(2)).obs[:, 1].tolist()
        assert got == [self.witness_count] * 2, f"the other pool gave {got}, expected {self.witness_count}"

    def may_have_stepped(self) -> None:
        self.counts = [own | {next_count(one) for one in own} for own in self.counts]

    def step(self, name: str) -> None:
        actions = self.actions(NUM_ENVS)
        if name == "step_slow_path":
            actions = actions.tolist()
        was_interrupted, batch = self.interrupter.run(name, lambda: self.pool.step(actions))
        self.after_step(was_interrupted, batch)

    def after_step(self, was_interrupted: bool, batch: Any) -> None:
        if not was_interrupted:
            self.take(batch)
        elif self.pool.num_in_flight == 0:
            self.may_have_stepped()

    def step_some(self, name: str) -> None:
        ids = self.rng.sample(range(NUM_ENVS), 2)
        before = list(self.counts)
        was_interrupted, batch = self.interrupter.run(name, lambda: self.pool.step(self.actions(2), ids))
        if not was_interrupted:
            self.take(batch)
        elif self.pool.num_in_flight:
            try:
                self.take(self.pool.recv(timeout=60))
            except EnvError as error:
                self.expect_fault(error)
        else:
            self.may_have_stepped()
            self.counts = [own if env_id in ids else before[env_id] for env_id, own in enumerate(self.counts)]

    def send_recv(self, name: str) -> None:
        actions = self.actions(NUM_ENVS)
        was_interrupted, _ = self.interrupter.run("send", lambda: self.pool.send(actions))
        if was_interrupted:
            return  # what was sent is in flight
        was_interrupted, batch = self.interrupter.run("recv", self.pool.recv)
        self.after_step(was_interrupted, batch)

    def reset(self, name: str) -> None:
        seed = 7 if name == "reset_seed" else None
        was_interrupted, batch = self.interrupter.run(name, lambda: self.pool.reset(seed=seed))
        if was_interrupted:
            if self.pool.num_in_flight:
                self.counts = [{LENGTH}] * NUM_ENVS  # recv() gives first rows
            else:
                self.counts = [own | {0} for own in self.counts]
        else:
            self.take(batch, [{0}] * NUM_ENVS)

    def async_reset(self, name: str) -> None:
        was_interrupted, _ = self.interrupter.run(name, self.pool.async_reset)
        if self.pool.num_in_flight == NUM_ENVS:
            self.counts = [{LENGTH}] * NUM_ENVS
        if not was_interrupted:
            self.take(self.pool.recv())

    def look(self, name: str) -> None:
        self.interrupter.run(name, lambda: LOOKS[name](self))

    def set_state(self, name: str) -> None:
        saved, counts = self.pool.get_state(), list(self.counts)
        for _ in range(self.rng.randint(0, 3)):
            self.take(self.pool.step(self.actions(NUM_ENVS)))
        was_interrupted, _ = self.interrupter.run(name, lambda: self.pool.set_state(saved))
        if was_interrupted:
            # Rolled back, or through. Never some envs here and some there.
            try:
                batch = self.pool.step(self.actions(NUM_ENVS))
            except CallOrderError as error:
                self.expect_broken(error)
                return
            got = batch.obs[:, 1].tolist()
            old, new = ([next_count(next(iter(own))) for own in these] for these in (self.counts, counts))
            assert got in (old, new), f"after set_state() the envs gave {got}, expected {old} or {new}"
            self.counts = [{own} for own in got]
        else:
            self.counts = counts

    def close(self, name: str) -> None:
        """A pool of its own: its make, then its close, interrupted; close() again is through."""
        was_interrupted, pool = self.interrupter.run("make", lambda: self.make(2))
        if was_interrupted:
            return
        if self.rng.random() < 0.5:
            pool.reset()
            pool.send(self.actions(2))
        self.interrupter.run("close", pool.close)
        pool.close()
        assert pool.closed
        assert pool.executor.call_guard.is_ended
        try:
            pool.step(self.actions(2))
            raise AssertionError("a closed pool was stepped")
        except envfleet.PoolClosedError:
            pass


def _check_observe(self: Fuzzer) -> None:
    got = self.pool.observe()[:, 1].tolist()
    for env_id, count in enumerate(got):
        assert count in self.counts[env_id], f"observe() gave {got}, expected {self.counts}"


def _check_call(self: Fuzzer) -> None:
    if self.backend == "native":
        assert len(self.pool.call("count")) == NUM_ENVS
        return
    value = self.rng.randint(0, 1000)
    assert self.pool.call("slow_twice", value) == (2 * value,) * NUM_ENVS


def _check_attr(self: Fuzzer) -> None:
    if self.backend == "native":
        assert len(self.pool.get_attr("total")) == NUM_ENVS
        return
    value = self.rng.randint(0, 1000)
    self.pool.set_attr("level", value)
    assert self.pool.get_attr("level") == (value,) * NUM_ENVS


def _check_render(self: Fuzzer) -> None:
    frames = self.pool.render_all()
    assert len(frames) == NUM_ENVS


def _check_state(self: Fuzzer) -> None:
    assert len(self.pool.get_state().states) == NUM_ENVS


def _check_stats(self: Fuzzer) -> None:
    assert len(self.pool.stats().envs) == NUM_ENVS
    assert len(self.pool.seeds) == NUM_ENVS
    self.pool.params_of(0)
    self.pool.get_attrs(0)


LOOKS: dict[str, Callable[[Fuzzer], None]] = {
    "observe": _check_observe,
    "call": _check_call,
    "attr": _check_attr,
    "render": _check_render,
    "get_state": _check_state,
    "stats": _check_stats,
}
CALLS: dict[str, Callable[[Fuzzer, str], None]] = {
    "step": Fuzzer.step,
    "step_slow_path": Fuzzer.step,
    "step_some": Fuzzer.step_some,
    "send_recv": Fuzzer.send_recv,
    "reset": Fuzzer.reset,
    "reset_seed": Fuzzer.reset,
    "async_reset": Fuzzer.async_reset,
    "set_state": Fuzzer.set_state,
    "close": Fuzzer.close,
    **dict.fromkeys(LOOKS, Fuzzer.look),
}


def traces_of_this_process() -> tuple[int, int, int]:
    """Threads, child processes, file descriptors."""
    return threading.active_count(), len(psutil.Process().children(recursive=True)), len(os.listdir("/proc/self/fd"))


def wait_for_no_more_than(most: tuple[int, int, int]) -> tuple[int, int, int]:
    """What is left once workers have had the time to leave."""
    for _ in range(100):
        gc.collect()
        now = traces_of_this_process()
        if all(one <= other for one, other in zip(now, most, strict=True)):
            break
        time.sleep(0.1)
    return now


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("backend", choices=["native", "serial", "threads", "processes", "ray"])
    parser.add_argument("num_interruptions", type=int)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--plugin")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"backend {options.backend}, seed {seed}", flush=True)
    fuzzer = Fuzzer(options.backend, seed, options.plugin)
    for _ in range(3):
        fuzzer.make(2).close()  # what is started once and stays: the fork server, its thread
    gc.collect()
    before = traces_of_this_process() if options.backend != "ray" else None
    for number in itertools.count():
        if fuzzer.interrupter.num_interruptions >= options.num_interruptions:
            break
        try:
            fuzzer.run_one()
        except BaseException:
            print(f"in call {number}, after {fuzzer.interrupter.num_interruptions} interruptions", file=sys.stderr)
            raise
    if before is not None:
        after = wait_for_no_more_than(before)
        assert all(one <= other for one, other in zip(after, before, strict=True)), f"left: {after}, at first {before}"
    fuzzer.pool.close()
    fuzzer.witness.close()
    print(f"{fuzzer.interrupter.num_interruptions} interruptions in {number} calls")


if __name__ == "__main__":
    main()
