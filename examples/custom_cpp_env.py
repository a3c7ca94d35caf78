"""Your own C++ env: compile ball_beam.cc in seconds and run a thousand copies.

    python examples/custom_cpp_env.py
    python examples/custom_cpp_env.py --num-envs 4096 --gravity 1.6 --video beam.mp4

Needs a C++ compiler, and imageio for the video. A second run loads the compiled env from a cache.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

import envfleet
from envfleet.wrappers import record


def balance(obs: np.ndarray) -> np.ndarray:
    """Choose a tilt from distance and speed, and turn the beam towards it."""
    position, speed, mark, angle = obs.T
    tilt = np.clip(0.6 * (mark - position) - 0.5 * speed, -0.4, 0.4)
    return np.clip(12 * (tilt - angle), -1, 1)[:, None].astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--num-steps", type=int, default=2000)
    parser.add_argument("--gravity", type=float, default=9.81)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--video", default="ball_beam.gif", help="a .gif or .mp4 file; empty for none")
    parser.add_argument("--smoke", action="store_true", help="run for a few seconds only")
    args = parser.parse_args()
    num_frames = 200
    if args.smoke:
        args.num_envs, args.num_steps, num_frames = 64, 300, 20

    started = time.perf_counter()
    (env_id,) = envfleet.compile(Path(__file__).parent / "ball_beam.cc")
    print(f"{env_id} compiled and loaded in {time.perf_counter() - started:.1f} s")

    options = {"gravity": args.gravity, "seed": args.seed}
    with envfleet.make(env_id, num_envs=args.num_envs, autoreset_mode="same_step", **options) as envs:
        obs, _ = envs.reset()
        started = time.perf_counter()
        for _ in range(args.num_steps):
            obs, *_ = envs.step(balance(obs))
        rate = args.num_envs * args.num_steps / (time.perf_counter() - started)
        print(f"{rate:,.0f} steps per second including the controller; the best possible return is near 200")
        print(envs.stats())
    if args.video:
        with envfleet.make(env_id, num_envs=9, render_mode="rgb_array", **options) as envs:
            print(f"video: {record(envs, args.video, balance, num_frames=num_frames, fps=50).resolve()}")


if __name__ == "__main__":
    main()
