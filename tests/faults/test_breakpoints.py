"""breakpoint() and pdb in an env: a prompt on the caller's terminal, or an error that says where to debug instead."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap

import pytest
from support.script_runs import command_of
from support.terminal_run import CTRL_C, CTRL_D, PRELUDE, on_a_terminal
from support.traces import alive, wait_until

import envfleet
from envfleet import EnvError

PROMPT = r"\(Pdb\) "
# Reads the actions of each step from the terminal. SIGUSR1 closes the pool.
SCRIPT = """
import pdb, signal, sys, threading
import gymnasium, numpy as np
import envfleet

class Stopping(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(5)

    def __init__(self, stops=False):
        if stops:
            breakpoint()
        self.value = 1.0

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.value = 1.0
        if action == 1:
            breakpoint()
            self.value += 1
        elif action == 2:
            pdb.set_trace()
            self.value += 2
        elif action == 3:
            pdb.Pdb().set_trace()
            self.value += 3
        elif action == 4:
            threading.Event().wait()
        return np.zeros(2, np.float32), self.value, False, False, {}

if __name__ == "__main__":
    options = dict(word.split("=") for word in sys.argv[1:])
    if "step_timeout" in options:
        options["step_timeout"] = float(options["step_timeout"])
    if "stops" in options:
        options["stops"] = True
    envs = envfleet.make(Stopping, num_envs=4, num_workers=2, backend="processes", **options)
    signal.signal(signal.SIGUSR1, lambda *_: envs.close())
    envs.reset()
    for pid in envs.pool.executor.worker_pids:
        print("pid", pid)
    print("READY", flush=True)
    for line in sys.stdin:
        try:
            if line.strip() == "reset":
                envs.reset()
                print("RESET", flush=True)
            else:
                print("REWARDS", *envs.step([int(word) for word in line.split()])[1], flush=True)
        except (Exception, KeyboardInterrupt) as error:
            print("ERROR", type(error).__name__, error, flush=True)
    envs.close()
    print("CLOSED", flush=True)
"""


@pytest.fixture
def run(tmp_path):
    with on_a_terminal(tmp_path, SCRIPT) as run:
        run.expect("READY\n")
        yield run


def end(run):
    run.type(CTRL_D)
    run.expect("CLOSED\n")
    assert run.process.wait(60) == 0


@pytest.mark.parametrize(("action", "reward"), [(1, 2.0), (2, 3.0), (3, 4.0)])
def test_a_prompt_opens_on_the_callers_terminal_and_the_step_goes_on(run, action, reward):
    run.type(f"0 {action} 0 0\n")
    shown = run.expect(PROMPT)
    assert "--- env 1, worker process " in shown
    assert f"-> self.value += {action}\n" in shown
    run.type("p self.value\n")
    assert run.expect(PROMPT).startswith("p self.value\n1.0\n")
    run.type("n\n")
    assert "-> return" in run.expect(PROMPT)
    run.type("c\n")
    run.expect(rf"REWARDS 1.0 {reward} 1.0 1.0\n")
    end(run)


def test_the_step_timeout_does_not_run_while_a_prompt_is_open_but_does_afterwards(tmp_path):
    with on_a_terminal(tmp_path, SCRIPT, "step_timeout=3") as run:
        run.expect("READY\n")
        run.type("1 4 0 0\n")  # the second env of the same worker never returns
        run.expect(PROMPT)
        run.type("import time; time.sleep(4)\n")  # longer than the limit
        run.expect(PROMPT)
        run.type("c\n")
        run.expect("ERROR WorkerDied .*step_timeout=3 s and was killed")
        run.type("reset\n")
        run.expect("RESET\n")
        end(run)


def test_rays_debugger_does_not_take_the_prompts_of_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONBREAKPOINT", "ray.util.rpdb._driver_set_trace")  # as ray.init() sets it
    with on_a_terminal(tmp_path, SCRIPT) as run:
        run.expect("READY\n")
        run.type("1 0 0 0\n")
        run.expect(PROMPT)
        run.type("c\n")
        run.expect("REWARDS 2.0 1.0 1.0 1.0\n")
        end(run)


def test_workers_take_turns(run):
    run.type("1 2 3 1\n")
    found = []
    for _ in range(4):
        shown = run.expect(PROMPT)
        assert shown.count("-> self.value += ") == 1
        found.append(shown.partition("+= ")[2][0])
        run.type("p 'read by ' + str(self.value)\n")
        assert "'read by 1.0'" in run.expect(PROMPT)
        run.type("c\n")
    assert sorted(found) == ["1", "1", "2", "3"]
    run.expect("REWARDS 2.0 3.0 4.0 2.0\n")
    end(run)


def test_next_at_the_end_of_the_method_goes_on(run):
    run.type("1 0 0 0\n")
    run.expect(PROMPT)
    for _ in range(3):  # to the return, out of step()
        run.type("n\n")
        if "--Return--" in run.expect(PROMPT):
            break
    run.type("n\n")
    run.expect("REWARDS 2.0 1.0 1.0 1.0\n")
    run.type("0 0 0 0\n")
    run.expect("REWARDS 1.0 1.0 1.0 1.0\n")
    end(run)


def test_a_breakpoint_that_was_set_at_the_prompt_holds_in_later_steps(run):
    run.type("0 1 0 0\n")
    run.expect(PROMPT)
    line = (PRELUDE + SCRIPT).split("\n").index("        return np.zeros(2, np.float32), {}") + 1
    run.type(f"tbreak {line}\n")
    assert f":{line}\n" in run.expect(PROMPT)
    run.type("c\n")
    run.expect("REWARDS 1.0 2.0 1.0 1.0\n")
    run.type("reset\n")
    assert "--- env " in run.expect(PROMPT)
    run.type("c\n")
    run.expect("RESET\n")
    end(run)


@pytest.mark.parametrize("ends", ["q\n", CTRL_D])
def test_quitting_is_an_exception_of_the_env(run, ends):
    run.type("0 1 0 0\n")
    run.expect(PROMPT)
    run.type(ends)
    run.expect(r"ERROR EnvError env 1 raised in step\(\): BdbQuit")
    run.type("reset\n")
    run.expect("RESET\n")
    run.type("0 0 0 0\n")
    run.expect("REWARDS 1.0 1.0 1.0 1.0\n")
    end(run)


@pytest.mark.parametrize("actions", ["0 1 0 0", "1 1 0 0"])  # the second: in both envs of a worker
def test_ctrl_c_ends_the_prompts_of_a_worker_and_the_call(run, actions):
    run.type(f"{actions}\n")
    run.expect(PROMPT)
    run.type(CTRL_C)
    caller, prompt = "ERROR KeyboardInterrupt", r"--KeyboardInterrupt--\n\(Pdb\) \n"
    # They are two processes. Both must have ended, or the prompt could read the next line.
    shown = run.expect(f"(?s)({caller}.*{prompt}|{prompt}.*{caller})")
    run.type("reset\n")
    assert "--- env" not in shown + run.expect("RESET\n")
    for _ in range(2):
        run.type("0 1 0 0\n")
        run.expect(r"\n--- env 1")
        run.expect(PROMPT)
        run.type("c\n")
        run.expect("REWARDS 1.0 2.0 1.0 1.0\n")
    end(run)


def test_closing_the_pool_ends_the_prompt(run):
    run.type("1 0 0 1\n")
    run.expect(PROMPT)
    run.process.send_signal(signal.SIGUSR1)
    run.expect("ERROR PoolClosedError")
    end(run)


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_other_start_methods_and_constructors(tmp_path, start_method):
    with on_a_terminal(tmp_path, SCRIPT, f"start_method={start_method}", "stops=yes") as run:
        for _ in range(4):
            assert "-> self.value = 1.0" in run.expect(PROMPT)
            run.type("c\n")
        run.expect("READY\n")
        run.type("0 0 0 2\n")
        run.expect(PROMPT)
        run.type("c\n")
        run.expect("REWARDS 1.0 1.0 1.0 3.0\n")
        end(run)


def test_a_caller_that_is_killed_takes_the_prompt_with_it(tmp_path):
    with on_a_terminal(tmp_path, SCRIPT) as run:
        pids = [int(word) for word in run.expect("READY\n").split() if word.isdigit()]
        run.type("1 1 1 1\n")
        run.expect(PROMPT)
        run.process.kill()
        assert wait_until(lambda: not alive(pids), 20)


def test_generators_of_a_runner(tmp_path):
    script = """
        from envfleet.sampling import Runner

        def counting():
            yield "ready"
            for number in range(3):
                breakpoint()
                yield number

        with Runner([counting]) as runner:
            print("TRAJS", *runner.trajs())
        """
    with on_a_terminal(tmp_path, textwrap.dedent(script)) as run:
        for _ in range(3):
            assert "-> yield number" in run.expect(PROMPT)
            run.type("c\n")
        run.expect("TRAJS 0 1 2\n")


@pytest.mark.parametrize("action", [1, 2, 3])
def test_without_a_terminal_the_error_says_where_to_debug(tmp_path, action):
    """Under pytest, nohup and in notebooks, standard input is no terminal."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = command_of(tmp_path, str(script))
    result = subprocess.run(**command, input=f"0 {action} 0 0\nreset\n", capture_output=True, timeout=120)
    assert "env 1 raised in step(): EnvfleetError: breakpoint() in an env expected a terminal" in result.stdout
    assert "debug the env with backend='serial'" in result.stdout
    assert "RESET\n" in result.stdout
    assert result.stderr == ""
    assert "(Pdb)" not in result.stdout


def test_the_error_points_to_the_breakpoint():
    def stop(env):
        breakpoint()

    with envfleet.make_pool("Acrobot-v1", num_envs=1, backend="processes") as pool:
        with pytest.raises(EnvError, match="debug the env with backend='serial'") as caught:
            pool.apply(stop)
        assert caught.value.env_traceback.count("\n  File ") == 1
        assert "in stop\n" in caught.value.env_traceback


def test_breakpoints_that_are_switched_off(monkeypatch):
    monkeypatch.setitem(os.environ, "PYTHONBREAKPOINT", "0")

    def pass_by(env):
        breakpoint()
        return "passed"

    with envfleet.make_pool("Acrobot-v1", num_envs=1, backend="processes") as pool:
        assert pool.apply(pass_by) == ("passed",)
