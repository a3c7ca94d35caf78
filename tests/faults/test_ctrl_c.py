"""Ctrl-C while a pool of Python envs is made, steps or is closed; and that other signals are left alone."""

from __future__ import annotations

import signal

import pytest
from pool_scripts import run_pool_script
from support.faulty_env import MisbehavingEnv

import envfleet


@pytest.mark.parametrize("backend", ["threads", "processes"])
@pytest.mark.parametrize(
    ("call", "after", "obs"),
    [("pool.step(row)", "pool.reset()", [0, 0]), ("(pool.send(row), pool.recv())", "pool.recv()", [1, 1])],
)
@pytest.mark.parametrize("target", ["os.getpid()", "0"], ids=["process", "group"])
def test_ctrl_c_reaches_a_caller_who_waits(tmp_path, backend, call, after, obs, target):
    """A terminal sends it to the whole group, workers included: they must leave it to the caller."""
    code = f"""
        pool = envfleet.make_pool(SleepyEnv, num_envs=2, num_workers=2, backend={backend!r})
        pool.reset()
        with Gate() as gate:
            row = slow(gate.action, 1)
            try:
                gate.interrupt_when_reached({target})
                {call}
            except KeyboardInterrupt:
                gate.open()  # not before: the caller was interrupted while the env was inside
                print("interrupted", {after}.obs.tolist())
        print(pool.step(slow(1, 1)).obs.tolist())
        pool.send(slow(1, 1))
        print(pool.reset().obs.tolist())
    """
    result = run_pool_script(tmp_path, code)
    stepped = [count + 1 for count in obs]
    assert result.stdout == f"interrupted {obs}\n{stepped}\n[0, 0]\n", result.stderr
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
@pytest.mark.parametrize("batch_size", [4, 2])
def test_after_ctrl_c_a_reset_drops_what_was_interrupted(tmp_path, backend, batch_size):
    code = f"""
        pool = envfleet.make_pool(SleepyEnv, num_envs=4, batch_size={batch_size}, backend={backend!r})
        pool.reset()
        gate = Gate()
        try:
            gate.interrupt_when_reached()
            pool.step(slow(*[gate.action] * 4), np.arange(4, dtype=np.int32))
        except KeyboardInterrupt:
            print("interrupted")
        gate.open()
        print(pool.reset().obs.tolist(), pool.num_in_flight)
        print(len(pool.step(slow(1, 1, 1, 1), np.arange(4, dtype=np.int32))))
        gate.__exit__(None, None, None)
    """
    result = run_pool_script(tmp_path, code)
    assert result.stdout == f"interrupted\n[0, 0, 0, 0] 0\n{batch_size}\n", result.stderr
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_ctrl_c_in_close_leaves_nothing(tmp_path, backend):
    code = f"""
        pool = envfleet.make_pool(SleepyEnv, num_envs=2, num_workers=2, backend={backend!r})
        pool.reset()
        with Gate() as gate:
            pool.send(slow(gate.action, gate.action))
            gate.wait_until_reached()
            def interrupt():
                while not pool.closed:  # the first thing that close() does
                    time.sleep(0.001)
                os.kill(os.getpid(), signal.SIGINT)
            try:
                threading.Thread(target=interrupt).start()
                pool.close()  # waits for the envs, which wait for the gate
            except KeyboardInterrupt:
                print("interrupted")
            gate.open()
            pool.close()
            print(pool.closed)
    """
    result = run_pool_script(tmp_path, code)
    assert (result.returncode, result.stdout, result.stderr) == (0, "interrupted\nTrue\n", "")


def test_ctrl_c_while_a_pool_is_made_leaves_nothing(tmp_path):
    code = """
        from support.python_probes import wait_at_gate
        with Gate() as gate:
            class SlowToMake(SleepyEnv):
                def __init__(self, number=gate.number):
                    wait_at_gate(number)
            try:
                gate.interrupt_when_reached(0)
                envfleet.make_pool(SlowToMake, num_envs=4, num_workers=2, backend="processes")
            except KeyboardInterrupt:
                print("interrupted")
        with envfleet.make_pool(SleepyEnv, num_envs=2, backend="processes") as pool:
            print(pool.reset().obs.tolist())
    """
    result = run_pool_script(tmp_path, code)
    assert (result.returncode, result.stdout, result.stderr) == (0, "interrupted\n[0, 0]\n", "")


def test_signal_handlers_are_left_alone():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]
    with envfleet.make_pool(MisbehavingEnv, num_envs=2, backend="processes") as pool:
        pool.reset()
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)] == before
