"""Random consumers of tensors: they hold, drop and compare late, bit by bit.

python torch_consumers.py cuda BACKEND NUM_STEPS SEED      on a GPU; make sanitize-cuda runs that
python torch_consumers.py LIBCUDA BACKEND NUM_STEPS SEED   on the CPU, with late_cuda_driver.cc as the driver
"""

from __future__ import annotations

import ctypes
import gc
import random
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

import envfleet
from envfleet.apis.common.torch_transfer import DeviceTransfer
from envfleet.apis.torch import TorchPool


class NoiseEnv(gymnasium.Env[Any, Any]):
    """Observations of 16 KiB of noise: eight of them are copied from where the workers write them."""

    observation_space = spaces.Box(0, 255, (128, 128), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._noise(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._noise(), float(action), bool(self.np_random.integers(20) == 0), False, {}

    def _noise(self) -> Any:
        return self.np_random.integers(0, 256, (128, 128), dtype=np.uint8)


class RaisingNoiseEnv(NoiseEnv):
    """Raises now and then, so that the pool rebuilds it while its batch is on its way to the device."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.np_random.integers(10) == 0:
            raise RuntimeError("noise")
        return super().step(action)


def subject(backend: str) -> tuple[Any, dict[str, Any]]:
    """Return an env and the options of its pool."""
    if backend == "native":
        return "CartPole-v1", {"num_envs": 512, "seed": 5, "backend": "native"}
    options: dict[str, Any] = {"num_envs": 8, "seed": 5, "num_workers": 2}
    if backend == "restarts":
        return RaisingNoiseEnv, {**options, "backend": "processes", "on_error": "restart", "max_restarts": 10**6}
    return NoiseEnv, {**options, "backend": backend}


def consume(envs: TorchPool, backend: str, num_steps: int, seed: int, finish: Callable[[], None] | None = None) -> int:
    """Step the envs beside a reference pool, hold random results, and compare them. Return how many were compared.

    finish: waits for copies, for a device without streams: tensors that were dropped are kept until then.
    """
    rng = random.Random(seed)
    env, options = subject(backend)
    num_envs, device = options["num_envs"], envs.device
    held: list[tuple[torch.Tensor, Any]] = []
    dropped: list[torch.Tensor] = []  # with finish only
    num_compared = 0

    def compare(tensor: torch.Tensor, expected: Any) -> None:
        nonlocal num_compared
        if finish is not None:
            finish()
        is_same = torch.equal(tensor, torch.from_numpy(expected).to(device))
        assert is_same, f"seed {seed}: expected {expected}, got {tensor}"
        num_compared += 1

    reference_backend = "native" if backend == "native" else "serial"
    with envfleet.make_pool(env, **{**options, "backend": reference_backend, "num_workers": 0}) as pool:
        dropped.append(envs.reset()[0])
        pool.reset()
        group = envs.groups[0]
        for number in range(num_steps):
            actions = np.full(num_envs, rng.randrange(2))
            # Actions of the host do not make the host wait for the device.
            given = torch.as_tensor(actions, device=device) if rng.random() < 0.3 else actions
            kind = rng.randrange(5)
            if kind == 0:  # the pool's own batches, which are copied to no device, come between
                group.pool.step(actions)
                pool.step(actions)
                group.pool.send(actions)
            elif kind < 3:
                group.send(given)
            else:
                result = envs.step(given)
            batch = pool.step(actions)
            if kind < 3:
                result = group.recv()
            columns = list(zip(result, (batch.obs, batch.reward, batch.terminated, batch.truncated), strict=False))
            for tensor, expected in rng.sample(columns, rng.randrange(4)):
                first = rng.randrange(num_envs) if rng.random() < 0.5 else 0  # a part keeps the memory of the whole
                copied = tensor[first:].clone() if finish is None and rng.random() < 0.2 else tensor[first:]
                held.append((copied, expected[first:].copy()))
            if finish is not None:
                dropped.append(result[0])
                if number % 50 == 49:
                    finish()
                    dropped.clear()
            else:
                dropped.clear()
            del result, columns
            while held and rng.random() < 0.4:
                compare(*held.pop(rng.randrange(len(held))))
            if len(held) > 30:
                del held[rng.randrange(len(held))]
        while held:
            compare(*held.pop())
        if finish is not None:
            finish()
    return num_compared


def main() -> None:
    """Run them and print what was compared, and what the late driver counted."""
    where, backend, num_steps, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    env, options = subject(backend)
    if where == "cuda":
        with TorchPool(env, "cuda", reward_dtype=None, **options) as envs:
            print(f"compared {consume(envs, backend, num_steps, seed)}")
    else:
        run_with(ctypes.CDLL(where), backend, num_steps, seed)


def run_with(driver: ctypes.CDLL, backend: str, num_steps: int, seed: int) -> None:
    """Run on the CPU, with this driver."""

    def num_registered() -> tuple[int, int]:
        now, so_far = ctypes.c_int(), ctypes.c_int()
        driver.report(ctypes.byref(now), ctypes.byref(so_far))
        return now.value, so_far.value

    env, options = subject(backend)
    envs = TorchPool(envfleet.make_pool(env, **options, copy=False), "cpu", reward_dtype=None)
    envs.groups[0]._transfer = DeviceTransfer("cpu")
    num_compared = consume(envs, backend, num_steps, seed, lambda: driver.cuStreamSynchronize(None))
    envs.close()
    used = num_registered()[1]
    del envs
    gc.collect()
    print(f"compared {num_compared}, registered {used}, left {num_registered()[0]}")


if __name__ == "__main__":
    main()
