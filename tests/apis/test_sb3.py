"""Pools as Stable-Baselines3's VecEnvs: its contract, against its own classes, and training on top."""

from __future__ import annotations

import importlib

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from sb3_probes import N, Plus, Probe, factories

import envfleet
from envfleet.errors import ActionError, ConfigError, EnvError

stable_baselines3 = pytest.importorskip("stable_baselines3")
torch = pytest.importorskip("torch")
sb3 = pytest.importorskip("stable_baselines3.common.vec_env")
monitoring = pytest.importorskip("stable_baselines3.common.monitor")
evaluation = pytest.importorskip("stable_baselines3.common.evaluation")
ours_sb3 = importlib.import_module("envfleet.apis.sb3")

A2C, DQN, PPO, SAC = (getattr(stable_baselines3, name) for name in ("A2C", "DQN", "PPO", "SAC"))
Monitor = monitoring.Monitor
DummyVecEnv, SubprocVecEnv = ours_sb3.DummyVecEnv, ours_sb3.SubprocVecEnv
EnvFleetVecEnv, make_vec_env = ours_sb3.EnvFleetVecEnv, ours_sb3.make_vec_env

torch.set_num_threads(1)


def over_serial(env_fns):
    return EnvFleetVecEnv(envfleet.make(env_fns, backend="serial", autoreset_mode="same_step"))


def over_processes(env_fns):
    return EnvFleetVecEnv(envfleet.make_pool(env_fns, backend="processes", autoreset_mode="same_step"))


OURS = [DummyVecEnv, SubprocVecEnv, over_serial, over_processes]


@pytest.fixture(params=OURS, ids=lambda make: make.__name__)
def make(request):
    return request.param


@pytest.fixture
def probes(make):
    envs = make(factories())
    yield envs
    envs.close()


def assert_same(one, other):
    """Equal values of equal structure."""
    if isinstance(other, dict):
        assert one.keys() == other.keys()
        for key in other:
            assert_same(one[key], other[key])
    elif isinstance(other, np.ndarray):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    else:
        assert one == other
        assert type(one) is type(other)


# --- the contract, against SB3's own DummyVecEnv ---------------------------------------------------


@pytest.mark.parametrize("is_dict", [False, True])
def test_a_rollout_is_that_of_sb3s_dummy_vec_env(make, is_dict):
    ours, theirs = make(factories(is_dict=is_dict)), sb3.DummyVecEnv(factories(is_dict=is_dict))
    assert ours.seed(7) == theirs.seed(7) == [7, 8, 9]
    assert_same(ours.reset(), theirs.reset())
    for mine, own in zip(ours.reset_infos, theirs.reset_infos, strict=True):
        assert mine["seed"] == own["seed"]
    rng = np.random.default_rng(0)
    for _ in range(11):
        actions = rng.integers(0, 4, N)
        obs, rewards, dones, infos = ours.step(actions)
        obs_, rewards_, dones_, infos_ = theirs.step(actions)
        assert_same(obs, obs_)
        assert_same(rewards, rewards_)
        assert_same(dones, dones_)
        assert isinstance(infos, list)
        for mine, own in zip(infos, infos_, strict=True):
            assert_same(mine, own)
    ours.close()
    theirs.close()


def test_infos_tell_how_an_episode_ended(probes):
    probes.reset()
    seen = {}
    for _ in range(5):
        _, _, dones, infos = probes.step(np.ones(N, int))
        for row, info in enumerate(infos):
            assert ("terminal_observation" in info) == dones[row]
            if dones[row]:
                seen.setdefault(row, info)
                assert probes.reset_infos[row]["seed"] == -1
                assert "TimeLimit.truncated" not in probes.reset_infos[row]
            else:
                assert info["TimeLimit.truncated"] is False
    # Env 1 ends by itself on its last permitted step: that is no time limit.
    assert [seen[row]["TimeLimit.truncated"] for row in range(N)] == [True, False, True]
    assert [seen[row]["terminal_observation"][0] for row in range(N)] == [3, 4, 5]


def test_what_is_handed_out_never_changes(probes):
    first = probes.reset()
    before = first.copy()
    _, rewards, dones, infos = probes.step(np.ones(N, int))
    kept = rewards.copy(), dones.copy(), list(infos[0]["history"])
    for _ in range(4):
        probes.step(np.zeros(N, int))
    np.testing.assert_array_equal(first, before)
    np.testing.assert_array_equal(rewards, kept[0])
    np.testing.assert_array_equal(dones, kept[1])


def test_dummy_vec_env_copies_the_objects_in_infos_as_sb3s_does():
    envs = DummyVecEnv(factories())
    envs.reset()
    _, _, _, infos = envs.step(np.ones(N, int))
    envs.step(np.ones(N, int))
    assert infos[0]["history"] == [1]
    envs.close()


def test_seeds_and_options_act_once(probes):
    probes.seed(3)
    probes.set_options({"hard": 1})
    probes.reset()
    assert [info["seed"] for info in probes.reset_infos] == [3, 4, 5]
    assert [info["options"] for info in probes.reset_infos] == [{"hard": 1}] * N
    probes.reset()
    assert [info["options"] for info in probes.reset_infos] == [None] * N
    assert all(info["seed"] == -1 for info in probes.reset_infos)
    probes.seed(3)
    probes.set_options([{"hard": 1}, {}, {"easy": 2}])
    obs = probes.reset()
    assert [info["options"] for info in probes.reset_infos] == [{"hard": 1}, None, {"easy": 2}]
    assert [info["seed"] for info in probes.reset_infos] == [3, 4, 5]
    probes.seed(3)
    np.testing.assert_array_equal(obs, probes.reset())
    with pytest.raises(ValueError, match="3, one for each env, got 2"):
        probes.set_options([{}, {}])


def test_attributes_and_methods_by_indices(probes):
    probes.reset()
    assert probes.get_attr("length") == [3, 4, 5]
    assert probes.get_attr("length", 1) == probes.get_attr("length", [1]) == [4]
    assert probes.get_attr("length", -1) == [5]
    assert probes.get_attr("length", [2, 0, 2]) == [5, 3, 5]
    assert probes.get_attr("length", []) == []
    assert probes.set_attr("extra", [1, 2], indices=[0, -1]) is None
    assert probes.get_attr("extra", [0, 2]) == [[1, 2], [1, 2]]
    assert not probes.has_attr("extra")
    assert probes.has_attr("length")
    assert probes.has_attr("add")
    assert probes.env_method("add", 1, b=2) == [3, 3, 3]
    assert probes.env_method("add", 1, indices=[1, 1]) == [1, 1]
    assert probes.env_is_wrapped(Plus) == [True] * N
    assert probes.env_is_wrapped(gymnasium.Wrapper, indices=0) == [True]
    assert probes.env_is_wrapped(Monitor, indices=[0, 1]) == [False, False]
    with pytest.raises(AttributeError):
        probes.get_attr("missing")
    with pytest.raises(IndexError):
        probes.get_attr("length", 3)


def test_drop_ins_pass_any_argument_on_and_raise_what_the_env_raised():
    for cls in (DummyVecEnv, SubprocVecEnv):
        envs = cls(factories())
        assert envs.env_method("add", 1, name=2) == [3, 3, 3]
        with pytest.raises(AttributeError, match="missing"):
            envs.env_method("missing")
        with pytest.raises(TypeError):
            envs.env_method("add")
        envs.close()
    envs = over_serial(factories())
    with pytest.raises(ConfigError, match="by position"):
        envs.env_method("add", 1, name=2)
    envs.close()


def test_pictures(make):
    envs = make(factories())
    envs.reset()
    assert envs.render_mode == "rgb_array"
    assert envs.metadata["render_fps"] == 7
    assert [picture.shape for picture in envs.get_images()] == [(4, 4, 3)] * N
    assert envs.render().shape == envs.render("rgb_array").shape == (8, 8, 3)
    with pytest.warns(UserWarning, match="render mode"):
        envs.render("ansi")
    envs.close()
    blind = make(factories(render_mode=None))
    with pytest.warns(UserWarning, match="rgb_array"):
        assert blind.get_images() == [None] * N
    blind.close()


def test_close_is_idempotent_and_works_in_the_midst_of_a_step(probes):
    probes.reset()
    probes.step_async(np.ones(N, int))
    probes.close()
    probes.close()
    with pytest.raises(envfleet.PoolClosedError):
        probes.step_async(np.ones(N, int))


def test_a_reset_drops_a_step_that_nobody_waited_for(probes):
    probes.reset()
    probes.step_async(np.ones(N, int))
    probes.set_options([{"a": 1}, {}, {}])
    assert (probes.reset()[:, 0] == 0).all()
    assert probes.step(np.ones(N, int))[0][:, 0].tolist() == [1, 1, 1]


def test_an_env_that_raises(make):
    envs = make(factories())
    envs.reset()
    wanted = ZeroDivisionError if make is DummyVecEnv else EnvError
    with pytest.raises(wanted, match="asked for"):
        envs.step(np.array([0, 4, 0]))
    envs.reset()
    assert envs.step(np.ones(N, int))[1].tolist() == [1, 1, 1]
    envs.close()


def test_a_restarted_env_is_a_truncated_row_with_its_error():
    pool = envfleet.make_pool(factories(), backend="serial", autoreset_mode="same_step", on_error="restart")
    envs = EnvFleetVecEnv(pool)
    envs.reset()
    _, _, dones, infos = envs.step(np.array([0, 4, 0]))
    assert dones.tolist() == [False, True, False]
    assert "asked for" in infos[1]["error"]
    assert infos[1]["TimeLimit.truncated"] is True
    assert infos[1]["terminal_observation"].shape == (2,)
    assert "error" not in envs.reset_infos[1]
    envs.close()


# --- what drop-ins take that pools do not ------------------------------------------------------------


def test_drop_ins_are_what_code_asks_for():
    ours = DummyVecEnv(factories())
    assert isinstance(ours, sb3.DummyVecEnv)
    assert isinstance(ours.envs[0], Plus)
    assert ours.step(np.ones(N, int))[1].tolist() == [1, 1, 1]  # nobody has reset it
    ours.close()
    ours = SubprocVecEnv(factories(), "fork", num_workers=1)
    assert isinstance(ours, sb3.SubprocVecEnv)
    assert not ours.waiting
    assert not ours.closed
    ours.reset()
    ours.step_async([1, 1, 1])
    assert ours.waiting
    ours.step_wait()
    ours.close()
    assert ours.closed


@pytest.mark.parametrize("cls", [DummyVecEnv, SubprocVecEnv])
def test_drop_ins_take_actions_outside_the_space(cls):
    with cls_closed(cls(factories())) as envs:
        envs.reset()
        assert envs.step(np.array([7, 1, -3]))[1].tolist() == [7, 1, -3]
        assert envs.step([1.5, 1, 0])[1].tolist() == [1.5, 1, 0]
        with pytest.raises(ValueError, match="3 actions"):
            envs.step(np.ones(2, int))
        if cls is DummyVecEnv:
            assert envs.step(np.ones(5, int))[1].tolist() == [1, 1, 1]
        else:
            with pytest.raises(ValueError, match="3 actions"):
                envs.step(np.ones(5, int))


@pytest.mark.parametrize("cls", [DummyVecEnv, SubprocVecEnv])
def test_drop_ins_take_envs_whose_bounds_differ(cls):
    def narrow():
        env = Probe()
        env.observation_space = spaces.Box(-1, 50, (2,), np.float32)
        return env

    with cls_closed(cls([Probe, narrow])) as envs:
        assert envs.observation_space.high.max() == 100
        assert envs.reset().shape == (2, 2)


def test_bad_factories_say_so():
    env = Probe()
    with pytest.raises(ValueError, match="same instance twice"):
        DummyVecEnv([lambda: env] * 2)
    for cls in (DummyVecEnv, SubprocVecEnv):
        for wrong in ([], [Probe()]):
            with pytest.raises(ConfigError, match="list of functions"):
                cls(wrong)
    with pytest.raises(ValueError, match="cannot find context"):
        SubprocVecEnv(factories(), start_method="telepathy")


class cls_closed:  # noqa: N801 (reads as a function)
    def __init__(self, envs):
        self.envs = envs

    def __enter__(self):
        return self.envs

    def __exit__(self, *_):
        self.envs.close()


# --- what EnvFleetVecEnv refuses -----------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["next_step", "disabled"])
def test_other_autoreset_modes_are_refused(mode):
    with (
        envfleet.make("CartPole-v1", num_envs=2, autoreset_mode=mode) as envs,
        pytest.raises(ConfigError, match=f"'same_step', got '{mode}'"),
    ):
        EnvFleetVecEnv(envs)
    with pytest.raises(ConfigError, match="same_step"):
        make_vec_env("CartPole-v1", autoreset_mode=mode)


def test_asynchronous_pools_and_other_things_are_refused():
    with (
        envfleet.make_pool("CartPole-v1", num_envs=4, batch_size=2, autoreset_mode="same_step") as pool,
        pytest.raises(ConfigError, match="leave batch_size out"),
    ):
        EnvFleetVecEnv(pool)
    with pytest.raises(ConfigError, match="make_vec_env"):
        EnvFleetVecEnv("CartPole-v1")


def test_spaces_that_sb3_has_no_observations_of_are_named():
    nested = spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(2)})})
    for space, where in ((spaces.Text(5), "observation_space = Text"), (nested, r"observation_space\['a'\]")):

        class Odd(Probe):
            def __init__(self, space=space):
                super().__init__()
                self.observation_space = space

        with (
            envfleet.make_pool(Odd, backend="serial", autoreset_mode="same_step") as pool,
            pytest.raises(ConfigError, match=where),
        ):
            EnvFleetVecEnv(pool)


def test_actions_of_a_pool_are_checked():
    envs = make_vec_env("CartPole-v1", n_envs=2)
    envs.reset()
    with pytest.raises(ActionError):
        envs.step(np.array([0, 2]))
    envs.step(np.array([0, 1]))
    envs.close()


# --- native pools ----------------------------------------------------------------------------------------


def test_a_native_pool_goes_the_way_of_sb3s_envs():
    ours = EnvFleetVecEnv(envfleet.make("CartPole-v1", num_envs=N, autoreset_mode="same_step"))
    theirs = sb3.DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * N)
    ours.seed(5)
    theirs.seed(5)
    np.testing.assert_allclose(ours.reset(), theirs.reset(), rtol=1e-6)
    num_ends = 0
    for step in range(60):
        actions = np.full(N, step % 3 == 0, dtype=int)
        mine, own = ours.step(actions), theirs.step(actions)
        for one, other in zip(mine[:3], own[:3], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
            assert one.dtype == other.dtype
        for one, other in zip(mine[3], own[3], strict=True):
            assert one.keys() == other.keys()
            if "terminal_observation" in other:
                num_ends += 1
                np.testing.assert_allclose(one["terminal_observation"], other["terminal_observation"], rtol=1e-4)
    assert num_ends > N
    ours.close()
    theirs.close()


def test_native_attributes_infos_and_pictures():
    envs = make_vec_env("Taxi-v4", n_envs=2, seed=0)
    assert envs.get_attr("spec", 1)[0].id == "Taxi-v4"
    assert envs.env_is_wrapped(Monitor) == [False, False]
    assert not envs.has_attr("missing")
    envs.reset()
    _, _, _, infos = envs.step(np.zeros(2, int))
    assert infos[0]["prob"] == 1.0
    assert infos[0]["action_mask"].shape == (6,)
    envs.close()
    cart = make_vec_env("CartPole-v1", n_envs=2)
    cart.reset()
    assert cart.env_method("render", indices=[1])[0].shape == (400, 600, 3)
    assert cart.render().shape == (800, 600, 3)
    cart.close()
    cart = EnvFleetVecEnv(envfleet.make_pool("CartPole-v1", num_envs=2, autoreset_mode="same_step"))
    assert cart.get_attr("render_mode") == [None, None]
    cart.reset()
    assert cart.env_is_wrapped(Monitor, 0) == [False]
    cart.close()


# --- make_vec_env ----------------------------------------------------------------------------------------


def run(envs, num_steps=30):
    envs.reset()
    ends = []
    for _ in range(num_steps):
        _, _, _, infos = envs.step(np.zeros(envs.num_envs, int))
        ends += [info["episode"] for info in infos if "episode" in info]
    return ends


@pytest.mark.parametrize("backend", ["native", "serial", "processes"])
def test_make_vec_env_monitors_every_backend(backend, tmp_path):
    envs = make_vec_env(
        "CartPole-v1", n_envs=2, seed=1, monitor_dir=str(tmp_path), start_index=3, backend=backend, max_episode_steps=5
    )
    ends = run(envs)
    assert {(end["r"], end["l"]) for end in ends} == {(5, 5)}
    envs.close()
    names = {"native": ["3.monitor.csv"]}.get(backend, ["3.monitor.csv", "4.monitor.csv"])
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert len(monitoring.load_results(str(tmp_path))) == len(ends)
    assert envs.render_mode == "rgb_array"


def test_make_vec_env_gives_the_same_seeds_on_every_backend():
    firsts = []
    for backend in ("native", "serial", "processes"):
        envs = make_vec_env("CartPole-v1", n_envs=2, seed=9, backend=backend)
        firsts.append(envs.reset())
        envs.close()
    np.testing.assert_allclose(firsts[0], firsts[1], rtol=1e-6)
    np.testing.assert_array_equal(firsts[1], firsts[2])


def scaled(env, factor=1.0):
    return gymnasium.wrappers.TransformReward(env, lambda reward: factor * reward)


def test_make_vec_env_applies_wrappers_after_the_monitor():
    envs = make_vec_env(
        "CartPole-v1",
        n_envs=2,
        wrapper_class=scaled,
        wrapper_kwargs={"factor": 10.0},
        env_kwargs={"max_episode_steps": 4},
        monitor_kwargs={"allow_early_resets": True},
        backend="serial",
    )
    envs.reset()
    assert envs.step(np.zeros(2, int))[1].tolist() == [10, 10]
    assert {end["r"] for end in run(envs)} == {4}
    assert envs.env_is_wrapped(Monitor) == [True, True]
    envs.close()


def test_make_vec_env_takes_what_make_takes():
    one = make_vec_env(Probe, num_envs=2, length=2, backend="serial")
    assert one.get_attr("length") == [2, 2]
    one.close()
    many = make_vec_env(factories())
    assert many.num_envs == N
    assert isinstance(many, sb3.VecMonitor)
    many.close()
    swapped = make_vec_env("CartPole-v1", 2, vec_env_cls=SubprocVecEnv, vec_env_kwargs={"start_method": "fork"})
    assert isinstance(swapped, SubprocVecEnv)
    swapped.close()
    native = make_vec_env("FrozenLake-v1", n_envs=2, env_kwargs={"is_slippery": False, "render_mode": None})
    assert native.render_mode is None
    native.close()


def test_make_vec_env_says_what_cannot_act():
    with pytest.raises(ConfigError, match="vec_env_kwargs"):
        make_vec_env("CartPole-v1", vec_env_cls=DummyVecEnv, num_workers=2)
    with pytest.raises(ConfigError, match="allow_early_resets"):
        make_vec_env("CartPole-v1", monitor_kwargs={"allow_early_resets": False})
    with pytest.raises(ConfigError, match="wrapper_class"):
        make_vec_env("CartPole-v1", wrapper_class=scaled, backend="native")
    with pytest.raises(ConfigError, match="pass one"):
        make_vec_env("CartPole-v1", n_envs=2, num_envs=3)
    with pytest.raises(ConfigError, match="list of factories"):
        make_vec_env(Probe, n_envs=2, env_kwargs=[{}, {}])
    with pytest.raises(envfleet.UnknownEnvError):
        make_vec_env("CartPoll-v1", backend="native")


# --- SB3 on top ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["native", "processes"])
def test_sb3s_wrappers_around_a_pool(backend):
    envs = make_vec_env("CartPole-v1", n_envs=2, seed=0, backend=backend)
    envs = sb3.VecFrameStack(sb3.VecNormalize(sb3.VecCheckNan(envs, raise_exception=True)), n_stack=3)
    assert envs.reset().shape == (2, 12)
    ended = None
    for _ in range(30):
        _, _, dones, infos = envs.step(np.zeros(2, int))
        if dones.any():
            ended = infos[int(dones.argmax())]
    assert ended is not None
    assert ended["terminal_observation"].shape == (12,)
    assert ended["episode"]["l"] < 30
    envs.close()


@pytest.mark.parametrize(
    ("algorithm", "env", "options"),
    [
        (PPO, "CartPole-v1", {"n_steps": 32, "batch_size": 32, "n_epochs": 1}),
        (A2C, "FrozenLake-v1", {}),
        (DQN, "CartPole-v1", {"learning_starts": 40}),
        (SAC, "Pendulum-v1", {"learning_starts": 40, "batch_size": 8}),
        (PPO, "Pendulum-v1", {"n_steps": 32, "batch_size": 32, "n_epochs": 1}),
    ],
)
def test_algorithms_learn_on_native_pools(algorithm, env, options):
    envs = make_vec_env(env, n_envs=4, seed=0)
    model = algorithm("MlpPolicy", envs, seed=0, device="cpu", **options).learn(160)
    assert model.num_timesteps >= 160
    envs.close()


def test_a_dict_env_learns_on_processes_and_is_evaluated():
    envs = make_vec_env(Probe, n_envs=2, seed=0, is_dict=True, length=6, raises=False, num_workers=1)
    model = PPO("MultiInputPolicy", envs, n_steps=16, batch_size=16, n_epochs=1, device="cpu").learn(64)
    mean, _ = evaluation.evaluate_policy(
        model, envs, n_eval_episodes=2
    )  # warns, which is an error here, without a Monitor
    assert np.isfinite(mean)
    assert model.ep_info_buffer[0]["l"] == 6
    envs.close()


def test_training_is_the_same_with_every_vec_env():
    weights = []
    for cls in (sb3.DummyVecEnv, DummyVecEnv, SubprocVecEnv, None):
        envs = make_vec_env("CartPole-v1", n_envs=2, seed=3, vec_env_cls=cls, **({} if cls else {"backend": "serial"}))
        model = PPO("MlpPolicy", envs, n_steps=32, batch_size=32, n_epochs=1, seed=3, device="cpu").learn(64)
        weights.append(model.policy.action_net.weight.detach().numpy().copy())
        envs.close()
    for other in weights[1:]:
        np.testing.assert_array_equal(other, weights[0])
