"""Who waits for whom, and who is at the end of the walk."""

from __future__ import annotations

from nccl_forensics.views.waits import blockers, waits
from tests.views.frames import groups, operations, progress


def ends(last: dict[str, dict[int, tuple[int, int | None]]], members: dict[str, list[int]]) -> list[tuple[int, str, list[int]]]:
    state = progress(last)
    edges = waits(operations({}), state, groups(members), None)
    rows = blockers(edges.collect().lazy(), state).collect()
    return [(r["rank"], r["kind"], r["waiters"]) for r in rows.iter_rows(named=True)]


def test_ranks_that_are_level_wait_for_nobody() -> None:
    assert ends({"pg:0": {0: (5, 5), 1: (5, 5)}}, {"pg:0": [0, 1]}) == []


def test_the_rank_that_never_entered_is_at_the_end() -> None:
    assert ends({"pg:0": {0: (6, 5), 1: (6, 5), 2: (5, 5)}}, {"pg:0": [0, 1, 2]}) == [(2, "behind", [0, 1])]


def test_a_chain_across_groups_leads_to_its_last_rank() -> None:
    last = {"pg:a": {0: (3, 2), 1: (2, 2)}, "pg:b": {1: (7, 6), 2: (6, 6)}}
    assert ends(last, {"pg:a": [0, 1], "pg:b": [1, 2]}) == [(2, "behind", [0, 1])]


def test_a_gpu_that_stands_still_is_told_from_a_rank_that_never_came() -> None:
    last = {"pg:0": {0: (9, 8), 1: (9, 8), 2: (8, 5)}}
    assert ends(last, {"pg:0": [0, 1, 2]}) == [(2, "gpu", [0, 1])]


def test_a_circle_is_named_where_nobody_is_free() -> None:
    last = {"pg:a": {0: (2, 1), 1: (1, 1)}, "pg:b": {0: (1, 1), 1: (2, 1)}}
    found = ends(last, {"pg:a": [0, 1], "pg:b": [0, 1]})
    assert [(rank, kind) for rank, kind, _ in found] == [(0, "cycle"), (1, "cycle")]


def test_a_member_without_evidence_is_unseen_and_not_behind() -> None:
    state = progress({"pg:0": {0: (6, 5), 1: (6, 5)}})
    edges = waits(operations({}), state, groups({"pg:0": [0, 1, 2]}), None).collect()
    assert set(edges["kind"]) == {"unseen"}
    assert set(edges["awaited"]) == {2}
