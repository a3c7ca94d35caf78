"""Random rollouts on a Ray cluster, during which an actor is killed: python examples/ray_cluster.py --smoke

Without --address, the script starts a small cluster on this machine. With it, it connects to a running one:
    ray start --head                                  on one machine, and `ray start --address=...` on the others
    python examples/ray_cluster.py --address 10.0.0.1:6379 --num-workers 80 --envs-per-worker 64
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import envfleet


@dataclass
class Args:
    env: str = "CartPole-v1"
    address: str | None = None
    num_workers: int = 2
    envs_per_worker: int = 256
    batches: int = 400
    kill: bool = True  # kill one actor half-way; the run continues


def main(args: Args) -> None:
    envs = envfleet.make(
        args.env,
        backend="ray",
        ray=envfleet.RayConfig(address=args.address, envs_per_worker=args.envs_per_worker),
        num_workers=args.num_workers,
        # Half of the envs per batch: the other half keeps running.
        batch_size=args.num_workers * args.envs_per_worker // 2,
        on_error="restart",
        seed=0,
    )
    action_space = envs.single_action_space
    envs.async_reset()
    num_rows = num_errors = 0
    started = time.perf_counter()
    for batch in range(args.batches):
        if args.kill and batch == args.batches // 2:
            import ray

            ray.kill(envs.pool.executor.actors[0])
        obs, _reward, _terminated, _truncated, info = envs.recv()
        actions = [action_space.sample() for _ in range(len(obs))]  # your policy goes here
        envs.send(actions, info["env_id"])
        num_rows += len(obs)
        num_errors += sum(text is not None for text in info.get("error", ()))
    seconds = time.perf_counter() - started
    envs.reset()  # discards the work in flight
    print(f"{num_rows:,} rows in {seconds:.1f} s, {num_errors} of them from envs that were lost and rebuilt")
    print(envs.stats())
    envs.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default=Args.env)
    parser.add_argument("--address")
    parser.add_argument("--num-workers", type=int, default=Args.num_workers)
    parser.add_argument("--envs-per-worker", type=int, default=Args.envs_per_worker)
    parser.add_argument("--batches", type=int, default=Args.batches)
    parser.add_argument("--smoke", action="store_true", help="run for a few seconds only")
    parsed = parser.parse_args()
    args = Args(parsed.env, parsed.address, parsed.num_workers, parsed.envs_per_worker, parsed.batches)
    if parsed.smoke:
        args.envs_per_worker, args.batches = 8, 1000  # long enough for the killed actor's rows to come back
    main(args)
