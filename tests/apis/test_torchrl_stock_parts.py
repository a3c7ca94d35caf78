"""TorchRL's own parts around pools: transforms, collectors, its GymWrapper; and its versions, our example."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchrl")

from support.torchrl_probes import MODES, collectors_warn  # noqa: E402
from torchrl.envs import GymWrapper, RewardSum, StepCounter, TransformedEnv, check_env_specs  # noqa: E402

import envfleet  # noqa: E402
from envfleet.apis.torchrl import EnvFleetEnv  # noqa: E402

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("one_thread")


def test_transforms():
    env = TransformedEnv(EnvFleetEnv("CartPole-v1", 3, seed=0), StepCounter(max_steps=5))
    env.append_transform(RewardSum())
    check_env_specs(env)
    data = env.rollout(12, break_when_any_done=False)
    assert data["next", "step_count"].max() == 5
    assert data["next", "episode_reward"].max() == 5


@collectors_warn
def test_collector():
    from torchrl.collectors import Collector

    collector = Collector(EnvFleetEnv("CartPole-v1", 4, seed=0), frames_per_batch=80, total_frames=160)
    batches = list(collector)
    collector.shutdown()
    assert [data.shape for data in batches] == [(4, 20), (4, 20)]
    data = torch.cat(batches, 1)
    going = ~data["next", "done"][:, :-1, 0]
    assert (data["observation"][:, 1:][going] == data["next", "observation"][:, :-1][going]).all()
    assert (data["collector", "traj_ids"][:, 1:][going] == data["collector", "traj_ids"][:, :-1][going]).all()


def test_step_and_maybe_reset():
    env = EnvFleetEnv("CartPole-v1", 4, seed=0)
    data = env.reset()
    for _ in range(60):
        done, data = env.step_and_maybe_reset(env.rand_action(data))
        ended = done["next", "done"][..., 0]
        assert not data["done"].any()
        assert (data["observation"][~ended] == done["next", "observation"][~ended]).all()
        assert (data["observation"][ended].abs() <= 0.05).all()


def test_gradients_stay_out_of_the_envs():
    env = EnvFleetEnv("Pendulum-v1", 2)
    action = torch.zeros((2, 1), requires_grad=True)
    assert not env.step(env.reset().set("action", action * 1))["next", "observation"].requires_grad


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_stock_gym_wrapper(env_id, mode):
    env = GymWrapper(envfleet.make(env_id, num_envs=3, autoreset_mode=mode))
    check_env_specs(env)
    data = env.rollout(60, break_when_any_done=False)
    assert data.shape == (3, 60)
    going = ~data["next", "done"][:, :-1, 0]
    assert (data["observation"][:, 1:][going] == data["next", "observation"][:, :-1][going]).all()


def test_stock_gym_wrapper_refuses_next_step_and_the_page_says_so():
    with pytest.raises(RuntimeError, match="SAME_STEP or DISABLED"):
        GymWrapper(envfleet.make("CartPole-v1", num_envs=2))
    page = (ROOT / "docs" / "torchrl.md").read_text()
    assert "refuses `next_step`" in page


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ("sys.modules['torchrl'] = None", 'pip install "envfleet[torchrl]"'),
        ("import torchrl; torchrl.__version__ = '0.7.2'", "expected torchrl>=0.14 (tested: 0.14), got 0.7.2"),
    ],
)
def test_missing_or_old_torchrl(spoil, message):
    code = f"import sys\n{spoil}\nimport envfleet.apis.torchrl"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert message in result.stderr


def test_example_runs(tmp_path):
    script = ROOT / "examples" / "torchrl_rollout.py"
    command = [sys.executable, str(script), "--total-frames", "4096"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "mean return" in result.stdout
