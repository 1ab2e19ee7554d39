"""Groups that a thread of their own calls: which call comes first tells nothing."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views.calls import OPERATIONS
from nccl_forensics.views.own_pace import in_one_order
from tests.views.frames import rows


def kept(*lines: str, recorder: pl.LazyFrame | None = None) -> bool:
    """Whether rank 1 may have gone on from group ``a`` to ``b``, by the orders of calls of the ranks from 0 on."""
    calls = [
        {
            "domain": "fr",
            "rank": rank,
            "group_key": key,
            "group_name": key,
            "seq": line[: at + 1].count(key),
            "order": at,
            "is_p2p": False,
            "source_id": rank,
        }
        for rank, line in enumerate(lines)
        for at, key in enumerate(line)
    ]
    return bool(in_one_order({1: ({"domain": "fr", "group_key": "a"}, "b")}, rows(OPERATIONS, *calls), recorder))


def test_a_rank_that_leaves_a_call_out_has_fewer_for_good() -> None:
    assert kept("aabaaba", "aabaabab", "aabaaba")
    assert kept("aabaabaab", "aababaab"), "peers that enqueue ahead come to the calls of the other group too"


def test_groups_that_are_now_earlier_and_now_later_than_on_other_ranks_keep_their_own_pace() -> None:
    assert not kept("aabaaaba", "aaabaabab")
    assert not kept("aabaaba", "aabaabab", "abaaaba"), "peers among themselves show it too"


def test_a_group_of_one_member_is_compared_with_nobody() -> None:
    assert kept("aa", "aabab")


def threads(**of_groups: tuple[str, str]) -> pl.LazyFrame:
    """The recorder of rank 1: the id and the name of the thread that calls each group."""
    schema = {"source_id": pl.UInt32(), "pg_name": pl.String(), "thread_id": pl.String(), "thread_name": pl.String()}
    made = [{"source_id": 1, "pg_name": group, "thread_id": thread, "thread_name": name} for group, (thread, name) in of_groups.items()]
    return rows(schema, *made)


def test_groups_that_two_threads_call_keep_their_own_pace_unless_one_is_the_engine_of_autograd() -> None:
    assert not kept("aaba", "aabab", recorder=threads(a=("7", "python"), b=("9", "python")))
    assert kept("aaba", "aabab", recorder=threads(a=("7", "python"), b=("7", "python")))
    assert kept("aaba", "aabab", recorder=threads(a=("7", "python"), b=("9", "pt_autograd_0"))), "the loop waits for it"
