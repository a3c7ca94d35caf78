"""What is printed when an env raises: the env's own traceback, once, wherever the env ran."""

from __future__ import annotations

import copy
import linecache
import os
import pickle
import subprocess
import sys
import textwrap
import traceback
from types import TracebackType

import pytest
from support import failing_env as probes
from support.failing_env import failing_env, printed_by
from support.script_runs import command_of

import envfleet
from envfleet import EnvError, vector

BACKENDS = ["serial", "threads", "processes"]
ENVFLEET = os.path.join("envfleet", "executors", "")


@pytest.fixture(params=BACKENDS)
def pool(request):
    with envfleet.make_pool(failing_env, num_envs=2, backend=request.param) as pool:
        pool.reset()
        yield pool


def text_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def expected_of(call):
    """The traceback of the same call of an env in this process."""
    env = failing_env()
    env.reset()
    return printed_by(lambda: call(env))


CALLS = {
    "step": (lambda pool: pool.step([probes.FAIL] * 2), lambda env: env.step(probes.FAIL)),
    "step of one": (lambda pool: pool.step([probes.FAIL], [1]), lambda env: env.step(probes.FAIL)),
    "chained": (lambda pool: pool.step([probes.FAIL_CHAINED] * 2), lambda env: env.step(probes.FAIL_CHAINED)),
    "reset": (lambda pool: pool.reset(options={"fail": True}), lambda env: env.reset(options={"fail": True})),
    "seeded": (
        lambda pool: pool.reset(seed=1, options={"fail": True}),
        lambda env: env.reset(seed=1, options={"fail": True}),
    ),
    "get_attr": (lambda pool: pool.get_attr("broken"), lambda env: env.get_wrapper_attr("broken")),
    "call": (lambda pool: pool.call("look_up", "call"), lambda env: env.unwrapped.look_up("call")),
    "apply": (lambda pool: pool.apply(probes.read_broken), probes.read_broken),
}


@pytest.mark.parametrize("call", CALLS)
def test_the_traceback_of_the_env_is_printed_as_if_it_ran_here(pool, call):
    of_pool, of_env = CALLS[call]
    expected = expected_of(of_env)
    with pytest.raises(EnvError) as caught:
        of_pool(pool)
    error = caught.value
    assert text_of(error.__cause__) == error.env_traceback == expected
    assert text_of(error).startswith(expected)
    assert text_of(error).count("raise KeyError(name)") == 1
    assert type(error.__cause__) is (ValueError if call == "chained" else KeyError)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert str(again) == str(error)
        assert again.faults == error.faults
        assert again.env_traceback == error.env_traceback
        assert type(again.__cause__) is type(error.__cause__)
        assert text_of(again.__cause__) == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_traceback_of_a_constructor(backend):
    with pytest.raises(EnvError) as caught:
        envfleet.make(failing_env, num_envs=2, backend=backend, env_kwargs={"fails_at_start": True})
    expected = printed_by(lambda: failing_env(fails_at_start=True))
    assert caught.value.env_traceback == expected
    assert text_of(caught.value).count(expected) == 1
    assert text_of(pickle.loads(pickle.dumps(caught.value)).__cause__) == expected


def test_an_exception_that_cannot_be_pickled(pool):
    with pytest.raises(EnvError) as caught:
        pool.step([probes.FAIL_UNPICKLABLE] * 2)
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert text_of(error).count("raise TwoArgumentError(1, 2)") == 1
        assert "TwoArgumentError: 1 and 2" in text_of(error.__cause__)


def test_a_wrong_result_shows_no_frames_of_ours(pool):
    with pytest.raises(EnvError, match="numeric reward") as caught:
        pool.step([probes.BAD_REWARD] * 2)
    assert ENVFLEET not in text_of(caught.value.__cause__)
    assert ENVFLEET not in caught.value.env_traceback


def test_source_that_only_the_caller_has(pool):
    """As in a notebook, whose cells are known to linecache alone."""
    code = "def fail(env):\n    return {}['spam']\n"
    linecache.cache["<cell 7>"] = (len(code), None, code.splitlines(keepends=True), "<cell 7>")
    names: dict[str, object] = {"__name__": "__main__"}  # pickled by value
    exec(compile(code, "<cell 7>", "exec"), names)
    with pytest.raises(EnvError) as caught:
        pool.apply(names["fail"])
    assert text_of(caught.value.__cause__).count("return {}['spam']") == 1


def test_source_that_only_the_worker_has(tmp_path):
    """As in an actor on another machine."""
    code = """
        import pickle, pathlib, sys
        from envfleet.core.tracebacks import pack, unpack

        if len(sys.argv) > 1:
            import traceback
            error = unpack(pathlib.Path(sys.argv[1]).read_bytes())
            print("".join(traceback.format_exception(type(error), error, error.__traceback__)))
        else:
            module = pathlib.Path("elsewhere.py")
            module.write_text("def fail():\\n    x = {}\\n    return x['spam']\\n")
            sys.path.insert(0, ".")
            import elsewhere
            try:
                elsewhere.fail()
            except KeyError as error:
                pathlib.Path("packed").write_bytes(pack(error))
            module.unlink()
        """
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    command = command_of(tmp_path, "script.py")
    subprocess.run(**command, check=True, timeout=60)
    command["args"].append("packed")
    output = subprocess.run(**command, check=True, timeout=60, capture_output=True).stdout
    assert output.count("return x['spam']") == 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("instruction", "line"), [(-1, 5), (1_000_000, -1)])
def test_a_traceback_that_points_to_no_instruction(backend, instruction, line):
    """Libraries make such tracebacks for code that is not Python."""

    def step(env, action):
        raise KeyError("original").with_traceback(TracebackType(None, sys._getframe(), instruction, line))

    env_class = type("Templated", (probes.FailingEnv,), {"step": step})
    with envfleet.make_pool([env_class], backend=backend) as pool:
        pool.reset()
        with pytest.raises(EnvError, match=r"env 0 raised in step\(\): KeyError: 'original'"):
            pool.step([0])


def test_exceptions_and_modules_with_names_of_other_types():
    def step(env, action):
        exec("raise error", {"__name__": 5, "error": type("Odd", (Exception,), {"__module__": 5})("original")})

    env_class = type("Nameless", (probes.FailingEnv,), {"step": step})
    with envfleet.make_pool([env_class], backend="processes") as pool:
        pool.reset()
        with pytest.raises(EnvError, match=r"env 0 raised in step\(\): Odd: original"):
            pool.step([0])


def test_the_source_of_few_files_is_kept():
    """An env may run code that it generates anew all the time."""

    def step(env, action):
        name = f"<generated {len(linecache.cache)}>"
        source = ["raise KeyError(1)"]
        linecache.cache[name] = (len(source[0]), None, source, name)
        exec(compile(source[0], name, "exec"))

    env_class = type("Generating", (probes.FailingEnv,), {"step": step})
    num_lines = len(linecache.cache)
    with envfleet.make_pool([env_class], backend="processes", on_error="restart", max_restarts=1000) as pool:
        pool.reset()
        num_faults = sum(int(pool.step([0]).truncated[0]) for _ in range(1000))
    assert num_faults > 400
    assert len(linecache.cache) - num_lines < 300


def test_an_endless_recursion_is_short():
    def endless(env):
        return endless(env)

    with envfleet.make_pool(failing_env, num_envs=1, backend="processes") as pool:
        with pytest.raises(EnvError) as caught:
            pool.apply(endless)
        assert isinstance(caught.value.__cause__, RecursionError)
        assert "more times]" in text_of(caught.value)
        assert text_of(caught.value).count("return endless(env)") < 10


@pytest.mark.filterwarnings("ignore:.*ERROR")  # which Gymnasium's class logs too
@pytest.mark.parametrize("drop_in", ["SyncVectorEnv", "AsyncVectorEnv"])
def test_gymnasiums_drop_ins_raise_it_with_its_traceback(drop_in):
    envs = getattr(vector, drop_in)([failing_env] * 2)
    envs.reset()
    expected = expected_of(lambda env: env.step(probes.FAIL))
    lines = expected.splitlines()[1:]  # the frames of the call come first
    with pytest.raises(KeyError) as caught:
        envs.step([probes.FAIL] * 2)
    assert text_of(caught.value).count("\n".join(lines)) == 1
    pickle.dumps(caught.value.__cause__)  # from which it was raised, and which refers to it
    envs.close()


def test_in_the_output_of_pytest(tmp_path):
    test = """
        import envfleet
        from support.failing_env import FAIL, failing_env

        def test_it():
            with envfleet.make(failing_env, num_envs=2, backend="processes") as envs:
                envs.reset()
                envs.step([FAIL] * 2)
        """
    (tmp_path / "test_it.py").write_text(textwrap.dedent(test))
    command = command_of(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py")
    output = subprocess.run(**command, timeout=120, capture_output=True).stdout
    assert output.count(">       raise KeyError(name)") == 1, output
    assert output.count("KeyError: 'step'\n") <= 2, output  # below the frame, and in the EnvError


def test_as_the_end_of_a_script(tmp_path):
    script = """
        import envfleet
        from support.failing_env import FAIL, failing_env

        envs = envfleet.make(failing_env, num_envs=2, backend="processes")
        envs.reset()
        envs.step([FAIL] * 2)
        """
    command = command_of(tmp_path, "-c", textwrap.dedent(script))
    output = subprocess.run(**command, timeout=120, capture_output=True).stderr
    assert expected_of(lambda env: env.step(probes.FAIL)) in output
    assert output.count("raise KeyError(name)") == 1


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_frames_without_a_line(backend):
    """As where Ctrl-C strikes an instruction that the compiler has added."""
    with envfleet.make_pool(failing_env, num_envs=1, backend=backend) as pool:
        pool.apply(without_lines)
        pool.reset()
        with pytest.raises(EnvError) as caught:
            pool.step([probes.FAIL])
    assert "in step" in caught.value.env_traceback
    assert isinstance(caught.value.__cause__, ValueError)


def without_lines(env):
    def step(action):
        raise ValueError(action)

    # Code units, eight at most in an entry of the table, that belong to no line.
    entry = b"\xff" if sys.version_info >= (3, 11) else b"\xfe\x80"
    step.__code__ = step.__code__.replace(co_linetable=entry * len(step.__code__.co_code))
    env.step = step
