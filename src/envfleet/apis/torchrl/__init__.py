"""A pool as a TorchRL env.

env = EnvFleetEnv("CartPole-v1", num_envs=64)                  # an EnvBase of batch size [64]
data = env.rollout(100, policy, break_when_any_done=False)

fleet = AsyncEnvFleetEnv("CartPole-v1", num_envs=64, batch_size=16)
for data in AsyncCollector(fleet, policy, frames_per_batch=1024, total_frames=100_000): ...
"""

from envfleet.apis.common.versions import check_version
from envfleet.core.errors import MissingExtraError

try:
    import torchrl
except ImportError as error:
    raise MissingExtraError("torchrl", "torchrl", "the torchrl api") from error

check_version("torchrl", "torchrl", torchrl.__version__, "0.14", None, "0.14")

from envfleet.apis.torchrl.async_env import AsyncCollector, AsyncEnvFleetEnv  # noqa: E402 (after the check above)
from envfleet.apis.torchrl.env import EnvFleetEnv  # noqa: E402

__all__ = ["AsyncCollector", "AsyncEnvFleetEnv", "EnvFleetEnv"]
