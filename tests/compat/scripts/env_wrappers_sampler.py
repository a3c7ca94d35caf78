"""env-wrappers' sampler example, with and without "ready", in the dialect before gym 0.26; and path_gen."""

from collections import defaultdict
from functools import partial
from itertools import islice

import gym
import numpy as np
from env_wrappers.samplers.dummy_runner import DummyRunner
from env_wrappers.samplers.path_gen import path_gen
from env_wrappers.samplers.subproc_runner import SubprocRunner


def rand_traj_gen(env_id, seed, limit=None, is_ready=True, **context_args):
    env = gym.make(env_id)
    env.seed(seed)
    if is_ready:
        yield "ready"
    while True:
        traj = defaultdict(list, obs=[env.reset()])
        for _ in range(limit or 10):
            obs, r, done, info = env.step(env.action_space.sample())
            traj["obs"].append(obs)
            traj["r"].append(r)
            traj["info"].append(info)
            traj["img"].append(env.render("rgb_array", width=84, height=84))
            if done:
                break
        new_limit = yield {k: np.stack(v, axis=0) for k, v in traj.items()}
        if new_limit is not None:
            limit = new_limit


if __name__ == "__main__":
    for runner_class in (SubprocRunner, DummyRunner):
        for is_ready in (True, False):
            gen_fns = [partial(rand_traj_gen, env_id="Pendulum-v1", seed=i * 100, is_ready=is_ready) for i in range(2)]
            runner = runner_class(gen_fns)
            for traj in islice(runner.trajs(), 4):
                assert traj["img"].shape == (10, 84, 84, 3)
            *_, last = islice(runner.trajs(limit=5), 6)
            assert last["r"].shape == (5,)
            del runner
    runner = DummyRunner([partial(path_gen, "CartPole-v1", seed=100)])
    assert next(runner.trajs())["obs"].shape == (11, 4)
    print("done")
