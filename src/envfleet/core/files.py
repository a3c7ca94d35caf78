"""Files that are written as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path


class NewFile:
    """A file that is written beside its target and takes its place with commit().

    Until then, and after discard(), the target is what it was before. A target that is no regular file, such as a
    device, is written directly.

    Attributes:
        path: Where to write.
    """

    def __init__(self, target: str | os.PathLike[str]) -> None:
        self._target = Path(os.path.realpath(target))  # a link stays a link
        self._is_direct = self._target.exists() and not self._target.is_file()
        self.path = self._target
        if not self._is_direct:
            if self._target.exists():
                self._target.open("ab").close()  # raises if it may not be written, which its replacement would ignore
            # Without the target's name, which may be as long as names can be.
            self.path = self._target.with_name(f".envfleet-{secrets.token_hex(8)}{self._target.suffix}")
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))

    def commit(self) -> None:
        """Replace the target."""
        if self._is_direct:
            return
        if self._target.exists():
            shutil.copymode(self._target, self.path)
        os.replace(self.path, self._target)

    def discard(self) -> None:
        """Remove what was written."""
        if not self._is_direct:
            self.path.unlink(missing_ok=True)


@contextlib.contextmanager
def new_file(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the path to write. The file replaces the target if the block ends without an exception."""
    file = NewFile(target)
    try:
        yield file.path
        file.commit()
    except BaseException:
        file.discard()
        raise
