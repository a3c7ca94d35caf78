"""A pytest plug-in that puts envfleet's Atari pools in the place of ale-py's vector env.

Loaded with `-p ale_swap` before a test imports anything: gymnasium.make_vec() of an ALE id then makes a pool, with
ale-py's names of the options.
"""

import gymnasium

import envfleet

NAMES = {
    "grayscale": "gray_scale",
    "frameskip": "frame_skip",
    "maxpool": "max_pool",
    "reward_clipping": "reward_clip",
    "max_num_frames_per_episode": "max_num_frames_per_episode",
}
_theirs = gymnasium.make_vec


def _make_vec(env_id, num_envs=1, **options):
    if not str(env_id).startswith("ALE/"):
        return _theirs(env_id, num_envs, **options)
    named = {NAMES.get(name, name): value for name, value in options.items()}
    game = env_id.removeprefix("ALE/")
    return envfleet.make(game, num_envs=num_envs, backend="serial", **{"episodic_life": False, **named})


gymnasium.make_vec = _make_vec


def pytest_report_header() -> str:
    return "ALE ids of gymnasium.make_vec() are pools of envfleet"
