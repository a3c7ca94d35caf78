"""The interruption fuzzer: KeyboardInterrupt at random moments of every public call of a pool.

    python tests/fuzz/interruptions.py BACKEND NUM_INTERRUPTIONS [--seed N] [--plugin PROBE_LIBRARY]

A timer goes off after a random part of the time that the call takes, and sometimes once more a little later.

After each interruption, the call had not begun, or it is done for all envs, or the pool says that it was interrupted:
then every call but a reset of all envs says so, and the rollout after the reset is that of a fresh pool. An env that
raised in a batch that was lost is reported by the next call, or restarted. A second pool steps as if nothing had
happened. At the end no worker, thread or file descriptor is left.
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
from collections.abc import Callable, Sequence
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
RAISE = 1000
LOST = -1  # in place of a count: the env raised in a batch that was lost, and the next call must report that


class CountingEnv(gymnasium.Env[Any, Any]):
    """obs: [start, steps of this episode]. The action says how many milliseconds a step takes; RAISE raises."""

    observation_space = spaces.Box(0, 2**62, (2,), np.int64)
    action_space = spaces.Box(0, 1000, (), np.float32)
    render_mode = "rgb_array"
    start = count = level = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.start, self.count = int(self.np_random.integers(0, 1 << 40)), 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        if action == RAISE:
            raise RuntimeError("joint 3 exploded")
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


def expect_refusal(call: Callable[[], Any], message: str) -> None:
    try:
        result = call()
    except CallOrderError as error:
        text = str(error)
    else:
        text = f"the result {result}"
    assert message in text, f"expected '... {message} ...', got {text}"


class Interrupter:
    """Runs a call and interrupts it at a random moment, sometimes twice."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._remaining = 0
        self.num_interruptions = 0
        self._seconds: dict[str, float] = {}
        signal.signal(signal.SIGALRM, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._remaining:
            self._remaining -= 1
            if self._remaining:
                signal.setitimer(signal.ITIMER_REAL, self._rng.uniform(1e-6, 0.01))
            raise KeyboardInterrupt

    def run(self, name: str, call: Callable[[], Any]) -> tuple[bool, Any]:
        """(whether it was interrupted, its result)."""
        limit = self._seconds.get(name, 0.001)
        start = time.monotonic()
        try:
            try:
                self._remaining = self._rng.choice([1, 1, 2])
                signal.setitimer(signal.ITIMER_REAL, max(1e-6, self._rng.uniform(0, 1.2 * limit)))
                return False, call()
            finally:
                self._remaining = 0
                signal.setitimer(signal.ITIMER_REAL, 0)
                self._seconds[name] = min(0.5, 0.8 * limit + 0.2 * (time.monotonic() - start))
        except KeyboardInterrupt:
            self.num_interruptions += 1
            return True, None


class Fuzzer:
    """One pool that is interrupted, one that must not notice, and what the envs may have counted up to."""

    def __init__(self, backend: str, seed: int, plugin: str | None) -> None:
        self.backend = backend
        self.rng = random.Random(seed)
        self.on_error = self.rng.choice(["raise", "restart"])
        self.interrupter = Interrupter(self.rng)
        self.num_interrupted = 0  # how often the pool said so
        if plugin is not None:
            envfleet.load_plugin(plugin)
        self.witness = self.make(2)
        self.witness.reset(seed=3)
        self.witness_count = 0
        self.pool = self.make(NUM_ENVS)
        with self.make(NUM_ENVS) as fresh:
            self.first_obs = fresh.reset(seed=7).obs
        # What the envs' counts may be now, by env.
        self.possible: list[list[int]] = []
        self.start_over()

    # --- pools ---------------------------------------------------------------------------------

    def make(self, num_envs: int) -> Pool:
        options: dict[str, Any] = {"num_envs": num_envs, "seed": 0, "on_error": self.on_error, "max_restarts": 10**6}
        if self.backend == "native":
            return envfleet.make_pool("Faulty-v0", num_threads=2, length=LENGTH, **options)
        return envfleet.make_pool(CountingEnv, backend=self.backend, num_workers=2, **options)

    def actions(self, rows: int, raising: int | None = None) -> Any:
        """Actions of which one, the raising one's, raises."""
        if self.backend == "native":
            actions = np.zeros(rows, np.int64)
        else:
            actions = np.array([self.rng.choice([0, 0, 0.5, 5]) for _ in range(rows)], np.float32)
        if raising is not None:
            actions[raising] = 1 if self.backend == "native" else RAISE
        return actions

    # --- what is expected ------------------------------------------------------------------------

    def start_over(self) -> None:
        """Resets all envs, which must work whatever happened, and give what a fresh pool gives."""
        if self.rng.random() < 0.7 or (self.pool.num_in_flight and not self.is_interrupted()):
            batch = self.pool.reset(seed=7)
        else:
            self.pool.async_reset(seed=7)
            batch = self.pool.recv()
        assert self.pool.num_in_flight == 0
        assert (batch.obs == self.first_obs).all(), f"the reset gave {batch.obs}, expected {self.first_obs}"
        assert self.pool.seeds == (7, 8, 9, 10), self.pool.seeds
        self.possible = [[0] * NUM_ENVS]

    def is_interrupted(self) -> bool:
        return self.pool.executor.call_guard.is_interrupted

    def stepped(self, ids: Sequence[int] = range(NUM_ENVS), raising: int | None = None) -> list[list[int]]:
        """What the counts may be after a step of these envs, of which one may raise."""
        after = [
            [next_count(own) if env_id in ids else own for env_id, own in enumerate(counts)] for counts in self.possible
        ]
        if raising is not None:
            for counts, before in zip(after, self.possible, strict=True):
                if next_count(before[raising]) != 0:  # otherwise the step is a reset, which does not look at the action
                    counts[raising] = LENGTH if self.on_error == "restart" else LOST
        return after

    def take(self, batch: Any) -> None:
        """Rows that came: what the envs may have counted, all of them together."""
        got = dict(zip(batch.env_id.tolist(), batch.obs[:, 1].tolist(), strict=True))
        fitting = [counts for counts in self.possible if all(counts[env_id] == own for env_id, own in got.items())]
        assert fitting, f"got the counts {got}, expected one of {self.possible}"
        self.possible = fitting

    def expect_reported(self, error: CallOrderError) -> None:
        """The interruption struck when the report was about to be raised: the env is named all the same."""
        reported = {env_id for counts in self.possible for env_id, own in enumerate(counts) if own == LOST}
        assert any(f"env {env_id} raised earlier" in str(error) for env_id in reported), error
        self.start_over()

    def expect_env(self, error: EnvError, env_id: int) -> None:
        """The report of the env that raised."""
        assert error.env_id == env_id, error
        self.start_over()

    def step_once(self) -> None:
        """A step after an interruption: the rows follow on the last ones, or it reports a fault that was lost."""
        try:
            batch = self.pool.step(self.actions(NUM_ENVS))
        except EnvError as error:
            self.expect_lost(error)
            return
        except CallOrderError as error:
            self.expect_reported(error)
            return
        self.possible = [counts for counts in self.possible if LOST not in counts]
        self.possible = self.stepped()
        self.take(batch)

    def expect_lost(self, error: EnvError) -> None:
        """The report of an env that raised in a batch that was lost."""
        assert any(counts[error.env_id] == LOST for counts in self.possible), error
        self.start_over()

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
        if self.is_interrupted():
            self.check_interrupted()
            self.start_over()
        elif pool.num_in_flight:
            assert pool.num_in_flight == NUM_ENVS, (name, pool.num_in_flight)
            if self.rng.random() < 0.5:
                self.start_over()
            else:
                self.take(pool.recv(timeout=60))
        else:
            self.check_nothing_in_flight()
        self.step_once()
        look = self.rng.choice(sorted(LOOKS))
        LOOKS[look](self)
        self.step_once()

    def check_interrupted(self) -> None:
        """Calls say so, other than those of any thread."""
        self.num_interrupted += 1
        pool = self.pool
        for call in (lambda: pool.step(self.actions(NUM_ENVS)), pool.recv, pool.get_state, lambda: pool.reset([1])):
            expect_refusal(call, "interrupted; reset() all envs first")
        assert len(pool.stats().envs) == NUM_ENVS
        assert len(pool.seeds) == NUM_ENVS

    def check_nothing_in_flight(self) -> None:
        try:
            expect_refusal(self.pool.recv, "nothing in flight")
        except EnvError as error:
            self.expect_lost(error)

    def check_witness(self) -> None:
        self.witness_count = next_count(self.witness_count)
        got = self.witness.step(self.actions(2)).obs[:, 1].tolist()
        assert got == [self.witness_count] * 2, f"the other pool gave {got}, expected {self.witness_count}"

    def step(self, name: str) -> None:
        actions = self.actions(NUM_ENVS)
        if name == "step_slow_path":
            actions = actions.tolist()
        was_interrupted, batch = self.interrupter.run(name, lambda: self.pool.step(actions))
        if was_interrupted:
            self.possible += self.stepped()
        else:
            self.possible = self.stepped()
            self.take(batch)

    def step_some(self, name: str) -> None:
        ids = self.rng.sample(range(NUM_ENVS), 2)
        was_interrupted, batch = self.interrupter.run(name, lambda: self.pool.step(self.actions(2), ids))
        if was_interrupted:
            self.possible += self.stepped(ids)
        else:
            self.possible = self.stepped(ids)
            self.take(batch)

    def step_raising(self, name: str) -> None:
        raising = self.rng.randrange(NUM_ENVS)
        actions = self.actions(NUM_ENVS, raising)
        try:
            was_interrupted, batch = self.interrupter.run(name, lambda: self.pool.step(actions))
        except EnvError as error:
            self.expect_env(error, raising)
            return
        if was_interrupted:
            self.possible += self.stepped(raising=raising)
        elif batch.truncated.any():
            self.start_over()
        else:  # the env had ended, and was reset in place of the step
            self.possible = self.stepped()
            self.take(batch)

    def send_recv(self, name: str) -> None:
        actions = self.actions(NUM_ENVS)
        was_interrupted, _ = self.interrupter.run("send", lambda: self.pool.send(actions))
        if was_interrupted:
            if self.pool.num_in_flight:
                self.possible = self.stepped()
            return
        self.possible = self.stepped()
        was_interrupted, batch = self.interrupter.run("recv", self.pool.recv)
        if not was_interrupted:
            self.take(batch)

    def reset(self, name: str) -> None:
        seed = 7 if name == "reset_seed" else None
        was_interrupted, batch = self.interrupter.run(name, lambda: self.pool.reset(seed=seed))
        if was_interrupted:
            self.possible.append([0] * NUM_ENVS)
        else:
            self.possible = [[0] * NUM_ENVS]
            self.take(batch)

    def async_reset(self, name: str) -> None:
        was_interrupted, _ = self.interrupter.run(name, self.pool.async_reset)
        if not was_interrupted or (self.pool.num_in_flight and not self.is_interrupted()):
            self.possible = [[0] * NUM_ENVS]
        if not was_interrupted:
            self.take(self.pool.recv())

    def look(self, name: str) -> None:
        self.interrupter.run(name, lambda: LOOKS[name](self))

    def set_state(self, name: str) -> None:
        saved, counts = self.pool.get_state(), list(self.possible)
        for _ in range(self.rng.randint(0, 3)):
            self.step_once()
        was_interrupted, _ = self.interrupter.run(name, lambda: self.pool.set_state(saved))
        self.possible = self.possible + counts if was_interrupted else counts

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
    assert got in self.possible, f"observe() gave {got}, expected one of {self.possible}"


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
    "step_raising": Fuzzer.step_raising,
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
    counts = f"{fuzzer.interrupter.num_interruptions} interruptions in {number} calls"
    print(f"{counts}; the pool said {fuzzer.num_interrupted} times that it was interrupted")


if __name__ == "__main__":
    main()
