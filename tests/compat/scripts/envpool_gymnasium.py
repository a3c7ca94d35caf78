"""EnvPool's README and documentation: synchronous, asynchronous, specs, the dm dialect."""

import envpool
import numpy as np

assert "CartPole-v1" in envpool.list_all_envs()

# Synchronous.
env = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=8, seed=0)
obs, info = env.reset()
assert obs.shape == (8, 4)
assert len(env) == 8
assert not env.is_async
act = np.zeros(8, dtype=int)
obs, rew, term, trunc, info = env.step(act)
assert rew.dtype == np.float32
assert info["env_id"].tolist() == list(range(8))
assert info["elapsed_step"].tolist() == [1] * 8
assert info["players"]["env_id"].dtype == np.int32
obs, rew, term, trunc, info = env.step(np.zeros(3, dtype=int), env_id=np.array([1, 3, 5]))
assert info["env_id"].tolist() == [1, 3, 5]
obs, info = env.reset(np.array([2, 4]))  # these rows only
assert info["env_id"].tolist() == [2, 4]
assert env.all_env_ids.dtype == np.int32
assert env.config["num_envs"] == env.spec.config.num_envs == 8
assert env.observation_space.shape == (4,)  # of one env
env.close()
obs, _ = env.reset()  # opens it again
assert obs.shape == (8, 4)
env.close()

# The call after an end resets, ignores its action, gives reward 0.
env = envpool.make_gymnasium("CartPole-v1", num_envs=1, seed=0)
env.reset()
ended = False
while not ended:
    _, _, term, trunc, _ = env.step(np.zeros(1, dtype=int))
    ended = bool(term[0] or trunc[0])
_, rew, term, _, info = env.step(np.zeros(1, dtype=int))
assert (rew[0], term[0], info["elapsed_step"][0]) == (0, False, 0)
env.close()

# Asynchronous, as the README has it.
num_envs, batch_size = 8, 4
env = envpool.make("Pendulum-v1", env_type="gymnasium", num_envs=num_envs, batch_size=batch_size, seed=1)
assert env.is_async
env.async_reset()
for _ in range(20):
    obs, rew, term, trunc, info = env.recv()
    env_id = info["env_id"]
    assert obs.shape == (batch_size, 3)
    env.send(np.zeros((batch_size, 1), dtype=np.float32), env_id)
env.close()

# Specs, and every option of EnvPool's make.
spec = envpool.make_spec("CartPole-v1", num_envs=4, num_threads=2, thread_affinity_offset=-1)
assert spec.config.num_envs == 4
assert spec.action_space.n == 2

# What is different: seeds, and input that EnvPool dies of.
env = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=2)
first, _ = env.reset(seed=5)
second, _ = env.reset(seed=5)
assert (first == second).all()
message = ""
try:
    env.step(np.zeros(5, dtype=int))
except ValueError as error:
    message = str(error)
assert "expected" in message
env.close()
print("done")
