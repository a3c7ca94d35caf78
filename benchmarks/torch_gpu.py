"""TorchPool on a GPU: what the way to the device costs, and what two groups gain.

python benchmarks/torch_gpu.py [--rounds 9] [--only cartpole,pong,groups] [--num-threads 16 14]

Each section alternates between its subjects, in rounds of consecutive steps, and prints the median time per step.
docs/torch.md has results. With --device cpu nothing is copied; the tests run it that way.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import envfleet
from envfleet.apis.torch import TorchPool


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def microseconds(step: Callable[[], object], num_steps: int, num_warm_up: int) -> float:
    for _ in range(num_warm_up):
        step()
    synchronize()
    start = time.perf_counter()
    for _ in range(num_steps):
        step()
    synchronize()
    return (time.perf_counter() - start) / num_steps * 1e6


def alternate(
    subjects: dict[str, Callable[[], object]], rounds: int, num_steps: int, num_warm_up: int
) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(rounds):
        for name, step in subjects.items():
            times[name].append(microseconds(step, num_steps, num_warm_up))
    medians = {name: statistics.median(own) for name, own in times.items()}
    for name, own in times.items():
        print(f"  {name:<28} {medians[name]:8.1f} us  ({min(own):.1f} to {max(own):.1f})", flush=True)
    return medians


def as_tensors(batch: Any, device: str) -> list[torch.Tensor]:
    columns = (batch.obs, batch.reward, batch.terminated, batch.truncated)
    return [torch.as_tensor(column, device=device) for column in columns]


def host_time(envs: TorchPool, actions: torch.Tensor, rounds: int) -> None:
    """The parts of a step on the host's side."""
    group = envs.groups[0]
    batch = group.pool.step(actions.cpu().numpy())
    print(
        f"  host: actions {microseconds(lambda: group._transfer.to_host(actions), 300, 50):.1f} us, "
        f"batch {min(enqueue_time(group, batch) for _ in range(rounds)):.1f} us to enqueue, "
        f"{microseconds(lambda: group.tensors(batch, True), 300, 50):.1f} us with its copy"
    )


def enqueue_time(group: Any, batch: Any, num_steps: int = 20) -> float:
    synchronize()
    start = time.perf_counter()
    for _ in range(num_steps):
        group.tensors(batch, True)
    return (time.perf_counter() - start) / num_steps * 1e6


def cartpole(rounds: int, device: str, num_envs: int = 65536) -> None:
    print(f"CartPole-v1, {num_envs} envs")
    options: dict[str, Any] = {"num_envs": num_envs, "seed": 0}
    envs, other = TorchPool("CartPole-v1", device, **options), envfleet.make_pool("CartPole-v1", **options)
    medians = hand_over(envs, other, np.random.default_rng(0).integers(0, 2, num_envs), 3 * rounds, 50)
    ours = medians["TorchPool.step()"]
    print(
        f"  as_tensor / TorchPool {medians['as_tensor() of its columns'] / ours:.2f}, with the actions "
        f"{medians['the same, actions of the GPU'] / ours:.2f}; TorchPool / pool {ours / medians['pool.step()']:.2f}"
    )


def pong(rounds: int, device: str, num_envs: int = 64) -> None:
    """On one worker per core but one, which the caller needs."""
    num_workers = max(1, (os.cpu_count() or 1) - 1)
    print(f"Pong-v5, {num_envs} envs on {num_workers} processes")
    options: dict[str, Any] = {"num_envs": num_envs, "seed": 0, "num_workers": num_workers}
    envs, other = TorchPool("Pong-v5", device, **options), envfleet.make_pool("Pong-v5", **options)
    medians = hand_over(envs, other, np.zeros(num_envs, np.int64), 10 * rounds, 10)
    # A default pool copies the rows for the caller; TorchPool's own leaves them where the workers wrote them.
    added = [medians["TorchPool.step()"] - medians[name] for name in ("pool.step()", "a default pool's step()")]
    print(f"  added by TorchPool {added[0]:.1f} us, {added[1]:.1f} us to the step of a default pool")


def hand_over(envs: TorchPool, other: envfleet.Pool, host: np.ndarray, rounds: int, num_steps: int) -> dict[str, float]:
    """Step the same envs with and without tensors, in short rounds: what disturbs the machine disturbs both.

    other is a pool like it, of which as_tensor() copies: the memory of a TorchPool's batches is page-locked.
    """
    pool, device = envs.groups[0].pool, envs.device.type
    actions = torch.as_tensor(host, device=device)
    envs.reset(), other.reset()
    medians = alternate(
        {
            "pool.step()": lambda: pool.step(host),
            "a default pool's step()": lambda: other.step(host),
            "TorchPool.step()": lambda: envs.step(actions),
            "as_tensor() of its columns": lambda: as_tensors(other.step(host), device),
            "the same, actions of the GPU": lambda: as_tensors(other.step(actions.cpu().numpy()), device),
        },
        rounds,
        num_steps,
        num_steps // 5,
    )
    host_time(envs, actions, rounds)
    envs.close()
    other.close()
    return medians


def policy_of(milliseconds: float, device: str) -> Callable[[], None]:
    """A kernel that takes this long; on the CPU, nothing."""
    if device == "cpu":
        return lambda: None
    cycles = 10_000_000
    torch.cuda._sleep(cycles)
    torch.cuda.synchronize()
    start = time.perf_counter()
    torch.cuda._sleep(cycles)
    torch.cuda.synchronize()
    per_ms = cycles / (time.perf_counter() - start) / 1e3
    return lambda: torch.cuda._sleep(int(per_ms * milliseconds))


def groups(rounds: int, env: str, num_threads: int, device: str) -> None:
    """A policy of 1 ms for a batch that the envs step in 1 ms: one group in turns, and two that overlap."""
    num_envs, options = 4096, {"seed": 0, "num_threads": num_threads}
    for _ in range(3):
        with envfleet.make_pool(env, num_envs=num_envs, **options) as pool:
            pool.reset()
            sample = np.stack([pool.spec.action_space.sample() for _ in range(num_envs)])
            step = functools.partial(pool.step, sample)
            took = statistics.median(microseconds(step, 60, 60) for _ in range(5))
        num_envs = max(1, round(num_envs * 1000 / took / 1024)) * 1024
    print(f"{env}, {num_envs} envs, {num_threads} threads: {took / 1000:.2f} ms")
    whole, half = policy_of(1.0, device), policy_of(0.5, device)
    single = TorchPool(env, device, num_envs=num_envs, **options)
    halves = TorchPool(env, device, num_envs=num_envs, num_groups=2, **options)
    double = TorchPool(env, device, num_envs=2 * num_envs, num_groups=2, **options)
    space = single.single_action_space
    actions = torch.as_tensor(np.stack([space.sample() for _ in range(num_envs)]), device=device)

    def one() -> None:
        whole()
        single.step(actions)

    def two(envs: TorchPool, policy: Callable[[], None]) -> Callable[[], None]:
        envs.reset()
        for group in envs.groups:
            group.send(actions[: group.num_envs])

        def step() -> None:
            for group in envs.groups:
                group.recv()
                policy()
                group.send(actions[: group.num_envs])

        return step

    single.reset()
    subjects = {
        "one group": one,
        "two groups of half the envs": two(halves, half),
        "two groups of as many envs": two(double, whole),
    }
    medians = alternate(subjects, rounds, 60, 10)
    print(
        f"  two / one: {medians['one group'] / medians['two groups of half the envs']:.2f} with half the envs each, "
        f"{2 * medians['one group'] / medians['two groups of as many envs']:.2f} with as many each"
    )
    for envs in (single, halves, double):
        envs.close()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="cartpole,pong,groups")
    parser.add_argument("--num-threads", type=int, nargs="+", help="of the groups (default: as many as cores)")
    parser.add_argument("--num-envs", type=int, help="of cartpole and pong (default: 65536 and 64)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args(argv)
    device = arguments.device
    name = torch.cuda.get_device_name() if device == "cuda" else "no GPU"
    print(f"torch {torch.__version__}, {name}, {envfleet.__version__}")
    sizes = {} if arguments.num_envs is None else {"num_envs": arguments.num_envs}
    if "cartpole" in arguments.only:
        cartpole(arguments.rounds, device, **sizes)
    if "pong" in arguments.only:
        pong(arguments.rounds, device, **sizes)
    if "groups" in arguments.only:
        for num_threads in arguments.num_threads or [os.cpu_count() or 1]:
            groups(arguments.rounds, "Acrobot-v1", num_threads, device)


if __name__ == "__main__":
    main()
