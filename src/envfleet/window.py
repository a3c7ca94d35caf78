"""render_mode="human": a window that shows the pictures of one env of a pool, drawn by pygame."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import ConfigError, MissingExtraError

# What the user set: renderers without a screen set it to "dummy" for themselves.
_CHOSEN_DRIVER = os.environ.get("SDL_VIDEODRIVER")


def check_screen() -> None:
    """Raises ConfigError where no window can be opened, and MissingExtraError without pygame."""
    has_screen = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    if sys.platform == "linux" and not has_screen and _CHOSEN_DRIVER is None:
        raise ConfigError(
            "render_mode expected 'rgb_array' or None on a machine without a screen, got 'human', and neither DISPLAY "
            "nor WAYLAND_DISPLAY is set; with 'rgb_array' render() returns the pictures"
        )
    _pygame()


class Window:
    """Opens with the first picture, and takes its size."""

    def __init__(self, title: str, fps: int) -> None:
        check_screen()
        self._title, self._fps = title, fps
        self._surface: Any = None
        self._clock: Any = None

    def show(self, picture: NDArray[np.uint8]) -> None:
        """Shows an RGB picture, and waits so that there are not more than fps a second."""
        pygame = _pygame()
        size = (picture.shape[1], picture.shape[0])
        if self._surface is None or self._surface.get_size() != size:
            if _CHOSEN_DRIVER is None:
                os.environ.pop("SDL_VIDEODRIVER", None)
            pygame.display.init()
            pygame.display.set_caption(self._title)
            self._surface, self._clock = pygame.display.set_mode(size), pygame.time.Clock()
        pygame.surfarray.blit_array(self._surface, np.swapaxes(picture, 0, 1))
        pygame.event.pump()  # or the window system takes the window for dead
        pygame.display.flip()
        self._clock.tick(self._fps)

    def close(self) -> None:
        """Closes the window; a second call changes nothing."""
        if self._surface is not None:
            self._surface = None
            _pygame().display.quit()


def _pygame() -> Any:
    try:
        import pygame
    except ImportError as error:
        raise MissingExtraError("pygame", "render", "render_mode='human'") from error
    return pygame
