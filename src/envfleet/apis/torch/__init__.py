"""A pool that takes and returns torch tensors on a device.

envs = TorchPool("CartPole-v1", num_envs=1024, device="cuda")
obs, info = envs.reset(seed=0)
obs, reward, terminated, truncated, info = envs.step(policy(obs))

On a GPU, a batch is copied from page-locked memory: native batches in one copy, rows of worker processes from the
shared memory in which they were written. The user's stream waits for the copy, the host does not. On the CPU, tensors
share the memory of the batch.
"""

from envfleet.apis.common import torch_transfer  # noqa: F401 (first: it names the extra if torch is missing)
from envfleet.apis.torch.group import TorchGroup
from envfleet.apis.torch.pool import TorchPool

__all__ = ["TorchGroup", "TorchPool"]
