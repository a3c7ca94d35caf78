"""Which versions of a framework an api was made for: one check, one sentence."""

from __future__ import annotations

import re

from envfleet.errors import UnsupportedVersionError


def check_version(api: str, package: str, installed: str, oldest: str, below: str | None, tested: str) -> None:
    """Raises UnsupportedVersionError unless oldest <= installed < below."""
    got = _numbers(installed)
    if _numbers(oldest) <= got and (below is None or got < _numbers(below)):
        return
    wanted = f">={oldest}" + ("" if below is None else f",<{below}")
    raise UnsupportedVersionError(
        f"the {api} api expected {package}{wanted} (tested: {tested}), got {installed}; "
        f'run: pip install "{package}{wanted}"'
    )


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: those of a pre-release or a local build count as its release."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in leading.group().split(".")) if leading else ()
