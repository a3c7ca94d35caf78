"""envpool_wrapper's README, the second file: the registered env behind EnvPool's API."""

import envpool_wrap as envpool
import numpy as np
from envpool_wrap.registration import list_all_envs

assert {"MyEnv_wrap", "MyEnv2_wrap"} <= set(envpool.list_all_envs())
assert list_all_envs() == envpool.list_all_envs()
env = envpool.make(task_id="MyEnv_wrap", env_type="gym")
env.reset()
env.step(np.zeros((1, 1)) + 1)
env.close()
env = envpool.make_gymnasium("MyEnv2_wrap", num_envs=2, backend="threads", max_episode_steps=2, speed=2.0)
obs, _ = env.reset()
assert obs.shape == (2, 3)
for _ in range(2):
    _, rewards, terminated, truncated, _ = env.step(np.zeros((2, 1), dtype=np.float32))
assert rewards.tolist() == [4.0, 4.0]
assert (terminated.any(), truncated.all()) == (False, True)
env.close()
print("done")
