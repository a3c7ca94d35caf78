"""The fork server: one worker's trouble stays with that worker, and a server that dies is replaced."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import threading
import time
import warnings

import psutil
import pytest
from misbehaving_pools import assert_usable, worker_pids
from pool_scripts import run_pool_script
from support.faulty_env import MisbehavingEnv, Misbehavior
from support.traces import Traces, alive, assert_nothing_left, wait_until

import envfleet
from envfleet import WorkerDied, _native
from envfleet.executors.processes.channel import Channel

STEP = Misbehavior.STEP
STARTS = ["forkserver", "spawn"]
# How /proc names the descriptor of a pool's shared memory.
SHARED_MEMORY = "/memfd:envfleet" if "memfd" in _native.features else "/dev/shm/envfleet-"


def make(start_method: str = "forkserver", **options) -> envfleet.Pool:
    defaults = {"task_id": MisbehavingEnv, "num_envs": 2, "num_workers": 1, "backend": "processes"}
    return envfleet.make_pool(**{**defaults, "start_method": start_method, **options})


def server_of(pool: envfleet.Pool) -> psutil.Process:
    return psutil.Process(worker_pids(pool)[0]).parent()


def step_until_death(pool: envfleet.Pool) -> None:
    with contextlib.suppress(WorkerDied):
        while True:
            pool.step([STEP] * pool.num_envs)


def test_spawn_pools_are_closed_while_others_are_made():
    """The end of every worker is reported, whichever call of the server meets it first."""
    with make() as bystander:
        bystander.reset(seed=0)
        server, before = server_of(bystander), Traces.now()
        errors: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for _ in range(2):
                    with make("spawn") as pool:
                        assert pool.reset(seed=number).obs[:, 1].tolist() == [0, 0]
                        os.kill(worker_pids(pool)[0], signal.SIGKILL)
                        step_until_death(pool)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors
        assert bystander.step([STEP] * 2).obs[:, 1].tolist() == [1, 1]
        assert server_of(bystander).pid == server.pid
        assert not [child for child in server.children() if child.status() == psutil.STATUS_ZOMBIE]
        assert_nothing_left(before)


@pytest.mark.parametrize("start_method", STARTS)
def test_a_worker_that_cannot_be_started_is_that_pools_trouble_alone(start_method):
    with make() as bystander:
        bystander.reset(seed=0)
        server = server_of(bystander)
        limits = server.rlimit(psutil.RLIMIT_NOFILE)
        # The server can take no further descriptor, so the new worker's never arrives.
        used = {int(entry) for entry in os.listdir(f"/proc/{server.pid}/fd")}
        server.rlimit(psutil.RLIMIT_NOFILE, (min(set(range(len(used) + 1)) - used), limits[1]))
        try:
            with pytest.raises(WorkerDied, match=r"could not be started: .*ulimit -n"):
                make(start_method)
            assert bystander.step([STEP] * 2).obs[:, 1].tolist() == [1, 1]
        finally:
            server.rlimit(psutil.RLIMIT_NOFILE, limits)
        with make(start_method) as pool:
            assert_usable(pool)
            assert server_of(pool).pid == server.pid


@pytest.mark.parametrize("start_method", STARTS)
def test_a_killed_fork_server_is_replaced(start_method):
    pools = [make(start_method) for _ in range(2)]
    try:
        for pool in pools:
            pool.reset(seed=0)
        server = server_of(pools[0])
        orphans = [pid for pool in pools for pid in worker_pids(pool)]
        server.kill()
        for pool in pools:
            step_until_death(pool)
        assert wait_until(lambda: not alive(orphans))
        with make(start_method) as fresh:
            assert_usable(fresh)
            assert server_of(fresh).pid != server.pid
        for pool in pools:
            assert_usable(pool)
    finally:
        for pool in pools:
            pool.close()


def test_pools_are_made_while_fork_servers_are_killed():
    """Each pool is either made or says that its worker died; nothing else, and nothing is left."""
    with make() as pool:
        first = server_of(pool)
    before = Traces.now()
    for attempt in range(6):
        with make() as pool:
            server = server_of(pool)
        killer = threading.Timer(attempt * 0.004, server.kill)
        killer.start()
        try:
            for _ in range(3):
                with make(num_workers=2) as pool:
                    pool.reset()
        except WorkerDied:
            pass
        killer.join()
    with make() as pool:
        last = server_of(pool)
    # One server was there before, and one is now; what else was a child before may have ended by itself.
    assert not first.is_running()
    assert {child.pid for child in psutil.Process().children()} - before.children == {last.pid}
    assert Traces.now().descriptors == before.descriptors


def test_an_interrupted_start_tears_nothing(tmp_path):
    """KeyboardInterrupt anywhere in make(): the fork server, its other pools and the descriptors stay as they were."""
    code = """
        import random
        from support.traces import Traces, assert_nothing_left
        def make():
            return envfleet.make_pool(MisbehavingEnv, num_envs=2, num_workers=2, backend="processes")
        class Interrupter:
            # Raises at the nth line that is run in our code from here on.
            def __init__(self, count):
                self.count = count
            def __call__(self, frame, event, argument):
                if "envfleet" not in frame.f_code.co_filename:
                    return None
                frame.f_trace_opcodes = True
                self.count -= 1
                if self.count == 0:
                    raise KeyboardInterrupt
                return self
        bystander = make()
        bystander.reset(seed=0)
        make().close()
        server = psutil.Process(bystander.executor.worker_pids[0]).parent()
        before = Traces.now()
        seed = int.from_bytes(os.urandom(4), "big")
        print("seed", seed, file=sys.stderr)
        randomly = random.Random(seed)
        num_interrupted = num_steps = 0
        while num_interrupted < 150:
            sys.settrace(Interrupter(int(2 ** randomly.uniform(0, 13.5))))
            pool = None
            try:
                pool = make()
            except KeyboardInterrupt:
                num_interrupted += 1
            finally:
                sys.settrace(None)
            if pool is not None:
                pool.close()
            if num_interrupted % 10 == 0:
                num_steps += 1
                assert bystander.step([Misbehavior.STEP] * 2).obs[:, 1].tolist() == [num_steps] * 2
        del pool
        assert server.is_running() and len(psutil.Process().children()) == 1
        assert_nothing_left(before)
        print("unharmed")
    """
    result = run_pool_script(tmp_path, code)
    assert (result.returncode, result.stdout) == (0, "unharmed\n"), result.stderr


# --- descriptors and close() ----------------------------------------------------------------------------


class ShellEnv(MisbehavingEnv):
    """Starts a program that outlives the pool."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def step(self, action):
        os.system(f"exec sleep {self.seconds} >/dev/null 2>&1 &")
        return super().step(action)


def test_threads_fork_one_at_a_time(tmp_path):
    # filelock, which torch imports, refuses a fork while another thread is inside one.
    done = run_pool_script(
        tmp_path,
        """
        import os, threading, time

        inside = []

        def enter():
            inside.append(threading.get_ident())
            time.sleep(0.02)  # lets another thread in

        def refuse(event, arguments):
            if event == "os.fork" and inside:
                raise RuntimeError("another thread is forking")

        os.register_at_fork(before=enter, after_in_parent=inside.clear, after_in_child=inside.clear)
        sys.addaudithook(refuse)
        start = threading.Barrier(4)
        errors = []

        def work():
            start.wait()
            try:
                for _ in range(3):
                    envfleet.make_pool("Acrobot-v1", num_envs=2, backend="processes", start_method="fork").close()
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors
        """,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("start_method", [*STARTS, "fork"])
def test_programs_that_an_env_starts_inherit_nothing_of_the_pool(start_method):
    seconds = f"1000.{os.getpid()}"  # tells the program from those of other test processes
    with make(start_method, num_envs=1, task_id=ShellEnv, seconds=seconds) as pool:
        pool.reset()
        pool.step([STEP])
    (sleeper,) = [child for child in psutil.process_iter(["cmdline"]) if child.info["cmdline"] == ["sleep", seconds]]
    try:
        inherited = [os.readlink(f"/proc/{sleeper.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{sleeper.pid}/fd")]
        assert not [target for target in inherited if target.startswith((SHARED_MEMORY, "socket", "anon_inode"))]
    finally:
        sleeper.kill()


@pytest.mark.parametrize("start_method", STARTS)
def test_workers_hold_their_own_descriptors_only(start_method):
    """Neither those of the fork server nor those of other pools."""
    with make(), make(start_method) as pool:
        pool.reset()
        folder = f"/proc/{worker_pids(pool)[0]}/fd"
        held = [os.readlink(f"{folder}/{fd}") for fd in os.listdir(folder) if int(fd) > 2]
        ours = (SHARED_MEMORY, "socket", "pipe", "anon")
        kinds = sorted(kind for target in held for kind in ours if target.startswith(kind))
        assert kinds == [SHARED_MEMORY, "socket"], held


class RaisesInClose(MisbehavingEnv):
    def close(self):
        raise RuntimeError(f"{'x' * 300}")


@pytest.mark.parametrize("start_method", STARTS)
def test_close_hears_all_faults_however_many(start_method):
    """More than a socket holds: 1024 messages of 300 bytes from one worker."""
    pool = make(start_method, num_envs=1024, task_id=RaisesInClose)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pool.close()
    assert len(caught) == 1024
    assert {str(own.message)[-300:] for own in caught} == {"x" * 300}


class Stays(MisbehavingEnv):
    """Its close() raises, or does not come back."""

    def __init__(self, stays):
        super().__init__()
        self.stays = stays

    def close(self):
        while self.stays:
            time.sleep(1)
        raise RuntimeError("x" * 300)


def test_a_worker_that_does_not_leave_hides_no_faults_of_others():
    pool = make(num_envs=2048, num_workers=2, task_id=Stays, env_kwargs=[{"stays": i == 0} for i in range(2048)])
    pids = worker_pids(pool)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pool.close()
    assert len(caught) == 1024
    assert not alive(pids)


class ForksAndStays(MisbehavingEnv):
    """Its child holds all that the worker has, and outlives it."""

    def __init__(self, note):
        super().__init__()
        child = os.fork()
        if child == 0:
            time.sleep(1000)
        note.write_text(str(child))
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_dies_is_noticed_though_its_child_holds_its_socket(tmp_path):
    note = tmp_path / "pid"
    try:
        with pytest.raises(WorkerDied, match="SIGKILL"):
            make(num_envs=1, task_id=ForksAndStays, note=note)
    finally:
        os.kill(int(note.read_text()), signal.SIGKILL)


def test_a_pool_collected_in_the_launcher_thread_closes():
    """As when garbage collection happens to run there."""
    from envfleet.executors.processes import launcher

    with make() as bystander:
        bystander.reset()
        pool = make()
        pids = worker_pids(pool)
        launcher._launcher.requests.put((pool.close,))
        assert wait_until(lambda: not alive(pids))
        assert bystander.step([STEP] * 2).obs[:, 1].tolist() == [1, 1]


def test_descriptors_of_a_message_that_is_cut_off_are_closed():
    read_end, write_end = os.pipe()
    sender, receiver = socket.socketpair()
    # A header that announces more than ever comes.
    sender.sendmsg(
        [struct.pack("<QI", 100, 1), b"half"],
        [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", write_end))],
    )
    os.close(write_end)
    sender.close()
    channel = Channel(receiver)
    assert channel.recv() is None
    os.set_blocking(read_end, False)
    assert os.read(read_end, 1) == b"", "the received end of the pipe is still open"
    os.close(read_end)
    channel.close()
