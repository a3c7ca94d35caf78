"""Beginning and ending: clusters that are found and left, drivers that die, Ray that is not there."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ray_probes import PlacedEnv
from support.ray_session import ray_session
from support.traces import alive, wait_until

import envfleet
from envfleet import ConfigError, ForkedPoolError, PoolClosedError, RayConfig
from envfleet.executors.ray import cluster as ray_cluster

ray = pytest.importorskip("ray")

TESTS = Path(__file__).parent.parent


def run(script: str, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS / "ray_backend")])}
    environment.pop("RAY_ADDRESS", None)
    command = [sys.executable, "-W", "error", "-c", script, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True, **options)


def test_a_local_cluster_is_quiet_and_gone_after_close():
    """And the second of two pools keeps it until it closes too."""
    done = run(
        """
import psutil, envfleet
one = envfleet.make("CartPole-v1", backend="ray", num_workers=1, num_envs=2)
two = envfleet.make("CartPole-v1", backend="ray", num_envs=2)
assert two.pool.config.num_workers >= 1
one.reset(seed=0)
one.close()
import ray
assert ray.is_initialized()
two.reset(seed=0)
children = psutil.Process().children(recursive=True)
assert children
two.close()
assert not ray.is_initialized()
_, left = psutil.wait_procs(children, timeout=20)
assert not left, left
"""
    )
    assert done.stdout + done.stderr == ""


def test_a_session_of_the_caller_stays(make):
    assert ray_session() is not None
    pool = make("CartPole-v1", num_workers=1)
    pool.reset()
    pool.close()
    pool.close()
    assert ray.is_initialized()
    with pytest.raises(PoolClosedError):
        pool.reset()
    session = ray_cluster.acquire_session()
    assert not session.is_own
    session.release()
    assert ray.is_initialized()


def test_a_running_cluster_is_joined_and_left():
    done = run(
        """
import sys, envfleet, ray
envs = envfleet.make("CartPole-v1", backend="ray", num_workers=1, ray=envfleet.RayConfig(address=sys.argv[1]))
assert ray.get_runtime_context().gcs_address == sys.argv[1]
envs.reset(seed=0)
try:
    envfleet.make("CartPole-v1", backend="ray", num_workers=1, ray=envfleet.RayConfig(address="10.0.0.1:1"))
except envfleet.ConfigError as error:
    assert "already" in str(error)
del envs
import gc; gc.collect()
assert not ray.is_initialized()
print("left")
""",
        ray_session().address,
    )
    assert done.stdout == "left\n"
    assert ray.is_initialized()


def test_a_cluster_has_several_names(make):
    host, port = ray_session().address.rsplit(":", 1)
    for name in (host, "localhost", "127.0.0.1", socket.gethostname()):
        if name != host and not can_reach(name, host):
            continue
        pool = make("CartPole-v1", num_workers=1, ray=RayConfig(address=f"{name}:{port}"))
        pool.close()
    for name in ("localhost:1", f"no.such.host.invalid:{port}", f"192.0.2.99:{port}", "localhost"):
        with pytest.raises(ConfigError, match="to which this process is already connected"):
            make("CartPole-v1", num_workers=1, ray=RayConfig(address=name))


def can_reach(name: str, host: str) -> bool:
    """Whether a name of this machine is known, and the cluster's head runs on this machine."""
    try:
        socket.getaddrinfo(name, None)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
        return True
    except OSError:
        return False


def test_an_unreachable_address_is_reported_at_once():
    done = run(
        """
import envfleet, socket, threading
other = socket.create_server(("127.0.0.1", 0))
def answer():
    connection, _ = other.accept()
    connection.sendall(b"220 a mail server\\r\\n")
    connection.recv(1000)
    connection.close()
threading.Thread(target=answer).start()
for address in ("127.0.0.1:1", "nonsense", f"127.0.0.1:{other.getsockname()[1]}"):
    try:
        envfleet.make("CartPole-v1", backend="ray", num_workers=1, ray=envfleet.RayConfig(address=address))
    except envfleet.ConfigError as error:
        print(error)
"""
    )
    assert "expected a running Ray cluster at address='127.0.0.1:1', got none" in done.stdout
    assert "address='nonsense'" in done.stdout
    assert "does not answer as Ray does (b'220 a mai')" in done.stdout


def test_actors_die_with_their_driver():
    """However it ends, on a cluster that goes on."""
    script = """
import sys, os, signal, envfleet
from support.python_probes import FaultyEnv
cluster = envfleet.RayConfig(address=sys.argv[1])
pool = envfleet.make_pool(FaultyEnv, backend="ray", num_workers=2, num_envs=2, ray=cluster)
pool.reset()
print(*pool.executor.worker_pids, flush=True)
signal.pause()
"""
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-c", script, ray_session().address]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        pids = [int(pid) for pid in driver.stdout.readline().split()]
        assert len(alive(pids)) == 2
        driver.send_signal(signal.SIGKILL)
    assert wait_until(lambda: not alive(pids), 30)


def test_without_ray_the_error_names_the_extra():
    done = run(
        """
import sys
sys.modules["ray"] = None
import envfleet
try:
    envfleet.make("CartPole-v1", backend="ray", num_workers=1)
except envfleet.MissingExtraError as error:
    print(error)
"""
    )
    assert 'pip install "envfleet[ray]"' in done.stdout


# CPython says that fork() and threads mix badly.
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_pool_in_a_forked_child_says_so(make):
    pool = make("CartPole-v1", num_workers=1)
    pool.reset(seed=0)
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            pool.step([0])
        except ForkedPoolError:
            os.write(write_end, b"told")
        finally:
            pool.close()
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as told:
        assert told.read() == b"told"
    assert len(pool.step([0])) == 1


def test_runtime_env_reaches_the_actors(make):
    pool = make(PlacedEnv, num_workers=1, ray=RayConfig(runtime_env={"env_vars": {"ENVFLEET_TEST": "yes"}}))
    assert pool.call("variable", "ENVFLEET_TEST") == ("yes",)


def test_what_an_env_raises_in_close_is_a_warning(make):
    from support.faulty_env import MisbehavingEnv

    pool = make(MisbehavingEnv, num_workers=2, env_kwargs=[{}, {"fail_in": "close"}], num_envs=2)
    with pytest.warns(RuntimeWarning, match=r"env 1 raised in close\(\).*trouble in close"):
        pool.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": 2, "ray": {"envs_per_worker": 3}, "num_envs": 7}, r"2 \* 3 = 6, got 7"),
        ({"ray": {"envs_per_worker": 3}, "num_envs": 7}, "multiple of envs_per_worker=3, got 7"),
        ({"ray": {"envs_per_worker": 3}}, "num_workers or num_envs beside it"),
        ({"num_workers": 1, "ray": {"inner_backend": "fast"}}, "inner_backend expected one of"),
        ({"num_workers": 1, "ray": {"actor_options": 3}}, "actor_options expected a dict"),
        (
            {"num_workers": 1, "ray": {"actor_options": {"max_restarts": 3}}},
            "actor_options cannot contain 'max_restarts'",
        ),
        (
            {"num_workers": 1, "ray": {"actor_options": {"num_cpus": "two"}}},
            r"\['num_cpus'\] expected a number of cores",
        ),
        ({"num_workers": 1, "ray": {"actor_options": {"num_cpus": -1}}}, r"\['num_cpus'\] expected a number of cores"),
        ({"num_workers": 1, "ray": {"placement_timeout_s": -1}}, "placement_timeout_s expected seconds above 0"),
        ({"num_workers": 1, "ray": {"address": 7}}, "address expected an address"),
    ],
)
def test_wrong_options_are_told_before_anything_starts(options, message):
    with pytest.raises(ConfigError, match=message):
        envfleet.make_pool("CartPole-v1", backend="ray", **{**options, "ray": RayConfig(**options["ray"])})


@pytest.mark.parametrize(
    "config",
    [
        RayConfig(actor_options={"nonsense": 1}),
        RayConfig(actor_options={"resources": 3}),
        RayConfig(actor_options={"scheduling_strategy": "nearby"}),
        RayConfig(runtime_env={"working_dir": "/no/such/folder"}),
    ],
    ids=str,
)
def test_what_ray_refuses_is_told_as_an_option(make, config):
    with pytest.raises(ConfigError, match="actor_options and runtime_env expected what"):
        make("CartPole-v1", num_workers=1, ray=config)


POOL_AND_RUNNER = """
import envfleet
from envfleet.sampling import Runner
from functools import partial
from sampling.sampling_probes import counting

pool = envfleet.make("CartPole-v1", backend="ray", num_workers=1, num_envs=2)
pool.reset(seed=0)
runner = Runner([partial(counting, 0)], backend="ray")
stream = runner.trajs()
next(stream)
"""


def test_what_a_forked_child_drops_does_no_harm():
    """A child that lets a handle go would speak to Ray on its parent's connections."""
    done = run(
        POOL_AND_RUNNER
        + """
import gc, os, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, which is the subject
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        pool.close()
        runner.close()
        del pool, runner, stream
        gc.collect()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
pool.step([0, 0])
next(stream)
other = envfleet.make("CartPole-v1", backend="ray", num_workers=1, num_envs=1)
other.reset(seed=0)
for own in (other, pool, runner):
    own.close()
"""
    )
    assert done.stdout + done.stderr == ""


def test_after_ray_shutdown_no_other_session_is_begun():
    """Ray would start one at the next call, whatever it is."""
    done = run(
        POOL_AND_RUNNER
        + """
import ray
ray.shutdown()
def refused(call, *arguments):
    try:
        call(*arguments)
    except envfleet.PoolClosedError as error:
        assert "ray.shutdown()" in str(error), error
    else:
        raise AssertionError(call)
    assert not ray.is_initialized(), call
for call in ((pool.step, [0, 0]), (pool.reset,), (next, stream), (next, runner.trajs()), (runner.broadcast, 3)):
    refused(*call)
ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
try:
    pool.step([0, 0])
    raise AssertionError
except envfleet.PoolClosedError:
    pass
stream.close()
runner.close()
pool.close()
assert ray.is_initialized()
ray.shutdown()
"""
    )
    assert done.stdout + done.stderr == ""


@pytest.mark.parametrize("backend", ["auto", "native", "serial", "threads", "processes"])
def test_options_of_ray_are_refused_elsewhere(backend):
    with pytest.raises(ConfigError, match=r"ray=RayConfig\(...\) expected backend='ray'"):
        envfleet.make_pool("CartPole-v1", backend=backend, ray=RayConfig(envs_per_worker=2))
