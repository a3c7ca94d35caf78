"""Evolution strategies on CartPole-v1: the policy runs in the workers, which return whole episodes.

    python examples/trajectories.py
    python examples/trajectories.py --num-generators 4 --updates 60

Each generator adds its own noise to the newest weights, plays an episode with them and yields its return and the seed
of the noise; the learner moves the weights towards the noise that did well and broadcasts them. Steps send no messages.
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import islice

import gymnasium
import numpy as np

import envfleet
from envfleet.sampling import Runner, rollout, weights

SIZE = (4, 2)


def episodes(seed: int, env_id: str, noise_scale: float):
    """Yield the noise seed and the return of one episode per request."""
    env = gymnasium.make(env_id)
    rng = np.random.default_rng(seed)
    try:
        yield "ready"
        while True:
            center, version = weights()
            noise_seed = int(rng.integers(2**31))
            layer = center + noise_scale * np.random.default_rng(noise_seed).standard_normal(SIZE)
            obs, _ = env.reset(seed=int(rng.integers(2**31)))
            total, done = 0.0, False
            while not done:
                obs, reward, terminated, truncated, _ = env.step(int((obs @ layer).argmax()))
                total += float(reward)
                done = terminated or truncated
            yield {"version": version, "noise_seed": noise_seed, "return": total}
    finally:
        env.close()


def evaluate(env_id: str, layer: np.ndarray) -> float:
    """Return the mean return of the weights without noise, measured in a pool."""
    with envfleet.make(env_id, num_envs=32, seed=1) as envs:
        data = rollout(envs, lambda obs: (obs @ layer).argmax(axis=1), 501)
    return data.episodes.return_mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1", help="an env with 4 observations and 2 actions")
    parser.add_argument("--num-generators", type=int, default=2, help="number of worker processes")
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--episodes-per-update", type=int, default=40)
    parser.add_argument("--noise-scale", type=float, default=0.3)
    parser.add_argument("--learning-rate", type=float, default=0.5)
    parser.add_argument("--backend", default="processes", choices=("processes", "serial", "ray"))
    parser.add_argument("--smoke", action="store_true", help="run for a few seconds only")
    args = parser.parse_args()
    if args.smoke:
        args.updates, args.episodes_per_update = 3, 10
    layer = np.zeros(SIZE)
    makers = [partial(episodes, seed, args.env, args.noise_scale) for seed in range(args.num_generators)]
    with Runner(makers, backend=args.backend) as runner:
        for update in range(args.updates):
            runner.broadcast(layer)
            played = list(islice(runner.trajs(), args.episodes_per_update))
            returns = np.array([episode["return"] for episode in played])
            scores = (returns - returns.mean()) / (returns.std() + 1e-8)
            noises = [np.random.default_rng(episode["noise_seed"]).standard_normal(SIZE) for episode in played]
            layer = layer + args.learning_rate * np.mean([s * n for s, n in zip(scores, noises, strict=True)], axis=0)
            if update % 5 == 4 or update == args.updates - 1:
                print(f"update {update + 1}: mean return {returns.mean():.1f} with noise")
    print(f"without noise: mean return {evaluate(args.env, layer):.1f} of 500")


if __name__ == "__main__":
    main()
