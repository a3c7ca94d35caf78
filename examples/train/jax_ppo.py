"""PPO in jax: rollout, advantages and update are one compiled program, which steps the envs where it needs them.

    python examples/train/jax_ppo.py
    python examples/train/jax_ppo.py --env Acrobot-v1 --target -90

Trains until the mean return of the latest episodes reaches the target: CartPole-v1 to 450. Takes ids with a vector as
observation and Discrete actions. Needs jax alone: pip install "envfleet[jax]"
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envfleet.apis.jax import JaxPool


def option(default: Any, text: str) -> Any:
    """Declare a field of Args with its help text."""
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Args:
    env: str = option("CartPole-v1", "any id with a vector as observation and Discrete actions")
    target: float = option(450.0, "mean return of the latest 100 episodes at which to stop")
    seed: int = option(1, "seed of the envs and of the policy")
    total_steps: int = option(1_000_000, "maximum number of env steps")
    num_envs: int = option(64, "number of envs")
    num_steps: int = option(64, "steps per env between two updates")
    num_epochs: int = option(4, "passes over the rollout per update")
    num_minibatches: int = option(4, "minibatches per pass")
    learning_rate: float = option(1e-3, "learning rate of Adam")
    gamma: float = option(0.99, "discount factor")
    gae_lambda: float = option(0.95, "lambda of generalized advantage estimation")
    clip: float = option(0.2, "clipping range of the policy ratio")
    entropy_weight: float = option(0.01, "weight of the entropy bonus")
    max_grad_norm: float = option(0.5, "maximum norm of the gradient")
    strict: bool = option(False, "exit with an error if the target was not reached")


class State(NamedTuple):
    """What one update hands to the next."""

    params: Any
    moments: Any  # of Adam
    handle: Any  # orders the calls of the pool
    obs: jax.Array
    is_valid: jax.Array  # False where the next step only resets the env (next-step autoreset)
    returns: jax.Array  # of the episodes that run
    key: jax.Array


def init_layers(key: jax.Array, sizes: tuple[int, ...], last_scale: float) -> list[tuple[jax.Array, jax.Array]]:
    keys = jax.random.split(key, len(sizes) - 1)
    scales = [1.0] * (len(sizes) - 2) + [last_scale]
    return [
        (jax.random.normal(own, (num_inputs, num_outputs)) * scale / jnp.sqrt(num_inputs), jnp.zeros(num_outputs))
        for own, num_inputs, num_outputs, scale in zip(keys, sizes[:-1], sizes[1:], scales, strict=True)
    ]


def forward(params: Any, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the actions' log-probabilities and the value."""

    def network(layers: Any) -> jax.Array:
        features = obs
        for weights, bias in layers[:-1]:
            features = jnp.tanh(features @ weights + bias)
        weights, bias = layers[-1]
        return features @ weights + bias

    return jax.nn.log_softmax(network(params["policy"])), network(params["value"])[..., 0]


def chosen(log_probs: jax.Array, actions: jax.Array) -> jax.Array:
    return jnp.take_along_axis(log_probs, actions[..., None], -1)[..., 0]


def loss_of(params: Any, batch: dict[str, jax.Array], args: Args) -> jax.Array:
    """Return PPO's loss over the rows that are steps."""
    weight = batch["is_valid"] / batch["is_valid"].sum()
    log_probs, value = forward(params, batch["obs"])
    ratio = jnp.exp(chosen(log_probs, batch["action"]) - batch["log_prob"])
    mean = (batch["advantage"] * weight).sum()
    deviation = jnp.sqrt((jnp.square(batch["advantage"] - mean) * weight).sum())
    advantage = (batch["advantage"] - mean) / (deviation + 1e-8)
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - args.clip, 1 + args.clip) * advantage)
    entropy = -(jnp.exp(log_probs) * log_probs).sum(-1)
    error = jnp.square(value - batch["return"])
    return ((0.5 * error - gain - args.entropy_weight * entropy) * weight).sum()


def adam(params: Any, moments: Any, gradients: Any, args: Args) -> tuple[Any, Any]:
    norm = jnp.sqrt(sum(jnp.square(own).sum() for own in jax.tree.leaves(gradients)))
    gradients = jax.tree.map(lambda g: g * jnp.minimum(1, args.max_grad_norm / (norm + 1e-8)), gradients)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, moments[1], gradients)
    step = moments[2] + 1
    rate = args.learning_rate * jnp.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), params, first, second)
    return params, (first, second, step)


@partial(jax.jit, static_argnums=(0, 1))
def update(envs: JaxPool, args: Args, state: State) -> tuple[State, jax.Array]:
    """Collect a rollout and learn from it; also return the returns of ended episodes, NaN elsewhere."""
    key, rollout_key, epochs_key = jax.random.split(state.key, 3)

    def step(carry: Any, key: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        handle, obs, is_valid, returns = carry
        log_probs, value = forward(state.params, obs)
        action = jax.random.categorical(key, log_probs)
        handle, (next_obs, reward, terminated, truncated, _) = envs.step(handle, action)
        is_end = terminated | truncated
        returns = returns + reward * is_valid
        row = {"obs": obs, "action": action, "log_prob": chosen(log_probs, action), "value": value}
        row |= {"reward": reward, "terminated": terminated, "is_end": is_end, "is_valid": is_valid}
        row["ended"] = jnp.where(is_end & is_valid, returns, jnp.nan)
        return (handle, next_obs, ~is_end, jnp.where(is_end, 0.0, returns)), row

    carry = (state.handle, state.obs, state.is_valid, state.returns)
    carry, rows = jax.lax.scan(step, carry, jax.random.split(rollout_key, args.num_steps))
    handle, obs, is_valid, returns = carry

    def advantage(carry: Any, row: dict[str, jax.Array]) -> tuple[Any, jax.Array]:
        running, next_value = carry
        # An end that is only a time limit keeps the value of the last observation.
        # Scaled so that values are of the order of one.
        delta = row["reward"] * (1 - args.gamma) + args.gamma * next_value * ~row["terminated"] - row["value"]
        running = delta + args.gamma * args.gae_lambda * running * ~row["is_end"]
        return (running, row["value"]), running

    last_value = forward(state.params, obs)[1]
    _, rows["advantage"] = jax.lax.scan(advantage, (jnp.zeros_like(last_value), last_value), rows, reverse=True)
    rows["return"] = rows["advantage"] + rows["value"]
    names = ("obs", "action", "log_prob", "advantage", "return", "is_valid")
    flat = {name: rows[name].reshape(-1, *rows[name].shape[2:]) for name in names}

    def epoch(learner: Any, key: jax.Array) -> tuple[Any, None]:
        order = jax.random.permutation(key, args.num_steps * args.num_envs).reshape(args.num_minibatches, -1)

        def minibatch(learner: Any, own: jax.Array) -> tuple[Any, None]:
            gradients = jax.grad(loss_of)(learner[0], {name: column[own] for name, column in flat.items()}, args)
            return adam(*learner, gradients, args), None

        return jax.lax.scan(minibatch, learner, order)

    learner, _ = jax.lax.scan(epoch, (state.params, state.moments), jax.random.split(epochs_key, args.num_epochs))
    return State(*learner, handle, obs, is_valid, returns, key), rows["ended"]


def main(args: Args) -> None:
    begin = time.perf_counter()
    latest: deque[float] = deque(maxlen=100)
    steps, is_reached = 0, False
    with JaxPool(args.env, num_envs=args.num_envs, seed=args.seed) as envs:
        policy_key, value_key, key = jax.random.split(jax.random.key(args.seed), 3)
        num_inputs, num_actions = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
        params = {
            "policy": init_layers(policy_key, (num_inputs, 64, 64, num_actions), 0.01),
            "value": init_layers(value_key, (num_inputs, 64, 64, 1), 1.0),
        }
        zeros = jax.tree.map(jnp.zeros_like, params)
        handle, (obs, _) = envs.reset()
        state = State(
            params, (zeros, zeros, jnp.zeros((), jnp.int32)), handle, obs,
            jnp.ones(args.num_envs, bool), jnp.zeros(args.num_envs), key,
        )  # fmt: skip
        while steps < args.total_steps and not is_reached:
            state, ended = update(envs, args, state)
            ended = np.asarray(ended)
            latest.extend(ended[~np.isnan(ended)])
            steps += args.num_steps * args.num_envs
            mean = float(np.mean(latest)) if latest else float("nan")
            is_reached = len(latest) == latest.maxlen and mean >= args.target
            print(f"{time.perf_counter() - begin:7.1f} s {steps:>10} steps   return {mean:9.2f}", flush=True)
    print(
        f"{'reached' if is_reached else 'did not reach'} a mean return of {args.target:g} in "
        f"{time.perf_counter() - begin:.1f} s and {steps} steps"
    )
    if args.strict and not is_reached:
        raise SystemExit(1)


def parse_args() -> Args:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for own in fields(Args):
        flag, text = "--" + own.name.replace("_", "-"), own.metadata["help"]
        if isinstance(own.default, bool):
            parser.add_argument(flag, action="store_true", help=text)
        else:
            text += " (default: %(default)s)"
            parser.add_argument(flag, type=type(own.default), default=own.default, help=text)
    return Args(**vars(parser.parse_args()))


if __name__ == "__main__":
    main(parse_args())
