"""TorchPool on a GPU: what two groups gain. Suite `torch` of compare.py measures a step of one group.

python benchmarks/torch_gpu.py [--rounds 9] [--num-threads 16 14]

Alternates between its subjects, in rounds of consecutive steps, and prints the median time per step. docs/torch.md has
results. With --device cpu nothing is copied; the tests run it that way.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import time
from collections.abc import Callable, Sequence

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
    parser.add_argument("--num-threads", type=int, nargs="+", help="default: as many as cores")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args(argv)
    device = arguments.device
    name = torch.cuda.get_device_name() if device == "cuda" else "no GPU"
    print(f"torch {torch.__version__}, {name}, {envfleet.__version__}")
    for num_threads in arguments.num_threads or [os.cpu_count() or 1]:
        groups(arguments.rounds, "Acrobot-v1", num_threads, device)


if __name__ == "__main__":
    main()
