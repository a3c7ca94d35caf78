"""Daemon threads that are inside a pool when the interpreter ends: the process exits as if they were not there.

Up to Python 3.13 the interpreter ends such a thread by unwinding its stack as soon as it wants the GIL, which in
C++ frames was std::terminate() and SIGABRT.
"""

from __future__ import annotations

import subprocess

import pytest
from support.script_runs import command_of

# Many exits for one start of Python: each child of a fork makes its pool and leaves through the interpreter's end.
SCRIPT = """
import atexit, os, sys, threading
import gymnasium, numpy as np
import envfleet, envfleet.core.pool
from envfleet import _native

class Chatty(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        for _ in range(300):  # long enough for a change of threads inside it
            pass
        return np.zeros(2, np.float32), 0.0, False, False, {}

def use_pool(env, **options):
    pool = envfleet.make_pool(env, **options)
    actions = np.zeros(pool.num_envs, np.int64)
    def step():
        pool.step(actions)
    def send_and_recv():
        pool.send(actions)
        pool.recv(60)
    pool.reset(seed=0)
    return step, send_and_recv

def make_pools():
    envfleet.make_pool("CartPole-v1", num_envs=20_000)

USES = {
    "native step": lambda: use_pool("CartPole-v1", num_envs=4096, num_threads=1)[0],
    "native recv": lambda: use_pool("CartPole-v1", num_envs=4096, num_threads=2)[1],
    "native make": lambda: make_pools,
    "serial": lambda: use_pool(Chatty, num_envs=4, backend="serial")[0],
    "threads": lambda: use_pool(Chatty, num_envs=4, backend="threads", num_workers=2)[0],
    "processes": lambda: use_pool(Chatty, num_envs=4, backend="processes", num_workers=2)[1],
}

def leave_with_threads_inside(use, num_threads):
    # Closing the pools would have the calls end before the interpreter does.
    atexit.unregister(envfleet.core.pool._close_all_pools)
    started = threading.Barrier(num_threads + 1)
    def work():
        call = USES[use]()
        call()
        started.wait()
        while True:
            call()
    for _ in range(num_threads):
        threading.Thread(target=work, daemon=True).start()
    started.wait()

use, num_exits = sys.argv[1], int(sys.argv[2])
for _ in range(num_exits):
    pid = os.fork()
    if pid == 0:
        leave_with_threads_inside(use, 2)
        break
    status = os.waitpid(pid, 0)[1]
    assert status == 0, f"expected exit code 0, got {os.waitstatus_to_exitcode(status)}"
"""
USES = ["native step", "native recv", "native make", "serial", "threads", "processes"]


def exit_often(tmp_path, use: str, num_exits: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = command_of(tmp_path, str(script), use, str(num_exits))
    result = subprocess.run(**command, capture_output=True, check=False, timeout=600)
    assert result.returncode == 0, result.stderr[-3000:]


@pytest.mark.parametrize("use", USES)
def test_exit_with_daemon_threads_inside(tmp_path, use):
    exit_often(tmp_path, use, 8)


@pytest.mark.soak
@pytest.mark.parametrize("use", USES)
def test_many_exits_with_daemon_threads_inside(tmp_path, use):
    exit_often(tmp_path, use, 100)
