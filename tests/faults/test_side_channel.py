"""What has no fixed size beside the rows of worker processes: its memory goes back, and limits are told by name."""

from __future__ import annotations

import os

import numpy as np
import pytest
from pool_scripts import run_pool_script
from support.faulty_env import MisbehavingEnv, Painter

import envfleet
from envfleet import PoolClosedError

MIB = 1 << 20


def used_bytes(pool) -> int:
    """The memory of the pool's file that is not given back."""
    return 512 * os.fstat(pool.executor._memory.fileno()).st_blocks


@pytest.mark.parametrize("num_rounds", [1, 3])
def test_memory_of_large_answers_goes_back(num_rounds):
    with envfleet.make_pool(Painter, num_envs=128, num_workers=2, backend="processes") as pool:
        pool.reset()
        before = used_bytes(pool)
        for number in range(num_rounds):
            frames = pool.render_all()
            assert [int(frame.min()) for frame in frames] == [number + 1] * 128
        del frames
        assert used_bytes(pool) - before < 20 * MIB


def test_memory_of_large_requests_goes_back():
    with envfleet.make_pool(Painter, num_envs=64, num_workers=2, backend="processes") as pool:
        pool.reset()
        before = used_bytes(pool)
        pool.call("take", b"x" * MIB)
        assert pool.get_attr("taken") == (MIB,) * 64
        assert used_bytes(pool) - before < 20 * MIB


def test_messages_of_every_size_keep_apart():
    """Around the sizes at which a message moves to larger boxes, for all envs at once."""
    with envfleet.make_pool(Painter, num_envs=5, num_workers=2, backend="processes") as pool:
        pool.reset()
        rng = np.random.default_rng(0)
        edges = [edge + delta for edge in (4096, 8192, 65536) for delta in (-200, -100, -1, 0, 1, 100)]
        for num_bytes in [*edges, *rng.integers(1, 300_000, 10).tolist()]:
            sent = [rng.bytes(max(1, int(num_bytes) - env_id)) for env_id in range(5)]
            pool.set_attr("note", sent)
            assert list(pool.get_attr("note")) == sent


def test_long_info_keys_are_no_columns():
    """A schema has its place of a fixed size."""

    class Talkative(MisbehavingEnv):
        def step(self, action):
            obs, reward, terminated, truncated, _ = super().step(action)
            return obs, reward, terminated, truncated, {f"{'k' * 3000}{i}": i for i in range(70)}

    with envfleet.make_pool(Talkative, num_envs=2, num_workers=1, backend="processes") as pool:
        pool.reset()
        for _ in range(3):
            info = pool.step([0, 0]).info
            assert [info[f"{'k' * 3000}{i}"].tolist() for i in range(70)] == [[i, i] for i in range(70)]


def test_a_call_that_close_overtakes_writes_into_no_other_file(tmp_path):
    """The file's number is free after close(), and the next file that is opened gets it."""
    pool = envfleet.make_pool(Painter, num_envs=2, num_workers=1, backend="processes")
    number = pool.executor._memory.fileno()
    pool.close()
    with open(tmp_path / "other", "w+b", buffering=0) as other:
        is_taken = other.fileno() == number
        os.dup2(other.fileno(), number)
        try:
            for call in (pool.executor._side_channel.put_request, pool.executor._side_channel.take_reply):
                with pytest.raises(PoolClosedError):
                    call(0, 100)
        finally:
            if not is_taken:
                os.close(number)
    assert (tmp_path / "other").read_bytes() == b""


def run_limited(tmp_path, limit, code):
    return run_pool_script(
        tmp_path,
        f"""
        import resource
        from support.faulty_env import Painter
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
        {code}""",
    )


def test_a_reasonable_limit_on_file_sizes_is_none(tmp_path):
    code = """
        with envfleet.make_pool(Painter, num_envs=128, num_workers=2, backend="processes") as pool:
            pool.reset(options={"note": "x" * 10_000})
            assert all((frame == 1).all() for frame in pool.render_all())
            info = pool.step([int(Misbehavior.RAGGED_INFO)] * 128).info
            print(len(info) > 0)
    """
    result = run_limited(tmp_path, 512 * MIB, code)
    assert (result.returncode, result.stdout, result.stderr) == (0, "True\n", "")


def test_a_message_beyond_the_limit_names_it(tmp_path):
    code = """
        with envfleet.make_pool(Painter, num_envs=16, num_workers=2, backend="processes") as pool:
            pool.reset(seed=0)
            for what in (pool.render_all, lambda: pool.call("take", b"x" * 2**23)):
                try:
                    what()
                except envfleet.EnvfleetError as error:
                    print("ulimit -f" in str(error) and str(16 * 2**20) in str(error))
            print(pool.step([int(Misbehavior.STEP)] * 16).obs[:, 1].tolist() == [1] * 16)
    """
    result = run_limited(tmp_path, 16 * MIB, code)
    assert (result.returncode, result.stdout, result.stderr) == (0, "True\nTrue\nTrue\n", "")


def test_a_pool_beyond_the_limit_names_it(tmp_path):
    code = """
        try:
            envfleet.make_pool(Painter, num_envs=16, num_workers=2, backend="processes")
        except envfleet.EnvfleetError as error:
            print("ulimit -f" in str(error) and "4096" in str(error))
    """
    result = run_limited(tmp_path, 4096, code)
    assert (result.returncode, result.stdout, result.stderr) == (0, "True\n", "")
