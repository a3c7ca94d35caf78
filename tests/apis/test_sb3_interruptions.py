"""Ctrl-C in SB3's learn(): learn(reset_num_timesteps=False) goes on, or says what to do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.script_runs import started

pytest.importorskip("torch")
pytest.importorskip("stable_baselines3")

PRELUDE = """\
import os, signal, threading
import numpy as np
import envfleet
from envfleet.apis.sb3 import DummyVecEnv, SubprocVecEnv, make_vec_env
from support.gates import Gate
from support.interrupted_learning import GATED_STEP, N_STEPS, go_on, interrupted_model
from support.python_probes import SleepyEnv
"""
# What makes two envs, one of which Ctrl-C meets in its step.
MAKERS = {
    "serial": "make_vec_env(SleepyEnv, n_envs=2, backend='serial')",
    "threads": "make_vec_env(SleepyEnv, n_envs=2, num_workers=2, backend='threads')",
    "processes": "make_vec_env(SleepyEnv, n_envs=2, num_workers=2, backend='processes')",
    "DummyVecEnv": "DummyVecEnv([SleepyEnv, SleepyEnv])",
    "SubprocVecEnv": "SubprocVecEnv([SleepyEnv, SleepyEnv], num_workers=2)",
    "native": "make_vec_env('Sleepy-v0', n_envs=2, num_workers=2)",
}


def run(tmp_path: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Runs a script to its end. It may leave the files that torch makes when it is imported."""
    with started(tmp_path, code, prelude=PRELUDE, stdin=subprocess.DEVNULL) as process:
        out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.parametrize("maker", MAKERS)
def test_learn_goes_on_without_a_reset(tmp_path, probe_library, maker):
    code = f"""
        envfleet.load_plugin({str(probe_library)!r})
        envs = {MAKERS[maker]}
        with Gate() as gate:
            model = interrupted_model(envs, gate, opens=True)
        print("resets", go_on(model))
        print(envs.step(np.full(2, 2, np.float32))[0].tolist(), GATED_STEP + N_STEPS + 1)
        envs.close()
    """
    result = run(tmp_path, code)
    count = 11
    # In serial, Ctrl-C strikes the env itself: it is built again. SB3's DummyVecEnv goes on with it as it is.
    struck = {"serial": count - 6, "DummyVecEnv": count - 1}.get(maker, count)
    assert result.stdout == f"resets 1\n[{count}, {struck}] {count}\n", result.stderr
    assert result.returncode == 0


@pytest.mark.parametrize("maker", ["processes", "native"])
def test_an_env_that_does_not_come_back_needs_a_reset(tmp_path, probe_library, maker):
    code = f"""
        envfleet.load_plugin({str(probe_library)!r})
        envs = {MAKERS[maker]}
        with Gate() as gate:
            model = interrupted_model(envs, gate, opens=False)
            try:
                go_on(model)
            except envfleet.CallOrderError as error:
                print(error)
            gate.open()
            model.set_env(model.get_env())
            print("resets", go_on(model))
        print(envs.step(np.full(2, 2, np.float32))[0].tolist())
        envs.close()
    """
    result = run(tmp_path, code)
    message, *rest = result.stdout.splitlines()
    assert "step_async() expected no step in progress" in message
    assert "model.set_env(envs)" in message
    assert rest == ["resets 2", "[5, 5]"], result.stderr
    assert result.returncode == 0


def test_a_second_ctrl_c_does_not_wait_for_the_env(tmp_path):
    code = f"""
        envs = {MAKERS["processes"]}
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
    result = run(tmp_path, code)
    assert (result.stdout, result.returncode) == ("twice True\n[1, 1]\n", 0), result.stderr


@pytest.mark.parametrize("on_error", ["raise", "restart"])
def test_a_fault_of_the_interrupted_step_is_not_lost(tmp_path, on_error):
    code = f"""
        class Fragile(SleepyEnv):
            def step(self, action):
                if action == 7:
                    raise RuntimeError("joint 3 exploded")
                return super().step(action)

        Fragile.__module__ = "__main__"
        envs = make_vec_env(Fragile, n_envs=3, num_workers=3, backend="processes", on_error={on_error!r})
        envs.reset()
        with Gate() as gate:
            signal.signal(signal.SIGINT, lambda *arguments: (gate.open(), signal.default_int_handler(*arguments)))
            gate.interrupt_when_reached()
            try:
                envs.step(np.array([2, gate.action, 7], np.float32))
            except KeyboardInterrupt:
                print("interrupted")
        try:
            print(envs.step(np.full(3, 2, np.float32))[0].tolist())
        except envfleet.EnvError as error:
            print(error.env_id, error.__cause__)
        print(envs.reset().tolist())
        print(envs.step(np.full(3, 2, np.float32))[0].tolist())
        envs.close()
    """
    result = run(tmp_path, code)
    seen = {"raise": "2 joint 3 exploded", "restart": "[2, 2, 1]"}[on_error]
    assert result.stdout == f"interrupted\n{seen}\n[0, 0, 0]\n[1, 1, 1]\n", result.stderr
    assert result.returncode == 0
