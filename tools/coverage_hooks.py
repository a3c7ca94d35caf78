"""What `make coverage` adds to the processes that it measures, so that the package needs no hooks of its own.

The .pth file of its virtual environment imports this into every process: gcov's counts are written before os._exit(),
which skips the destructors that would. A process that is killed loses its counts. As a plugin of pytest it continues
the measurement after a test that sets a trace function. PYTEST_DONT_REWRITE: it is imported before pytest.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

_LIBRARIES = os.path.join(sys.prefix, "lib", "")  # not the plug-ins that tests compile
_exit = os._exit
_trace = None


def _dump_and_exit(status: int) -> NoReturn:
    try:
        import ctypes

        with open("/proc/self/maps") as maps:
            paths = {fields[5].rstrip() for line in maps if len(fields := line.split(None, 5)) == 6}
        for path in paths:
            if path.startswith(_LIBRARIES) and "/envfleet/" in path:
                ctypes.CDLL(path)["__gcov_dump"]()
    finally:
        _exit(status)


os._exit = _dump_and_exit


def pytest_runtest_setup() -> None:
    """Keep the trace function that the first test finds, coverage.py's, for all others."""
    global _trace
    _trace = _trace or sys.gettrace()
    sys.settrace(_trace)
