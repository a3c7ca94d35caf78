"""Workers know the aliases that their parent has installed: user code in modules is imported again in them.

`make test-gym` runs these tests beside gym 0.26.2.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from textwrap import dedent

import pytest

HAS_GYM = importlib.util.find_spec("gym") is not None

# Old gym's API, as a gym.Env of whichever gym there is. where() tells which, in the worker.
MY_ENVS = """
    import gym
    import numpy as np

    class MyEnv(gym.Env):
        observation_space = gym.spaces.Box(0.0, 9.0, (2,), np.float32)
        action_space = gym.spaces.Discrete(2)

        def __init__(self, size=2):
            self.size = size

        def reset(self):
            return np.ones(2, dtype=np.float32)

        def step(self, action):
            return np.ones(2, dtype=np.float32), 1.0, False, {}

        def where(self):
            import os
            return os.getpid(), repr(gym)

    def make():
        return MyEnv()

    def make_and_seed(seed):
        return MyEnv()

    def trajectories(limit=None):
        env = gym.make("CartPole-v1", disable_env_checker=True)
        yield "ready"
        while True:
            env.reset()
            yield [repr(gym), int(env.action_space.n)]
"""

# Each line of its output is one use, and whether the worker is another process with the same gym.
USES = """
    import os
    import gym
    import envfleet
    from envfleet.compat import envpool
    from env_wrappers.samplers.subproc_runner import SubprocRunner
    from env_wrappers.vec_env import SubprocVecEnv, make_env

    assert hasattr(gym, "_envfleet_installer") is not {has_gym}  # a real gym stays real

    def check(name, found):
        assert all(pid != os.getpid() and own == repr(gym) for pid, own in found), found
        print(name)

    def run(context):
        with SubprocVecEnv([{envs}.make] * 2, context=context) as vec_env:
            assert vec_env.reset().shape == (2, 2)
            check("SubprocVecEnv", vec_env.env_method("where"))
        with SubprocVecEnv([make_env({envs}.MyEnv, i) for i in range(2)], context=context) as vec_env:
            check("make_env", vec_env.env_method("where"))
        runner = SubprocRunner([{envs}.trajectories] * 2, context=context)
        assert next(runner.trajs()) == [repr(gym), 2]
        del runner
        print("SubprocRunner")
        with envpool.make({envs}.MyEnv, num_envs=2, start_method=context) as pool:
            assert pool.reset() is not None
        print("envpool.make")
        with envfleet.make({envs}.MyEnv, num_envs=2, start_method=context) as pool:
            check("envfleet.make", pool.call("where"))
"""
DONE = ["SubprocVecEnv", "make_env", "SubprocRunner", "envpool.make", "envfleet.make"]


@pytest.fixture
def project(tmp_path):
    """Write files into a folder, run Python there, and return the lines that it prints."""

    def run(files, *arguments, check=True):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(dedent(text))
        warnings = [] if HAS_GYM else ["-W", "error"]  # gym 0.26 itself warns
        result = subprocess.run(
            [sys.executable, *warnings, *arguments],
            cwd=tmp_path,
            env={**os.environ, "ENVFLEET_DATA": str(tmp_path / "data")},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        if not check:
            return result
        assert result.returncode == 0, result.stderr
        return result.stdout.splitlines()

    return run


@pytest.mark.parametrize("context", ["forkserver", "spawn", "fork"])
def test_a_module_that_imports_gym(context, project):
    main = f"import my_envs\n{dedent(USES.format(envs='my_envs', has_gym=HAS_GYM))}\nrun({context!r})\n"
    assert project({"my_envs.py": MY_ENVS, "main.py": main}, "-m", "envfleet.compat", "main.py") == DONE


def test_a_package(project):
    train = f"from pkg import envs\n{dedent(USES.format(envs='envs', has_gym=HAS_GYM))}\nrun(None)\n"
    files = {"pkg/__init__.py": "", "pkg/envs.py": MY_ENVS, "pkg/train.py": train}
    assert project(files, "-m", "envfleet.compat", "-m", "pkg.train") == DONE


def test_install_at_the_top_of_the_script(project):
    main = """
        import envfleet.compat.env_wrappers
        envfleet.compat.env_wrappers.install()
        import my_envs
        from env_wrappers.vec_env import SubprocVecEnv
        with SubprocVecEnv([my_envs.make] * 2) as vec_env:
            print(vec_env.reset().shape)
    """
    assert project({"my_envs.py": MY_ENVS, "main.py": main}, "main.py") == ["(2, 2)"]


def test_an_import_of_gym_inside_a_function_of_the_script(project):
    main = """
        from env_wrappers.samplers.subproc_runner import SubprocRunner
        from env_wrappers.vec_env import SubprocVecEnv

        def make():
            import gym
            return gym.make("CartPole-v1", disable_env_checker=True)

        def trajectories():
            import gym
            yield "ready"
            while True:
                yield gym.__name__

        with SubprocVecEnv([make] * 2) as vec_env:
            print(vec_env.reset().shape)
        runner = SubprocRunner([trajectories])
        print(next(runner.trajs()))
    """
    assert project({"main.py": main}, "-m", "envfleet.compat", "main.py") == ["(2, 4)", "gym"]


def test_a_module_that_imports_env_wrappers(project):
    helper = """
        import gymnasium
        from env_wrappers.monitor import Monitor

        def make():
            return Monitor(gymnasium.make("CartPole-v1"), None)
    """
    main = """
        import helper
        from env_wrappers.vec_env import SubprocVecEnv
        with SubprocVecEnv([helper.make] * 2) as vec_env:
            print(vec_env.reset().shape)
    """
    assert project({"helper.py": helper, "main.py": main}, "-m", "envfleet.compat", "main.py") == ["(2, 4)"]


PROTOCOL_ENV = """
    import gym
    import numpy as np
    from envpool_protocol.envpool_protocol import EnvPoolProtocol

    class MyEnv(EnvPoolProtocol, gym.Env):
        def __init__(self, envid):
            self.envid = envid
            self.observation_space = gym.spaces.Box(low=0.0, high=9.0, shape=(1,))
            self.action_space = gym.spaces.Box(low=-1.0, high=1.0, shape=(1,))

        def _step_envpool(self, act):
            pass

        def _reward_envpool(self):
            return 2.0

        def _reset_envpool(self):
            pass

        def _make_obs_envpool(self):
            return np.full(1, self.envid, dtype=np.float32)

        def _done_envpool(self):
            return False
"""


def test_an_env_of_envpool_wrappers_protocol_in_a_module(project):
    main = """
        import envfleet
        import envpool_wrap
        from envpool_protocol.manager import CppWrapperGenerator, EnvManager
        from my_env import MyEnv

        EnvManager.register_env(MyEnv)
        CppWrapperGenerator.generate_envpool_wrap(MyEnv)
        env = envpool_wrap.make_gymnasium("MyEnv_wrap", num_envs=3)
        print(env.reset()[0].ravel().tolist())
        env.close()
        with envfleet.make(MyEnv, num_envs=4) as envs:
            print(envs.reset()[0].ravel().tolist())
    """
    lines = project({"my_env.py": PROTOCOL_ENV, "main.py": main}, "-m", "envfleet.compat", "main.py")
    assert lines == ["[0.0, 1.0, 2.0]", "[0.0, 1.0, 2.0, 3.0]"]


@pytest.mark.skipif(HAS_GYM, reason="the README's calls are those before gym 0.26")
def test_the_samplers_tests_of_env_wrappers_readme_under_pytest(project):
    pytest.importorskip("pygame")
    tests = """
        from collections import defaultdict
        from functools import partial
        from itertools import islice

        import gym
        import numpy as np
        from env_wrappers.samplers.dummy_runner import DummyRunner
        from env_wrappers.samplers.subproc_runner import SubprocRunner

        def rand_traj_gen(env_id, seed, limit=None, **context_args):
            env = gym.make(env_id)
            env.seed(seed)
            yield "ready"
            while True:
                traj = defaultdict(list, obs=[env.reset()])
                act = env.action_space.sample()
                for step in range(limit or 1_000):
                    obs, r, done, info = env.step(act)
                    traj["obs"].append(obs)
                    traj["r"].append(r)
                    traj["info"].append(info)
                    traj["img"].append(env.render("rgb_array", width=84, height=84))
                    if done:
                        break
                new_limit = yield {k: np.stack(v, axis=0) for k, v in traj.items()}
                if new_limit is not None:
                    limit = new_limit

        def eval_sampler(runner_class, n_envs):
            gen_fns = [partial(rand_traj_gen, env_id="Pendulum-v1", seed=i * 100, limit=10) for i in range(n_envs)]
            runner = runner_class(gen_fns)
            for _ in range(2):
                for traj in islice(runner.trajs(), 5):
                    assert traj["img"].shape == (10, 84, 84, 3)
            del runner

        def test_subproc_sampler():
            eval_sampler(SubprocRunner, 2)

        def test_dummy_sampler():
            eval_sampler(DummyRunner, 2)
    """
    arguments = ["-m", "envfleet.compat", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_sampler.py"]
    lines = project({"test_sampler.py": tests}, *arguments)
    assert lines[-1].startswith("2 passed"), lines


NESTED = """
    import envfleet
    import gymnasium
    import my_envs

    class Outer(gymnasium.Env):
        observation_space = gymnasium.spaces.Discrete(9)
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self):
            self.inner = envfleet.make(my_envs.MyEnv, num_envs=1, backend="processes")

        def reset(self, *, seed=None, options=None):
            return self.inner.reset()[0].shape[1], {}

        def close(self):
            self.inner.close()
"""


def test_workers_of_a_worker(project):
    main = """
        import envfleet
        import nested
        with envfleet.make(nested.Outer, num_envs=2) as envs:
            print(envs.reset()[0])
    """
    files = {"my_envs.py": MY_ENVS, "nested.py": NESTED, "main.py": main}
    assert project(files, "-m", "envfleet.compat", "main.py") == ["[2 2]"]


@pytest.mark.skipif(HAS_GYM, reason="gym is installed")
def test_the_stand_in_for_gym_is_only_where_the_parent_uses_it(project):
    helper = """
        import importlib.util
        import gymnasium
        from env_wrappers.vec_env import make_env

        class Asks(gymnasium.Env):
            observation_space = action_space = gymnasium.spaces.Discrete(2)

            def has_gym(self):
                return importlib.util.find_spec("gym") is not None
    """
    main = """
        import envfleet
        from envfleet.compat import env_wrappers, gym_stand_in
        env_wrappers.install(old_gym=False)
        import helper

        def asked():
            with envfleet.make(helper.Asks, num_envs=1, backend="processes") as envs:
                return envs.call("has_gym")[0]

        print(asked())
        gym_stand_in.install()
        print(asked())
        env_wrappers.uninstall()
        gym_stand_in.uninstall()
        try:
            asked()
        except envfleet.EnvError as error:
            print(error)
    """
    *has_gym, message = project({"helper.py": helper, "main.py": main}, "main.py")[:3]
    assert has_gym == ["False", "True"]
    assert "No module named 'env_wrappers'" in message


def test_ray_actors(project):
    pytest.importorskip("ray")
    main = """
        import os
        import envfleet
        import gym
        import my_envs
        import ray
        from envfleet.sampling import Runner
        from RayEnvWrapper import WrapperRayVecEnv

        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        with WrapperRayVecEnv(my_envs.make_and_seed, 2, 1) as vec_env:
            print(vec_env.reset().shape)
            assert all(pid != os.getpid() and own == repr(gym) for pid, own in vec_env.env_method("where"))
        inner = envfleet.RayConfig(inner_backend="processes")
        with envfleet.make(my_envs.make, num_envs=2, backend="ray", num_workers=1, ray=inner) as envs:
            print(envs.reset()[0].shape)
        with Runner([my_envs.trajectories], backend="ray") as runner:
            print(next(runner.trajs()) == [repr(gym), 2])

        def make_without():
            import RayEnvWrapper

        envfleet.compat.ray_env_wrapper.uninstall()
        try:
            envfleet.make(make_without, num_envs=1, backend="ray")
        except envfleet.EnvError as error:
            print("call envfleet.compat.ray_env_wrapper.install()" in str(error))
    """
    files = {"my_envs.py": MY_ENVS, "main.py": main}
    # Ray's own warnings are not the subject.
    lines = project(files, "-W", "ignore", "-m", "envfleet.compat", "main.py")
    assert lines == ["(2, 2)", "(2, 2)", "True", "True"]


def test_a_missing_alias_is_named_with_its_install(project):
    installers = {
        "env_wrappers": "envfleet.compat.env_wrappers",
        "envpool_protocol": "envfleet.compat.envpool_protocol",
        "RayEnvWrapper": "envfleet.compat.ray_env_wrapper",
        "gym": "envfleet.compat.gym_stand_in",
    }
    if HAS_GYM:
        del installers["gym"]
    main = f"""
        from functools import partial
        from importlib import import_module

        import envfleet
        from envfleet.sampling import Runner

        def make(name):
            import_module(name)

        def trajectories(name):
            import_module(name)
            yield "ready"

        for name in {list(installers)}:
            for backend in ("serial", "processes"):
                for fail in (
                    lambda: envfleet.make(partial(make, name), num_envs=1, backend=backend),
                    lambda: Runner([trajectories], name, backend=backend),
                ):
                    try:
                        fail()
                    except envfleet.EnvError as error:
                        print(name, str(error).splitlines()[0])
    """
    lines = project({"main.py": main}, "main.py")
    assert len(lines) == 4 * len(installers)
    for line in lines:
        name, _, message = line.partition(" ")
        assert f"No module named '{name}'" in message
        assert f"call {installers[name]}.install()" in message
        assert "python -m envfleet.compat" in message
        assert "install the package that it needs" not in message
