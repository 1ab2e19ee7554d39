"""Ranks that lack a call which those made that stand where they do."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views.last_calls import LAST_CALLS
from nccl_forensics.views.passed_over import new_lines, passed_over
from tests.views.frames import operations, rows

SYNC, LOSS, END = "sync (moe.py:9)", "loss (moe.py:12)", "train (moe.py:40)"


def seen(stands: dict[int, str], calls: dict[int, str], group: str, place: str = "collective") -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """Stacks of ranks at these lines, and records of these calls: ``s`` at one line, ``l`` at the other. Rank 0 stands at such a
    ``place``."""
    places = rows(
        LAST_CALLS,
        *(
            {"rank": r, "place": "collective" if r else place, "op": "all_reduce", "user_frame": at, "source_id": r}
            for r, at in stands.items()
        ),
    )
    made = operations({r: ["all_reduce"] * len(line) for r, line in calls.items()}, group=group)
    sites = pl.DataFrame(
        [(r, n, {"s": SYNC, "l": LOSS}[call]) for r, line in calls.items() for n, call in enumerate(line)],
        schema={"rank": pl.Int32(), "order": pl.Int64(), "at": pl.String()},
        orient="row",
    )
    typed = made.with_columns(pl.col("rank").cast(pl.Int32), pl.col("order").cast(pl.Int64))
    return places, typed.join(sites.lazy(), on=["rank", "order"]).with_columns(call_site="at").drop("at")


def found(stands: dict[int, str], calls: dict[int, str], group: str = "pg:") -> list[tuple[object, ...]]:
    """Who is found to have passed over a call."""
    return passed_over(*seen(stands, calls, group)).select("rank", "waiters", "others", "call_site", "stands_at").collect().rows()


#: Ranks 2 and 4 stand in the call of their group, rank 0 of the same group with those of the other one in the next.
STANDS = {0: LOSS, 1: LOSS, 2: SYNC, 3: LOSS, 4: SYNC, 5: LOSS}
CALLS = {0: "slsl", 1: "slsls", 2: "slsl", 3: "slsls", 4: "slsl", 5: "slsls"}


def test_who_stands_with_others_and_lacks_a_call_that_they_made_left_it_out() -> None:
    assert found(STANDS, CALLS) == [(0, [2, 4], [1, 3, 5], SYNC, LOSS)]


def test_a_sampler_that_names_the_class_of_a_function_means_the_line_of_the_recorder() -> None:
    stands = {rank: {SYNC: "Mesh.sync (moe.py:9)", LOSS: "Model.loss (src/moe.py:12)"}[at] for rank, at in STANDS.items()}
    [(rank, *_)] = found(stands, CALLS)
    assert rank == 0
    # Whoever stands where the recorders have it that all had been before stands at no new line.
    calls = dict.fromkeys(range(4), "slsl")
    assert ended({0: SYNC, 1: SYNC, 2: "Model.loss (moe.py:12)", 3: SYNC}, calls) == []


def test_where_recorders_name_the_groups_their_numbers_tell() -> None:
    assert found(STANDS, CALLS, group="pg:0") == []


def test_a_rank_that_never_made_the_call_or_is_in_another_step_left_nothing_out() -> None:
    assert found(STANDS, CALLS | {0: "ll"}) == []
    assert found(STANDS, CALLS | {0: "sl"}) == []


def test_it_takes_more_that_made_the_call_than_that_lack_it() -> None:
    assert found(STANDS, CALLS | {1: "slsl"}) == []
    assert found({0: LOSS, 1: LOSS, 2: SYNC}, CALLS) == []


def ended(stands: dict[int, str], calls: dict[int, str], place: str = "collective") -> list[tuple[object, ...]]:
    """Who is found at a line where nobody had been before."""
    return new_lines(*seen(stands, calls, "pg:0", place)).select("rank", "others", "call_site", "in_pairs").collect().rows()


def test_who_stands_where_nobody_had_been_left_the_steps_in_which_the_others_wait() -> None:
    stands, calls = {0: SYNC, 1: LOSS, 2: END, 3: SYNC}, dict.fromkeys(range(4), "slsl")
    assert ended(stands, calls) == [(2, [0, 1, 3], END, False)]
    assert ended(stands, calls, "p2p") == [(2, [0, 1, 3], END, True)]
    assert ended(stands, calls, "user-code") == [], "rank 0 waits for nobody"
    assert ended(stands, calls | {2: "sl"}) == [], "two calls make no steps"


def test_a_wait_of_which_no_call_is_told_may_be_one_for_a_send_and_is_no_new_line() -> None:
    places, made = seen({0: SYNC, 1: LOSS, 2: END, 3: SYNC}, dict.fromkeys(range(4), "slsl"), "pg:0")
    nameless = places.with_columns(op=pl.when(pl.col("rank") != 2).then("op"))
    assert new_lines(nameless, made).collect().height == 0


def test_where_more_have_come_to_a_new_line_or_the_others_stand_in_one_too_nobody_left_the_steps() -> None:
    calls = dict.fromkeys(range(4), "slsl")
    assert ended({0: SYNC, 1: END, 2: END, 3: SYNC}, calls) == []
    assert ended({0: SYNC, 1: "save (moe.py:50)", 2: END, 3: SYNC}, calls) == []
    assert ended({0: SYNC, 2: END, 3: SYNC}, calls) == [], "nothing is seen of rank 1"
    people = rows({"rank": pl.Int32()}, *({"rank": rank} for rank in range(5)))
    places, made = seen({0: SYNC, 1: LOSS, 2: END, 3: SYNC}, calls, "pg:0")
    assert new_lines(places, made, people).collect().height == 0, "nothing is seen of rank 4"
