"""Rollouts of PufferLib's own vector envs and of envfleet's, compared row for row. Needs the package pufferlib."""

import os
import sys
import tempfile
from functools import partial

import numpy as np

os.chdir(tempfile.mkdtemp())  # pufferlib links its resources into the current folder
import pufferlib  # noqa: E402
import pufferlib.emulation  # noqa: E402
import pufferlib.vector  # noqa: E402
from pufferlib_probes import Nested, Walkers, native_class  # noqa: E402

from envfleet.compat import pufferlib_vector  # noqa: E402

STEPS = 40


def creator(kind, theirs):
    emulation = pufferlib.emulation if theirs else pufferlib_vector
    if kind == "native":
        return native_class(pufferlib.PufferEnv if theirs else pufferlib_vector.PufferEnv)
    if kind == "foreign native":  # PufferLib's own class in our vector env
        return native_class(pufferlib.PufferEnv)
    if kind == "foreign nested":
        return partial(pufferlib.emulation.GymnasiumPufferEnv, env_creator=Nested)
    wrapper, env = {"nested": ("GymnasiumPufferEnv", Nested), "walkers": ("PettingZooPufferEnv", Walkers)}[kind]
    return partial(getattr(emulation, wrapper), env_creator=env)


def rollout(kind, backend, theirs, num_envs=2, **options):
    vector = pufferlib.vector if theirs else pufferlib_vector
    envs = vector.make(creator(kind, theirs), backend=getattr(vector, backend), num_envs=num_envs, **options)
    shapes = (
        envs.single_observation_space,
        envs.single_action_space,
        envs.observation_space,
        envs.action_space,
        envs.num_agents,
        envs.agents_per_batch,
        envs.num_envs,
        dict(envs.emulated) if envs.emulated else False,
        envs.driver_env.num_agents,
    )
    random = np.random.default_rng(1)
    envs.async_reset(seed=7)
    rows = []
    for _ in range(STEPS):
        o, r, d, t, infos, ids, masks = envs.recv()
        rows.append([np.array(own) for own in (o, r, d, t, ids, masks)])
        rows[-1].append([dict(info) for info in infos])
        high = envs.action_space.nvec if hasattr(envs.action_space, "nvec") else envs.action_space.high + 1
        envs.send(random.integers(0, high).astype(np.int32))
    envs.recv()
    envs.close()
    return shapes, rows


def main():
    for kind in ("native", "nested", "walkers"):
        for backend, options in (
            ("Serial", {}),
            ("Multiprocessing", {"num_workers": 2, "overwork": True}),
            ("Multiprocessing", {"num_workers": 2, "batch_size": 1, "overwork": True}),
        ):
            expected = rollout(kind, backend, theirs=True, **options)
            variants = [kind] if kind == "walkers" else [kind, f"foreign {kind}"]
            for own in variants:
                shapes, rows = rollout(own, backend, theirs=False, **options)
                assert shapes == expected[0], (own, backend, shapes, expected[0])
                for number, (ours, theirs) in enumerate(zip(rows, expected[1], strict=True)):
                    for place, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
                        same = (
                            mine == other if place == 6 else np.array_equal(mine, other) and mine.dtype == other.dtype
                        )
                        assert same, (own, backend, options, number, place, mine, other)
            print(f"{kind} {backend} {options}: the same", flush=True)


if __name__ == "__main__":
    main()
    print("done")
    sys.exit()
