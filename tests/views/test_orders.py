"""Two communicators whose calls one rank makes in another order, in the last step of NCCL's logs."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.group_deadlock import group_deadlock_by_order
from nccl_forensics.views.inversions import inversions
from nccl_forensics.views.stuck import STUCK
from tests.rules.frames import cited, told
from tests.views.frames import operations, rows

#: Tensor-parallel pairs of four ranks, and all of them.
PAIR = {0: "c/1/0", 1: "c/1/0", 2: "c/1/1", 3: "c/1/1"}
USUAL, SWAPPED = ("pair", "world"), ("world", "pair")


def logs(
    last: dict[int, tuple[str, ...]],
    before: int = 2,
    after: int = 0,
    pairs: dict[int, str] = PAIR,
    done: bool = False,
    step: tuple[str, ...] = USUAL,
) -> pl.LazyFrame:
    """Steps of all ranks in the usual order, and two calls more in which ranks may go another way."""
    parts = []
    for rank in pairs:
        calls = [*step * before, *last.get(rank, USUAL), *step * after]
        seen = {"pair": 0, "world": 0}
        for order, which in enumerate(calls):
            group, op = (pairs[rank], "all_gather") if which == "pair" else ("c", "all_reduce")
            call = operations({rank: [op]}, group=group, domain="nccl").with_columns(
                seq=pl.lit(seen[which], dtype=pl.Int64),
                order=pl.lit(order, dtype=pl.Int64),
                line_no=pl.lit(order + 1, dtype=pl.UInt32),
                record=pl.lit(None, dtype=pl.String),
                nranks=pl.lit(2 if which == "pair" else 4, dtype=pl.Int32),
                done=pl.lit(done),
                pending=pl.lit(None, dtype=pl.Boolean),
            )
            seen[which] += 1
            parts.append(call)
    return pl.concat(parts)


def found(calls: pl.LazyFrame) -> list[dict[str, object]]:
    return inversions(rows(STUCK), calls).collect().to_dicts()


def test_the_rank_that_swaps_two_communicators_in_the_last_step_is_named() -> None:
    [finding] = group_deadlock_by_order.check(inversions(rows(STUCK), logs({1: SWAPPED})), None)
    assert told(finding) == ("critical", "medium", (1,))
    assert cited(finding) == [(1, 5), (0, 5)]
    assert finding.title.startswith(
        "rank 1 called all_reduce #2 of communicator c before all_gather #2 of communicator c/1/0, rank 0 the other"
    )
    assert finding.title.endswith("the logs end in this step")


def test_the_logs_may_end_amid_a_step_as_far_as_its_calls_stand_in_the_one_before() -> None:
    [row] = found(logs({1: SWAPPED}, before=1, step=(*USUAL, "world", "pair")))
    assert (row["ranks"], row["others"], row["majority"]) == ([1], [0], True)
    assert found(logs({1: SWAPPED}, before=1, step=SWAPPED)) == []


def test_a_job_that_went_on_or_ended_in_order_bears_another_order() -> None:
    assert found(logs({1: SWAPPED}, after=1)) == []
    assert found(logs({1: SWAPPED}, done=True)) == []


def test_one_order_on_all_ranks_and_a_first_step_tell_nothing() -> None:
    assert found(logs({})) == []
    assert found(logs(dict.fromkeys(PAIR, SWAPPED))) == []
    assert found(logs({1: SWAPPED}, before=0)) == []


def test_communicators_that_share_no_other_rank_have_no_order() -> None:
    # Rank 1 alone is in both its own "pair" and the world of those that are seen.
    assert found(logs({1: SWAPPED}, pairs={0: "c/1/0", 1: "c/1/9", 2: "c/1/1", 3: "c/1/1"})) == []


def test_as_many_against_as_many_name_nobody() -> None:
    assert found(logs({1: SWAPPED, 2: SWAPPED})) == []


def test_another_call_in_the_last_step_is_no_other_order() -> None:
    assert found(logs({1: ("world", "world")})) == []
