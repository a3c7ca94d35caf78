"""Compare a pool's own connections with Ray's Compiled Graphs, in speed and after faults: figures of docs/ray.md.

python benchmarks/ray_transports.py            about two minutes; prints Markdown
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

ENVS_PER_WORKER = (4, 256, 4096)
ROUNDS = 4


class GraphActor:
    """Steps native CartPoles, with the messages of envfleet's own actors."""

    def __init__(self, num_envs: int) -> None:
        import envfleet
        from envfleet.executors.ray.messages import RequestCodec, ResponseCodec

        self.pool = envfleet.make_pool("CartPole-v1", num_envs=num_envs, num_threads=1)
        self.pool.reset(seed=0)
        self.requests = RequestCodec(self.pool.spec.action_space)
        self.responses = ResponseCodec(self.pool.spec.observation_space, has_finals=False)
        self.phases = np.zeros(num_envs, np.uint8)

    def step(self, data: bytes) -> bytes:
        batch = self.pool.step(self.requests.decode(memoryview(data), self.pool.num_envs).actions[0])
        flags = batch.terminated, batch.truncated
        encoded = self.responses.encode(
            [batch.obs], batch.reward, batch.elapsed_step, *flags, self.phases, None, None, b""
        )
        return b"".join((*encoded.authenticated, *encoded.columns))

    def pid(self) -> int:
        return os.getpid()


class SleepingActor:
    """Takes as long as it is told to."""

    def step(self, milliseconds: float) -> bytes:
        time.sleep(milliseconds / 1000)
        return b"done"

    def pid(self) -> int:
        return os.getpid()


def compiled_graph(ray: Any, actors: list[Any]) -> Any:
    from ray.dag import InputNode, MultiOutputNode

    with InputNode() as inputs:
        graph = MultiOutputNode([actor.step.bind(inputs[index]) for index, actor in enumerate(actors)])
    return graph.experimental_compile(_buffer_size_bytes=1 << 20)


def steps_per_second(step: Callable[[], Any], seconds: float) -> float:
    for _ in range(20):
        step()
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        step()
        count += 1
    return count / (time.perf_counter() - started)


def speed_table(ray: Any, seconds: float) -> None:
    import envfleet
    from envfleet.executors.ray.messages import STEP, Request, RequestCodec, ResponseCodec

    print("| workers x envs | own connections | Compiled Graph | ratio of throughputs |\n|---|---|---|---|")
    for num_envs in ENVS_PER_WORKER:
        pool = envfleet.make_pool(
            "CartPole-v1",
            backend="ray",
            num_workers=2,
            num_envs=2 * num_envs,
            ray=envfleet.RayConfig(inner_num_workers=1),
            seed=0,
        )
        pool.reset()
        actions = np.random.default_rng(0).integers(0, 2, 2 * num_envs)
        requests = RequestCodec(pool.spec.action_space)
        responses = ResponseCodec(pool.spec.observation_space, has_finals=False)
        actors = [ray.remote(GraphActor).remote(num_envs) for _ in range(2)]
        ray.get([actor.pid.remote() for actor in actors])
        graph = compiled_graph(ray, actors)
        obs, reward = np.empty((2 * num_envs, 4), np.float32), np.empty(2 * num_envs)

        def step_graph(
            graph: Any = graph, obs: Any = obs, reward: Any = reward, actions: Any = actions, num_envs: int = num_envs,
            requests: Any = requests, responses: Any = responses,
        ) -> None:  # fmt: skip
            shares = [slice(first, first + num_envs) for first in (0, num_envs)]
            data = [requests.encode(Request(0, 0, STEP, None, [actions[share]])) for share in shares]
            for share, response in zip(shares, ray.get(graph.execute(*data)), strict=True):
                columns = responses.decode(memoryview(response))
                obs[share], reward[share] = columns.obs[0], columns.reward

        rates: tuple[list[float], list[float]] = ([], [])
        for _ in range(ROUNDS):  # alternating: these machines are noisy
            rates[0].append(steps_per_second(lambda pool=pool, actions=actions: pool.step(actions), seconds))
            with contextlib.suppress(ray.exceptions.RayChannelTimeoutError):  # its default is 10 s
                rates[1].append(steps_per_second(step_graph, seconds))
        own, other = (statistics.median(values) if values else 0.0 for values in rates)
        graph_ms = f"{1000 / other:.2f} ms" if other else "timed out"
        print(f"| 2 x {num_envs} | {1000 / own:.2f} ms | {graph_ms} | {other / own:.2f} |", flush=True)
        graph.teardown()
        pool.close()
        for actor in actors:
            ray.kill(actor)


def fault_list(ray: Any) -> None:
    """Print what a Compiled Graph of two actors does in the situations that the fault tests cover."""

    def report(situation: str, call: Callable[[], Any]) -> None:
        try:
            outcome = repr(call())
        except BaseException as error:
            outcome = f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"
        print(f"- {situation}: {outcome}", flush=True)

    def graph_of_two() -> tuple[list[int], Any]:
        actors = [ray.remote(SleepingActor).remote() for _ in range(2)]
        held.extend(actors)
        return ray.get([actor.pid.remote() for actor in actors]), compiled_graph(ray, actors)

    held: list[Any] = []
    print()
    pids, graph = graph_of_two()
    refs = graph.execute(1500, 1)
    threading.Timer(0.3, os.kill, (pids[0], signal.SIGKILL)).start()
    report("an actor is killed; the row of the other one", lambda: ray.get(refs[1]))
    report("the next step", lambda: ray.get(graph.execute(1, 1)))
    _, graph = graph_of_two()
    refs = graph.execute(1000, 1)
    report("ray.wait() for the first that is finished", lambda: ray.wait(refs, num_returns=1, timeout=3))
    report("a step that takes longer than its timeout", lambda: ray.get(refs[0], timeout=0.1))
    report("the same response later", lambda: ray.get(refs[0], timeout=5))
    graph.teardown()
    _, graph = graph_of_two()
    refs = graph.execute(1000, 1)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    report("Ctrl-C during a step", lambda: ray.get(refs))
    report("the same response after it", lambda: ray.get(refs, timeout=5))
    graph.teardown()


def main(seconds: float = 3.0) -> None:
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        speed_table(ray, seconds)
        fault_list(ray)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]))
