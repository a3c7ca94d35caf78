"""EnvFleetVecEnv and make_vec_env: pools that Stable-Baselines3 takes, and what is refused."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from sb3_probes import N, Probe, factories

import envfleet
from envfleet.core.errors import ActionError, ConfigError, MissingExtraError, UnknownEnvError

pytest.importorskip("stable_baselines3")

import torch
from stable_baselines3.common import vec_env as sb3
from stable_baselines3.common.monitor import Monitor, load_results

from envfleet.apis.sb3 import DummyVecEnv, EnvFleetVecEnv, SubprocVecEnv, make_vec_env

# --- what EnvFleetVecEnv refuses ----------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["next_step", "disabled"])
def test_other_autoreset_modes_are_refused(mode):
    with (
        envfleet.make("CartPole-v1", num_envs=2, autoreset_mode=mode) as envs,
        pytest.raises(ConfigError, match=f"'same_step', got '{mode}'"),
    ):
        EnvFleetVecEnv(envs)
    with pytest.raises(ConfigError, match="same_step"):
        make_vec_env("CartPole-v1", autoreset_mode=mode)


class Ported(gymnasium.Env):
    observation_space = action_space = spaces.Discrete(2)

    def __init__(self, port):
        self.port = port


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_wrong_arguments_of_an_env_are_named(backend):
    """SB3's helper hides the class in factories without arguments."""
    with pytest.raises(ConfigError, match=r"^Ported got the unknown option 'step_timout'; did you mean 'step_timeout'"):
        make_vec_env(Ported, n_envs=2, backend=backend, port=1, step_timout=3)
    with pytest.raises(ConfigError, match=r"^Ported expected the argument 'port', got none; pass port=\.\.\.$"):
        make_vec_env(Ported, n_envs=2, backend=backend)


class Swallowing(Ported):
    def __init__(self, **kwargs):
        super().__init__(port=1)


def test_misspelt_options_that_an_env_swallows_are_warned_of():
    with pytest.warns(UserWarning, match=r"^Swallowing got 'step_timout' in its \*\*kwargs.*option 'step_timeout'"):
        make_vec_env(Swallowing, n_envs=1, step_timout=3).close()


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


# --- native pools -------------------------------------------------------------------------------------


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


# --- make_vec_env -------------------------------------------------------------------------------------


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
    assert len(load_results(str(tmp_path))) == len(ends)
    assert envs.render_mode == "rgb_array"


@pytest.mark.parametrize("backend", ["serial", "processes"])
@pytest.mark.parametrize("source", [Probe, lambda: Probe(length=100)], ids=["class", "factory"])
def test_make_vec_env_monitors_episodes_that_a_time_limit_truncates(source, backend):
    env_kwargs = {"length": 100} if source is Probe else {}
    envs = make_vec_env(source, n_envs=2, backend=backend, max_episode_steps=5, env_kwargs=env_kwargs)
    assert [end["l"] for end in run(envs, 10)] == [5] * 4
    envs.close()
    envs = make_vec_env(source, n_envs=2, backend=backend, max_episode_steps=-1, env_kwargs=env_kwargs)
    assert run(envs, 10) == []
    envs.close()
    with pytest.raises(ConfigError, match="max_episode_steps expected an integer"):
        make_vec_env(source, n_envs=2, backend=backend, max_episode_steps=0, env_kwargs=env_kwargs)


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


def test_the_infos_of_resets_of_a_monitored_native_pool():
    envs = make_vec_env("FrozenLake-v1", n_envs=2, seed=0)
    assert type(envs).__mro__[1].__name__ == "VecMonitor"
    envs.reset()
    assert envs.reset_infos == [{"prob": 1}, {"prob": 1}]
    while True:
        _, _, dones, infos = envs.step([2, 1])
        if dones.any():
            break
    assert all("prob" in info for info in (*infos, *envs.reset_infos))
    assert "episode" not in envs.reset_infos[int(dones.argmax())]
    envs.close()


def test_pinned_memory():
    with envfleet.make_pool("CartPole-v1", num_envs=512, autoreset_mode="same_step") as pool:
        if not torch.cuda.is_available():
            with pytest.raises(ConfigError, match="pin_memory=True expected a CUDA device"):
                EnvFleetVecEnv(pool, pin_memory=True)
            return
        envs = EnvFleetVecEnv(pool, pin_memory=True)
        envs.reset()
        obs, *_ = envs.step(np.zeros(512, np.int64))
        assert torch.from_numpy(obs).is_pinned()


@pytest.mark.parametrize("n_envs", [1, 2])
@pytest.mark.parametrize("how", [{}, {"vec_env_cls": sb3.DummyVecEnv}, {"wrapper_class": Monitor}])
def test_an_unknown_id_is_refused_before_any_worker_starts(n_envs, how):
    with pytest.raises(UnknownEnvError, match="got 'CartPol-v1'; did you mean CartPole-v1"):
        make_vec_env("CartPol-v1", n_envs=n_envs, **how)


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr("envfleet.core.family.find_spec", lambda package: None)  # nothing is installed
    with pytest.raises(MissingExtraError, match=r'pip install "envfleet\[highway\]"'):
        make_vec_env("highway-v0", n_envs=2)


class Scored(Probe):
    """Infos with keys that are not strings, at the top and within."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options=options)[0], {1: "first"}

    def step(self, action):
        *result, _ = super().step(action)
        return *result, {"reward_of_player": {0: 1.0, 1: 2.0}, 1: 3}


def test_infos_with_keys_that_are_not_strings():
    own, theirs = DummyVecEnv([Scored, Scored]), sb3.DummyVecEnv([Scored, Scored])
    try:
        for envs in (own, theirs):
            envs.seed(0)
            envs.reset()
        assert own.reset_infos == theirs.reset_infos == [{1: "first"}] * 2
        has_ended = False
        while not has_ended:
            *_, dones, infos = own.step(np.zeros(2, int))
            for info, expected in zip(infos, theirs.step(np.zeros(2, int))[3], strict=True):
                assert info.keys() == expected.keys()
                assert (info["reward_of_player"], info[1]) == ({0: 1.0, 1: 2.0}, 3)
            has_ended = bool(dones.any())
        assert own.reset_infos == theirs.reset_infos
    finally:
        own.close()
        theirs.close()
