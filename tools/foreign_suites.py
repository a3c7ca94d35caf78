"""`make foreign`: other projects' test suites, with envfleet's classes substituted for theirs.

Prints one line per suite: passed, failed, excluded with reasons. The tests are not in this repository. They come from
a checkout that `--checkout NAME=FOLDER` or ENVFLEET_<NAME>_CHECKOUT names, from the installed package, from its sdist,
or from the archive of its release; a suite that is not available is skipped with the reason. Each suite runs in a
separate pytest, in which a plug-in of tests/foreign substitutes the classes. Exit status: 1 if a suite failed, 2 for an
invalid argument, else 0.

A checkout may hold tests of another release than the installed one. The tests that fail are therefore run again without
the substitution: those that fail on the project's own classes too are counted separately and are not failures.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLUGINS = ROOT / "tests" / "foreign"
CACHE = ROOT / "build" / "foreign"
_DOWNLOAD_TIMEOUT_S = 120


@dataclass(frozen=True)
class Suite:
    """One project's tests, and how envfleet's classes are substituted in them.

    package: the distribution whose installed version selects the tests; empty if only a checkout does. tests: files or
    folders below the project's root. excluded: test ids (or those of a file or class), each with the reason why it does
    not apply. archive: the URL of the release's archive, if the sdist has no tests. root: the folder of tests that need
    not be downloaded.
    """

    name: str
    package: str
    tests: Sequence[str]
    plugin: str | None = None
    excluded: Mapping[str, str] = field(default_factory=dict)
    has_sdist: bool = False
    archive: str | None = None
    root: Path | None = None
    needs: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()
    test_timeout_s: int = 300

    @property
    def variable(self) -> str:
        """The environment variable that names a checkout."""
        return f"ENVFLEET_{self.name.upper()}_CHECKOUT"


@dataclass(frozen=True)
class Result:
    """The result of a suite. reason: why it was skipped, or the first failure."""

    suite: Suite
    outcome: str  # passed, failed or skipped
    version: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""
    output: str = ""

    def line(self) -> str:
        """Return the result as one line."""
        start = f"{self.suite.name} {self.version}".strip()
        if self.outcome == "skipped":
            return f"{start}: skipped: {self.reason}"
        counts = [f"{self.counts.get(kind, 0)} {kind}" for kind in ("passed", "failed")]
        counts += [f"{self.counts[kind]} {kind}" for kind in ("skipped", "xfailed") if self.counts.get(kind)]
        if self.counts.get("fail without envfleet"):
            counts.append(f"{self.counts['fail without envfleet']} fail without envfleet too")
        num_excluded = self.counts.get("deselected", 0)
        tests_by_reason: dict[str, list[str]] = {}
        for test, reason in self.suite.excluded.items():
            tests_by_reason.setdefault(reason, []).append(test.rpartition("::")[2])
        reasons = "; ".join(f"{', '.join(tests)}: {reason}" for reason, tests in tests_by_reason.items())
        if num_excluded:
            counts.append(f"{num_excluded} excluded ({reasons})")
        return f"{start}: {', '.join(counts)}" + (f"; {self.reason}" if self.reason else "")


class NotAvailable(Exception):  # noqa: N818 (not an error: the suite is skipped)
    """Raised with the reason why a suite is not available."""


# --- the suites ------------------------------------------------------------------------------------

_ITS_OWN_WORKERS = "uses Tianshou's worker objects, which a pool does not have"
_NO_SPACES = "its env has no spaces, which a pool requires"
_OTHER_OBSERVATIONS = "its env's observations do not match its space, which a pool refuses"
_TIMED = "asserts durations"
# What ale-py's vector env does otherwise than EnvPool's Atari envs, whose API a pool has; see docs/compatibility.md.
_ALE_EXCLUDED = {
    **{
        f"test_obs_params_equivalence[True-{frame_skip}-84-84-{stack_num}-ALE/Breakout-v5]": (
            "compares grey frames of 84 by 84 with OpenCV's to the bit; ours may differ by one grey level"
        )
        for frame_skip in (1, 4)
        for stack_num in (4, 6)
    },
    "test_continuous_equivalence": "needs ale-py's option continuous; EnvPool's Atari actions are discrete",
    "test_reset_mask_options[none-ALE/Breakout-v5]": (
        "resets no env; a mask without a True is refused, as Gymnasium's vector envs refuse it"
    ),
    "test_invalid_reset_masks": "asserts the texts of ale-py's own errors, and calls its attribute ale",
    "test_episodic_life_equivalence": (
        "expects a new game after the loss of a life; EnvPool's episodic_life continues the game"
    ),
    "test_same_step_autoreset_mode": (
        "expects a new game after the loss of a life; EnvPool's episodic_life continues the game"
    ),
    "test_episodic_life_and_life_loss_info": (
        "needs ale-py's option life_loss_info; EnvPool's zero_discount_on_life_loss takes its place"
    ),
}

SUITES = (
    Suite(
        "gymnasium",
        "gymnasium",
        ["tests/vector"],
        "gymnasium_swap",
        archive="https://github.com/Farama-Foundation/Gymnasium/archive/refs/tags/v{version}.tar.gz",
        test_timeout_s=120,
    ),
    Suite(
        "sb3",
        "stable_baselines3",
        [
            f"tests/test_vec_{name}.py"
            for name in ("envs", "monitor", "normalize", "check_nan", "extract_dict_obs", "stacked_obs")
        ],
        "sb3_swap",
        has_sdist=True,
        environment={"OMP_NUM_THREADS": "1"},
    ),
    Suite(
        "torchrl",
        "torchrl",
        ["test/libs/test_envpool.py"],
        "envpool_swap",
        excluded={
            f"test/libs/test_envpool.py::TestEnvPool::test_env_with_policy[{transformed}-{frame_skip}-{env_id}]": (
                "sends an array of floats per env to Discrete envs, which EnvPool reads unchecked and a pool refuses"
            )
            for transformed in (True, False)
            for frame_skip in (4, 1)
            for env_id in ("Acrobot-v1", "CartPole-v1")
        },
        needs=("treevalue",),
        archive="https://github.com/pytorch/rl/archive/refs/tags/v{version}.tar.gz",
        environment={"OMP_NUM_THREADS": "1"},
    ),
    Suite(
        "tianshou",
        "tianshou",
        ["test/base/test_env.py"],
        "tianshou_swap",
        excluded={
            "test/base/test_env.py::test_async_check_id": _TIMED,
            "test/base/test_env.py::test_async_env": _TIMED,
            "test/base/test_env.py::test_attr_unwrapped": _ITS_OWN_WORKERS,
            "test/base/test_env.py::test_env_obs_dtype": _NO_SPACES,
            "test/base/test_env.py::test_vecenv": _OTHER_OBSERVATIONS,
            "test/base/test_env.py::test_venv_norm_obs": _OTHER_OBSERVATIONS,
        },
        needs=("networkx",),
        archive="https://github.com/thu-ml/tianshou/archive/refs/tags/v{version}.tar.gz",
    ),
    Suite(
        "envpool",
        "",
        [
            "envpool/classic_control/classic_control_test.py",
            "envpool/toy_text/toy_text_test.py",
            "envpool/atari/atari_envpool_test.py",
        ],
        "envpool_swap",
        excluded={
            "envpool/toy_text/toy_text_test.py::_ToyTextEnvTest::test_taxi": (
                "sets the private state of gym's Taxi-v3, whose class Gymnasium has dropped"
            )
        },
    ),
    Suite(
        "ale",
        "ale_py",
        ["tests/python/test_atari_vector_env.py"],
        "ale_swap",
        excluded={
            f"tests/python/test_atari_vector_env.py::TestVectorEnv::{name}": reason
            for name, reason in _ALE_EXCLUDED.items()
        },
        has_sdist=True,
        needs=("cv2",),
    ),
    # dm_env ships its conformance tests as a mixin; these files of ours derive from it.
    Suite("dm_env", "dm_env", ["tests/apis/test_dm_conformance.py"], root=ROOT, needs=("absl", "tree")),
)


# --- finding the tests -----------------------------------------------------------------------------


def root_of(suite: Suite, checkouts: Mapping[str, str], cache: Path = CACHE) -> Path:
    """Return the folder that contains the suite's tests."""
    named = checkouts.get(suite.name) or os.environ.get(suite.variable)
    if named:
        root = Path(named).resolve()
        missing = [test for test in suite.tests if not (root / test).exists()]
        if len(missing) == len(suite.tests):
            raise NotAvailable(f"{root} does not contain {missing[0]}; pass another checkout")
        return root
    for module in suite.needs:
        if importlib.util.find_spec(module) is None:
            raise NotAvailable(f"needs {module}; pip install it")
    if suite.root is not None:
        return suite.root
    version = version_of(suite)
    folder = cache / f"{suite.name}-{version}"
    if not any(folder.glob(f"*/{suite.tests[0]}")):
        folder.mkdir(parents=True, exist_ok=True)
        packed = _sdist(suite, version, folder) if suite.has_sdist else _archive(suite, version, folder)
        with tarfile.open(packed) as archive:
            archive.extractall(folder, filter="data")
        packed.unlink()
    found = next(folder.glob(f"*/{suite.tests[0]}"), None)
    if found is None:
        raise NotAvailable(f"the sources of {suite.package} {version} do not contain {suite.tests[0]}")
    return folder / found.relative_to(folder).parts[0]


def version_of(suite: Suite) -> str:
    """Return the installed version; empty if only a checkout selects the tests."""
    if not suite.package:
        return ""
    try:
        return importlib.metadata.version(suite.package)
    except importlib.metadata.PackageNotFoundError:
        raise NotAvailable(f"needs {suite.package}; pip install it") from None


def _sdist(suite: Suite, version: str, folder: Path) -> Path:
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation")
    wanted = ("--no-binary", ":all:", "--dest", str(folder), f"{suite.package}=={version}")
    finished = subprocess.run([*pip, *wanted], capture_output=True, text=True, check=False)
    packed = next(folder.glob("*.tar.gz"), None)
    if packed is None:
        reason = finished.stderr.strip()[-200:]
        raise NotAvailable(f"pip could not download the sdist of {suite.package} {version}: {reason}")
    return packed


def _archive(suite: Suite, version: str, folder: Path) -> Path:
    if suite.archive is None:
        raise NotAvailable(f"no package contains its tests; set {suite.variable} to a checkout")
    url = suite.archive.format(version=version)
    packed = folder / "archive.tar.gz"
    try:
        with urllib.request.urlopen(url, timeout=_DOWNLOAD_TIMEOUT_S) as answer:
            packed.write_bytes(answer.read())
    except (urllib.error.URLError, TimeoutError) as error:
        raise NotAvailable(f"{url} cannot be downloaded ({error}); set {suite.variable} to a checkout") from None
    return packed


# --- running them ----------------------------------------------------------------------------------


def run(suite: Suite, checkouts: Mapping[str, str] | None = None, cache: Path = CACHE) -> Result:
    """Run one suite."""
    version = ""
    try:
        version = version_of(suite)
        root = root_of(suite, checkouts or {}, cache)
    except NotAvailable as reason:
        return Result(suite, "skipped", version, reason=str(reason))
    tests = [test for test in suite.tests if (root / test).exists()]
    status, output = _pytest(suite, root, tests, suite.plugin)
    counts = counts_of(output)
    failed = failed_tests(output)
    if failed and suite.package and suite.plugin is not None:
        own_failures = len(failed & failed_tests(_pytest(suite, root, sorted(failed), None)[1]))
        counts["fail without envfleet"] = own_failures
        counts["failed"] = counts.get("failed", 0) - own_failures
    if counts.get("passed") and (status == 0 or (failed and not counts["failed"])):
        return Result(suite, "passed", version, counts, output=output)
    first = re.search(r"^(?:FAILED|ERROR) (.*)$", output, re.MULTILINE)
    reason = first[1][:200] if first else f"pytest ended with status {status}"
    return Result(suite, "failed", version, counts, reason, output)


def _pytest(suite: Suite, root: Path, tests: Sequence[str], plugin: str | None) -> tuple[int, str]:
    """Run these tests of a suite; return pytest's status and output."""
    # Neither the project's pytest settings nor ours: they do not expect the substitution. Our own tests keep theirs.
    settings = () if root == ROOT else ("-c", os.devnull, "--rootdir", str(root))
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", *tests, "-q", "-rfE", "-p", "no:cacheprovider", *settings),
            *(() if plugin is None else ("-p", plugin)),
            *("--timeout", str(suite.test_timeout_s), *suite.arguments),
            *(f"--deselect={test}" for test in suite.excluded),
        ],
        cwd=root,
        # pytest shortens the lines of its summary to the width of the terminal.
        env={
            **os.environ,
            "COLUMNS": "400",
            "PYTHONPATH": os.pathsep.join([str(PLUGINS), str(root)]),
            **suite.environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return finished.returncode, finished.stdout


def failed_tests(output: str) -> set[str]:
    """Return the ids of the tests in pytest's list of failures."""
    return set(re.findall(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", output, re.MULTILINE))


def counts_of(output: str) -> dict[str, int]:
    """Return the counts in pytest's summary line; errors count as failed."""
    lines = re.findall(r"^=* ?(.*\d+ \w+.* in [\d.]+s.*)$", output, re.MULTILINE)
    counts: dict[str, int] = {}
    for number, kind in re.findall(
        r"(\d+) (passed|failed|errors?|skipped|xfailed|deselected)\b", lines[-1] if lines else ""
    ):
        kind = "failed" if kind.startswith("error") else kind
        counts[kind] = counts.get(kind, 0) + int(number)
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suites that the command line names."""
    known = {suite.name: suite for suite in SUITES}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suites", nargs="*", help=f"default all of {', '.join(known)}")
    parser.add_argument(
        "--checkout", action="append", default=[], metavar="NAME=FOLDER", help="where a project's sources are"
    )
    options = parser.parse_args(arguments)
    checkouts = dict(given.partition("=")[::2] for given in options.checkout)
    unknown = [name for name in [*options.suites, *checkouts] if name not in known]
    if unknown:
        parser.error(f"expected suites among {', '.join(known)}, got {', '.join(unknown)}")
    has_failed = False
    for name in options.suites or known:
        result = run(known[name], checkouts)
        if result.outcome == "failed":
            print(result.output[-6000:])
            has_failed = True
        print(result.line(), flush=True)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
