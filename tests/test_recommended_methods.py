"""Methods that errors, docstrings and the docs recommend exist on the object that the reader holds."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from envfleet import Pool
from envfleet.apis.gymnasium import GymnasiumPool
from envfleet.wrappers.base import PoolWrapper

REPOSITORY = Path(__file__).parents[1]
SOURCES = REPOSITORY / "src" / "envfleet"
# What a pool says reaches the user of any of its views.
OF_THE_POOL = [*(f"core/{name}.py" for name in ("pool", "restarts", "validation", "infos", "spaces")), "executors"]
# Every class with send() and recv(), by the package that it needs.
VIEWS = [
    ("", "envfleet.apis.gymnasium.GymnasiumPool"),
    ("", "envfleet.apis.gym.GymPool"),
    ("", "envfleet.wrappers.base.PoolWrapper"),
    ("dm_env", "envfleet.apis.dm.DmPool"),
    ("pettingzoo", "envfleet.apis.pettingzoo.AgentsPool"),
    ("pettingzoo", "envfleet.apis.pettingzoo.PlayerRowsPool"),
    ("torch", "envfleet.apis.torch.TorchPool"),
    ("torch", "envfleet.apis.torch.TorchGroup"),
    ("jax", "envfleet.apis.jax.JaxPool"),
    ("gymnasium", "envfleet.compat.envpool.gym_envpools.GymnasiumEnvPool"),
    ("dm_env", "envfleet.compat.envpool.dm_envpool.DMEnvPool"),
]
# Their readers hold a pool too, but step it with calls of their library.
OTHER_VIEWS = [
    ("dm_env", "envfleet.apis.dm.DmEnv"),
    ("stable_baselines3", "envfleet.apis.sb3.EnvFleetVecEnv"),
    ("stable_baselines3", "envfleet.apis.sb3.SubprocVecEnv"),
    ("stable_baselines3", "envfleet.apis.sb3.DummyVecEnv"),
    ("tianshou", "envfleet.apis.tianshou.TianshouPool"),
    ("torchrl", "envfleet.apis.torchrl.EnvFleetEnv"),
    ("torchrl", "envfleet.apis.torchrl.AsyncEnvFleetEnv"),
    ("", "envfleet.vector.AsyncVectorEnv"),
    ("", "envfleet.vector.SyncVectorEnv"),
    ("", "envfleet.compat.env_wrappers.vec_env.SubprocVecEnv"),
]
METHOD = re.compile(r"(?<![\w.])(\w+)\(\)")


def load(package: str, name: str) -> type:
    if package:
        pytest.importorskip(package)
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def has_method(view: type, name: str) -> bool:
    if view.__name__ == "GymPool":  # it passes on to the Gymnasium pool
        return hasattr(view, name) or hasattr(GymnasiumPool, name)
    if issubclass(view, PoolWrapper):  # as Gymnasium's wrappers do
        return hasattr(view, name) or hasattr(GymnasiumPool, name)
    return hasattr(view, name)


def remedies(path: Path) -> Iterator[str]:
    """What the errors and warnings of a module recommend: the text after the semicolon."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn"):
            parts = [
                own.value for own in ast.walk(node) if isinstance(own, ast.Constant) and isinstance(own.value, str)
            ]
            yield from (part.partition(";")[2] or part for part in parts if ";" in part or "()" in part)


def recommended() -> dict[str, str]:
    """The pool's methods that its remedies name, with one of the texts."""
    paths = [path for own in OF_THE_POOL for path in sorted((SOURCES / own).rglob("*.py")) or [SOURCES / own]]
    found = {name: text for path in paths for text in remedies(path) for name in METHOD.findall(text)}
    return {name: text for name, text in found.items() if hasattr(Pool, name)}


# Named as what was called, or for envs that only the Gymnasium view gives access to.
NOT_FOR_ALL = {"call", "get_attr", "set_attr", "render", "local_envs", "get_state", "set_state", "step_objects"}


def test_something_is_recommended():
    assert set(recommended()) - NOT_FOR_ALL >= {"recv", "send", "reset", "async_reset", "drop_pending"}


@pytest.mark.parametrize(("package", "view"), VIEWS, ids=[name for _, name in VIEWS])
def test_views_have_what_the_pools_errors_recommend(package, view):
    cls = load(package, view)
    for name, text in recommended().items():
        if name not in NOT_FOR_ALL:
            assert has_method(cls, name), f"{view} has no {name}(), which is recommended by: {text}"


@pytest.mark.parametrize(("package", "view"), [*VIEWS, *OTHER_VIEWS], ids=[name for _, name in VIEWS + OTHER_VIEWS])
def test_views_have_statistics(package, view):
    assert has_method(load(package, view), "stats")


def test_methods_that_texts_name_of_the_pool_exist():
    """`Pool.name()` in any docstring, error or page."""
    texts = {path: path.read_text() for path in [*SOURCES.rglob("*.py"), *REPOSITORY.glob("docs/**/*.md")]}
    named = {(name, path) for path, text in texts.items() for name in re.findall(r"\bPool\.([a-z]\w*)", text)}
    assert named
    assert [(name, str(path)) for name, path in named if not hasattr(Pool, name)] == []


def test_methods_of_envs_that_pages_name_exist():
    """`envs.name(...)` within a sentence; code blocks are run by test_docs.py."""
    views = [load("", "envfleet.apis.gymnasium.GymnasiumPool"), Pool]
    for package, view in [*VIEWS, *OTHER_VIEWS]:
        try:
            views.append(load(package, view))
        except pytest.skip.Exception:
            continue
    missing = []
    for page in [REPOSITORY / "README.md", *REPOSITORY.glob("docs/**/*.md")]:
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for span in re.findall(r"`([^`\n]+)`", prose):
            for name in re.findall(r"(?:^|[^\w.])envs\.(?:pool\.)?(\w+)\(", span):
                if not any(has_method(view, name) for view in views):
                    missing.append((page.name, span))
    assert missing == []
