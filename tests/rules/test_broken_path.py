"""Paths of ibtracert that end too early."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.broken_path import broken_path
from tests.rules.frames import cited
from tests.rules.host_frames import table


def routes(*paths: tuple[str, ...]) -> pl.LazyFrame:
    """Names of the nodes that each path reached; ``!`` ends it with an error."""
    rows = [
        {
            "route": r,
            "hop": h,
            "node": None if node == "!" else node,
            "lid": None if node == "!" else len(node),
            "error": None if node != "!" else "no route",
        }
        for r, path in enumerate(paths)
        for h, node in enumerate(path)
    ]
    return table("ib_routes", *rows)


def test_paths_that_end_at_one_switch_name_it() -> None:
    found = broken_path.check(routes(("a", "leaf1", "!"), ("b", "leaf1", "!"), ("c", "leaf22", "!")))
    assert [f.title for f in found] == [
        "2 paths through the fabric end at leaf1 (LID 5)",
        "1 path through the fabric ends at leaf22 (LID 6)",
    ]
    assert [f.confidence for f in found] == ["medium", "low"]
    assert cited(found[0]) == [(0, 3), (0, 6)]


def test_a_path_without_any_hop_is_told() -> None:
    assert [f.title for f in broken_path.check(routes(("!",)))] == ["1 path through the fabric ends before their first hop"]


def test_paths_that_arrive_are_quiet() -> None:
    assert broken_path.check(routes(("a", "leaf1", "b"))) == []
