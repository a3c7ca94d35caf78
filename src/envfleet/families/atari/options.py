"""The options of an Atari env: their defaults by style, and their checks."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from envfleet.core.errors import ConfigError
from envfleet.core.option_checks import flag_option, integer_option
from envfleet.core.options import POOL_OPTIONS

_OBS_TYPES = ("screen", "rgb", "grayscale", "ram")
_MAX_SIZE = 4096  # of an image's side: more than anyone needs, and small enough not to overflow
_MAX_FRAMES = 10_000  # to stack or to skip


@dataclass(frozen=True)
class AtariOptions:
    """The options of an env. The defaults are EnvPool's, those of "Pong-v5".

    stack_num, img_height, img_width: None for no stack, and for the screen's own size.
    frame_skip: may be (low, high), sampled in each step, high excluded, as in ale-py.
    mode, difficulty: -1 for the game's default. max_num_frames_per_episode: 0 for no limit.
    """

    stack_num: int | None = 4
    frame_skip: int | tuple[int, int] = 4
    max_pool: bool = True
    noop_max: int = 30
    use_fire_reset: bool = True
    episodic_life: bool = False
    zero_discount_on_life_loss: bool = False
    reward_clip: bool = False
    img_height: int | None = 84
    img_width: int | None = 84
    gray_scale: bool = True
    use_inter_area_resize: bool = True
    obs_type: str = "screen"
    full_action_space: bool = False
    repeat_action_probability: float = 0.0
    mode: int = -1
    difficulty: int = -1
    max_num_frames_per_episode: int = 0
    ram_in_info: bool = False
    frames_in_info: bool = False


_RAW = AtariOptions(
    stack_num=None,
    max_pool=False,
    noop_max=0,
    use_fire_reset=False,
    img_height=None,
    img_width=None,
    gray_scale=False,
    repeat_action_probability=0.25,
    max_num_frames_per_episode=108_000,
    frames_in_info=True,
)

STYLES = {
    "envpool": AtariOptions(),
    "ale": _RAW,
    "noframeskip": replace(_RAW, frame_skip=1, repeat_action_probability=0.0),
}

# ale-py's names of the same options.
_ALIASES = {"frameskip": "frame_skip", "max_num_frames": "max_num_frames_per_episode"}


def read_options(style: str, options: Mapping[str, Any]) -> AtariOptions:
    """Return the defaults of a style, updated with these options, which are checked. Raises ConfigError."""
    named: dict[str, Any] = {}
    for name, value in options.items():
        own = _ALIASES.get(name, name)
        if own not in _CHECKS:
            raise _unknown(name)
        if own in named:
            raise ConfigError(f"{own} expected one value, got it twice, under both of its names; leave one out")
        # ale-py's default None, which has another value here.
        if value is None and own in ("mode", "difficulty", "max_num_frames_per_episode", "obs_type"):
            continue
        named[own] = _CHECKS[own](name, value)  # an error names the option as the caller spelled it
    _resolve_obs_type(named)
    return replace(STYLES[style], **named)


def options_as_dict(options: AtariOptions) -> dict[str, Any]:
    """Return every option and its value."""
    return asdict(options)


def _resolve_obs_type(named: dict[str, Any]) -> None:
    """Convert obs_type "rgb" and "grayscale", ale-py's names, to gray_scale."""
    kind = named.get("obs_type")
    if kind in ("rgb", "grayscale"):
        is_gray = kind == "grayscale"
        if named.get("gray_scale", is_gray) != is_gray:
            raise ConfigError(f"obs_type={kind!r} contradicts gray_scale={named['gray_scale']}; leave one out")
        named.update(obs_type="screen", gray_scale=is_gray)


def _unknown(name: str) -> ConfigError:
    known = sorted({*_CHECKS, *_ALIASES, *POOL_OPTIONS})
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else "leave it out."
    return ConfigError(
        f"an Atari env got the unknown option {name!r}; {hint} Its options are {', '.join(sorted(_CHECKS))}"
    )


def _count(lowest: int, highest: int) -> Any:
    def check(name: str, value: Any) -> int:
        return integer_option(name, value, lowest, highest)

    return check


def _optional_count(highest: int) -> Any:
    def check(name: str, value: Any) -> int | None:
        return None if value is None else integer_option(name, value, 1, highest)

    return check


def _frame_skip(name: str, value: Any) -> int | tuple[int, int]:
    if isinstance(value, (tuple, list)):
        if len(value) != 2:
            raise ConfigError(f"{name} expected an integer or (low, high), got {value!r}")
        low, high = (integer_option(name, own, 1, _MAX_FRAMES) for own in value)
        if low >= high:
            raise ConfigError(f"{name} expected (low, high) with low below high, which is excluded, got {value!r}")
        return low, high
    return integer_option(name, value, 1, _MAX_FRAMES)


def _probability(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number <= 1:
        raise ConfigError(f"{name} expected a number from 0 to 1, got {value!r}")
    return number


def _obs_type(name: str, value: Any) -> str:
    if not isinstance(value, str) or value not in _OBS_TYPES:
        raise ConfigError(f"{name} expected one of {', '.join(_OBS_TYPES)}, got {value!r}")
    return str(value)


_CHECKS: dict[str, Any] = {
    "stack_num": _optional_count(_MAX_FRAMES),
    "frame_skip": _frame_skip,
    "noop_max": _count(0, 1_000_000),
    "img_height": _optional_count(_MAX_SIZE),
    "img_width": _optional_count(_MAX_SIZE),
    "obs_type": _obs_type,
    "repeat_action_probability": _probability,
    "mode": _count(-1, 255),
    "difficulty": _count(-1, 255),
    "max_num_frames_per_episode": _count(0, 2**31 - 1),
    **{field.name: flag_option for field in fields(AtariOptions) if field.type == "bool"},
}
