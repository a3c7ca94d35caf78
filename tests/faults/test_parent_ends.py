"""The end of a process that has pools of Python envs, by a kill or in any other way: nothing of them is left."""

from __future__ import annotations

import json
import signal
import threading

import pytest
from pool_scripts import run_pool_script, started_pool_script
from support.script_runs import assert_no_files, family
from support.traces import alive, shared_files, wait_until

START_METHODS = ["forkserver", "spawn", "fork"]


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("doing", ["nothing", "stepping", "starting"])
def test_workers_of_a_killed_parent_leave(tmp_path, start_method, doing):
    """Even in the middle of a step that takes for ever, and without a trace in shared memory or on disk."""
    before = shared_files()
    code = f"""
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
    """
    with started_pool_script(tmp_path, code) as process:
        pids = json.loads(process.stdout.readline() or process.communicate()[1])
        assert len(pids) >= 2
        assert alive(pids) == pids
        if doing == "starting":
            threading.Event().wait(0.3)  # until it is somewhere in the middle of a start
        process.kill()
        process.wait()
        # A second is what is promised; the bound is for loaded machines.
        assert wait_until(lambda: not alive(pids)), f"still alive: {alive(pids)}"
        assert wait_until(lambda: not family(tmp_path)), f"still alive: {family(tmp_path)}"
    assert_no_files(tmp_path, before)


@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
@pytest.mark.parametrize("batch_size", [4, 2])
def test_exit_with_work_in_flight_is_clean(tmp_path, backend, batch_size):
    code = f"""
        pool = envfleet.make_pool(SleepyEnv, num_envs=4, batch_size={batch_size}, backend={backend!r})
        pool.reset()
        pool.send(slow(50, 50, 50, 50), np.arange(4, dtype=np.int32))
        held = pool.recv()
        pool.send(slow(*[50] * len(held)), held.env_id)
        print("leaving")
    """
    result = run_pool_script(tmp_path, code)
    assert (result.returncode, result.stdout, result.stderr) == (0, "leaving\n", "")


@pytest.mark.parametrize("ending", ["sys.exit(5)", "os.kill(os.getpid(), signal.SIGTERM)", "raise ValueError('over')"])
def test_other_ends_of_a_script_leave_nothing_either(tmp_path, ending):
    code = f"""
        pool = envfleet.make_pool(SleepyEnv, num_envs=4, num_workers=2, backend="processes")
        pool.reset()
        pool.send(slow(10_000, 1, 1, 1))
        {ending}
    """
    result = run_pool_script(tmp_path, code)
    assert result.returncode == {"s": 5, "o": -signal.SIGTERM, "r": 1}[ending[0]]
    assert result.stderr.count("Traceback") == (ending[0] == "r")


def test_a_thread_that_still_steps_at_exit(tmp_path):
    code = """
        pool = envfleet.make_pool(SleepyEnv, num_envs=2, num_workers=2, backend="processes")
        pool.reset()
        is_stepping = threading.Event()
        def work():
            try:
                while True:
                    pool.step(slow(1, 1))
                    is_stepping.set()
            except envfleet.EnvfleetError:
                pass
        threading.Thread(target=work, daemon=True).start()
        is_stepping.wait()
        print("leaving")
    """
    result = run_pool_script(tmp_path, code)
    assert (result.returncode, result.stdout, result.stderr) == (0, "leaving\n", "")
