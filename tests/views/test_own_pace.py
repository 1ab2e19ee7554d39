"""Groups that a thread of their own calls: which call comes first tells nothing."""

from __future__ import annotations

from nccl_forensics.views.calls import OPERATIONS
from nccl_forensics.views.own_pace import in_one_order
from tests.views.frames import rows


def kept(*lines: str) -> bool:
    """Whether rank 1 may have gone on from group ``a`` to ``b``, by the orders of calls of the ranks from 0 on."""
    calls = [
        {"domain": "fr", "rank": rank, "group_key": key, "seq": line[: at + 1].count(key), "order": at, "is_p2p": False, "source_id": rank}
        for rank, line in enumerate(lines)
        for at, key in enumerate(line)
    ]
    return bool(in_one_order({1: ({"domain": "fr", "group_key": "a"}, "b")}, rows(OPERATIONS, *calls)))


def test_a_rank_that_leaves_a_call_out_has_fewer_for_good() -> None:
    assert kept("aabaaba", "aabaabab", "aabaaba")
    assert kept("aabaabaab", "aababaab"), "peers that enqueue ahead come to the calls of the other group too"


def test_groups_that_are_now_earlier_and_now_later_than_on_other_ranks_keep_their_own_pace() -> None:
    assert not kept("aabaaaba", "aaabaabab")
    assert not kept("aabaaba", "aabaabab", "abaaaba"), "peers among themselves show it too"


def test_a_group_of_one_member_is_compared_with_nobody() -> None:
    assert kept("aa", "aabab")
