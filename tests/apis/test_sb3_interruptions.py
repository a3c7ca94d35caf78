"""Ctrl-C in SB3's learn(): learn(reset_num_timesteps=False) goes on, or says what to do."""

from __future__ import annotations

import signal
import subprocess

import numpy as np
import pytest
from support.gates import Gate
from support.python_probes import SleepyEnv
from support.script_runs import started

pytest.importorskip("torch")
pytest.importorskip("stable_baselines3")

from support.interrupted_learning import GATED_STEP, N_STEPS, go_on, interrupted_model

import envfleet
from envfleet.apis.sb3 import DummyVecEnv, SubprocVecEnv, make_vec_env

# What makes two envs, one of which Ctrl-C meets in its step.
MAKERS = {
    "serial": lambda: make_vec_env(SleepyEnv, n_envs=2, backend="serial"),
    "threads": lambda: make_vec_env(SleepyEnv, n_envs=2, num_workers=2, backend="threads"),
    "processes": lambda: make_vec_env(SleepyEnv, n_envs=2, num_workers=2, backend="processes"),
    "DummyVecEnv": lambda: DummyVecEnv([SleepyEnv, SleepyEnv]),
    "SubprocVecEnv": lambda: SubprocVecEnv([SleepyEnv, SleepyEnv], num_workers=2),
    "native": lambda: make_vec_env("Sleepy-v0", n_envs=2, num_workers=2),
}


@pytest.fixture
def make(probe_library):
    """Makes envs, and closes them at the end of the test."""
    made = []

    def make_one(maker):
        made.append(MAKERS[maker]())
        return made[-1]

    yield make_one
    for envs in made:
        envs.close()


IN_THE_CALLERS_THREAD = ["serial", "DummyVecEnv"]


@pytest.mark.parametrize("maker", [own for own in MAKERS if own not in IN_THE_CALLERS_THREAD])
def test_learn_goes_on_without_a_reset(make, maker):
    envs = make(maker)
    with Gate() as gate:
        model = interrupted_model(envs, gate, opens=True)
    assert go_on(model) == 1  # reset
    assert envs.step(np.full(2, 2, np.float32))[0].tolist() == [GATED_STEP + N_STEPS + 1] * 2


@pytest.mark.parametrize("maker", IN_THE_CALLERS_THREAD)
def test_an_env_that_was_struck_itself_needs_a_reset(make, maker):
    envs = make(maker)
    with Gate() as gate:
        model = interrupted_model(envs, gate, opens=True)
    with pytest.raises(envfleet.CallOrderError, match=r"model\.set_env\(envs\)"):
        go_on(model)
    model.set_env(model.get_env())
    assert go_on(model) == 2  # resets
    assert envs.step(np.full(2, 2, np.float32))[0].tolist() == [N_STEPS + 1] * 2


@pytest.mark.parametrize("maker", ["processes", "native"])
def test_an_env_that_does_not_come_back_needs_a_reset(make, maker):
    envs = make(maker)
    with Gate() as gate:
        model = interrupted_model(envs, gate, opens=False)
        with pytest.raises(envfleet.CallOrderError, match=r"no step in progress.*model\.set_env\(envs\)"):
            go_on(model)
        gate.open()
        model.set_env(model.get_env())
        assert go_on(model) == 2  # resets
    assert envs.step(np.full(2, 2, np.float32))[0].tolist() == [5, 5]


def test_a_second_ctrl_c_does_not_wait_for_the_env(tmp_path):
    """In a process of its own, which a late second one would end."""
    code = """
        import os, signal, threading
        import numpy as np
        from envfleet.apis.sb3 import make_vec_env
        from support.gates import Gate
        from support.python_probes import SleepyEnv

        envs = make_vec_env(SleepyEnv, n_envs=2, num_workers=2, backend="processes")
        envs.reset()
        with Gate() as gate:
            def handle(*arguments):
                # The second one arrives while the step may still finish.
                threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
                signal.signal(signal.SIGINT, signal.default_int_handler)
                signal.default_int_handler(*arguments)
            signal.signal(signal.SIGINT, handle)
            gate.interrupt_when_reached()
            try:
                envs.step(np.array([2, gate.action], np.float32))
            except KeyboardInterrupt as error:
                print("twice", isinstance(error.__context__, KeyboardInterrupt))
            gate.open()
            print(envs.step_wait()[0].tolist())
        envs.close()
    """
    with started(tmp_path, code, stdin=subprocess.DEVNULL) as process:  # torch may leave files
        out, err = process.communicate(timeout=120)
    assert (out, process.returncode) == ("twice True\n[1, 1]\n", 0), err


@pytest.mark.parametrize("on_error", ["raise", "restart"])
def test_a_fault_of_the_interrupted_step_is_not_lost(on_error):
    class Fragile(SleepyEnv):
        def step(self, action):
            if action == 7:
                raise RuntimeError("joint 3 exploded")
            return super().step(action)

    Fragile.__module__ = "__main__"
    envs = make_vec_env(Fragile, n_envs=3, num_workers=1, backend="processes", on_error=on_error)
    envs.reset()
    with Gate() as gate:
        before = signal.signal(signal.SIGINT, lambda *arguments: (gate.open(), signal.default_int_handler(*arguments)))
        try:
            thread = gate.interrupt_when_reached()
            with pytest.raises(KeyboardInterrupt):
                envs.step(np.array([2, gate.action, 7], np.float32))
            thread.join()
        finally:
            signal.signal(signal.SIGINT, before)
    if on_error == "raise":
        with pytest.raises(envfleet.EnvError, match="joint 3 exploded") as caught:
            envs.step(np.full(3, 2, np.float32))
        assert caught.value.env_id == 2
        assert isinstance(caught.value.__cause__, RuntimeError)
    else:
        assert envs.step(np.full(3, 2, np.float32))[0].tolist() == [2, 2, 1]
    assert envs.reset().tolist() == [0, 0, 0]
    assert envs.step(np.full(3, 2, np.float32))[0].tolist() == [1, 1, 1]
    envs.close()
