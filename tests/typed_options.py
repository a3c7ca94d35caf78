"""What type checkers know of make() and its siblings. `make lint` checks it: an ignored error must be one.

Never run.
"""

from __future__ import annotations

from gymnasium.vector import AutoresetMode
from typing_extensions import assert_type

import envfleet
from envfleet.apis.dm import DmPool
from envfleet.apis.gym import GymPool
from envfleet.apis.gymnasium import GymnasiumPool
from envfleet.apis.pettingzoo import PlayerRowsPool
from envfleet.core.options import BackendName

backend: BackendName
for backend in ("auto", "native", "serial", "threads", "processes", "ray"):
    envfleet.make_pool("CartPole-v1", backend=backend)
envfleet.make("CartPole-v1", backend="ray", ray=envfleet.RayConfig(inner_backend="threads", address="auto"))

assert_type(envfleet.make("CartPole-v1", num_envs=4, sutton_barto_reward=True), GymnasiumPool)
assert_type(envfleet.make("CartPole-v1", env_type="gym", seed=[1, 2]), GymPool)
assert_type(envfleet.make("CartPole-v1", "dm", render_mode="rgb_array"), DmPool)
assert_type(
    envfleet.make_pool("CartPole-v1", on_error="restart", autoreset_mode=AutoresetMode.SAME_STEP), envfleet.Pool
)
assert_type(envfleet.make_spec("CartPole-v1", step_timeout=1.5, start_method="spawn"), envfleet.EnvSpec)
assert_type(envfleet.make_pettingzoo("x", layout="rows", num_workers=2), PlayerRowsPool)

envfleet.make_pool("CartPole-v1", backend="gpu")  # type: ignore[arg-type]
envfleet.make("CartPole-v1", backend="gpu")  # type: ignore[call-overload]
envfleet.make_gymnasium("CartPole-v1", on_error="ignore")  # type: ignore[arg-type]
envfleet.make_dm("CartPole-v1", start_method="thread")  # type: ignore[arg-type]
envfleet.make_gym("CartPole-v1", autoreset_mode="sometimes")  # type: ignore[arg-type]
envfleet.make_spec("CartPole-v1", render_mode="pixels")  # type: ignore[arg-type]
envfleet.make_pool("CartPole-v1", num_envs="4")  # type: ignore[arg-type]
envfleet.RayConfig(inner_backend="gpu")  # type: ignore[arg-type]
