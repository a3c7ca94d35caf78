"""TorchPool: the rows of a pool as tensors, on the CPU here and on a GPU where there is one."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

torch = pytest.importorskip("torch")

from support import torch_consumers  # noqa: E402
from support.info_env import CountingEnv  # noqa: E402

import envfleet  # noqa: E402
from envfleet import ActionError, CallOrderError, ConfigError, EnvError, RecvTimeout, _native  # noqa: E402
from envfleet.apis.torch import TorchPool  # noqa: E402
from envfleet.envs.compiler import find_compiler  # noqa: E402

SUPPORT = Path(torch_consumers.__file__).parent
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

NUM_ENVS = 6
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=NEEDS_GPU),
]
BACKENDS = ["native", "serial", "threads", "processes"]


class NestedEnv(gymnasium.Env[Any, Any]):
    """Nested observations and actions, a text, and infos of several kinds."""

    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (3, 5), np.uint8),
            "parts": spaces.Tuple([spaces.Box(-1, 1, (2,), np.float64), spaces.Discrete(100)]),
            "text": spaces.Text(8),
        }
    )
    action_space = spaces.Dict({"move": spaces.Discrete(3), "push": spaces.Box(-1, 1, (2,), np.float32)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._count = 0
        return self._obs(0), {"count": 0}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._count += 1
        obs = self._obs(int(action["move"]))
        return obs, float(action["push"].sum()), self._count == 5, False, {"count": self._count, "name": "env"}

    def _obs(self, move: int) -> Any:
        image = self.np_random.integers(0, 256, (3, 5), dtype=np.uint8)
        return {"image": image, "parts": (np.array([self._count, move]) / 10, move), "text": f"step{self._count}"}


def actions_for(space: Any, num_rows: int, seed: int) -> Any:
    batched = gymnasium.vector.utils.batch_space(space, num_rows)
    batched.seed(seed)
    return batched.sample()


def to_tensors(value: Any, device: str) -> Any:
    if isinstance(value, dict):
        return {key: to_tensors(own, device) for key, own in value.items()}
    return torch.as_tensor(value, device=device)


def assert_same(tensors: Any, arrays: Any) -> None:
    """The same values in the same structure."""
    if isinstance(arrays, dict):
        assert tensors.keys() == arrays.keys()
        for key in arrays:
            assert_same(tensors[key], arrays[key])
    elif isinstance(arrays, tuple) and not isinstance(arrays[0], str):
        assert len(tensors) == len(arrays)
        for own, array in zip(tensors, arrays, strict=True):
            assert_same(own, array)
    elif isinstance(arrays, np.ndarray):
        assert isinstance(tensors, torch.Tensor)
        assert tensors.cpu().numpy().dtype == arrays.dtype
        np.testing.assert_array_equal(tensors.cpu().numpy(), arrays)
    else:
        assert tensors == arrays


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_rows_are_those_of_the_pool(device: str, backend: str, mode: str) -> None:
    options: dict[str, Any] = {"num_envs": NUM_ENVS, "seed": 5, "backend": backend, "autoreset_mode": mode}
    with (
        TorchPool("CartPole-v1", device, reward_dtype=None, **options) as envs,
        envfleet.make_pool("CartPole-v1", **options) as pool,
    ):
        obs, _ = envs.reset()
        assert obs.device.type == device
        assert_same(obs, pool.reset().obs)
        num_ended = 0
        for number in range(60):
            actions = actions_for(pool.spec.action_space, NUM_ENVS, number)
            obs, reward, terminated, truncated, info = envs.step(torch.as_tensor(actions, device=device))
            batch = pool.step(actions)
            assert_same(
                (obs, reward, terminated, truncated), (batch.obs, batch.reward, batch.terminated, batch.truncated)
            )
            np.testing.assert_array_equal(info["elapsed_step"], batch.elapsed_step)
            ended = batch.terminated | batch.truncated
            num_ended += int(ended.sum())
            if batch.final is not None:
                assert_same(info["_final_obs"], ended)
                assert_same(info["final_obs"][torch.as_tensor(ended, device=device)], batch.final.obs[ended])
        assert num_ended > 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_nested_spaces_and_infos(device: str, backend: str) -> None:
    options: dict[str, Any] = {"num_envs": 3, "seed": 5, "backend": backend}
    with (
        TorchPool(NestedEnv, device, info_tensors=True, reward_dtype=None, **options) as envs,
        envfleet.make_pool(NestedEnv, **options) as pool,
    ):
        obs, info = envs.reset()
        assert_same(obs, pool.reset().obs)
        for number in range(12):
            actions = actions_for(pool.spec.action_space, 3, number)
            obs, reward, _, _, info = envs.step(to_tensors(actions, device))
            batch = pool.step(actions)
            assert_same(obs, batch.obs)
            assert_same(reward, batch.reward)
            assert_same(info["count"], batch.info["count"])
            assert info["env_id"].device.type == device
            if "name" in batch.info:
                assert list(info["name"]) == list(batch.info["name"])


@pytest.mark.parametrize("device", DEVICES)
def test_groups_step_as_one_pool(device: str) -> None:
    """Env i has the same seed, and thus the same rows, however the envs are grouped."""
    with (
        TorchPool("CartPole-v1", device, num_envs=7, num_groups=3, seed=5) as envs,
        envfleet.make_pool("CartPole-v1", num_envs=7, seed=5) as pool,
    ):
        assert [group.num_envs for group in envs.groups] == [2, 2, 3]
        assert_same(envs.reset()[0], pool.reset().obs)
        for number in range(30):
            actions = actions_for(pool.spec.action_space, 7, number)
            obs, _, terminated, _, info = envs.step(torch.as_tensor(actions, device=device))
            batch = pool.step(actions)
            assert_same((obs, terminated), (batch.obs, batch.terminated))
            np.testing.assert_array_equal(info["env_id"], batch.env_id)
        assert_same(envs.reset(seed=[3] * 7)[0], pool.reset(seed=[3] * 7).obs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backend", ["native", "processes"])
def test_asynchronous_pools(device: str, backend: str) -> None:
    references = {}
    with envfleet.make_pool("CartPole-v1", num_envs=NUM_ENVS, seed=5) as pool:
        references[0] = pool.reset().obs
        for number in range(1, 10):
            references[number] = pool.step(np.full(NUM_ENVS, number % 2)).obs
    counts = np.zeros(NUM_ENVS, int)
    with TorchPool("CartPole-v1", device, num_envs=NUM_ENVS, batch_size=2, seed=5, backend=backend) as envs:
        envs.async_reset()
        while counts.min() < 9:
            obs, _, _, _, info = envs.recv()
            for row, env_id in enumerate(info["env_id"]):
                if counts[env_id] < 10:
                    assert_same(obs[row], references[counts[env_id]][env_id])
                counts[env_id] += 1
            envs.send(torch.as_tensor(counts[info["env_id"]] % 2, device=device), info["env_id"])


@pytest.mark.parametrize("device", DEVICES)
def test_static_shapes(device: str) -> None:
    with TorchPool("CartPole-v1", device, num_envs=4, static_shapes=True, seed=5) as envs:
        obs, info = envs.reset()
        address = obs.data_ptr()
        assert info["mask"].tolist() == [True] * 4
        some, _, _, _, info = envs.groups[0].step(torch.tensor([1, 0], device=device), [3, 1])
        assert (some.data_ptr(), some.shape) == (address, (4, 4))
        assert info["mask"].tolist() == [True, True, False, False]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backend", ["native", "processes"])
def test_tensors_that_are_held_never_change(device: str, backend: str) -> None:
    """A buffer that a copy still reads, or that a tensor shares, is not recycled."""
    check_held_tensors(device, backend, num_steps=300)


@NEEDS_GPU
@pytest.mark.parametrize("backend", ["native", "processes"])
@pytest.mark.parametrize("seed", [1, 2])
def test_random_consumers(backend: str, seed: int) -> None:
    """Some hold tensors, some drop them, some compare late; with the host ahead of the device and behind it."""
    consume_on_gpu(backend, 1000, seed)


@pytest.mark.soak
@NEEDS_GPU
@pytest.mark.parametrize("backend", ["native", "processes"])
def test_a_million_batches(backend: str) -> None:
    consume_on_gpu(backend, int(os.environ.get("ENVFLEET_TORCH_BATCHES", "1000000")), random.randrange(1 << 30))


def consume_on_gpu(backend: str, num_steps: int, seed: int) -> None:
    env, options = torch_consumers.subject(backend)
    with TorchPool(env, "cuda", reward_dtype=None, **options) as envs:
        assert torch_consumers.consume(envs, backend, num_steps, seed) > 0


@pytest.fixture(scope="module")
def late_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    source = SUPPORT / "late_cuda_driver.cc"
    flags = ["-std=c++20", "-shared", "-fPIC", "-pthread", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([*find_compiler(), *flags, "-o", str(library), str(source)], check=True)
    return library


@pytest.mark.skipif(sys.platform != "linux" or torch.cuda.is_available(), reason="stands in for the CUDA driver")
@pytest.mark.parametrize("backend", ["native", "processes", "restarts"])
def test_copies_that_run_late(backend: str, late_driver: Path) -> None:
    """Without a GPU: what a copy still reads is not overwritten, and page-locked memory is unlocked in the end."""
    script = [sys.executable, str(SUPPORT / "torch_consumers.py"), str(late_driver), backend, "300", "1"]
    result = subprocess.run(script, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
    counts = re.fullmatch(r"compared (\d+), registered (\d+), left 0\n", result.stdout)
    assert counts, result.stdout
    assert int(counts[1]) > 100
    assert 0 < int(counts[2]) < 30


@pytest.mark.parametrize("device", DEVICES)
def test_columns_are_independent_for_autograd(device: str) -> None:
    """A change of one column in place is no change of another that a graph has saved."""
    with TorchPool("CartPole-v1", device, num_envs=4, reward_dtype=None, seed=5) as envs:
        envs.reset()
        obs, reward, terminated, truncated, _ = envs.step(torch.zeros(4, dtype=torch.int64, device=device))
        weights = torch.ones(4, device=device, requires_grad=True)
        loss = (obs @ weights).sum()
        terminated |= truncated
        reward += 1
        loss.backward()
        torch.testing.assert_close(weights.grad, obs.sum(0))


def check_held_tensors(device: str, backend: str, num_steps: int) -> None:
    rng = random.Random(7)
    held: list[tuple[Any, Any]] = []
    options: dict[str, Any] = {"num_envs": 64, "seed": 5}
    with (
        TorchPool("CartPole-v1", device, backend=backend, reward_dtype=None, **options) as envs,
        envfleet.make_pool("CartPole-v1", **options) as pool,
    ):
        envs.reset()
        pool.reset()
        for _ in range(num_steps):
            actions = np.full(64, rng.randrange(2))
            obs, reward, _, _, _ = envs.step(torch.as_tensor(actions, device=device))
            batch = pool.step(actions)
            if rng.random() < 0.3:
                # On the CPU, rows of workers are copies; on the GPU every tensor is one.
                held.append(((obs, reward), (batch.obs.copy(), batch.reward.copy())))
            while held and rng.random() < 0.3:
                assert_same(*held.pop(rng.randrange(len(held))))
            if len(held) > 40:
                del held[rng.randrange(len(held))]
        for tensors, arrays in held:
            assert_same(tensors, arrays)


class HugeRewardEnv(torch_consumers.NoiseEnv):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, 1e300, terminated, truncated, info


@pytest.mark.parametrize("device", DEVICES)
def test_rewards_beyond_float32_are_infinite(device: str) -> None:
    with TorchPool(HugeRewardEnv, device, num_envs=2, backend="serial") as envs:
        envs.reset()
        rewards = envs.step(torch.zeros(2, dtype=torch.int64, device=device))[1]
        assert (rewards.dtype, rewards.tolist()) == (torch.float32, [float("inf")] * 2)


def test_refusals() -> None:
    with pytest.raises(ConfigError, match=r"num_groups expected an integer from 1 to num_envs=4, got 5"):
        TorchPool("CartPole-v1", "cpu", num_envs=4, num_groups=5)
    with (
        TorchPool("CartPole-v1", "cpu", num_envs=4, num_groups=2) as envs,
        pytest.raises(ConfigError, match=r"send\(\) expected num_groups=1.*envs\.groups"),
    ):
        envs.send(torch.zeros(4, dtype=torch.int64))
    with (
        envfleet.make_pool("CartPole-v1", num_envs=4) as pool,
        pytest.raises(ConfigError, match="without further options"),
    ):
        TorchPool(pool, "cpu", num_envs=3)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="device='cpu'"):
            TorchPool("CartPole-v1", "cuda")


@pytest.mark.parametrize("device", ["meta", "mps", "xla", "no such device", None])
def test_other_devices_are_refused(device: Any) -> None:
    with pytest.raises(ConfigError, match="device expected 'cpu'"):
        TorchPool("CartPole-v1", device)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"reward_dtype expected a torch\.dtype or None, got 'float32'"):
        TorchPool("CartPole-v1", "cpu", reward_dtype="float32")
    for name in ("info_tensors", "static_shapes"):
        with pytest.raises(ConfigError, match=f"{name} expected True or False, got 'no'"):
            TorchPool("CartPole-v1", "cpu", **{name: "no"})
    for num_groups in (1, 2):
        with pytest.raises(ConfigError, match=r"num_envs expected an integer from 1 to [0-9]+, got '4'"):
            TorchPool("CartPole-v1", "cpu", num_envs="4", num_groups=num_groups)


@pytest.mark.parametrize("device", DEVICES)
def test_bfloat16_actions(device: str) -> None:
    """numpy has no bfloat16, which policies compute under autocast."""
    with (
        TorchPool("Pendulum-v1", device, num_envs=2, seed=0) as envs,
        TorchPool("Pendulum-v1", device, num_envs=2, seed=0) as others,
    ):
        envs.reset()
        others.reset()
        actions = torch.tensor([[0.5], [-1.25]], device=device)
        assert torch.equal(envs.step(actions.to(torch.bfloat16))[0], others.step(actions)[0])


@pytest.mark.parametrize(
    "actions",
    [
        torch.zeros(2, 1, device="meta"),
        torch.zeros(2, 1).to_sparse(),
        pytest.param(torch.zeros(2, 1, dtype=torch.complex64), id="complex"),
    ],
)
def test_tensors_without_an_array_are_refused(actions: Any) -> None:
    with TorchPool("Pendulum-v1", "cpu", num_envs=2) as envs:
        envs.reset()
        with pytest.raises(ActionError, match=r"expected .*actions"):
            envs.step(actions)
        with pytest.raises(ActionError, match="dense tensor that has values"):
            torch.func.vmap(lambda own: envs.step(own)[1])(torch.zeros(3, 2, 1))
        _, _, _, _, info = envs.step(torch.zeros(2, 1))
        assert info["elapsed_step"].tolist() == [1, 1]


class SlowOrFailingEnv(gymnasium.Env[Any, Any]):
    """Action 1 waits until a file exists, action 2 raises, action 3 has an info of its own."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(4)

    def __init__(self, path: str = "") -> None:
        self._path = path

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        while action == 1 and not os.path.exists(self._path):
            time.sleep(0.001)
        if action == 2:
            raise ValueError("action 2")
        info = {"rare": 7, "part": {"x": 1.5}} if action == 3 else {}
        return np.zeros(2, np.float32), float(action), False, False, info


def actions_of(*actions: int) -> Any:
    return torch.tensor(actions)


def test_groups_check_all_actions_first() -> None:
    """Wrong actions of the last group: no env of the first one has moved, and the error names the env."""
    with TorchPool("CartPole-v1", "cpu", num_envs=5, num_groups=2) as envs:
        envs.reset()
        for actions, message in (
            (actions_of(0, 0, 0, 0, 7), "got 7 for env 4"),
            (actions_of(0, 0, 0, 0), r"of shape \(5,\), got \(4,\)"),
            (actions_of(0, 0, 0, 0, 0, 0), r"of shape \(5,\), got \(6,\)"),
        ):
            with pytest.raises(ActionError, match=message):
                envs.step(actions)
        with pytest.raises(ConfigError, match="timeout expected seconds"):
            envs.step(actions_of(0, 0, 0, 0, 0), timeout="soon")  # type: ignore[arg-type]
        _, _, _, _, info = envs.step(actions_of(0, 0, 0, 0, 0))
        assert info["elapsed_step"].tolist() == [1, 1, 1, 1, 1]


def test_groups_that_time_out_are_received_later(tmp_path: Path) -> None:
    gate = tmp_path / "open"
    options = {"num_envs": 4, "num_groups": 2, "backend": "threads", "path": str(gate)}
    with TorchPool(SlowOrFailingEnv, "cpu", **options) as envs:
        envs.reset()
        with pytest.raises(RecvTimeout, match=r"recv\(\) returns it"):
            envs.step(actions_of(0, 3, 0, 1), timeout=0.05)
        with pytest.raises(CallOrderError, match=r"recv\(\) it first"):
            envs.step(actions_of(0, 0, 0, 0))
        gate.touch()
        _, reward, _, _, info = envs.recv(timeout=60)
        assert reward.tolist() == [0, 3, 0, 1]
        assert info["elapsed_step"].tolist() == [1, 1, 1, 1]
        _, _, _, _, info = envs.step(actions_of(0, 0, 0, 0))
        assert info["elapsed_step"].tolist() == [2, 2, 2, 2]


def test_groups_with_envs_that_raise() -> None:
    with TorchPool(SlowOrFailingEnv, "cpu", num_envs=4, num_groups=2, backend="serial") as envs:
        envs.reset()
        with pytest.raises(EnvError, match="env 2 raised in step") as caught:
            envs.step(actions_of(0, 3, 2, 3))
        assert caught.value.env_id == 2
        batch = caught.value.batch
        assert batch is not None
        assert batch.env_id.tolist() == [0, 1, 2, 3]
        assert batch.reward.tolist() == [0, 3, 0, 3]
        envs.reset()
        assert envs.step(actions_of(0, 0, 0, 3))[1].tolist() == [0, 0, 0, 3]


@pytest.mark.parametrize("info_tensors", [False, True])
def test_groups_keep_infos_that_one_of_them_has(info_tensors: bool) -> None:
    options = {"backend": "serial", "info_tensors": info_tensors}
    with (
        TorchPool(SlowOrFailingEnv, "cpu", num_envs=5, num_groups=2, **options) as envs,
        TorchPool(SlowOrFailingEnv, "cpu", num_envs=5, **options) as whole,
    ):
        envs.reset()
        whole.reset()
        for actions in (actions_of(0, 0, 0, 3, 0), actions_of(3, 3, 0, 3, 0), actions_of(3, 3, 3, 3, 3)):
            assert_equal_infos(envs.step(actions)[4], whole.step(actions)[4])


def assert_equal_infos(info: Any, expected: Any) -> None:
    assert info.keys() == expected.keys()
    for key, column in expected.items():
        assert type(info[key]) is type(column)
        if isinstance(column, dict):
            assert_equal_infos(info[key], column)
        else:
            assert info[key].dtype == column.dtype
            assert info[key].tolist() == column.tolist()


def test_static_shapes_of_asynchronous_pools() -> None:
    """A reset returns more rows than a batch has."""
    with TorchPool("CartPole-v1", "cpu", num_envs=4, batch_size=2, static_shapes=True) as envs:
        with pytest.raises(ConfigError, match=r"at most batch_size=2 rows, got 4; call async_reset\(\)"):
            envs.reset()
        envs.async_reset()
        assert envs.recv()[0].shape == (2, 4)


def test_static_shapes_of_infos_that_change() -> None:
    class ChangingInfos(SlowOrFailingEnv):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            values = [1, 2.5, np.arange(3), np.arange(2)]
            return np.zeros(2, np.float32), 0.0, False, False, {"value": values[action]}

    options = {"num_envs": 2, "backend": "serial", "info_tensors": True, "static_shapes": True}
    with TorchPool(ChangingInfos, "cpu", **options) as envs:
        envs.reset()
        for action, expected in enumerate([[1, 1], [2.5, 2.5], [[0, 1, 2]] * 2, [[0, 1]] * 2]):
            assert envs.step(actions_of(action, action))[4]["value"].tolist() == expected


@NEEDS_GPU
@pytest.mark.parametrize("backend", ["native", "processes"])
def test_batches_are_page_locked(backend: str) -> None:
    with TorchPool("CartPole-v1", "cuda", num_envs=8192, backend=backend, num_workers=2) as envs:
        envs.reset()
        for _ in range(8):
            envs.step(torch.zeros(8192, dtype=torch.int64, device="cuda"))
        batch = envs.groups[0].pool.step(np.zeros(8192, np.int64))
        if backend == "native":  # a buffer is locked when it is first uploaded, and stays so
            assert _native.lock_pages(batch.obs)
        assert torch.from_numpy(batch.obs).is_pinned()


def test_array_memory_is_used_again() -> None:
    """Large arrays reuse the memory of those that died, which stays page-locked; small ones are numpy's own."""
    memory = _native.ArrayMemory()
    first = memory.empty((64, 4, 84, 84), np.uint8)
    address = first.ctypes.data
    second = memory.empty((64, 4, 84, 84), np.uint8)
    assert second.ctypes.data != address
    del first
    assert memory.empty((64, 4, 84, 84), np.uint8).ctypes.data == address
    assert memory.empty((2, 3), np.float32).shape == (2, 3)
    assert not _native.lock_pages(memory.empty((2, 3), np.float32))


@NEEDS_GPU
def test_actions_of_any_layout() -> None:
    """Actions that are not contiguous, or on the host, are the same actions."""
    with TorchPool("CartPole-v1", "cuda", num_envs=4, seed=5) as envs:
        envs.reset()
        wide = torch.tensor([[0, 1], [1, 0], [0, 1], [1, 0]], device="cuda")
        first = envs.step(wide[:, 0])[0].clone()
        envs.reset(seed=5)
        assert torch.equal(envs.step(wide[:, 0].cpu())[0], first)


@NEEDS_GPU
def test_the_current_stream_changes() -> None:
    """Batches are allocated on the stream that is current, and ordered with it."""
    with TorchPool("CartPole-v1", "cuda", num_envs=4096, seed=5) as envs:
        expected = envs.reset()[0].clone()
        torch.cuda.synchronize()
        for _ in range(20):
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.cuda._sleep(100_000)
                obs, _ = envs.reset(seed=5)
                assert torch.equal(obs, expected)


class NamesakeEnv(SlowOrFailingEnv):
    """Has infos of its own under the names of the pool's."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {"env_id": 7, "elapsed_step": 99, "other": 1}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 0.0, False, False, {"env_id": 7, "elapsed_step": 99, "other": 2}


@pytest.mark.parametrize("info_tensors", [False, True])
@pytest.mark.parametrize("num_groups", [1, 2])
def test_ids_of_the_pool_take_precedence(num_groups: int, info_tensors: bool) -> None:
    options = {"num_envs": 4, "backend": "serial", "num_groups": num_groups, "info_tensors": info_tensors}
    with TorchPool(NamesakeEnv, "cpu", **options) as envs:
        infos = [envs.reset()[1], envs.step(actions_of(0, 0, 0, 0))[4]]
        for count, info in enumerate(infos):
            assert info["env_id"].tolist() == [0, 1, 2, 3]
            assert info["elapsed_step"].tolist() == [count] * 4
            assert info["other"].tolist() == [count + 1] * 4
            assert info["_env_id"].all()
        assert info["_elapsed_step"].all()


def test_static_shapes_of_keys_with_dots() -> None:
    box = spaces.Box(-9, 9, (1,), np.float32)

    class DottedEnv(SlowOrFailingEnv):
        observation_space = spaces.Dict({"a.b": box, "a": spaces.Dict({"b": box})})

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            return {"a.b": np.full(1, 1, np.float32), "a": {"b": np.full(1, 2, np.float32)}}, {}

    with TorchPool(DottedEnv, "cpu", num_envs=2, backend="serial", static_shapes=True) as envs:
        obs, _ = envs.reset()
        assert (obs["a.b"].tolist(), obs["a"]["b"].tolist()) == ([[1], [1]], [[2], [2]])


def test_tensors_of_env_ids() -> None:
    """Of the pool itself, which knows nothing of torch."""
    with envfleet.make_pool("CartPole-v1", num_envs=4, batch_size=2) as pool:
        pool.async_reset(seed=0)
        ids = torch.as_tensor(pool.recv().env_id.copy())
        assert len(pool.step(np.zeros(2, np.int64), ids)) == 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_groups", [1, 2])
@pytest.mark.parametrize("info_tensors", [False, True])
def test_final_infos_and_masks(device, num_groups, info_tensors):
    """As in a vector env: infos of last steps under final_info, and a mask for each key, also if all rows have it."""
    options: dict[str, Any] = {"num_envs": 4, "backend": "serial", "autoreset_mode": "same_step", "seed": 0}
    with (
        TorchPool(CountingEnv, device, info_tensors=info_tensors, num_groups=num_groups, **options) as envs,
        envfleet.make(CountingEnv, **options) as reference,
    ):
        envs.reset()
        reference.reset()
        for _ in range(4):
            *_, expected = reference.step(np.zeros(4, np.int64))
            *_, info = envs.step(torch.zeros(4, dtype=torch.int64))
            assert same_infos(info, expected)
    assert isinstance(info["_error"], torch.Tensor if info_tensors else np.ndarray)


def same_infos(info: Any, expected: Any) -> bool:
    """Compare infos; final observations have another form."""
    if isinstance(expected, dict):
        keys = expected.keys() - {"final_obs", "_final_obs"}
        assert keys <= info.keys()
        return all(same_infos(info[key], expected[key]) for key in keys)
    return np.array_equal(info.cpu() if isinstance(info, torch.Tensor) else info, expected)


class OddDtypes(gymnasium.Env[Any, Any]):
    observation_space = spaces.Dict(
        {
            "big": spaces.Box(-1, 1, (2,), np.dtype(">f4")),
            "long": spaces.Box(-9, 9, (2,), np.longlong),
        }
    )
    action_space = spaces.Discrete(2)

    def _obs(self) -> dict[str, Any]:
        return {"big": np.ones(2, ">f4"), "long": np.full(2, 3, np.longlong)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._obs(), 1.0, False, False, {"big": np.ones(2, ">i2")}


def test_dtypes_that_torch_has_under_another_name_or_not_at_all():
    with TorchPool(OddDtypes, "cpu", num_envs=2, backend="serial", info_tensors=True) as envs:
        envs.reset()
        obs, *_, info = envs.step(torch.zeros(2, dtype=torch.int64))
    assert obs["long"].dtype == torch.int64
    # torch has no tensors in another byte order.
    assert isinstance(obs["big"], np.ndarray)
    assert isinstance(info["big"], np.ndarray)
    assert obs["big"].tolist() == [[1, 1], [1, 1]]


def test_some_envs_of_a_pool():
    """reset() and step() take the ids of envs, on an asynchronous pool too."""
    with TorchPool("CartPole-v1", "cpu", num_envs=4, batch_size=2, seed=0) as envs:
        obs, _ = envs.reset([1, 2])
        assert len(obs) == 2
        envs.reset()
        *_, info = envs.step(torch.zeros(2, dtype=torch.int64), [0, 3])
        assert sorted(info["env_id"].tolist()) == [0, 3]
        *_, info = envs.step(torch.zeros(2, dtype=torch.int64), torch.tensor([1, 2]))
        assert sorted(info["env_id"].tolist()) == [1, 2]
    with (
        TorchPool("CartPole-v1", "cpu", num_envs=4, num_groups=2) as envs,
        pytest.raises(ConfigError, match=r"step\(\) of some envs expected num_groups=1, got 2 groups"),
    ):
        envs.step(torch.zeros(2, dtype=torch.int64), [0, 3])
