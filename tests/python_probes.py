"""Python envs that do on demand what real envs do by accident.

FaultyEnv, SleepyEnv, SlowResetEnv and SinkEnv are the twins of plugins/probe.cc: same spaces, same draws, same
infos. TroubleEnv adds what only Python envs and whole processes can do wrong. SpaceEnv has one kind of space after
another. Workers import this module, so it depends on nothing of the tests.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.spaces import GraphInstance

# --- the twins of plugins/probe.cc -----------------------------------------------------------


class Unpicklable(Exception):  # noqa: N818 (the name is what matters)
    """Can be raised, but not sent to another process."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("this exception stays at home")


class NoException(BaseException):
    """What throwing an int is to C++: nothing that `except Exception` catches, nor can it be pickled."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("this exception stays at home")


class FaultyEnv(gymnasium.Env[Any, Any]):
    """Counts its steps; the action says what goes wrong."""

    STEP, THROW, THROW_INT, THROW_AT_RESET, END, THROW_IN_OBSERVE, THROW_NONSENSE = range(7)

    observation_space = spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (2,), np.int64)
    action_space = spaces.Discrete(7)

    def __init__(self, fail_construction: bool = False, length: int = 1000) -> None:
        if fail_construction:
            raise RuntimeError("no licence for this simulator")
        self.length = length
        self.start = self.count = self.total = 0
        self.throw_at_reset = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if self.throw_at_reset:
            raise RuntimeError("the level file is gone")
        self.start, self.count = int(self.np_random.integers(0, 1_000_000)), 0
        return self._obs(), {"total": self.total}

    def step(self, action: Any) -> Any:
        if action == self.THROW:
            raise RuntimeError("joint 3 exploded")
        if action == self.THROW_INT:
            raise NoException(42)
        if action == self.THROW_NONSENSE:
            raise RuntimeError("caf\udce9 \udcff")  # what decoding broken bytes leaves: no UTF-8
        self.throw_at_reset |= bool(action == self.THROW_AT_RESET)
        self.count += 1
        self.total += 1
        terminated = bool(action == self.END or self.count >= self.length)
        return self._obs(), float(self.count), terminated, False, {"total": self.total, "last_action": int(action)}

    def _obs(self) -> np.ndarray:
        return np.array([self.start, self.count], dtype=np.int64)


class SleepyEnv(gymnasium.Env[Any, Any]):
    """Sleeps as many milliseconds as its action says."""

    observation_space = spaces.Box(np.iinfo(np.int32).min, np.iinfo(np.int32).max, (), np.int32)
    action_space = spaces.Box(0, 10_000, (), np.float32)
    count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return np.array(self.count, dtype=np.int32), {}

    def step(self, action: Any) -> Any:
        time.sleep(float(action) / 1000)
        self.count += 1
        return np.array(self.count, dtype=np.int32), 0.0, False, False, {}


class SlowResetEnv(SleepyEnv):
    """Takes 150 ms to reset."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        time.sleep(0.15)
        return super().reset(seed=seed)


class SinkEnv(gymnasium.Env[Any, Any]):
    """Every kind of array in a Dict observation. Made with max_episode_steps=7, it is the native Sink-v0."""

    action_space = spaces.MultiDiscrete([3, 4])

    def __init__(
        self,
        size: int = 3,
        scale: float = 1.0,
        loud: bool = False,
        label: str = "plain",
        weights: tuple[float, ...] = (0.5, 0.25),
    ) -> None:
        if size < 1:
            raise ValueError(f"size expected a positive number, got {size}")
        self.size, self.scale = size, scale
        self.bonus = (100 if loud else 0) + sum(weights) + len(label)
        self.draw, self.count = 0.0, 0
        self.observation_space = spaces.Dict(
            {
                "zulu": spaces.Box(0, 255, (size, 2), np.uint8),
                "alpha": spaces.Box(-np.inf, np.inf, (size,), np.float64),
                "mike": spaces.Discrete(1000, start=-5),
                "flags": spaces.MultiBinary(size),
                "small": spaces.Box(-7, 7, (1,), np.int16),
            }
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.draw, self.count = float(self.np_random.standard_normal()), 0
        return self._obs(), {"draw": self.draw}

    def step(self, action: Any) -> Any:
        self.draw = float(self.np_random.standard_normal())
        self.count += 1
        reward = self.scale * (int(action[0]) * 10 + int(action[1])) + self.bonus
        return self._obs(), reward, False, False, {"draw": self.draw}

    def _obs(self) -> dict[str, Any]:
        elements = np.arange(self.size)
        zulu = np.zeros((self.size, 2), dtype=np.uint8)
        if self.count % 2 == 0:
            zulu[:, 0] = self.count + elements
        return {
            "zulu": zulu,
            "alpha": self.draw * elements.astype(np.float64),
            "mike": np.int64(self.count - 5),
            "flags": ((self.count + elements) % 2).astype(np.int8),
            "small": np.array([-self.count], dtype=np.int16),
        }


# --- what only Python envs and their processes can do wrong -------------------------------------


class Trouble(IntEnum):
    """The actions of TroubleEnv."""

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


class Unprintable(RuntimeError):  # noqa: N818 (the name is what matters)
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class TroubleEnv(gymnasium.Env[Any, Any]):
    """Counts its steps like FaultyEnv, in an array that it uses again and again; the action is a Trouble.

    fail_in: the method that raises ("__init__", "reset", "render", "close"), or "".
    reset(options={"fail": True}) raises once.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 (Gymnasium's form)
    observation_space = spaces.Box(0, 1_000_000, (2,), np.int64)
    action_space = spaces.Discrete(len(Trouble))

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
        trouble = Trouble(int(action))
        self._obs[1] += 1
        answer = self._obs, float(self._obs[1]), trouble is Trouble.END, False, {}
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
        time.sleep(3)
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


# --- every space --------------------------------------------------------------------------------


def _boxes() -> spaces.Dict:
    shapes: dict[type[Any], tuple[int, ...]] = {
        np.float16: (3,),
        np.float32: (2, 3),
        np.float64: (),
        np.int8: (5,),
        np.int16: (1, 1, 3),
        np.int32: (),
        np.int64: (2,),
        np.uint8: (4, 4, 3),
        np.uint16: (3,),
        np.uint32: (2, 2),
        np.uint64: (3,),
    }
    boxes: dict[str, spaces.Space[Any]] = {
        np.dtype(dtype).name: spaces.Box(0 if np.issubdtype(dtype, np.unsignedinteger) else -100, 100, shape, dtype)
        for dtype, shape in shapes.items()
    }
    return spaces.Dict({**boxes, "bool": spaces.Box(0, 1, (3,), np.bool_)})


def _graph(with_edges: bool = True) -> spaces.Graph:
    return spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(4, start=1) if with_edges else None)


def _one_of() -> spaces.OneOf:
    return spaces.OneOf([spaces.Discrete(3, start=5), spaces.Box(-1, 1, (2, 2), np.float64), spaces.Text(4)])


def _deep() -> spaces.Dict:
    """Nested five levels deep, with every kind of space."""
    inner = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (3, 2, 1), np.uint8),
            "name": spaces.Text(5),
            "where": spaces.Tuple([spaces.MultiDiscrete([[2, 3], [4, 5]]), _graph(), spaces.Box(-1, 1, ())]),
        }
    )
    return spaces.Dict(
        {
            "zulu": spaces.Tuple([inner, spaces.Discrete(7, start=-3)]),
            "alpha": spaces.Dict({"inner": spaces.Dict({"bits": spaces.MultiBinary((2, 2)), "choice": _one_of()})}),
            "mike": spaces.Sequence(spaces.Dict({"x": spaces.Box(-1, 1, (2,)), "y": spaces.Discrete(3)})),
        }
    )


SPACES: dict[str, Callable[[], spaces.Space[Any]]] = {
    "boxes": _boxes,
    "box_scalar": lambda: spaces.Box(-1, 1, (), np.float32),
    "box_image": lambda: spaces.Box(0, 255, (8, 8, 3), np.uint8),
    "box_empty": lambda: spaces.Box(0, 1, (0, 3), np.float32),
    "discrete": lambda: spaces.Discrete(5, start=-2),
    "multi_discrete": lambda: spaces.MultiDiscrete(
        np.array([[2, 3, 4], [5, 6, 7]]), start=np.array([[0, -5, 1], [2, 3, -1]])
    ),
    "multi_binary": lambda: spaces.MultiBinary((2, 3)),
    "text": lambda: spaces.Text(6, min_length=0, charset="abcxyz\u00e9\u6f22\U0001f3b2"),
    "graph": _graph,
    "graph_without_edges": lambda: _graph(with_edges=False),
    "sequence": lambda: spaces.Sequence(spaces.Box(-1, 1, (2,), np.float64)),
    "sequence_stacked": lambda: spaces.Sequence(spaces.Box(-1, 1, (2,)), stack=True),
    "one_of": _one_of,
    "tuple": lambda: spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,)), spaces.Tuple([spaces.MultiBinary(2)])]),
    "deep": _deep,
}


def encode(value: Any) -> bytes:
    """Every bit of a value, its dtypes and its structure; equal encodings mean equal values."""
    if isinstance(value, GraphInstance):
        return b"graph(" + b",".join(encode(part) for part in value) + b")"
    if isinstance(value, dict):
        return b"dict(" + b",".join(key.encode() + b"=" + encode(value[key]) for key in sorted(value)) + b")"
    if isinstance(value, (tuple, list)):
        return b"tuple(" + b",".join(encode(part) for part in value) + b")"
    if isinstance(value, str):
        return b"str:" + value.encode("utf-8", "surrogatepass")
    if value is None:
        return b"none"
    array = np.asarray(value)
    return f"{array.dtype.str}{array.shape}:".encode() + array.tobytes()


def checksum(value: Any) -> int:
    """A number for a value."""
    return zlib.crc32(encode(value))


class SpaceEnv(gymnasium.Env[Any, Any]):
    """Observations and actions of one kind of SPACES. All that it does depends on its seed and actions alone.

    Its infos hold what infos can: numbers, arrays, text, dicts, and keys that some rows have and others not.
    """

    def __init__(self, kind: str) -> None:
        self.observation_space, self.action_space = SPACES[kind](), SPACES[kind]()
        self._left, self._count, self._actions = 0, 0, []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._left, self._count = int(self.np_random.integers(1, 7)), 0
        self._actions: list[Any] = []
        return self._draw(), {"count": 0, "length": self._left, "story": "begins"}

    def step(self, action: Any) -> Any:
        self._actions.append(action)
        self._count += 1
        self._left -= 1
        reward = float(self.np_random.standard_normal())
        is_over = self._left == 0
        terminated = is_over and self.np_random.random() < 0.6
        truncated = is_over and (not terminated or self.np_random.random() < 0.2)
        return self._draw(), reward, bool(terminated), bool(truncated), self._info(action, is_over)

    def _draw(self) -> Any:
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()

    def _info(self, action: Any, is_over: bool) -> dict[str, Any]:
        info: dict[str, Any] = {
            "count": self._count,
            "checksum": checksum(action),
            # An action that the env kept must not change under it when others come.
            "checksum_of_first": checksum(self._actions[0]),
            "ratio": self._count / 3,
            "is_even": self._count % 2 == 0,
            "vector": self.np_random.random(3, dtype=np.float32),
            "story": "ends" if is_over else f"goes on: {self._count}",
            "nested": {"depth": 0.5 * self._count, "deeper": {"label": "x" * self._count}},
        }
        if isinstance(self.action_space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
            info["echo"] = np.array(action)
        if self._count % 3 == 1:
            info["rarely"] = np.float32(self._count)
            info["nested"]["rarely"] = True
        if is_over:
            info["score"] = int(self.np_random.integers(100))
        return info
