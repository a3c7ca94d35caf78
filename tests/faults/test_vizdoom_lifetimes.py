"""ViZDoom's engines: processes of their own, which must end with the pool, with their owner, and one by one."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from support.traces import wait_until

import envfleet
from envfleet.core.errors import ConfigError, EnvError, WorkerDied
from envfleet.envs.watchdog import engines_of
from envfleet.families.vizdoom import game
from envfleet.families.vizdoom.game import EngineFolder

vizdoom = pytest.importorskip("vizdoom")

PLAYERS = {"gray_scale": True, "screen_resolution": "RES_160X120", "use_combined_action": True}


class Traces:
    """The engines, watchdogs and files of games whose folders are below this one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._shared = self._all_shared()

    @staticmethod
    def _all_shared() -> set[str]:
        return {name for name in os.listdir("/dev/shm") if name.startswith("ViZDoom")}

    def processes(self) -> list[int]:
        """Those that still run: engines, and the shells that wait for them."""
        return [pid for pid in engines_of(str(self.folder / "envfleet-vizdoom-")) if psutil.pid_exists(pid)]

    def engines(self) -> list[int]:
        """The engines alone."""
        wanted = str(self.folder / "envfleet-vizdoom-")
        return [
            process.pid
            for process in psutil.process_iter(["name", "cmdline"])
            if process.info["name"] == "vizdoom" and wanted in " ".join(process.info["cmdline"] or ())
        ]

    def files(self) -> list[str]:
        return [*map(str, self.folder.glob("envfleet-vizdoom-*")), *(self._all_shared() - self._shared)]

    def assert_gone(self) -> None:
        wait_until(lambda: not self.processes() and not self.files())
        assert (self.processes(), self.files()) == ([], [])


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Traces:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return Traces(tmp_path)


@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
def test_close_leaves_nothing(backend: str, traces: Traces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    envs = envfleet.make("Basic-v1", num_envs=3, num_workers=2, backend=backend)
    assert traces.engines() == []  # they start when they are needed
    envs.reset(seed=0)
    assert len(traces.engines()) == 3
    envs.close()
    assert (traces.processes(), traces.files()) == ([], [])
    assert list(here.iterdir()) == []
    envs.close()


def test_many_start_at_once(traces: Traces) -> None:
    with envfleet.make("Basic-v1", num_envs=8, num_workers=8) as envs:
        envs.reset(seed=0)
        assert len(traces.engines()) == 8
    assert (traces.processes(), traces.files()) == ([], [])


def test_ctrl_c_is_not_for_an_engine(traces: Traces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # From its first moment on, before engine.sh can say so: one that ends then takes its owner with it.
    first, rest = Path(game._SCRIPT).read_text().split("\n", 1)
    script = tmp_path / "engine.sh"
    script.write_text(f"{first}\nwhile read -r line; do echo $line; done < /proc/$$/status > {tmp_path}/status\n{rest}")
    script.chmod(0o700)
    monkeypatch.setattr(game, "_SCRIPT", str(script))
    with envfleet.make("Basic-v1", num_envs=1, backend="threads") as envs:
        envs.reset(seed=0)
        assert has_signal(tmp_path / "status", "SigBlk")
        assert len(traces.processes()) > len(traces.engines()) > 0
        for pid in traces.processes():
            assert has_signal(Path(f"/proc/{pid}/status"), "SigIgn")
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def has_signal(status: Path, field: str) -> int:
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(fields[field], 16) >> (signal.SIGINT - 1) & 1


def test_without_a_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    with envfleet.make("Basic-v1") as envs:
        monkeypatch.chdir(gone)
        gone.rmdir()
        for env_id in ("Basic-v1", "VizdoomBasic-v1"):
            with pytest.raises(ConfigError, match="working folder"):
                envfleet.make(env_id)
        with pytest.raises(EnvError, match="working folder"):
            envs.reset(seed=0)


def test_a_folder_without_a_watchdog_is_not_left(traces: Traces, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(FileNotFoundError, match="/nowhere/python"):
        EngineFolder("/bin/true")
    assert traces.files() == []


def test_two_workers_a_core() -> None:
    cores = len(os.sched_getaffinity(0))
    assert envfleet.make_spec("Basic-v1", num_envs=64).config["num_workers"] == min(64, 2 * cores)
    assert envfleet.make_spec("Basic-v1", num_envs=64, num_workers=3).config["num_workers"] == 3


def test_an_env_that_nobody_closes(traces: Traces) -> None:
    from envfleet.families.vizdoom.env import DoomEnv

    env = DoomEnv("basic.cfg")
    env.reset(seed=0)
    assert len(traces.engines()) == 1
    del env
    traces.assert_gone()


SCRIPT = """
import os, sys, time, envfleet
pool = {make}
pool.reset(seed=0)
print(os.getpid(), flush=True)
time.sleep(600)
"""
SINGLE = "envfleet.make('Basic-v1', num_envs=2, num_workers=2, backend={backend!r})"
PAIR = f"envfleet.make_pettingzoo('VizdoomDuel-v1', **{PLAYERS!r})"


# SIGTERM on processes is the same as on threads: it ends the owner, which has the workers closed.
@pytest.mark.parametrize(
    ("make", "number"),
    [
        pytest.param(SINGLE.format(backend="threads"), signal.SIGKILL, id="threads-SIGKILL"),
        pytest.param(SINGLE.format(backend="threads"), signal.SIGTERM, id="threads-SIGTERM"),
        pytest.param(SINGLE.format(backend="processes"), signal.SIGKILL, id="processes-SIGKILL"),
        pytest.param(PAIR, signal.SIGKILL, id="players-SIGKILL"),
        pytest.param(PAIR, signal.SIGTERM, id="players-SIGTERM"),
    ],
)
def test_the_owner_is_killed(make: str, number: signal.Signals, traces: Traces) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(make=make)], stdout=subprocess.PIPE, text=True, cwd=traces.folder
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == str(process.pid)
        assert len(traces.engines()) == 2
    finally:
        process.send_signal(number)
        process.communicate()
    assert process.returncode == -number
    traces.assert_gone()


def test_the_owner_leaves_without_closing(traces: Traces) -> None:
    code = SCRIPT.format(make=SINGLE.format(backend="threads")).replace("time.sleep(600)", "os._exit(3)")
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 3
    traces.assert_gone()


def test_a_worker_is_killed(traces: Traces) -> None:
    with envfleet.make("Basic-v1", num_envs=2, num_workers=2, backend="processes") as envs:
        envs.reset(seed=0)
        before = set(traces.engines())
        os.kill(envs.pool.executor.worker_pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDied):
            envs.step(np.zeros((2, 3)))
        wait_until(lambda: len(traces.engines()) == 1)  # the other env's
        assert set(traces.engines()) < before
        envs.reset(seed=0)
        assert len(traces.engines()) == 2
    traces.assert_gone()


@pytest.mark.parametrize("backend", ["serial", "threads", "processes"])
@pytest.mark.parametrize("env_id", ["Basic-v1", "VizdoomBasic-MultiBinary-v1"])
def test_an_engine_is_killed(env_id: str, backend: str, traces: Traces) -> None:
    with envfleet.make(env_id, num_envs=2, num_workers=2, backend=backend) as envs:
        idle = np.zeros((2, 3), dtype=envs.single_action_space.dtype)
        first, _ = envs.reset(seed=0)
        os.kill(traces.engines()[0], signal.SIGKILL)
        with pytest.raises(EnvError, match="engine died") as caught:
            envs.step(idle)
        assert len(caught.value.faults) == 1
        again, _ = envs.reset(seed=0)
        assert len(traces.engines()) == 2
        screen = (lambda obs: obs["screen"]) if isinstance(first, dict) else (lambda obs: obs)
        assert np.array_equal(screen(first), screen(again))
        envs.step(idle)
    traces.assert_gone()


def test_restarts(traces: Traces) -> None:
    with envfleet.make("Basic-v1", num_envs=2, num_workers=2, on_error="restart") as envs:
        envs.reset(seed=0)
        os.kill(traces.engines()[0], signal.SIGKILL)
        *_, truncated, info = envs.step(np.zeros((2, 3)))
        assert truncated.sum() == 1
        assert "engine died" in info["error"][truncated][0]
        envs.step(np.zeros((2, 3)))
        assert len(traces.engines()) == 2
    traces.assert_gone()


KILLED_ENGINE = """#!/bin/sh
echo start >> {folder}/starts
if [ "$(wc -l < {folder}/starts)" -gt {num_kills} ]; then exec {engine} "$@"; fi
{engine} "$@" &
until {moment} || ! kill -0 $!; do :; done
kill -KILL $!
wait $!
"""
# Locks the engine's message queue as a process that then ends.
LOCK_QUEUE = """
import ctypes, mmap, os, sys
memory = mmap.mmap(os.open("/dev/shm/ViZDoomMQCtr" + sys.argv[sys.argv.index("+viz_instance_id") + 1], os.O_RDWR), 0)
ctypes.CDLL(None).pthread_mutex_lock(ctypes.byref(ctypes.c_char.from_buffer(memory, 0x30)))
os._exit(0)
"""
KILLED_WHILE_STARTING = """
import sys, envfleet
from envfleet.families.vizdoom import game
make_folder = game.EngineFolder.__init__
game.EngineFolder.__init__ = lambda self, engine: make_folder(self, sys.argv[1])
with envfleet.make("Basic-v1", num_envs=2, num_workers=1, backend="threads") as envs:
    for _ in range(2):
        try:
            envs.reset(seed=0)
            envs.step([[0, 0, 0]] * 2)
            print("played")
            break
        except envfleet.EnvError as error:
            print(*[f"env {fault.env_id}: {fault.message}" for fault in error.faults])
"""


MOMENTS = {
    "at once": "true",
    "with its queues": "grep -q ViZDoomMQ /proc/$!/maps",
    "with a lock": '{python} {folder}/lock_queue.py "$@"',
    "many times": "true",
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_engine_is_killed_while_it_starts(moment: str, traces: Traces, tmp_path: Path) -> None:
    """ViZDoom's init() would crash this process, hence another one."""
    (tmp_path / "lock_queue.py").write_text(LOCK_QUEUE)
    command = MOMENTS[moment].format(python=sys.executable, folder=tmp_path)
    engine = tmp_path / "engine"
    original = Path(vizdoom.__file__).with_name("vizdoom")
    num_kills = 15 if moment == "many times" else 1
    engine.write_text(KILLED_ENGINE.format(engine=original, folder=tmp_path, moment=command, num_kills=num_kills))
    engine.chmod(0o700)
    result = subprocess.run(
        [sys.executable, "-c", KILLED_WHILE_STARTING, str(engine)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    fault, played = result.stdout.splitlines()
    # On a busy machine, an engine that has its queues may finish its start before it is killed.
    said = "died: .*" if moment == "with its queues" and " died: " in fault else "was killed while it started"
    assert re.fullmatch(f"env 0: GameError: the ViZDoom engine {said}; reset\\(\\) starts a new one", fault)
    assert played == "played"
    traces.assert_gone()


def test_a_dead_watchdog_is_replaced(traces: Traces) -> None:
    def watchdogs() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter(["cmdline"]):
            command = process.info["cmdline"] or []
            if str(os.getpid()) in command[-1:] and any(part.endswith("watchdog.py") for part in command):
                found.append(process)
        return found

    with envfleet.make("Basic-v1", num_envs=1) as envs:
        envs.reset(seed=0)
        assert len(watchdogs()) == 1
        watchdogs()[0].kill()
        wait_until(lambda: not watchdogs())
        with envfleet.make("Basic-v1", num_envs=1) as others:
            others.reset(seed=0)
            assert len(watchdogs()) == 1
    wait_until(lambda: not watchdogs())  # it leaves with the last game
    assert watchdogs() == []
    traces.assert_gone()


# --- several players -----------------------------------------------------------------------------------


def play(backend: str, steps: int = 12) -> list[Any]:
    with envfleet.make_pettingzoo(
        "VizdoomDuel-v1", layout="rows", num_envs=2, backend=backend, game_variables=["POSITION_X", "ANGLE"], **PLAYERS
    ) as envs:
        obs, info = envs.reset(seed=4)
        assert info["players.env_id"].tolist() == [0, 0, 1, 1]
        assert info["players.id"].tolist() == [0, 1, 0, 1]
        assert obs.shape == (4, 4, 84, 84)
        assert not np.array_equal(obs[0], obs[1])
        actions = np.random.default_rng(0)
        rows = [info["POSITION_X"].tolist()]
        for _ in range(steps):
            obs, reward, _, _, info = envs.step(actions.integers(0, envs.single_action_space.n, len(obs)))
            rows.append([info["POSITION_X"].tolist(), info["ANGLE"].tolist(), info["HEALTH"].tolist(), reward.tolist()])
    return rows


def test_players_same_seed_same_start(traces: Traces) -> None:
    # The start alone: the engines meet over the network, and when a player's action arrives is not the seed's to say.
    assert play("threads")[0] == play("serial")[0]
    assert (traces.processes(), traces.files()) == ([], [])


def test_players_episodes(traces: Traces) -> None:
    with envfleet.make_pettingzoo("VizdoomDuel-v1", time_limit=3, **PLAYERS) as envs:
        envs.reset(seed=0)
        engines = set(traces.engines())
        ends = []
        idle = {agent: np.zeros(1, dtype=int) for agent in envs.possible_agents}
        for _ in range(8):
            *_, truncated, _ = envs.step(idle)
            ends.append(bool(truncated["player_1"][0]))
        assert ends == [False, False, True, False] * 2  # the fourth call begins the next episode
        assert set(traces.engines()) == engines  # in the same game
    traces.assert_gone()


def test_a_player_is_killed(traces: Traces) -> None:
    with envfleet.make_pettingzoo("VizdoomDuel-v1", backend="threads", **PLAYERS) as envs:
        envs.reset(seed=0)
        idle = {agent: np.zeros(1, dtype=int) for agent in envs.possible_agents}
        os.kill(traces.engines()[1], signal.SIGKILL)
        with pytest.raises(EnvError, match=r"the engine of player_. died"):
            envs.step(idle)
        assert (traces.processes(), traces.files()) == ([], [])
        envs.reset(seed=0)
        envs.step(idle)
    traces.assert_gone()


def test_a_port_that_is_taken(traces: Traces) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with (
            envfleet.make_pettingzoo("VizdoomDuel-v1", port=port, **PLAYERS) as envs,
            pytest.raises(EnvError, match=f"{port}, which is in use"),
        ):
            envs.reset(seed=0)
    traces.assert_gone()


def test_wrong_players() -> None:
    with pytest.raises((ConfigError, EnvError), match="num_players"):
        envfleet.make_pettingzoo("VizdoomDuel-v1", num_players=1)
    with pytest.raises(ConfigError, match="VizdoomDuel-v1"):
        envfleet.make_pettingzoo("VizdoomDual-v1")
