"""Craftax by its ids: the rollout is that of the package, with the keys that docs/python_families.md describes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.package_rollouts import assert_package_rollout

import envfleet
from envfleet.cli.list_envs import brief
from envfleet.core.errors import ConfigError
from envfleet.envs.catalogue import EnvSummary, summaries
from envfleet.families.craftax import all_ids

pytest.importorskip("craftax", reason="needs craftax: run make test-families")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
    pytest.mark.timeout(1800),  # JAX compiles for minutes on a slow machine
]
ENV_ID = "Craftax-Classic-Symbolic-v1"


class PackageEnv:
    """The package's functions, called one by one."""

    def __init__(self, env_id: str, limit: int) -> None:
        import jax
        from craftax.craftax_env import make_craftax_env_from_name

        self.jax = jax
        self.env = make_craftax_env_from_name(env_id, auto_reset=False)
        self.params = self.env.default_params.replace(max_timesteps=limit)
        space = self.env.observation_space(self.params)
        spec = envfleet.make_spec(env_id, backend="serial")
        self.observation_space = spec.observation_space
        assert (self.observation_space.shape, self.observation_space.dtype) == (space.shape, np.float32)
        self.action_space = spec.action_space
        own_limit = int(self.env.default_params.max_timesteps)
        assert summaries()[env_id] == EnvSummary(own_limit, brief(self.observation_space), brief(self.action_space))

    def next_key(self) -> Any:
        self.key, key = self.jax.random.split(self.key)
        return key

    def reset(self, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.key = self.jax.random.PRNGKey(seed)
        obs, self.state = self.env.reset(self.next_key(), self.params)
        return np.asarray(obs), {}

    def step(self, action: Any) -> Any:
        obs, self.state, reward, done, info = self.env.step(self.next_key(), self.state, int(action), self.params)
        limit = bool(self.state.timestep >= self.params.max_timesteps)
        assert bool(done) == limit  # nothing kills the player within the first steps
        return np.asarray(obs), float(reward), False, limit, info

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def compilation_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile once, in this process; the workers take it from the cache."""
    import jax

    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))


@pytest.mark.parametrize("env_id", sorted(all_ids()))
def test_rollout(env_id: str) -> None:
    assert_package_rollout(env_id, lambda: PackageEnv(env_id, 10), steps=32, limit=10)


def test_infos_and_params() -> None:
    with envfleet.make(ENV_ID, num_envs=2, num_workers=1, max_episode_steps=2) as envs:
        envs.reset(seed=0)
        assert "Achievements/collect_wood" not in envs.step(np.zeros(2, dtype=np.int64))[4]
        _, _, terminated, truncated, info = envs.step(np.zeros(2, dtype=np.int64))
        assert (terminated.tolist(), truncated.tolist()) == ([False, False], [True, True])
        assert info["Achievements/collect_wood"].tolist() == [0.0, 0.0]
        with pytest.raises(ConfigError, match="max_timestep"):
            envfleet.make(ENV_ID, num_envs=2, env_params={"max_timestep": 3})


def test_ids() -> None:
    assert all_ids() == {
        "Craftax-Symbolic-v1",
        "Craftax-Pixels-v1",
        "Craftax-Classic-Symbolic-v1",
        "Craftax-Classic-Pixels-v1",
    }


def _num_xla_threads(env: Any) -> int:
    return sum(path.read_text().startswith("tf_XLA") for path in Path("/proc/self/task").glob("*/comm"))


def test_workers_do_not_compete_with_their_threads() -> None:
    with envfleet.make_pool(ENV_ID, num_envs=2, backend="processes", num_workers=2) as pool:
        pool.reset(seed=0)
        assert max(pool.apply(_num_xla_threads)) <= 1


def test_half_a_texture_cache_is_written_again() -> None:
    """As a process that was killed while it imported the package leaves it."""
    from craftax.craftax_classic.constants import TEXTURE_CACHE_FILE

    path = Path(TEXTURE_CACHE_FILE)
    whole = path.read_bytes()
    path.write_bytes(whole[:1000])
    try:
        with envfleet.make_pool("Craftax-Classic-Pixels-v1", num_envs=2, backend="processes", num_workers=2) as pool:
            pool.reset(seed=0)
        assert path.stat().st_size == len(whole)
    finally:
        path.write_bytes(whole)
