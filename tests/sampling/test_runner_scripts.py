"""Scripts with a Runner: how they end, kills, Ctrl-C, forks, no guard; and what is left behind, which is nothing."""

from __future__ import annotations

import json

import pytest
from runner_scripts import run_runner_script, started_runner_script
from sampling_probes import BACKENDS, START_METHODS
from support.script_runs import assert_no_files, family
from support.traces import alive, shared_files, wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_a_runner_used_in_a_fork_says_so(tmp_path):
    code = """
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, which is the subject
        runner = Runner([partial(counting, 0)])
        stream = runner.trajs()
        next(stream)
        pid = os.fork()
        if pid == 0:
            for call in (lambda: next(stream), runner.trajs, lambda: runner.broadcast(1)):
                try:
                    call()
                except envfleet.ForkedPoolError as error:
                    print("a fork of process" in str(error), flush=True)
            runner.close()
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        print(next(stream)["count"])
    """
    assert run_runner_script(tmp_path, code) == (0, "True\nTrue\nTrue\n2\n", "")


# --- the parent's end ---------------------------------------------------------------------------------


@pytest.mark.parametrize("start_method", START_METHODS)
def test_workers_of_a_killed_parent_leave(tmp_path, start_method):
    """In the middle of a trajectory, with large ones and weights in shared memory, and a manager."""
    before = shared_files()
    code = f"""
        import numpy as np
        makers = [partial(counting, 0), partial(told, 1)]
        def context(manager):
            return {{"folder": {str(tmp_path)!r}}}
        runner = Runner(
            [partial(told, 0), partial(told, 1)], start_method={start_method!r}, context_fn=context, prefetch=4
        )
        runner.broadcast(np.zeros(1_000_000))
        big = Runner([partial(counting, index) for index in range(2)], size=1_000_000)
        kept = list(islice(big.trajs(), 3))
        stream = runner.trajs("hang", 1)
        next(stream)
        print(json.dumps(runner.worker_pids + big.worker_pids), flush=True)
        for trajectory in stream:
            pass
    """
    with started_runner_script(tmp_path, code) as process:
        pids = json.loads(process.stdout.readline() or process.communicate()[1])
        assert wait_until(lambda: (tmp_path / "hangs-1").exists())
        assert alive(pids) == pids
        process.kill()
        process.wait()
        # A second is what is promised; the bound is for loaded machines.
        assert wait_until(lambda: not alive(pids)), f"still alive: {alive(pids)}"
        assert wait_until(lambda: not family(tmp_path)), f"still alive: {family(tmp_path)}"
    assert_no_files(tmp_path, before)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ending", ["sys.exit(5)", "raise ValueError('over')", "pass"])
def test_other_ends_of_a_script_leave_nothing_and_run_finally_blocks(tmp_path, backend, ending):
    code = f"""
        runner = Runner([partial(counting, index) for index in range(2)], backend={backend!r}, log={str(tmp_path)!r})
        stream = runner.trajs()
        next(stream)
        {ending}
    """
    code, _, err = run_runner_script(tmp_path, code)
    assert code == {"s": 5, "r": 1, "p": 0}[ending[0]]
    assert (tmp_path / "closed-0").exists()
    assert (tmp_path / "closed-1").exists()
    assert err.count("Traceback") == (ending[0] == "r")


# --- Ctrl-C -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["os.getpid()", "0"], ids=["process", "group"])
def test_ctrl_c_while_waiting_drops_what_is_outstanding(tmp_path, target):
    """The generators keep their state."""
    code = f"""
        def slow(index):
            request = yield "ready"
            count = 0
            while True:
                count += 1
                wait_at_gate(gate.number)
                request = yield index, count, request
        with Gate() as gate:
            runner = Runner([partial(slow, index) for index in range(2)], ordered=True)
            stream = runner.trajs("old")
            try:
                gate.interrupt_when_reached({target})
                next(stream)
            except KeyboardInterrupt:
                print("interrupted")
            gate.open()
            try:
                next(stream)
            except envfleet.CallOrderError as error:
                print(error)
            stream = runner.trajs("new")
            print(next(stream), next(stream))
            runner.close()
    """
    out = (
        "interrupted\n"
        "next() expected the iterator of the newest trajs(), got one that was interrupted, which dropped what it had "
        "requested; call trajs() again\n"
        "(0, 2, ('new',)) (1, 2, ('new',))\n"
    )
    assert run_runner_script(tmp_path, code) == (0, out, "")


def test_ctrl_c_at_any_moment(tmp_path):
    """Many of them, into a loop that does nothing but take: the generators keep their state."""
    code = """
        is_taking = False
        def interrupt_taking(*_):
            global is_taking
            if is_taking:
                is_taking = False  # no second one while the first is handled
                raise KeyboardInterrupt
        signal.signal(signal.SIGINT, interrupt_taking)
        runner = Runner([partial(counting, index) for index in range(2)], prefetch=2)
        is_over = threading.Event()
        def interrupt():
            while not is_over.wait(0.003):
                os.kill(os.getpid(), signal.SIGINT)
        num_taken = num_interrupts = 0
        last = [0, 0]
        next(runner.trajs())
        thread = threading.Thread(target=interrupt)
        thread.start()
        while num_interrupts < 150 or num_taken < 200:
            try:
                stream = runner.trajs(num_interrupts)
                is_taking = True
                for _ in range(200):
                    trajectory = next(stream)
                    assert trajectory["request"] == (num_interrupts,)
                    assert trajectory["count"] > last[trajectory["index"]]  # it was not started again
                    last[trajectory["index"]] = trajectory["count"]
                    num_taken += 1
                is_taking = False
            except KeyboardInterrupt:
                num_interrupts += 1
        is_over.set()
        thread.join()
        counts = {}
        for trajectory in runner.trajs("after"):
            counts.setdefault(trajectory["index"], []).append(trajectory["count"])
            if len(counts) == 2 and min(map(len, counts.values())) > 5:
                break
        print(sorted(counts), all(own == list(range(own[0], own[0] + len(own))) for own in counts.values()))
    """
    assert run_runner_script(tmp_path, code) == (0, "[0, 1] True\n", "")


def test_ctrl_c_while_a_runner_is_made_leaves_nothing(tmp_path):
    code = f"""
        from sampling_probes import slow_start, wait_and_interrupt
        threading.Thread(target=wait_and_interrupt, args=({str(tmp_path)!r}, "starts-1")).start()
        try:
            Runner([partial(counting, 0), partial(slow_start, 1, folder={str(tmp_path)!r})])
        except KeyboardInterrupt:
            print("interrupted", len(psutil.Process().children(recursive=True)))
    """
    returncode, out, err = run_runner_script(tmp_path, code)
    assert (returncode, out, err) == (0, "interrupted 1\n", "")  # the fork server


# --- no guard, no polling -----------------------------------------------------------------------------


GUARDLESS = """
from collections import namedtuple
from functools import partial
from itertools import islice
import numpy as np
from envfleet.sampling import Runner, weights

print("main")  # once: no worker runs this file again
offset = 3
Trajectory = namedtuple("Trajectory", "index data weights")

def generator(index):
    yield "ready"
    while True:
        yield Trajectory(index + offset, np.full(100_000, index), weights().value)

with Runner([partial(generator, index) for index in range(2)], start_method="METHOD", ordered=True) as runner:
    runner.broadcast({"w": 1})
    for trajectory in islice(runner.trajs(), 4):
        assert isinstance(trajectory, Trajectory)
        print(trajectory.index, trajectory.data[-1], trajectory.weights)
"""


@pytest.mark.parametrize("start_method", START_METHODS)
def test_a_script_needs_no_guard(tmp_path, start_method):
    lines = "3 0 {'w': 1}\n4 1 {'w': 1}\n"
    got = run_runner_script(tmp_path, GUARDLESS.replace("METHOD", start_method))
    assert got == (0, f"main\n{lines}{lines}", "")


def test_waiting_uses_no_cpu_time(tmp_path):
    """The parent waits two seconds for a trajectory, and no thread of any process wakes up more than a few times."""
    code = """
        def slow(index):
            yield "ready"
            while True:
                time.sleep(2)
                yield index
        runner = Runner([partial(slow, index) for index in range(2)])
        stream = runner.trajs()
        children = psutil.Process().children(recursive=True)
        def wake_ups():
            def of(process):
                found = 0
                for task in os.listdir(f"/proc/{process.pid}/task"):
                    with open(f"/proc/{process.pid}/task/{task}/status") as file:
                        found += int(file.read().split("\\nvoluntary_ctxt_switches:")[1].split()[0])
                return found
            return [of(process) for process in [psutil.Process(), *children]]
        before = wake_ups()
        next(stream)
        # One who looks every 20 ms would wake up a hundred times.
        print(max(after - own for after, own in zip(wake_ups(), before)) < 60, len(children))
        runner.close()
    """
    assert run_runner_script(tmp_path, code) == (0, "True 3\n", "")
