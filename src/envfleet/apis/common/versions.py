"""The check that an installed framework has a supported version."""

from __future__ import annotations

import re

from envfleet.core.errors import UnsupportedVersionError


def check_version(api: str, package: str, installed: str, oldest: str, below: str | None, tested: str) -> None:
    """Raise UnsupportedVersionError unless oldest <= installed < below."""
    got = _numbers(installed)
    if _numbers(oldest) <= got and (below is None or got < _numbers(below)):
        return
    wanted = f">={oldest}" + ("" if below is None else f",<{below}")
    raise UnsupportedVersionError(
        f"the {api} api expected {package}{wanted} (tested: {tested}), got {installed}; "
        f'run: pip install "{package}{wanted}"'
    )


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version; pre-releases and local builds count as their release."""
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in leading.group().split(".")) if leading else ()
