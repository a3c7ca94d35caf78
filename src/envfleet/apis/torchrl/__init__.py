"""A pool as TorchRL's envs.

env = EnvFleetEnv("CartPole-v1", num_envs=64)                  # an EnvBase of batch size [64]
data = env.rollout(100, policy, break_when_any_done=False)

fleet = AsyncEnvFleetEnv("CartPole-v1", num_envs=64, batch_size=16)
for data in AsyncCollector(fleet, policy, frames_per_batch=1024, total_frames=100_000): ...
"""

from envfleet.errors import ConfigError, MissingExtraError

try:
    import torchrl
except ImportError as error:
    raise MissingExtraError("torchrl", "torchrl", "the torchrl api") from error

_OLDEST = (0, 14)

if tuple(int(part) for part in torchrl.__version__.split(".")[:2]) < _OLDEST:
    raise ConfigError(
        f"the torchrl api is tested with torchrl 0.14, got {torchrl.__version__}; run: pip install 'torchrl>=0.14'"
    )

from envfleet.apis.torchrl.async_env import AsyncEnvFleetEnv  # noqa: E402 (after the check of the version)
from envfleet.apis.torchrl.collector import AsyncCollector  # noqa: E402
from envfleet.apis.torchrl.env import EnvFleetEnv  # noqa: E402

__all__ = ["AsyncCollector", "AsyncEnvFleetEnv", "EnvFleetEnv"]
