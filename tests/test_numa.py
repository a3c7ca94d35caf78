"""The order in which workers are pinned to cores: node by node, as Linux describes the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from envfleet import _native


def write_nodes(root: Path, online: str, cores: Mapping[int, str]) -> str:
    (root / "online").write_text(online + "\n")
    for node, listed in cores.items():
        (root / f"node{node}").mkdir()
        (root / f"node{node}" / "cpulist").write_text(listed + "\n")
    return str(root)


@pytest.mark.parametrize(
    ("online", "nodes", "cores", "expected"),
    [
        ("0", {0: "0-3"}, [0, 1, 2, 3], [0, 1, 2, 3]),
        ("0-1", {0: "0,2,4,6", 1: "1,3,5,7"}, range(8), [0, 2, 4, 6, 1, 3, 5, 7]),
        # Two threads per core: their second threads are numbered after all first ones.
        ("0-1", {0: "0-1,4-5", 1: "2-3,6-7"}, range(8), [0, 1, 4, 5, 2, 3, 6, 7]),
        # The process may use some cores only; a node may have memory and no cores; nodes need not be consecutive.
        ("0,2-3", {0: "0-3", 2: "", 3: "4-7"}, [5, 6, 1, 2], [1, 2, 5, 6]),
        # Cores that no node lists keep their order, at the end.
        ("0", {0: "2"}, [0, 1, 2, 9], [2, 0, 1, 9]),
        ("0", {0: "what is this, 1-, -3, 2"}, [0, 1, 2], [1, 2, 0]),
    ],
)
def test_cores_are_grouped_by_node(
    tmp_path: Path, online: str, nodes: Mapping[int, str], cores: list[int], expected: list[int]
) -> None:
    root = write_nodes(tmp_path, online, nodes)
    assert _native.cores_by_node(list(cores), root) == expected


def test_a_system_without_nodes_keeps_the_order(tmp_path: Path) -> None:
    assert _native.cores_by_node([3, 1, 2], str(tmp_path / "missing")) == [3, 1, 2]
    assert _native.cores_by_node([], str(tmp_path)) == []


def test_this_machines_nodes_hold_its_cores() -> None:
    assert sorted(_native.cores_by_node([0, 1, 2])) == [0, 1, 2]
