"""Two groups whose operations stand in opposite orders on the ranks that share them."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.rules.group_deadlock import group_deadlock_by_order
from nccl_forensics.views.inversions import inversions
from nccl_forensics.views.stuck import STUCK
from tests.rules.frames import cited, told
from tests.views.frames import groups, operations, progress, rows

WORLD, ONE, TWO = "pg:0", "pg:1", "pg:2"


def waiting(*groups: tuple[str, str, list[int]]) -> pl.LazyFrame:
    """Groups that all members wait in: key, description, ranks. Each stands in its first operation."""
    common = {"domain": "fr", "seq": 1, "op": "all_reduce", "complete": True}
    return rows(STUCK, *({**common, "group_key": k, "group_name": k[3:], "group_desc": d, "ranks": r} for k, d, r in groups))


def called(orders: dict[int, list[str]], desc: dict[str, str], done: tuple[str, ...] = ()) -> pl.LazyFrame:
    """For each rank the groups of which it called the first operation, in its order."""
    parts = []
    for rank, keys in orders.items():
        for order, key in enumerate(keys):
            part = operations({rank: ["all_reduce"]}, group=key).with_columns(
                order=pl.lit(order, dtype=pl.Int64),
                group_desc=pl.lit(desc[key]),
                pending=pl.lit(key not in done),
                done=pl.lit(key in done),
                record=pl.lit(f"entries[{order}]"),
            )
            parts.append(part)
    return pl.concat(parts)


DESC = {WORLD: "default_pg", ONE: "dp", TWO: "dp"}


def test_the_rank_with_the_other_order_is_named_by_what_all_others_do() -> None:
    # Ranks 0 and 1 are one data-parallel group, 2 and 3 another, which has passed its operation.
    calls = called({0: [WORLD, ONE], 1: [ONE, WORLD], 2: [TWO, WORLD], 3: [TWO, WORLD]}, DESC, done=(TWO,))
    found = inversions(waiting((WORLD, "default_pg", [0, 1, 2, 3]), (ONE, "dp", [0, 1])), calls)
    [finding] = group_deadlock_by_order.check(found, None)
    assert told(finding) == ("critical", "medium", (0,))
    assert cited(finding) == [(0, "entries[0]"), (1, "entries[0]")]
    failures = pl.DataFrame({"sign": ["timeout"], "count": [1]}).lazy()
    [finding] = group_deadlock_by_order.check(found, failures)
    assert finding.confidence == "high"


def test_other_calls_under_the_same_number_are_in_no_other_order() -> None:
    calls = called({0: [WORLD, ONE], 1: [ONE, WORLD], 2: [TWO, WORLD], 3: [TWO, WORLD]}, DESC, done=(TWO,))
    everyone = waiting((WORLD, "default_pg", [0, 1, 2, 3]), (ONE, "dp", [0, 1]))
    own = pl.format("{} (sync.py:9)", "group_key")
    assert inversions(everyone, calls.with_columns(call_site=own)).collect().height == 1
    # Rank 0 left a call of its group out: what it calls there next bears the number of the one that the other one waits in.
    later = pl.when((pl.col("rank") == 0) & (pl.col("group_key") == ONE)).then(pl.lit("next (sync.py:12)")).otherwise(own)
    assert inversions(everyone, calls.with_columns(call_site=later)).collect().height == 0


def test_ranks_of_several_groups_of_one_description_that_took_the_same_two_calls_the_other_way_are_told_together() -> None:
    third, fourth = "pg:3", "pg:4"
    desc = {ONE: "tp", TWO: "tp", third: "ep", fourth: "ep"}
    members = {ONE: [0, 1, 2], third: [0, 1, 2], TWO: [3, 4, 5], fourth: [3, 4, 5]}
    orders = {0: [third, ONE], 1: [ONE, third], 2: [ONE, third], 3: [TWO, fourth], 4: [fourth, TWO], 5: [TWO, fourth]}
    found = inversions(waiting(*((key, desc[key], ranks) for key, ranks in members.items())), called(orders, desc))
    [finding] = group_deadlock_by_order.check(found, None)
    assert told(finding) == ("critical", "medium", (0, 4))
    assert "ranks 1-3, 5 the other way round, in each of 2 pairs of groups alike" in finding.title


@pytest.mark.parametrize(("before", "named"), [([ONE, WORLD] * 2, (0,)), ([ONE, WORLD], ()), ([ONE, WORLD, ONE, ONE, WORLD], ())])
def test_where_as_many_go_either_way_what_all_called_before_by_turns_tells(before: list[str], named: tuple[int, ...]) -> None:
    calls = called({0: [WORLD, ONE], 1: [ONE, WORLD]}, DESC).with_columns(seq=pl.lit(9, pl.Int64), order=pl.col("order") + 50)
    over = pl.concat(
        called({rank: [key]}, DESC, done=(key,)).with_columns(order=pl.lit(n, pl.Int64)) for rank in (0, 1) for n, key in enumerate(before)
    )
    stands = waiting((WORLD, "default_pg", [0, 1]), (ONE, "dp", [0, 1])).with_columns(seq=pl.lit(9, pl.Int64))
    [finding] = group_deadlock_by_order.check(inversions(stands, pl.concat([over, calls])), None)
    assert told(finding) == ("critical", "medium", named)


@pytest.mark.parametrize(
    ("before", "named"),
    [
        ([TWO, ONE, WORLD, WORLD, ONE, ONE], (0,)),  # behind a call of the third group both had them in one order
        ([TWO, ONE, WORLD, TWO, WORLD, ONE], ()),  # in either order
        ([ONE, WORLD, ONE, TWO], ()),  # never behind such a call
    ],
)
def test_of_two_the_one_is_named_that_left_the_line_of_calls_of_its_own_steps(before: list[str], named: tuple[int, ...]) -> None:
    calls = called({0: [TWO, WORLD, ONE], 1: [TWO, ONE, WORLD]}, DESC).with_columns(seq=pl.lit(9, pl.Int64), order=pl.col("order") + 50)
    over = pl.concat(
        called({rank: [key]}, DESC, done=(key,)).with_columns(order=pl.lit(n, pl.Int64)) for rank in (0, 1) for n, key in enumerate(before)
    )
    stands = waiting((WORLD, "default_pg", [0, 1]), (ONE, "dp", [0, 1])).with_columns(seq=pl.lit(9, pl.Int64))
    [finding] = group_deadlock_by_order.check(inversions(stands, pl.concat([over, calls])), None)
    assert told(finding) == ("critical", "medium", named)


def test_where_two_ranks_differ_and_no_other_tells_nobody_is_named() -> None:
    calls = called({0: [WORLD, ONE], 1: [ONE, WORLD]}, DESC)
    [finding] = group_deadlock_by_order.check(inversions(waiting((WORLD, "default_pg", [0, 1]), (ONE, "dp", [0, 1])), calls), None)
    assert told(finding) == ("critical", "medium", ())


def test_one_order_on_all_ranks_is_no_deadlock() -> None:
    calls = called({0: [ONE, WORLD], 1: [ONE, WORLD], 2: [TWO, WORLD], 3: [TWO, WORLD]}, DESC)
    everyone = waiting((WORLD, "default_pg", [0, 1, 2, 3]), (ONE, "dp", [0, 1]), (TWO, "dp", [2, 3]))
    assert inversions(everyone, calls).collect().height == 0


def test_groups_without_a_rank_in_common_have_no_order() -> None:
    calls = called({0: [ONE], 2: [TWO]}, DESC)
    assert inversions(waiting((ONE, "dp", [0, 1]), (TWO, "dp", [2, 3])), calls).collect().height == 0


def test_a_rank_whose_call_of_one_group_is_behind_one_that_the_others_have_not_come_to_took_them_the_other_way_round() -> None:
    desc, members = {WORLD: "default_pg", ONE: "tp"}, {WORLD: [*range(8)], ONE: [0, 1, 2, 3]}
    own = waiting((ONE, "tp", members[ONE])).with_columns(held=pl.lit(True), size=pl.lit(4, dtype=pl.Int32))
    rest = {r: [WORLD] for r in range(4, 8)}

    def found(inside: dict[int, list[str]]) -> list[tuple[object, ...]]:
        every = inversions(own, called(inside | rest, desc), groups(members))
        return [(*told(finding), cited(finding)) for finding in group_deadlock_by_order.check(every, None)]

    odd = {0: [ONE], 1: [WORLD, ONE], 2: [ONE], 3: [ONE]}
    assert found(odd) == [("critical", "medium", (1,), [(1, "entries[0]"), (0, "entries[0]")])]
    assert found({r: [WORLD, ONE] for r in (0, 1, 2)} | {3: [ONE]}) == [], "most go the one way: the last one may have left that call out"
    assert found(odd | {2: [ONE, WORLD]}) == [], "it has come to both"


@pytest.mark.parametrize(("beside", "named"), [((1, 1), [1]), ((1, 0), []), ((0, 0), [])])
def test_of_two_the_order_in_which_others_finished_groups_of_the_role_tells_who_took_them_the_other_way_round(
    beside: tuple[int, int], named: list[int]
) -> None:
    # Rank 1 took the pair behind the call of all, to which rank 0 has not come; ranks 2 and 3 stand in that.
    desc, members = {WORLD: "default_pg", ONE: "dp", TWO: "dp"}, {WORLD: [0, 1, 2, 3], ONE: [0, 1], TWO: [2, 3]}
    own = waiting((ONE, "dp", members[ONE])).with_columns(held=pl.lit(True), size=pl.lit(2, dtype=pl.Int32))
    state = progress(
        {WORLD: {0: (0, 0)} | dict.fromkeys((1, 2, 3), (1, 0)), ONE: dict.fromkeys((0, 1), (1, 0)), TWO: dict.fromkeys((2, 3), beside)}
    )
    known = groups(members).with_columns(group_desc=pl.col("group_key").replace_strict(desc))
    calls = called({0: [ONE], 1: [WORLD, ONE], 2: [WORLD], 3: [WORLD]}, desc)
    rows_of = inversions(own, calls, known, state).select("ranks", "others", "entered").collect().rows()
    assert rows_of == [([rank], [0], False) for rank in named]


@pytest.mark.parametrize(
    ("before", "named"),
    [
        ([TWO, ONE, WORLD] * 2, [1]),
        ([TWO, ONE, WORLD, TWO, WORLD, ONE], []),  # in either order
        ([TWO, WORLD, ONE] * 2, []),  # as before: it is the other one that left a call out
    ],
)
def test_of_two_the_one_that_always_took_the_two_the_other_way_before_is_named(before: list[str], named: list[int]) -> None:
    desc, members = {WORLD: "default_pg", ONE: "dp", TWO: "tp"}, {WORLD: [0, 1], ONE: [0, 1], TWO: [0, 1]}
    own = waiting((ONE, "dp", members[ONE])).with_columns(held=pl.lit(True), size=pl.lit(2, dtype=pl.Int32), seq=pl.lit(9, pl.Int64))
    over = pl.concat(
        called({rank: [key]}, desc, done=(key,)).with_columns(order=pl.lit(n, pl.Int64)) for rank in (0, 1) for n, key in enumerate(before)
    )
    late = called({0: [ONE], 1: [WORLD, ONE]}, desc).with_columns(seq=pl.lit(9, pl.Int64), order=pl.col("order") + 51)
    turn = called({0: [TWO], 1: [TWO]}, desc, done=(TWO,)).with_columns(seq=pl.lit(8, pl.Int64), order=pl.lit(50, pl.Int64))
    found = inversions(own, pl.concat([over, turn, late]), groups(members)).select("ranks", "others", "entered").collect().rows()
    assert found == [([rank], [0], False) for rank in named]


@pytest.mark.parametrize(("beside", "named"), [((1, 1), [1]), ((1, 0), None), ((0, 0), None)])
def test_of_two_that_called_both_the_counters_of_others_in_groups_of_the_role_tell_whose_order_is_another(
    beside: tuple[int, int], named: list[int] | None
) -> None:
    # Dumps of what is open alone: of the pair that is done nothing but its counters is left.
    desc, members = {WORLD: "default_pg", ONE: "dp_0", TWO: "dp_1"}, {WORLD: [0, 1, 2, 3], ONE: [0, 1], TWO: [2, 3]}
    stands = waiting((WORLD, "default_pg", members[WORLD]), (ONE, "dp_0", members[ONE]))
    state = progress({WORLD: dict.fromkeys(range(4), (1, 0)), ONE: dict.fromkeys((0, 1), (1, 0)), TWO: dict.fromkeys((2, 3), beside)})
    known = groups(members).with_columns(group_desc=pl.col("group_key").replace_strict(desc))
    calls = called({0: [ONE, WORLD], 1: [WORLD, ONE], 2: [WORLD], 3: [WORLD]}, desc)
    [row] = inversions(stands, calls, known, state).select("ranks", "majority").collect().rows()
    assert row[1] == (named is not None)
    assert named is None or row[0] == named
