"""Family: a group of ids with what they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

# Draws one env: from its attributes and parameters to an RGB picture.
Renderer = Callable[[Mapping[str, Any]], NDArray[np.uint8]]


def _as_given(params: Mapping[str, Any]) -> dict[str, Any]:
    return dict(params)


@dataclass(frozen=True)
class TextColumn:
    """A column of texts that the native env writes as numbers: the space that users see, and what each number is."""

    space: gymnasium.Space[Any]
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Family:
    """A group of native ids.

    translate turns what the user may pass into what the native env declares. make_renderer
    gives a renderer for an id and its parameters; None: the env draws itself, or not at all.
    make_shared_renderer gives one whose pictures depend on nothing but what it is given, for envs
    that share it; None: make_renderer's do.
    load registers an id with the engine, before one is described or built; None: they are
    compiled in. It may be called again, and raises MissingExtraError or CompileError.
    takes says whether the native env takes these parameters; with others the env runs in Python. None: always.
    extra is what installs a library that they need, and the library's name. native_only are ids
    that Gymnasium registers without a class that would run. opens_windows: its envs know
    render_mode="human" themselves; of the others the pool shows one in a window.
    named are ids that stand for the first of `ids` with these parameters; that one is then no id of its own.
    text_columns says which columns of an observation are texts, given the id and the parameters of an env.
    """

    name: str
    ids: tuple[str, ...]
    translate: Callable[[Mapping[str, Any]], dict[str, Any]] = _as_given
    make_renderer: Callable[[str, Mapping[str, Any]], Renderer] | None = None
    render_fps: Mapping[str, int] = field(default_factory=dict)
    load: Callable[[str], None] | None = None
    extra: str = ""
    native_only: frozenset[str] = frozenset()
    opens_windows: bool = False
    make_shared_renderer: Callable[[str, Mapping[str, Any]], Renderer] | None = None
    takes: Callable[[Mapping[str, Any]], bool] | None = None
    named: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    text_columns: Callable[[str, Mapping[str, Any]], Mapping[str, TextColumn]] | None = None
