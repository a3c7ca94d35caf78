"""Print a hash of the rollouts of every native env and of some Python ones: has a change moved a single bit?

    python tools/rollout_hashes.py > before.txt
    ... change something, rebuild ...
    python tools/rollout_hashes.py | diff before.txt -
    python tools/rollout_hashes.py 'Ant*' walker       only ids that match one of these, as in `envfleet list`

A rollout: eight envs, seeded, 300 random steps with next_step and 300 with same_step. The hash covers every column of
every batch, with the final rows. Envs that miss a package are left out; standard error names them.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium.vector.utils import batch_space

import envfleet

NUM_ENVS, NUM_STEPS, SEED = 8, 300, 123
PYTHON_ENVS = [
    (env_id, backend)
    for env_id in ("CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Blackjack-v1", "Ant-v5", "LunarLander-v3", "Pong-v5")
    for backend in ("serial", "threads", "processes")
]


def main() -> None:
    """Print a line per env and backend: the hash, the id and the backend."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD", help="parts of ids, or patterns")
    words = parser.parse_args().words
    warnings.simplefilter("ignore")  # what Gymnasium says of old versions
    for env_id, backend in cases(words):
        try:
            digest = hash_of(env_id, backend)
        except (ImportError, envfleet.MissingExtraError) as error:
            print(f"left out: {env_id}, {backend}: {str(error).splitlines()[0]}", file=sys.stderr)
        else:
            print(f"{digest}  {env_id}  {backend}", flush=True)


def cases(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the ids to run, each with a backend."""
    chosen: dict[str, str] = {}
    for word in words or [""]:
        command = [sys.executable, "-m", "envfleet", "list", *filter(None, [word])]
        table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        chosen |= {env_id: backend for env_id, backend, *_ in (line.split("\t") for line in table.splitlines())}
    yield from sorted((env_id, backend) for env_id, backend in chosen.items() if backend == "native")
    yield from ((env_id, backend) for env_id, backend in PYTHON_ENVS if env_id in chosen)


def hash_of(env_id: str, backend: str) -> str:
    """Return the hash of the env's rollouts."""
    digest = hashlib.sha256()
    for mode in ("next_step", "same_step"):
        with envfleet.make_pool(env_id, num_envs=NUM_ENVS, backend=backend, autoreset_mode=mode) as pool:
            actions = batch_space(pool.spec.action_space, NUM_ENVS)
            actions.seed(SEED)
            add_batch(digest, pool.reset(seed=SEED))
            try:
                for _ in range(NUM_STEPS):
                    add_batch(digest, pool.step(actions.sample()))
            except envfleet.EnvError:  # dm_control's, of physics that random actions make unstable
                digest.update(b"raised")
    return digest.hexdigest()


def add_batch(digest: Any, batch: envfleet.Batch) -> None:
    """Add every column of a batch, in a fixed order."""
    columns = (batch.obs, batch.reward, batch.terminated, batch.truncated, batch.env_id, batch.elapsed_step, batch.info)
    add(digest, columns, slice(None))
    if batch.final is not None:
        ended = batch.terminated | batch.truncated  # the other rows mean nothing
        add(digest, (batch.final.obs, batch.final.elapsed_step, batch.final.info), ended)


def add(digest: Any, value: Any, rows: Any) -> None:
    """Add these rows of arrays, or of nested ones, with their names, types and shapes."""
    if isinstance(value, Mapping):
        for name in sorted(value):
            digest.update(name.encode())
            add(digest, value[name], rows)
    elif isinstance(value, tuple) and not all(isinstance(part, str) for part in value):
        for part in value:
            add(digest, part, rows)
    else:
        # Texts as objects: a column of characters would be as wide as the longest of all rows.
        array = np.asarray(value, dtype=object if isinstance(value, tuple) else None)[rows]
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(repr(array.tolist()).encode() if array.dtype == object else array.tobytes())


if __name__ == "__main__":
    main()
