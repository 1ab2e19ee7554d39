"""Ranks that alone of their group work with others outside of it."""

from __future__ import annotations

from nccl_forensics.views.bridges import bridges
from tests.views.frames import groups


def test_the_trainer_among_those_that_generate_is_a_bridge() -> None:
    job = {"pg:0": list(range(8)), "pg:1": [0, 1, 2, 3], "pg:2": [4, 5], "pg:3": [6, 7], "pg:4": [0, 4, 5, 6, 7]}
    assert bridges(groups(job)).collect().rows() == [("pg:1", 0), ("pg:4", 0)]


def test_in_a_mesh_and_in_groups_within_groups_nobody_is() -> None:
    mesh = {"pg:0": list(range(6)), "pg:1": [0, 1, 2], "pg:2": [3, 4, 5], "pg:3": [0, 3], "pg:4": [1, 4], "pg:5": [2, 5]}
    assert bridges(groups(mesh)).collect().height == 0
    assert bridges(groups({"pg:0": [0, 1, 2], "pg:1": [0, 1], "pg:2": [2, 3]})).collect().rows() == [("pg:0", 2)]
    assert bridges(groups({"pg:0": [0, 1], "pg:1": [1, 2]})).collect().height == 0, "of two either is like no other"
