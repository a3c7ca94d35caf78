"""Video files: GIF and MP4."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from envfleet.core.errors import ConfigError, MissingExtraError
from envfleet.core.files import NewFile
from envfleet.core.rendering import Frame

_PURPOSES = {".gif": ("imageio", "imageio.v3"), ".mp4": ("imageio-ffmpeg", "imageio_ffmpeg")}


class Video:
    """A video file that is written frame by frame, and replaces the file of that name with close().

    An MP4 is written frame by frame; the frames of a GIF are kept until close().
    """

    def __init__(self, path: str | os.PathLike[str], fps: float) -> None:
        self.path = check_path(path)
        self._module = writer_of(self.path)
        self._fps = fps
        self._frames: list[Frame] = []
        self._encoder: Any = None
        self._file: NewFile | None = None
        self._size: tuple[int, ...] | None = None

    def append(self, frame: Frame) -> None:
        """Add a frame of the same size as the first one."""
        frame = _even(frame) if self.path.suffix == ".mp4" else frame
        if self._size is None:
            self._size = frame.shape
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = NewFile(self.path)
        elif frame.shape != self._size:
            raise ConfigError(f"a video expected frames of shape {self._size}, like its first, got {frame.shape}")
        if self.path.suffix == ".gif":
            self._frames.append(frame)
            return
        if self._encoder is None:
            assert self._file is not None
            # Blocks of 2: larger ones, the default, would scale the frame.
            size = (frame.shape[1], frame.shape[0])
            self._encoder = self._module.write_frames(
                str(self._file.path), size, fps=self._fps, macro_block_size=2, ffmpeg_log_level="error"
            )
            self._encoder.send(None)
        self._encoder.send(np.ascontiguousarray(frame))

    def close(self) -> None:
        """Complete the file. Idempotent; without frames no file is written."""
        file, self._file = self._file, None
        if file is None:
            return
        try:
            self._stop_encoder()
            if self._frames:
                frames, self._frames = np.stack(self._frames), []
                self._module.imwrite(file.path, frames, extension=".gif", duration=1000 / self._fps, loop=0)
            file.commit()
        except BaseException:
            file.discard()
            raise

    def discard(self) -> None:
        """End without a file. A file of that name stays as it was."""
        self._stop_encoder()
        self._frames = []
        if self._file is not None:
            self._file.discard()
            self._file = None

    def _stop_encoder(self) -> None:
        encoder, self._encoder = self._encoder, None
        if encoder is not None:
            encoder.close()


def check_path(path: str | os.PathLike[str]) -> Path:
    """Return the path. Raise ConfigError if its suffix is not .gif or .mp4."""
    if not isinstance(path, (str, os.PathLike)) or Path(path).suffix not in _PURPOSES:
        raise ConfigError(f"a video expected a file name that ends in .gif or .mp4, got {str(path)!r}")
    return Path(path)


def writer_of(path: Path) -> ModuleType:
    """Import the module that writes this kind of file. Raise MissingExtraError if it is not installed."""
    import importlib

    package, module = _PURPOSES[path.suffix]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(package, "cli", f"a {path.suffix[1:].upper()} file") from error


def _even(frame: Frame) -> Frame:
    """Pad a frame to an even width and height, as H.264 requires."""
    height, width = frame.shape[:2]
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
