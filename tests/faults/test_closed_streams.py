"""A caller that has closed its standard streams, as daemons do: nothing of a pool takes their numbers."""

from __future__ import annotations

import json
import subprocess

import pytest
from support.script_runs import command_of, family
from support.traces import wait_until

PRELUDE = """\
import json, os, sys
import envfleet, gymnasium, numpy as np

def standard_fds():
    found = []
    for fd in range(3):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            found.append(None)
    return found

class Printing(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def standard_fds(self):
        return standard_fds()

    def step(self, action):
        for fd in (1, 2):
            os.write(fd, b"X" * 4000)  # as printf does in a simulator
        return np.ones(2, np.float32), 1.0, False, False, {"a": "text"}

before = standard_fds()
"""


def run(tmp_path, closed: str, code: str) -> dict[str, object]:
    """Run a script with these streams closed and return what it wrote to result.json."""
    script = tmp_path / "script.py"
    script.write_text(PRELUDE + code)
    command = command_of(tmp_path, str(script))
    command["args"] = ["sh", "-c", f'exec "$@" {closed}', "sh", *command["args"]]
    exit_code = subprocess.run(**command, timeout=120, check=False).returncode
    assert exit_code == 0
    assert wait_until(lambda: not family(tmp_path)), f"left behind: {family(tmp_path)}"
    return json.loads((tmp_path / "result.json").read_text())


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("start_method", ["forkserver", "spawn", "fork"])
def test_output_of_an_env_does_not_reach_shared_memory(tmp_path, start_method, closed):
    code = f"""
pool = envfleet.make(Printing, num_envs=2, num_workers=2, backend="processes", start_method={start_method!r})
pool.reset(seed=0)
in_workers = pool.call("standard_fds")
steps = [pool.step(np.ones(2, int), timeout=30) for _ in range(3)]
after = standard_fds()
pool.close()
result = dict(
    in_workers=in_workers, is_unchanged=before == after, obs=np.array([step[0] for step in steps]).tolist(),
    text=[list(step[4]["a"]) for step in steps],
)
open("result.json", "w").write(json.dumps(result))
"""
    result = run(tmp_path, closed, code)
    for links in result["in_workers"]:
        assert not [link for link in links if link is None or link.startswith(("/memfd", "socket", "anon_inode"))]
    assert result["is_unchanged"], "the caller's streams stay closed"
    assert result["obs"] == [[[1, 1], [1, 1]]] * 3
    assert result["text"] == [["text", "text"]] * 3


def test_a_log_file_in_place_of_stdout_is_not_passed_on(tmp_path):
    """Python opens files close-on-exec: the fork server would start with a closed stream."""
    code = """
log = open("log.txt", "w")
assert log.fileno() == 1
pool = envfleet.make(Printing, num_envs=1, backend="processes")
pool.reset(seed=0)
result = {"in_worker": pool.call("standard_fds")[0], "obs": pool.step([1])[0].tolist()}
pool.close()
open("result.json", "w").write(json.dumps(result))
"""
    result = run(tmp_path, ">&-", code)
    assert result["in_worker"][1] == "/dev/null"
    assert result["obs"] == [[1, 1]]


def test_compile_with_closed_streams(tmp_path):
    (tmp_path / "still.cc").write_text(
        """
        #include "envfleet/env.h"
        struct Still {
          static void spec(const envfleet::Config&, envfleet::Spec& spec) {
            spec.observation(envfleet::box<float>({1}));
            spec.action(envfleet::discrete(2));
          }
          void reset(envfleet::Rng&, envfleet::Out&) {}
          void step(int, envfleet::Out&) {}
        };
        ENVFLEET_ENV("Still-v0", Still)
        """
    )
    code = """
os.environ.update(ENVFLEET_CACHE="cache", CXXFLAGS="-O0")
ids = envfleet.compile("still.cc")
open("result.json", "w").write(json.dumps({"ids": ids}))
"""
    assert run(tmp_path, "<&- >&- 2>&-", code)["ids"] == ["Still-v0"]
