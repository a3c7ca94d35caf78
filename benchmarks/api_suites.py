"""Suites on the cost of each API over the pool, and on what training libraries gain."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from harness import Case, Loop, Options, Target
from isolated import isolated_contender
from loops import actions_of, sync_loop

_NUM_ENVS = 64
_CARTPOLE = "CartPole-v1"
_ROLLOUT_STEPS = 16
_EXAMPLES = Path(__file__).parents[1] / "examples"


def apis(options: Options) -> list[Case]:
    """Compare a step of 64 native CartPoles through each API.

    Targets: dm and gym take at most 1.3 times as long as the Gymnasium API, SB3 at most 8 times, and SB3 is 10 times
    as fast as its own DummyVecEnv.
    """
    own = {"gymnasium": "gymnasium", "gym": "gym", "dm": "dm", "SB3": "sb3"}
    dummy = "SB3 DummyVecEnv"
    return [
        Case(
            f"a step of {_NUM_ENVS} native CartPoles",
            "us",
            [
                *(isolated_contender(name, step_of, api=api, num_envs=_NUM_ENVS) for name, api in own.items()),
                isolated_contender(dummy, sb3_dummy, num_envs=_NUM_ENVS),
            ],
            "gymnasium",
            [
                Target("ratio", "gym", 1 / 1.3, "gymnasium"),
                Target("ratio", "dm", 1 / 1.3, "gymnasium"),
                Target("ratio", "SB3", 1 / 8, "gymnasium"),
                Target("ratio", "SB3", 10, dummy),
            ],
            more_is_better=False,
            facts={"num_envs": _NUM_ENVS},
        )
    ]


def torchrl(options: Options) -> list[Case]:
    """Compare TorchRL's rollout(). Without ParallelEnv at 64 envs, which does not finish a round on two cores."""
    fleet, serial, parallel = "envfleet EnvFleetEnv", "TorchRL SerialEnv", "TorchRL ParallelEnv"
    makers = {fleet: torchrl_envfleet, serial: torchrl_serial, parallel: torchrl_parallel}
    cases = []
    for num_envs, names in ((8, (fleet, serial, parallel)), (_NUM_ENVS, (fleet, serial))):
        cases.append(
            Case(
                f"TorchRL's rollout, {num_envs} CartPoles",
                "steps/s",
                [isolated_contender(name, makers[name], num_envs=num_envs) for name in names],
                fleet,
                [Target("ratio", fleet, 5, name) for name in names[1:]],
                facts={"num_envs": num_envs},
            )
        )
    return cases


def training(options: Options) -> list[Case]:
    """Compare whole PPO loops, including the policy and its updates."""
    fleet = "envfleet"
    sb3 = {fleet: "envfleet", "SB3 DummyVecEnv": "dummy", "SB3 SubprocVecEnv": "subproc"}
    one_file = {fleet: "envfleet", "Gymnasium SyncVectorEnv": "sync", "Gymnasium AsyncVectorEnv": "async"}
    return [
        Case(
            f"{name}, 16 CartPoles",
            "frames/s",
            [
                isolated_contender(label, function, vec_env=vec_env, num_envs=16)
                for label, vec_env in contenders.items()
            ],
            fleet,
            facts={"num_envs": 16},
        )
        for name, function, contenders in (
            ("PPO of Stable-Baselines3", sb3_ppo, sb3),
            ("PPO in one file (examples/ppo.py)", one_file_ppo, one_file),
        )
    ]


def torch(options: Options) -> list[Case]:
    """Compare TorchPool with a step of its pool alone, and with torch.as_tensor(): on the GPU, if there is one."""
    device = "cuda" if Path("/dev/nvidiactl").exists() else "cpu"
    torch_pool, pool, columns = "envfleet TorchPool", "envfleet, its pool alone", "as_tensor() of a batch"
    return [
        Case(
            f"{env_id}, {num_envs} envs, with tensors on {device}",
            "us",
            [
                isolated_contender(name, function, env_id=env_id, num_envs=num_envs, device=device)
                for name, function in ((torch_pool, torch_pool_step), (pool, pool_step), (columns, as_tensor_step))
            ],
            torch_pool,
            [Target("ratio", torch_pool, 0.893, pool)] if env_id == "Pong-v5" else [],
            more_is_better=False,
            facts={"num_envs": num_envs},
        )
        for env_id, num_envs in ((_CARTPOLE, 8192), (_CARTPOLE, 65_536), ("Pong-v5", 64))
    ]


# --- contenders: a step with tensors, in microseconds -----------------------------------------------


def torch_pool_step(env_id: str, num_envs: int, device: str) -> Loop:
    envs = _torch_pool(env_id, num_envs, device)
    return _tensor_loop(envs.step, envs, num_envs, device)


def pool_step(env_id: str, num_envs: int, device: str) -> Loop:
    """Return a loop over the pool of a TorchPool, whose memory is page-locked: actions and results stay on the host."""
    envs = _torch_pool(env_id, num_envs, device)
    actions = actions_of(envs.single_action_space, num_envs)
    return sync_loop(envs.groups[0].pool.step, num_envs, envs.close, in_us=True, actions=actions)


def as_tensor_step(env_id: str, num_envs: int, device: str) -> Loop:
    import torch

    import envfleet

    envs = envfleet.make(env_id, num_envs=num_envs, seed=0)
    envs.reset()

    def step(actions: Any) -> list[Any]:
        *columns, _info = envs.step(actions.cpu().numpy())
        return [torch.as_tensor(column, device=device) for column in columns]

    return _tensor_loop(step, envs, num_envs, device)


def _torch_pool(env_id: str, num_envs: int, device: str) -> Any:
    from envfleet.apis.torch import TorchPool

    envs = TorchPool(env_id, device, num_envs=num_envs, seed=0)
    envs.reset()
    return envs


def _tensor_loop(step: Callable[[Any], Any], envs: Any, num_envs: int, device: str) -> Loop:
    import torch

    actions = [torch.as_tensor(batch, device=device) for batch in actions_of(envs.single_action_space, num_envs)]
    loop = sync_loop(step, num_envs, envs.close, in_us=True, actions=actions)

    def run(num_batches: int) -> None:
        loop.run(num_batches)
        if device == "cuda":
            torch.cuda.synchronize()

    return replace(loop, run=run)


# --- contenders: a step through each API, in microseconds -------------------------------------------


def step_of(api: str, num_envs: int) -> Loop:
    """Measure step() through an API of envfleet, with native CartPole, in microseconds per batch."""
    import envfleet

    if api == "sb3":
        from envfleet.apis.sb3 import EnvFleetVecEnv

        envs: Any = EnvFleetVecEnv(envfleet.make(_CARTPOLE, num_envs=num_envs, seed=0, autoreset_mode="same_step"))
    else:
        make = {"gymnasium": envfleet.make_gymnasium, "gym": envfleet.make_gym, "dm": envfleet.make_dm}[api]
        envs = make(_CARTPOLE, num_envs=num_envs, seed=0)
    envs.reset()
    return sync_loop(envs.step, num_envs, envs.close, in_us=True)


def sb3_dummy(num_envs: int) -> Loop:
    from stable_baselines3.common.vec_env import DummyVecEnv

    envs = DummyVecEnv([_make_cartpole] * num_envs)
    envs.reset()
    return sync_loop(envs.step, num_envs, envs.close, in_us=True)


# --- TorchRL: env steps per second of rollout() ---------------------------------------------------


def torchrl_envfleet(num_envs: int) -> Loop:
    from envfleet.apis.torchrl import EnvFleetEnv

    return _rollouts(EnvFleetEnv(_CARTPOLE, num_envs), num_envs)


def torchrl_serial(num_envs: int) -> Loop:
    from torchrl.envs import GymEnv, SerialEnv

    return _rollouts(SerialEnv(num_envs, partial(GymEnv, _CARTPOLE)), num_envs)


def torchrl_parallel(num_envs: int) -> Loop:
    from torchrl.envs import GymEnv, ParallelEnv

    return _rollouts(ParallelEnv(num_envs, partial(GymEnv, _CARTPOLE)), num_envs)


def _rollouts(env: Any, num_envs: int) -> Loop:
    import torch

    torch.set_num_threads(1)

    def run(count: int) -> None:
        for _ in range(count):
            env.rollout(_ROLLOUT_STEPS, break_when_any_done=False)

    return Loop(run, num_envs * _ROLLOUT_STEPS, env.close)


# --- whole PPO training loops: frames per second -----------------------------------------------------


def sb3_ppo(vec_env: str, num_envs: int) -> Loop:
    """Stable-Baselines3's PPO with its defaults, except for num_envs and rollouts of 128 steps."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    torch.set_num_threads(1)
    num_steps = 128
    if vec_env == "envfleet":
        from envfleet.apis.sb3 import make_vec_env

        envs: Any = make_vec_env(_CARTPOLE, n_envs=num_envs, seed=0)
    else:
        envs = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}[vec_env]([_make_cartpole] * num_envs)
    model = PPO("MlpPolicy", envs, n_steps=num_steps, batch_size=256, device="cpu", seed=0)

    def run(count: int) -> None:
        model.learn(count * num_steps * num_envs, reset_num_timesteps=False)

    return Loop(run, num_steps * num_envs, envs.close)


def one_file_ppo(vec_env: str, num_envs: int) -> Loop:
    """examples/ppo.py, in the style of CleanRL, on this vector env."""
    import torch
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

    sys.path.insert(0, str(_EXAMPLES))
    import ppo

    import envfleet

    torch.set_num_threads(1)
    torch.manual_seed(0)
    args = ppo.Args(num_envs=num_envs)
    if vec_env == "envfleet":
        envs: Any = envfleet.make(_CARTPOLE, num_envs=num_envs, seed=0, autoreset_mode="same_step")
    else:
        cls = {"sync": SyncVectorEnv, "async": AsyncVectorEnv}[vec_env]
        envs = cls([_make_cartpole] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    agent = ppo.Agent(4, 2)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate)

    def run(count: int) -> None:
        for _ in range(count):
            experience = ppo.collect(envs, agent, args)
            with torch.no_grad():
                value = agent.value(experience.next_obs)
            ppo.update(agent, optimizer, experience, ppo.advantages_of(experience, value, args), args)

    return Loop(run, args.num_steps * num_envs, envs.close)


def _make_cartpole() -> Any:
    import gymnasium

    return gymnasium.make(_CARTPOLE)


SUITES: dict[str, Callable[[Options], list[Case]]] = {
    "apis": apis,
    "torch": torch,
    "torchrl": torchrl,
    "training": training,
}
