"""What a whole process sees of pools of Python envs: kills, exits, signals, forks, scripts, many cycles."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
from python_probes import SleepyEnv, SpaceEnv, Trouble, TroubleEnv
from traces import Traces, alive, assert_nothing_left, shared_files, wait_until

import envfleet
from envfleet import ForkedPoolError

TESTS = Path(__file__).parents[1]
STEP = Trouble.STEP
START_METHODS = ["forkserver", "spawn", "fork"]

PRELUDE = """\
import gc, json, os, psutil, signal, sys, threading, time
import numpy as np
import envfleet
from python_probes import SleepyEnv, Trouble, TroubleEnv
def pids_of(pool):
    children = [child.pid for child in psutil.Process().children(recursive=True)]
    return sorted({*children, *getattr(pool.executor, "worker_pids", [])})
def slow(*milliseconds):
    return np.array(milliseconds, dtype=np.float32)
"""


def command_of(tmp_path: Path, *arguments: str) -> dict:
    """For subprocess: a Python with warnings as errors, our probes, and a folder of its own for temporary files."""
    (tmp_path / "tmp").mkdir()
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    return {
        "args": [sys.executable, "-W", "error", *arguments],
        "env": {**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path / "tmp")},
        "cwd": tmp_path,
        "text": True,
        # A group of its own: a signal to the group must not reach the tests.
        "start_new_session": True,
    }


def assert_no_files(tmp_path: Path, before: frozenset[str]) -> None:
    """Nothing in the script's folder for temporary files, nothing new in shared memory."""
    left = lambda: [*(tmp_path / "tmp").iterdir(), *(shared_files() - before)]  # noqa: E731 (used twice, here)
    wait_until(lambda: not left())
    assert left() == []


@pytest.fixture
def run_script(tmp_path):
    """Runs a script to its end; it must leave no process and no file."""
    before = shared_files()

    def run(code: str, prelude: str = PRELUDE) -> subprocess.CompletedProcess:
        script = tmp_path / "script.py"
        script.write_text(prelude + textwrap.dedent(code))
        process = subprocess.Popen(
            **command_of(tmp_path, str(script)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        try:
            out, err = process.communicate(timeout=120)
            assert wait_until(lambda: not family(tmp_path)), f"left behind: {family(tmp_path)}"
        finally:
            for survivor in family(tmp_path):
                survivor.kill()
            process.communicate()
        assert_no_files(tmp_path, before)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    return run


def family(tmp_path: Path) -> list[psutil.Process]:
    """The living processes of a script, whoever their parent and session are: its TMPDIR marks them."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == str(tmp_path / "tmp") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


# --- the parent's end -------------------------------------------------------------------------------


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("doing", ["nothing", "stepping", "starting"])
def test_workers_of_a_killed_parent_leave(tmp_path, start_method, doing):
    """Even in the middle of a step that takes for ever, and without a trace in shared memory or on disk."""
    before = shared_files()
    code = PRELUDE + textwrap.dedent(f"""
        pool = envfleet.make_pool(
            SleepyEnv, num_envs=4, num_workers=2, backend="processes", start_method={start_method!r}
        )
        pool.reset()
        if {doing!r} == "stepping":
            pool.send(slow(10_000, 10_000, 1, 1))
        print(json.dumps(pids_of(pool)), flush=True)
        if {doing!r} == "starting":
            while True:
                envfleet.make_pool(
                    SleepyEnv, num_envs=4, num_workers=2, backend="processes", start_method={start_method!r}
                ).close()
        time.sleep(600)
    """)
    (tmp_path / "script.py").write_text(code)
    process = subprocess.Popen(**command_of(tmp_path, str(tmp_path / "script.py")), stdout=subprocess.PIPE)
    try:
        pids = json.loads(process.stdout.readline())
        assert len(pids) >= 2
        assert alive(pids) == pids
        if doing == "starting":
            threading.Event().wait(0.3)  # until it is somewhere in the middle of a start
        process.kill()
        process.wait()
        # A second is what is promised; the bound is for loaded machines.
        assert wait_until(lambda: not alive(pids)), f"still alive: {alive(pids)}"
        assert wait_until(lambda: not family(tmp_path)), f"still alive: {family(tmp_path)}"
    finally:
        for survivor in family(tmp_path):
            survivor.kill()
        process.stdout.close()
        process.wait()
    assert_no_files(tmp_path, before)


@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
@pytest.mark.parametrize("batch_size", [4, 2])
def test_exit_with_work_in_flight_is_clean(run_script, backend, batch_size):
    result = run_script(f"""
        pool = envfleet.make_pool(SleepyEnv, num_envs=4, batch_size={batch_size}, backend={backend!r})
        pool.reset()
        pool.send(slow(50, 50, 50, 50), np.arange(4, dtype=np.int32))
        held = pool.recv()
        pool.send(slow(*[50] * len(held)), held.env_id)
        print("leaving")
    """)
    assert (result.returncode, result.stdout, result.stderr) == (0, "leaving\n", "")


@pytest.mark.parametrize("ending", ["sys.exit(5)", "os.kill(os.getpid(), signal.SIGTERM)", "raise ValueError('over')"])
def test_other_ends_of_a_script_leave_nothing_either(run_script, ending):
    result = run_script(f"""
        pool = envfleet.make_pool(SleepyEnv, num_envs=4, num_workers=2, backend="processes")
        pool.reset()
        pool.send(slow(10_000, 1, 1, 1))
        {ending}
    """)
    assert result.returncode == {"s": 5, "o": -signal.SIGTERM, "r": 1}[ending[0]]
    assert result.stderr.count("Traceback") == (ending[0] == "r")


def test_a_thread_that_still_steps_at_exit(run_script):
    result = run_script("""
        pool = envfleet.make_pool(SleepyEnv, num_envs=2, num_workers=2, backend="processes")
        pool.reset()
        def work():
            try:
                while True:
                    pool.step(slow(1, 1))
            except envfleet.EnvfleetError:
                pass
        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.2)
        print("leaving")
    """)
    assert (result.returncode, result.stdout, result.stderr) == (0, "leaving\n", "")


# --- scripts of every kind ----------------------------------------------------------------------------

GUARDLESS = """
import gymnasium
import numpy as np
from gymnasium import spaces
import envfleet

print("main")  # once: no worker runs this file again
size = 5

class MyEnv(gymnasium.Env):
    observation_space = spaces.Box(0, 100, (2,), np.int64)
    action_space = spaces.Discrete(3)
    def __init__(self, size=1):
        self.size = size
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.array([self.size, 0]), {}
    def step(self, action):
        return np.array([self.size, action]), 1.0, False, False, {}

def closure(own):
    class Local(MyEnv):
        pass
    return lambda: Local(own + size)

def times_nine(env):
    return gymnasium.wrappers.TransformReward(env, lambda reward: reward * 9)

for env, options, sizes in [
    (MyEnv, {"num_envs": 2}, [1, 1]),
    (MyEnv, {"num_envs": 2, "size": 7}, [7, 7]),
    (lambda: MyEnv(size=size), {"num_envs": 3}, [5, 5, 5]),
    (closure(3), {"num_envs": 2}, [8, 8]),
    ([closure(1), closure(2), closure(3)], {}, [6, 7, 8]),
    (MyEnv, {"num_envs": 2, "wrappers": [times_nine]}, [1, 1]),
]:
    with envfleet.make_pool(env, backend="processes", start_method="METHOD", **options) as pool:
        assert pool.reset(seed=0).obs[:, 0].tolist() == sizes, (pool.observe(), sizes)
        batch = pool.step([2] * len(sizes))
        assert batch.obs[:, 1].tolist() == [2] * len(sizes)
        assert batch.reward[0] == (9 if "wrappers" in options else 1)
print("done")
"""


@pytest.mark.parametrize("start_method", START_METHODS)
def test_a_script_needs_no_guard(run_script, start_method):
    result = run_script(GUARDLESS.replace("METHOD", start_method), prelude="")
    assert (result.returncode, result.stdout, result.stderr) == (0, "main\ndone\n", "")


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("way", ["stdin", "-c", "-m"])
def test_it_works_from_standard_input_and_the_command_line(tmp_path, start_method, way):
    code = GUARDLESS.replace("METHOD", start_method)
    (tmp_path / "guardless.py").write_text(code)
    arguments = {"stdin": ["-"], "-c": ["-c", code], "-m": ["-m", "guardless"]}[way]
    result = subprocess.run(
        **command_of(tmp_path, *arguments),
        input=code if way == "stdin" else "",
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "main\ndone\n", "")


def test_workers_find_the_modules_and_the_folder_of_their_parent(run_script, tmp_path):
    """sys.path as it is when the pool is made, and the folder; a fork server started earlier knows neither."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "found_later.py").write_text(
        "import os\nfrom python_probes import TroubleEnv\n"
        "class Later(TroubleEnv):\n    def where(self):\n        return os.getcwd(), os.environ.get('LATER')\n"
    )
    result = run_script("""
        envfleet.make_pool(TroubleEnv, num_envs=2, backend="processes").close()
        sys.path.insert(0, os.path.abspath("elsewhere"))
        os.environ["LATER"] = "yes"
        os.chdir("elsewhere")
        from found_later import Later
        with envfleet.make_pool(Later, num_envs=2, backend="processes") as pool:
            print(pool.call("where") == ((os.getcwd(), "yes"),) * 2)
    """)
    assert (result.returncode, result.stdout, result.stderr) == (0, "True\n", "")


def test_an_env_that_prints_for_ever_into_a_pipe_that_nobody_reads(tmp_path):
    """The pipe fills and the worker hangs in its print(): step_timeout ends it."""
    code = PRELUDE + textwrap.dedent("""
        pool = envfleet.make_pool(
            TroubleEnv, num_envs=2, num_workers=2, backend="processes", step_timeout=1.0, on_error="restart"
        )
        pool.reset(seed=0)
        batch = pool.step([Trouble.PRINT_ENDLESSLY, Trouble.STEP])
        told = "step_timeout" in batch.info["error"][0]
        again = pool.step([Trouble.STEP] * 2)
        pool.close()
        print(told, batch.truncated.tolist(), again.elapsed_step.tolist(), file=sys.stderr, flush=True)
    """)
    (tmp_path / "script.py").write_text(code)
    process = subprocess.Popen(
        **command_of(tmp_path, str(tmp_path / "script.py")), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stderr.readline() == "True [True, False] [0, 2]\n"
    finally:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert set(out.split()) <= {"tick", "t", "ti", "tic"}


# --- Ctrl-C -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["threads", "processes"])
@pytest.mark.parametrize("call", ["pool.step(row)", "(pool.send(row), pool.recv())"])
@pytest.mark.parametrize("target", ["os.getpid()", "0"], ids=["process", "group"])
def test_ctrl_c_reaches_a_caller_who_waits_and_the_row_is_not_lost(run_script, backend, call, target):
    """A terminal sends it to the whole group, workers included: they must leave it to the caller."""
    result = run_script(f"""
        pool = envfleet.make_pool(SleepyEnv, num_envs=2, num_workers=2, backend={backend!r})
        pool.reset()
        row = slow(1500, 1)
        threading.Timer(0.3, lambda: os.kill({target}, signal.SIGINT)).start()
        try:
            {call}
        except KeyboardInterrupt:
            print("interrupted", pool.num_in_flight, pool.recv().obs.tolist())
        print(pool.step(slow(1, 1)).obs.tolist())
        pool.send(slow(1, 1))
        print(pool.reset().obs.tolist())
    """)
    assert result.stdout == "interrupted 2 [1, 1]\n[2, 2]\n[0, 0]\n", result.stderr
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
@pytest.mark.parametrize("batch_size", [4, 2])
def test_after_ctrl_c_a_reset_drops_what_was_interrupted(run_script, backend, batch_size):
    result = run_script(f"""
        pool = envfleet.make_pool(SleepyEnv, num_envs=4, batch_size={batch_size}, backend={backend!r})
        pool.reset()
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            pool.step(slow(800, 800, 800, 800), np.arange(4, dtype=np.int32))
        except KeyboardInterrupt:
            print("interrupted")
        print(pool.reset().obs.tolist(), pool.num_in_flight)
        print(len(pool.step(slow(1, 1, 1, 1), np.arange(4, dtype=np.int32))))
    """)
    assert result.stdout == f"interrupted\n[0, 0, 0, 0] 0\n{batch_size}\n", result.stderr
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_ctrl_c_in_close_leaves_nothing(run_script, backend):
    result = run_script(f"""
        pool = envfleet.make_pool(SleepyEnv, num_envs=2, num_workers=2, backend={backend!r})
        pool.reset()
        pool.send(slow(1500, 1500))
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            pool.close()
            time.sleep(1)
        except KeyboardInterrupt:
            print("interrupted")
        pool.close()
        print(pool.closed)
    """)
    assert (result.returncode, result.stdout, result.stderr) == (0, "interrupted\nTrue\n", "")


def test_ctrl_c_while_a_pool_is_made_leaves_nothing(run_script):
    result = run_script("""
        class SlowToMake(SleepyEnv):
            def __init__(self):
                time.sleep(2)
        threading.Timer(0.7, lambda: os.kill(0, signal.SIGINT)).start()
        try:
            envfleet.make_pool(SlowToMake, num_envs=4, num_workers=2, backend="processes")
        except KeyboardInterrupt:
            print("interrupted")
        with envfleet.make_pool(SleepyEnv, num_envs=2, backend="processes") as pool:
            print(pool.reset().obs.tolist())
    """)
    assert (result.returncode, result.stdout, result.stderr) == (0, "interrupted\n[0, 0]\n", "")


def test_signal_handlers_are_left_alone():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]
    with envfleet.make_pool(TroubleEnv, num_envs=2, backend="processes") as pool:
        pool.reset()
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)] == before


# --- forks ------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # that fork and threads mix badly is the point
@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
@pytest.mark.parametrize("batch_size", [4, 2])
def test_a_forked_child_is_told_and_the_parent_goes_on(backend, batch_size):
    ids = np.arange(4, dtype=np.int32)
    with envfleet.make_pool(SleepyEnv, num_envs=4, batch_size=batch_size, backend=backend) as pool:
        pool.reset()
        pool.step(np.ones(4, dtype=np.float32), ids)
        if batch_size == 2:
            pool.recv()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                pool.step(np.zeros(4, dtype=np.float32), ids)
            except ForkedPoolError as error:
                status = 0 if "make a new pool" in str(error) else 2
            try:
                pool.close()
                del pool
                with envfleet.make_pool(SleepyEnv, num_envs=2, backend=backend) as fresh:
                    fresh.reset()
                    fresh.step(np.ones(2, dtype=np.float32))
            except BaseException:
                status = 3
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        # What the child closed were its copies.
        assert len(pool.step(np.zeros(4, dtype=np.float32), ids)) == batch_size


def test_a_pool_inside_a_worker_of_a_pool():
    """An env that is itself made of envs: workers may make pools."""

    class Outer(TroubleEnv):
        def __init__(self):
            super().__init__()
            self.inner = envfleet.make_pool(TroubleEnv, num_envs=2, num_workers=1, backend="processes")

        def step(self, action):
            self.inner.reset(seed=1)
            return *super().step(action)[:4], {"inner": int(self.inner.step([0, 0]).obs[:, 1].sum())}

        def close(self):
            self.inner.close()

    with envfleet.make_pool(lambda: Outer(), num_envs=2, num_workers=2, backend="processes") as pool:
        pool.reset(seed=0)
        assert pool.step([STEP] * 2).info["inner"].tolist() == [2, 2]


# --- many -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_more_workers_than_cores(backend):
    num_workers = 4 * len(os.sched_getaffinity(0)) + 3
    pools = [
        envfleet.make_pool(SpaceEnv, num_envs=num_workers + 2, env_kwargs={"kind": "discrete"}, backend=own, **options)
        for own, options in ((backend, {"num_workers": num_workers}), ("serial", {}))
    ]
    try:
        batches = [pool.reset(seed=0) for pool in pools]
        for _ in range(20):
            np.testing.assert_array_equal(batches[0].obs, batches[1].obs)
            np.testing.assert_array_equal(batches[0].elapsed_step, batches[1].elapsed_step)
            batches = [pool.step(np.full(num_workers + 2, 1)) for pool in pools]
    finally:
        for pool in pools:
            pool.close()


def test_many_pools_at_once():
    before_pools = [envfleet.make_pool(TroubleEnv, num_envs=2, num_workers=1, backend="processes") for _ in range(10)]
    starts = [pool.reset(seed=5).obs.tolist() for pool in before_pools]
    assert all(own == starts[0] for own in starts)
    # Closed in another order than made.
    for pool in before_pools[::2] + before_pools[1::2]:
        assert pool.step([STEP] * 2).obs[:, 1].tolist() == [1, 1]
        pool.close()


def cycle(backend: str, start_method: str | None = None) -> None:
    options = {} if backend == "serial" else {"num_workers": 2}
    if start_method is not None:
        options["start_method"] = start_method
    with envfleet.make_pool(TroubleEnv, num_envs=4, backend=backend, **options) as pool:
        pool.reset(seed=0)
        pool.step([STEP] * 4)
        pool.send([STEP] * 4)


def assert_flat(backend: str, start_method: str | None, num_cycles: int) -> None:
    for _ in range(max(3, num_cycles // 10)):
        cycle(backend, start_method)
    before, process = Traces.now(), psutil.Process()
    memory, num_threads = process.memory_info().rss, process.num_threads()
    for _ in range(num_cycles):
        cycle(backend, start_method)
    assert_nothing_left(before)
    assert wait_until(lambda: process.num_threads() <= num_threads)
    # A leak of one page a cycle is 4 kB; the rest is how the allocator breathes.
    assert process.memory_info().rss - memory < 3 * 2**20 + 4096 * num_cycles


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("backend", "start_method", "num_cycles"),
    [
        ("serial", None, 200),
        ("threads", None, 100),
        ("processes", "forkserver", 30),
        ("processes", "fork", 20),
        ("processes", "spawn", 3),
    ],
)
def test_making_and_closing_leaves_nothing(backend, start_method, num_cycles):
    assert_flat(backend, start_method, num_cycles)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
def test_making_and_closing_a_thousand_times_leaves_nothing(backend):
    assert_flat(backend, None, 1000)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_start_methods_give_the_same_rollout():
    rollouts = []
    for start_method in START_METHODS:
        with envfleet.make_pool(
            SpaceEnv,
            num_envs=3,
            num_workers=2,
            backend="processes",
            start_method=start_method,
            env_kwargs={"kind": "multi_discrete"},
        ) as pool:
            batches = [pool.reset(seed=2)]
            action = np.broadcast_to(pool.spec.action_space.start, (3, 2, 3))
            batches += [pool.step(np.ascontiguousarray(action)) for _ in range(15)]
            rollouts.append([(own.obs.tolist(), own.reward.tolist(), own.info["count"].tolist()) for own in batches])
    assert rollouts[0] == rollouts[1] == rollouts[2]


def test_the_gil_is_free_while_the_caller_waits():
    """Other threads of the caller run while workers step."""
    with envfleet.make_pool(SleepyEnv, num_envs=2, num_workers=2, backend="processes") as pool:
        pool.reset()
        done = threading.Event()
        threading.Timer(0.05, done.set).start()
        pool.send(np.array([1500, 1500], dtype=np.float32))
        seen = []
        waiter = threading.Thread(target=lambda: seen.append((done.wait(10), pool.num_in_flight)))
        waiter.start()
        assert pool.recv().obs.tolist() == [1, 1]
        waiter.join()
        assert seen == [(True, 2)]
