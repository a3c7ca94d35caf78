"""Trajectories and rollouts: generators in workers that yield whole trajectories, and pools stepped for you.

Runner(gen_fns).trajs()          the generators' trajectories, as they are finished
weights()                        inside a generator: the newest weights of runner.broadcast()
rollout(envs, policy, steps)     arrays of shape (steps, num_envs, ...), correct at the ends of episodes; of a
                                 TorchPool, tensors on its device (torch_rollout.py)
"""

from envfleet.sampling.generators import GeneratorDied, GeneratorError
from envfleet.sampling.rollout import Episodes, Rollout, rollout
from envfleet.sampling.runner import Runner
from envfleet.sampling.weights import Weights, weights

__all__ = [
    "Episodes",
    "GeneratorDied",
    "GeneratorError",
    "Rollout",
    "Runner",
    "Weights",
    "rollout",
    "weights",
]
