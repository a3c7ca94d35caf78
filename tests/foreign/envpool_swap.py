"""A pytest plug-in that puts envfleet in the place of EnvPool.

Loaded with `-p envpool_swap` before a test imports anything: then `import envpool` gives envfleet's module of that
name, to EnvPool's own tests and to those of libraries that use it.
"""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what modules of other projects say when they are imported
    import envfleet.compat.envpool

MODULE = envfleet.compat.envpool.install()


def pytest_report_header() -> str:
    return f"envpool is {MODULE!r}"
