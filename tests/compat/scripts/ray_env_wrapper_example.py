"""RayEnvWrapper's README and example.py, in the dialect of the gym that is there."""

import gym
from RayEnvWrapper import CustomRayRemoteVectorEnv, WrapperRayVecEnv

IS_OLD = tuple(int(part) for part in gym.__version__.split(".")[:2]) < (0, 26)


def make_and_seed(seed: int) -> gym.Env:
    if IS_OLD:
        env = gym.make("CartPole-v1")
        env = gym.wrappers.RecordEpisodeStatistics(env)
        env.seed(seed)
    else:
        env = gym.make("CartPole-v1", disable_env_checker=True)  # the checker needs numpy before 2
        env = gym.wrappers.RecordEpisodeStatistics(env)
        env.reset(seed=seed)
    return env


if __name__ == "__main__":
    number_of_workers = 1
    envs_per_worker = 2
    vec_env = WrapperRayVecEnv(make_and_seed, number_of_workers, envs_per_worker)
    obs = vec_env.reset()
    assert obs.shape == (2, 4)
    assert (obs[0] != obs[1]).any()  # row i is make_and_seed(i)
    assert vec_env.reset().shape == (2, 4)  # at any time
    episodes = []
    while not episodes:
        actions = [vec_env.action_space.sample() for _ in range(number_of_workers * envs_per_worker)]
        obs, rewards, dones, infos = vec_env.step(actions)
        episodes = [info["episode"] for info in infos if "episode" in info]
    assert episodes[0]["l"] > 1
    assert vec_env.env_is_wrapped(gym.wrappers.RecordEpisodeStatistics) == [True, True]
    vec_env.close()
    with WrapperRayVecEnv(make_env=make_and_seed, num_workers=1, per_worker_env=1) as vec_env:
        assert vec_env.reset().shape == (1, 4)
    remote = CustomRayRemoteVectorEnv(make_and_seed, 1, 1, False)
    assert remote.poll()[0].shape == (1, 4)
    remote.send_actions([0])
    assert remote.poll()[1].tolist() == [1.0]
    remote.stop()
    print("done")
