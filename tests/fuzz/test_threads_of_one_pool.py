"""Two threads in one pool: one of them is told so, and the pool is whole afterwards.

`make sanitize-freethreaded` runs this under ThreadSanitizer, where memory that both touched shows.

ENVFLEET_FUZZ_SEED chooses other calls, ENVFLEET_FUZZ_CALLS the number per thread of the long form.
"""

from __future__ import annotations

import os
import random
import threading

import numpy as np
import pytest
from support.subjects import SUBJECTS

from envfleet.core.errors import CallOrderError, EnvIdError, StateError

SEED = int(os.environ.get("ENVFLEET_FUZZ_SEED", "0"))
NUM_CALLS = int(os.environ.get("ENVFLEET_FUZZ_CALLS", "5000"))
NUM_ENVS = 4


def rows(pool, num_steps):
    """What a freshly seeded pool gives out."""
    batches = [pool.reset(seed=SEED)]
    batches += [pool.step(np.full(NUM_ENVS, k % 2)) for k in range(num_steps)]
    return [(batch.obs.tolist(), batch.reward.tolist(), batch.terminated.tolist()) for batch in batches]


def misuse(pool, num_calls, seed, others):
    """Calls the pool at random; others: exceptions that no thread should see."""
    draw = random.Random(seed)
    actions = np.zeros(NUM_ENVS, dtype=np.int64)
    calls = (
        lambda: pool.step(actions),
        lambda: pool.step(actions[:2], env_ids=[0, 2]),
        lambda: pool.send(actions),
        pool.recv,
        pool.reset,
        lambda: pool.reset(seed=draw.randrange(100), env_ids=[1]),
        pool.observe,
        pool.stats,
        pool.get_state,
        lambda: pool.get_attr("gravity"),
    )
    for _ in range(num_calls):
        try:
            draw.choice(calls)()
        except (CallOrderError, EnvIdError, StateError):
            pass  # a second caller; an env that the other thread has sent; an env that cannot be saved
        except BaseException as error:
            others.append(error)


def check(make, num_calls):
    print(f"ENVFLEET_FUZZ_SEED={SEED}")
    pool = make("CartPole-v1", num_envs=NUM_ENVS, num_threads=2, seed=SEED)
    expected = rows(pool, 5)
    others = []
    threads = [threading.Thread(target=misuse, args=(pool, num_calls, f"{SEED} {k}", others)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert others == []
    assert rows(pool, 5) == expected
    pool.close()


BACKENDS = ("native", "serial", "threads", "processes")


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_threads(backend):
    check(SUBJECTS[backend], 150)


@pytest.mark.soak
@pytest.mark.parametrize("backend", BACKENDS)
def test_two_threads_for_long(backend):
    check(SUBJECTS[backend], NUM_CALLS)
