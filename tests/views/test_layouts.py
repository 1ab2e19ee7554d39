"""Members of groups that nothing lists, from the layout of the groups beside them."""

from __future__ import annotations

from nccl_forensics.views.layouts import Group, unlisted_members


def missing(everyone: int, *groups: tuple[str, list[int]], size: int | None = None) -> dict[str, list[int]]:
    rows = [Group("fr", f"pg:{n}", group_desc=desc, members=members, size=size) for n, (desc, members) in enumerate(groups)]
    return {key: ranks for (_, key), ranks in unlisted_members(rows, range(everyone)).items()}


def test_the_rank_that_no_group_of_a_dimension_holds_is_missing_in_the_short_one() -> None:
    assert missing(4, ("tp_0", [0, 1]), ("tp_1", [2])) == {"pg:1": [3]}


def test_each_dimension_is_filled_by_its_own_pattern() -> None:
    tensor = [("tp_0", [0, 1]), ("tp_1", [2, 3]), ("tp_2", [4]), ("tp_3", [6, 7])]
    data = [("dp_0", [0, 2, 4, 6]), ("dp_1", [1, 3, 7])]
    assert missing(8, *tensor, *data) == {"pg:2": [5], "pg:5": [5]}


def test_a_lost_host_is_told_from_the_pattern_where_several_groups_are_short() -> None:
    assert missing(8, ("mesh_dp", [0, 4]), ("mesh_dp", [1, 5]), ("mesh_dp", [2]), ("mesh_dp", [3])) == {"pg:2": [6], "pg:3": [7]}


def test_ranks_that_could_be_in_several_groups_are_in_none() -> None:
    assert missing(6, ("dp_0", [0, 1]), ("dp_1", [3]), ("dp_2", [])) == {}
    assert missing(8, ("dp_0", [0, 2]), ("dp_1", [4, 6]), ("dp_2", [3])) == {}


def test_groups_that_overlap_or_leave_ranks_over_tell_nothing() -> None:
    assert missing(4, ("undefined", [0, 1]), ("undefined", [1, 2]), ("undefined", [3])) == {}
    assert missing(6, ("tp_0", [0, 1]), ("tp_1", [2])) == {}


def test_groups_that_state_their_size_are_left_alone() -> None:
    assert missing(4, ("tp_0", [0, 1]), ("tp_1", [2]), size=2) == {}
