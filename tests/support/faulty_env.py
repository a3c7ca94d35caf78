"""MisbehavingEnv: what only Python envs and whole processes can do wrong, on demand.

Workers import this module, so it depends on nothing of the tests.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
import time
from enum import IntEnum
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces


class Misbehavior(IntEnum):
    """The actions of MisbehavingEnv."""

    STEP = 0
    END = 1
    RAISE = 2
    RAISE_UNPICKLABLE = 3
    RAISE_UNPRINTABLE = 4
    RAISE_AT_LENGTH = 5
    RECURSE = 6
    SYS_EXIT = 7
    WRONG_SHAPE = 8
    WRONG_DTYPE = 9
    WRONG_STRUCTURE = 10
    NO_OBSERVATION = 11
    OUT_OF_BOUNDS = 12
    SHORT_TUPLE = 13
    NO_TUPLE = 14
    BAD_REWARD = 15
    BAD_INFO = 16
    PRINT_MUCH = 17
    PRINT_ENDLESSLY = 18
    OS_EXIT = 19
    SEGFAULT = 20
    ABORT = 21
    SIGKILL = 22
    SLEEP_THEN_SIGKILL = 23
    SIGSTOP = 24
    SLEEP = 25
    ALLOCATE = 26
    FORK = 27
    FORK_AND_STAY = 28
    START_THREADS = 29
    LEAVE_THREAD = 30
    HUGE_INFO = 31
    RAGGED_INFO = 32
    CLOSE_STREAMS = 33


class JointError(RuntimeError):
    """The exception of an env's author."""


class Unpicklable(Exception):  # noqa: N818 (the name is what matters)
    """Can be raised, but not sent to another process."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("this exception stays at home")


class Unprintable(RuntimeError):  # noqa: N818 (the name is what matters)
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class MisbehavingEnv(gymnasium.Env[Any, Any]):
    """Counts its steps like FaultyEnv, in an array that it uses again and again; the action is a Misbehavior.

    fail_in: the method that raises ("__init__", "reset", "render", "close"), or "".
    reset(options={"fail": True}) raises once.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 (Gymnasium's form)
    observation_space = spaces.Box(0, 1_000_000, (2,), np.int64)
    action_space = spaces.Discrete(len(Misbehavior))

    def __init__(self, fail_in: str = "", render_mode: str | None = None) -> None:
        self.render_mode, self.fail_in = render_mode, fail_in
        self._fail("__init__")
        self._obs = np.zeros(2, dtype=np.int64)
        self._stop = threading.Event()

    def _fail(self, method: str) -> None:
        if self.fail_in == method:
            raise JointError(f"trouble in {method}")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._fail("reset")
        if options and options.get("fail"):
            raise JointError("trouble in reset")
        self._obs[:] = self.np_random.integers(0, 1_000_000), 0
        return self._obs, {"pid": os.getpid()}

    def step(self, action: Any) -> Any:
        trouble = Misbehavior(int(action))
        self._obs[1] += 1
        answer = self._obs, float(self._obs[1]), trouble is Misbehavior.END, False, {}
        deed = getattr(self, f"_{trouble.name.lower()}", None)
        return answer if deed is None else deed(*answer)

    def render(self) -> np.ndarray:
        self._fail("render")
        return np.full((4, 6, 3), self._obs[1], dtype=np.uint8)

    def close(self) -> None:
        self._stop.set()
        self._fail("close")

    def greet(self, name: str, punctuation: str = "!") -> str:
        """Something for call()."""
        if name == "nobody":
            raise JointError("trouble in greet")
        return f"hello {name}{punctuation}"

    # Raises.

    def _raise(self, *_: Any) -> NoReturn:
        raise JointError("joint 3 exploded")

    def _raise_unpicklable(self, *_: Any) -> NoReturn:
        raise Unpicklable("stuck at home", threading.Lock())

    def _raise_unprintable(self, *_: Any) -> NoReturn:
        raise Unprintable

    def _raise_at_length(self, *_: Any) -> NoReturn:
        raise JointError("long " * 1_000_000)  # more than any pipe holds

    def _recurse(self, *_: Any) -> NoReturn:
        return self._recurse()

    def _sys_exit(self, *_: Any) -> NoReturn:
        sys.exit(3)

    # Answers wrongly.

    def _wrong_shape(self, _: Any, *rest: Any) -> Any:
        return np.zeros(3, dtype=np.int64), *rest

    def _wrong_dtype(self, obs: Any, *rest: Any) -> Any:
        return obs + 0.5, *rest

    def _wrong_structure(self, obs: Any, *rest: Any) -> Any:
        return {"obs": obs}, *rest

    def _no_observation(self, _: Any, *rest: Any) -> Any:
        return None, *rest

    def _out_of_bounds(self, obs: Any, *rest: Any) -> Any:
        return np.array([-7, obs[1]]), *rest

    def _short_tuple(self, *answer: Any) -> Any:
        return answer[:3]  # not four: that is how old gym envs answered

    def _no_tuple(self, *_: Any) -> Any:
        return 7

    def _bad_reward(self, obs: Any, _: Any, *rest: Any) -> Any:
        return obs, "plenty", *rest

    def _bad_info(self, *answer: Any) -> Any:
        return *answer[:4], ["no", "dict"]

    def _huge_info(self, *answer: Any) -> Any:
        return *answer[:4], {"log": "x" * 8_000_000}

    def _ragged_info(self, obs: Any, *rest: Any) -> Any:
        """A path that is as long as the episode, and a value of another type each time."""
        count = int(obs[1])
        changing: Any = (count, f"step {count}", count / 2, None)[count % 4]
        return obs, *rest[:3], {"path": np.arange(count), "changing": changing}

    # Troubles its process.

    def _print_much(self, *answer: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            print("tick " * 40_000, file=stream, flush=True)
        return answer

    def _print_endlessly(self, *_: Any) -> NoReturn:
        while True:
            os.write(1, b"tick " * 10_000)

    def _close_streams(self, *answer: Any) -> Any:
        for descriptor in (0, 1, 2):
            os.close(descriptor)
        return answer

    def _os_exit(self, *_: Any) -> NoReturn:
        os._exit(3)

    def _segfault(self, *_: Any) -> Any:
        return ctypes.string_at(0)

    def _abort(self, *_: Any) -> NoReturn:
        os.abort()

    def _sigkill(self, *answer: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)
        return answer

    def _sleep_then_sigkill(self, *answer: Any) -> Any:
        time.sleep(0.3)
        return self._sigkill(*answer)

    def _sigstop(self, *answer: Any) -> Any:
        os.kill(os.getpid(), signal.SIGSTOP)
        return answer

    def _sleep(self, *answer: Any) -> Any:
        time.sleep(20)
        return answer

    def _allocate(self, *answer: Any) -> Any:
        """Grows until it is killed, as the kernel does when memory is out, but 200 MB from here."""
        with open("/proc/self/statm") as statm:
            in_use = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (in_use + 200 * 2**20, resource.RLIM_INFINITY))
        hoard = []
        try:
            while True:
                hoard.append(bytearray(2**20))
        except MemoryError:
            return self._sigkill(*answer)

    def _fork(self, *answer: Any) -> Any:
        child = os.fork()
        if child == 0:
            os._exit(7)
        return *answer[:4], {"status": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}

    def _fork_and_stay(self, *answer: Any) -> Any:
        """A child that holds on to every descriptor of the worker's."""
        child = os.fork()
        if child == 0:
            time.sleep(20)
            os._exit(0)
        return *answer[:4], {"child": child}

    def _start_threads(self, *answer: Any) -> Any:
        seen: list[int] = []
        own = [threading.Thread(target=seen.append, args=(i,)) for i in range(4)]
        for thread in own:
            thread.start()
        for thread in own:
            thread.join()
        return *answer[:4], {"seen": len(seen)}

    def _leave_thread(self, *answer: Any) -> Any:
        """One that ends with close() alone, and that an interpreter would wait for."""
        threading.Thread(target=self._stop.wait).start()
        return answer


class Painter(MisbehavingEnv):
    """Its pictures are as large as those of many games."""

    def __init__(self, size=500):
        super().__init__()
        self.size = size
        self.taken = 0

    def render(self):
        self.taken += 1
        return np.full((self.size, self.size, 3), self.taken, dtype=np.uint8)

    def take(self, data):
        self.taken = len(data)
