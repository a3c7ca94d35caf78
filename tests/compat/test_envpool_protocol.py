"""envpool_wrapper's two files, with their original import lines."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from gymnasium import spaces

import envfleet
from envfleet.compat import envpool_protocol
from envfleet.compat.envpool_protocol import CppWrapperGenerator, EnvManager, EnvPoolProtocol

FIRST = """
from envpool_protocol.envpool_protocol import EnvPoolProtocol
from envpool_protocol.manager import EnvManager, CppWrapperGenerator
import gym
import numpy as np


class MyEnv(EnvPoolProtocol, gym.Env):
    def __init__(self, envid, size=3, step=1.0):
        super().__init__()
        self.envid, self.size, self.stride = envid, size, step
        self.observation_space = gym.spaces.Box(low=-100.0, high=100.0, shape=(size,))
        self.action_space = gym.spaces.Box(low=-1.0, high=1.0, shape=(1,))

    def _step_envpool(self, act):
        self.count += 1

    def _reward_envpool(self):
        return self.stride * self.count

    def _reset_envpool(self):
        self.count = 0
        self.start = float(self.np_random.uniform())

    def _make_obs_envpool(self):
        return np.array([self.envid, self.start, self.count], dtype=np.float32)[: self.size]

    def _done_envpool(self):
        return False


if __name__ == "__main__":
    EnvManager.register_env(MyEnv)
    CppWrapperGenerator.generate_envpool_wrap(MyEnv)
"""

SECOND = """
import envpool_wrap as envpool
from envpool_wrap.registration import list_all_envs, make, register
import numpy as np

assert list_all_envs() == envpool.list_all_envs()
assert "MyEnv_wrap" in envpool.list_all_envs(), envpool.list_all_envs()
env = envpool.make(task_id="MyEnv_wrap", env_type="gym")
obs = env.reset()
assert obs.shape == (1, 3)
env.step(np.zeros((1, 1)) + 1)
env = envpool.make(task_id="MyEnv_wrap", env_type="gym", num_envs=4, seed=5, max_episode_steps=2, step=2.0)
assert env.pool.spec.backend == "processes"
obs = env.reset()
assert obs[:, 0].tolist() == [0, 1, 2, 3]
assert len(set(obs[:, 1].tolist())) == 4
obs, reward, done, info = env.step(np.zeros((4, 1), dtype=np.float32))
assert reward.tolist() == [2, 2, 2, 2]
obs, reward, done, info = env.step(np.zeros((4, 1), dtype=np.float32))
assert done.all() and info["TimeLimit.truncated"].all()
threads = envpool.make_gymnasium("MyEnv_wrap", num_envs=4, seed=5, backend="threads")
assert (threads.reset()[0] == env.reset(seed=5)).all()
env.close()
print("done")
"""


def test_two_files_as_they_are(run_python, tmp_path):
    (tmp_path / "my_env.py").write_text(FIRST)
    (tmp_path / "train.py").write_text(SECOND)
    run_python("-m", "envfleet.compat", "my_env.py")
    assert "done" in run_python("train.py").stdout
    kept = json.loads((tmp_path / "data" / "envpool_wrap.json").read_text())
    assert kept["envs"]["MyEnv_wrap"]["file"] == str((tmp_path / "my_env.py").resolve())
    run_python("-m", "envfleet.compat", "my_env.py")  # once more: its own file is written over
    assert "done" in run_python("-m", "envfleet.compat", "train.py").stdout


def test_two_files_in_two_folders(run_python, tmp_path):
    """No envpool_wrap.py beside the second: install() has to be called."""
    install = "import envfleet.compat.envpool_protocol\nenvfleet.compat.envpool_protocol.install()\n"
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "my_env.py").write_text(install + FIRST)
    (tmp_path / "b" / "train.py").write_text(install + SECOND)
    (tmp_path / "b" / "my_env.py").write_text("raise RuntimeError('another module of that name')")
    run_python("a/my_env.py")
    assert "done" in run_python("b/train.py").stdout


def test_a_package_and_a_file_that_moved(run_python, tmp_path):
    package = tmp_path / "games" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "games" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "mine.py").write_text(
        FIRST.replace("import numpy as np", "import numpy as np\nfrom games.inner import other")
    )
    (package / "other.py").write_text("")
    run_python("-m", "envfleet.compat", "-m", "games.inner.mine")
    code = "from envfleet.compat import envpool_wrap as e; print(e.make('MyEnv_wrap', num_envs=2).reset().shape)"
    assert run_python("-c", code).stdout.strip() == "(2, 3)"
    (package / "mine.py").unlink()
    assert "mine.py, which no longer exists" in run_python("-c", code, check=False).stderr


class Meter(EnvPoolProtocol):
    """Dict observations of several dtypes, discrete actions, no base class of anybody's."""

    observation_space = spaces.Dict({"level": spaces.Box(0, 255, (2, 2), np.uint8), "kind": spaces.Discrete(4)})
    action_space = spaces.MultiDiscrete([3, 2])

    def __init__(self, envid, fail_at=None):
        self.envid, self.fail_at, self.random = envid, fail_at, np.random.RandomState(0)
        self.calls = []

    def seed(self, seed):
        self.random = np.random.RandomState(seed)

    def _step_envpool(self, act):
        assert act.dtype == np.int64
        self.count += 1
        if self.count == self.fail_at:
            raise ValueError("the meter broke")

    def _reset_envpool(self):
        self.count = 0
        self.start = self.random.randint(0, 200)

    def _make_obs_envpool(self):
        return {"level": np.full((2, 2), self.start + self.count, dtype=np.uint8), "kind": self.envid % 4}

    def _done_envpool(self):
        return self.count == 3

    def _reward_envpool(self):
        return 1.0


def test_any_space_and_dtype_and_seeds_that_arrive(protocol_alias):
    import envpool_wrap

    EnvManager.register_env(Meter)
    assert "Meter_wrap" in envpool_wrap.list_all_envs()
    rollouts = []
    for backend in ("serial", "threads", "processes"):
        env = envpool_wrap.make_gymnasium("Meter_wrap", num_envs=3, seed=9, backend=backend)
        rows = [env.reset()[0]["level"][:, 0, 0].tolist()]
        for _ in range(5):
            obs, _, terminated, truncated, _ = env.step(np.ones((3, 2), dtype=np.int64))
            rows.append((obs["level"][:, 0, 0].tolist(), terminated.tolist(), truncated.tolist()))
        assert obs["level"].dtype == np.uint8
        assert obs["kind"].tolist() == [0, 1, 2]
        rollouts.append(rows)
        env.close()
    assert rollouts[0] == rollouts[1] == rollouts[2]
    assert rollouts[0][0] == [int(np.random.RandomState(9 + i).randint(0, 200)) for i in range(3)]


def test_num_envs_may_be_numpys(protocol_alias):
    import envpool_wrap

    EnvManager.register_env(Meter)
    env = envpool_wrap.make_gymnasium("Meter_wrap", num_envs=np.int64(2), backend="serial")
    assert env.reset()[0]["kind"].tolist() == [0, 1]
    env.close()


def test_an_exception_comes_with_its_traceback(protocol_alias):
    import envpool_wrap

    EnvManager.register_env(Meter)
    env = envpool_wrap.make("Meter_wrap", num_envs=2, fail_at=1)
    env.reset()
    with pytest.raises(envfleet.EnvError, match="the meter broke") as caught:
        env.step(np.ones((2, 2), dtype=np.int64))
    assert "_step_envpool" in caught.value.env_traceback
    env.close()


def test_classes_without_a_file_stay_here(protocol_alias):
    import envpool_wrap

    class Local(Meter):
        pass

    with pytest.warns(UserWarning, match="registered in this process only"):
        CppWrapperGenerator.generate_envpool_wrap(Local)
    env = envpool_wrap.make("Local_wrap", num_envs=2)
    assert env.reset()["kind"].tolist() == [0, 1]
    env.close()
    assert envpool_protocol.forget("Local_wrap")
    assert not envpool_protocol.forget("Local_wrap")


def test_what_is_refused(protocol_alias, tmp_path, monkeypatch):
    import envpool_wrap

    class Half(EnvPoolProtocol):
        def _step_envpool(self, act):
            pass

    with pytest.raises(envfleet.ConfigError, match="got Half, which lacks _reset_envpool, _make_obs_envpool"):
        EnvManager.register_env(Half)
    with pytest.raises(envfleet.ConfigError, match="expected a class, got int"):
        CppWrapperGenerator.generate_envpool_wrap(3)
    EnvManager.register_env(Meter)
    with pytest.raises(envfleet.UnknownEnvError, match="did you mean Meter_wrap"):
        envpool_wrap.make("Meter_wrp")
    with pytest.raises(envfleet.ConfigError, match="num_envs"):
        envpool_wrap.make("Meter_wrap", num_envs=0)
    envpool_protocol.registry_file().write_text("{")
    with pytest.raises(envfleet.EnvfleetError, match="delete it and register"):
        envpool_wrap.list_all_envs()
    monkeypatch.setenv("ENVFLEET_DATA", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    with pytest.raises(envfleet.EnvfleetError, match="set ENVFLEET_DATA"):
        EnvManager.register_env(Meter)


def test_a_file_of_somebody_else_is_not_written_over(run_python, tmp_path):
    (tmp_path / "my_env.py").write_text(FIRST)
    (tmp_path / "envpool_wrap.py").write_text("mine = 1\n")
    result = run_python("-m", "envfleet.compat", "my_env.py", check=False)
    assert "which it did not write" in result.stderr
    assert (tmp_path / "envpool_wrap.py").read_text() == "mine = 1\n"


TORCHRL = """
import warnings
warnings.simplefilter("ignore")
import envpool_wrap as envpool
from torchrl.envs import MultiThreadedEnvWrapper, check_env_specs
env = MultiThreadedEnvWrapper(envpool.make("MyEnv_wrap", env_type="gym", num_envs=2, gym_reset_return_info=True))
check_env_specs(env)
env.close()
print("done")
"""


@pytest.mark.parametrize("command", [("train.py",), ("-m", "envfleet.compat", "train.py")], ids=["plain", "compat"])
def test_torchrl_takes_the_pools(command, run_python, tmp_path):
    pytest.importorskip("treevalue")
    pytest.importorskip("torchrl")
    (tmp_path / "my_env.py").write_text(FIRST)
    (tmp_path / "train.py").write_text(TORCHRL)
    run_python("-m", "envfleet.compat", "my_env.py")
    assert "done" in run_python("-W", "ignore", *command).stdout


def test_torchrl_beside_an_installed_envpool(run_python, tmp_path):
    pytest.importorskip("treevalue")
    pytest.importorskip("torchrl")
    (tmp_path / "my_env.py").write_text(FIRST)
    (tmp_path / "train.py").write_text(TORCHRL)
    (tmp_path / "installed" / "envpool").mkdir(parents=True)
    (tmp_path / "installed" / "envpool" / "__init__.py").write_text("")
    variables = {"PYTHONPATH": str(tmp_path / "installed")}
    run_python("-m", "envfleet.compat", "my_env.py")
    assert "done" in run_python("-W", "ignore", "-m", "envfleet.compat", "train.py", **variables).stdout
    # The error names both remedies: that one, and envfleet's class.
    (tmp_path / "train.py").write_text(
        """
import envpool_wrap as envpool
from envfleet.compat import torchrl as ours
from torchrl import envs as theirs
pool = envpool.make("MyEnv_wrap", env_type="gym", num_envs=2, gym_reset_return_info=True)
try:
    theirs.MultiThreadedEnvWrapper(pool)
except Exception as error:
    print(error)
env = ours.MultiThreadedEnvWrapper(pool)
theirs.check_env_specs(env)
env.close()
print("done")
"""
    )
    shown = run_python("-W", "ignore", "train.py", **variables).stdout
    assert "expected a pool of the EnvPool that is installed" in shown
    assert "python -m envfleet.compat" in shown
    assert "envfleet.compat.envpool.install()" in shown
    assert shown.endswith("done\n")


def test_many_processes_register_at_once(run_python, tmp_path):
    import subprocess

    (tmp_path / "my_env.py").write_text(FIRST)
    code = """
import sys, envfleet.compat.envpool_protocol as p
p.install()
import my_env
cls = type(f"Env{sys.argv[1]}", (my_env.MyEnv,), {"__module__": "my_env"})
p.EnvManager.register_env(cls)
"""
    (tmp_path / "one.py").write_text(code)
    environment = {**__import__("os").environ, "ENVFLEET_DATA": str(tmp_path / "data")}
    running = [subprocess.Popen([sys.executable, "one.py", str(i)], cwd=tmp_path, env=environment) for i in range(4)]
    assert [process.wait(100) for process in running] == [0] * 4
    kept = json.loads((tmp_path / "data" / "envpool_wrap.json").read_text())
    assert set(kept["envs"]) == {f"Env{i}_wrap" for i in range(4)}
