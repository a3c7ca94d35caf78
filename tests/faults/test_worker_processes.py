"""Worker processes as Python processes: the flags of their interpreter, their exit handlers, their output."""

from __future__ import annotations

import pytest
from support.script_runs import run_script

PRELUDE = """\
import atexit, os, sys, tempfile
import envfleet, gymnasium, numpy as np

class Still(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {}
"""
START_METHODS = ["forkserver", "spawn", "fork"]


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("flags", ["-O -X utf8", "-X dev", "-I -W error::UserWarning"])
def test_workers_have_the_flags_of_the_callers_interpreter(tmp_path, start_method, flags):
    code = f"""
        if "again" not in sys.argv:
            os.execv(sys.executable, [sys.executable, *{flags.split()!r}, __file__, "again"])

        class Flags(Still):
            def flags(self):
                return str(sys.flags), sys.warnoptions, sys._xoptions

        envs = envfleet.make(Flags, num_envs=1, backend="processes", start_method={start_method!r})
        print(envs.call("flags")[0] == Flags().flags(), envs.call("flags"), Flags().flags())
        envs.close()
    """
    result = run_script(tmp_path, code, prelude=PRELUDE)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("True"), result.stdout


@pytest.mark.parametrize("start_method", START_METHODS)
def test_exit_handlers_of_envs_run_in_the_worker_and_those_of_the_caller_do_not(tmp_path, start_method):
    code = f"""
        from pathlib import Path

        def note(name):
            with open(name, "a") as file:
                file.write(f"{{os.getpid()}}\\n")

        class Leaves(Still):
            def __init__(self):
                self.folder = tempfile.TemporaryDirectory()
                self.itself = self  # a cycle: not freed before the exit
                atexit.register(note, "of env")
                atexit.register(lambda: 1 / 0)  # hides no other

            def pid(self):
                return os.getpid()

        atexit.register(note, "of caller")
        folder = tempfile.TemporaryDirectory()
        envs = envfleet.make(Leaves, num_envs=1, backend="processes", start_method={start_method!r})
        pid = envs.call("pid")[0]
        envs.close()
        assert Path("of env").read_text() == f"{{pid}}\\n"
        assert not Path("of caller").exists()
        assert [str(path) for path in Path(tempfile.gettempdir()).iterdir()] == [folder.name]
        folder.cleanup()
    """
    result = run_script(tmp_path, code, prelude=PRELUDE)
    assert result.returncode == 0, result.stderr
    assert "ZeroDivisionError" in result.stderr
    assert len((tmp_path / "of caller").read_text().split()) == 1


def test_an_exit_handler_that_never_ends_does_not_keep_close_waiting(tmp_path):
    code = """
        import time

        class Stays(Still):
            def __init__(self):
                atexit.register(time.sleep, 1000)

        envfleet.make(Stays, num_envs=1, backend="processes").close()
    """
    assert run_script(tmp_path, code, prelude=PRELUDE).returncode == 0


def test_a_forked_worker_does_not_repeat_the_callers_output(tmp_path):
    code = """
        sys.stdout = open(1, "w", closefd=False)  # buffered, whatever PYTHONUNBUFFERED says
        print("once")
        envfleet.make(Still, num_envs=1, backend="processes", start_method="fork").close()
    """
    assert run_script(tmp_path, code, prelude=PRELUDE).stdout == "once\n"
