"""Who sent what a process of gloo could not receive."""

from __future__ import annotations

from nccl_forensics.views.gloo_rings import ring_senders
from tests.rules.frames import endings
from tests.views.frames import groups, operations, progress

KNOWN = groups({"pg:0": [0, 1, 2, 3]})


def told(said: str, records: dict[int, list[str]], receiver: int = 3) -> list[tuple[object, ...]]:
    aborted = endings(
        {"rank": receiver, "signature": "gloo-size-mismatch", "message": f"op.preamble.length <= op.nbytes. {said}. Received data"}
    )
    last = progress({"pg:0": {rank: (len(calls), None) for rank, calls in records.items()}})
    found = ring_senders(aborted, operations(records), last, KNOWN).collect()
    return found.select("sender", "agreeing", "got_bytes", "expected_bytes").rows()


def test_the_next_member_is_the_one_that_sent_more_than_all_others_recorded() -> None:
    # 1,024 floats on 4 members are 8 segments of 512 bytes.
    assert told("768 vs 512", {2: ["all_reduce [[1024]]"]}) == [(0, [2, 3], 768, 512)]


def test_segments_are_whole_elements() -> None:
    # 1,000 bytes on 8 segments are 125, rounded up to whole floats.
    assert told("256 vs 128", {1: ["all_reduce [[250]]"]}, receiver=0) == []
    assert told("256 vs 128", {2: ["all_reduce [[250]]"]}, receiver=0) == [(1, [0, 2], 256, 128)]


def test_a_receiver_whose_own_size_is_the_odd_one_blames_nobody() -> None:
    assert told("768 vs 256", {2: ["all_reduce [[1024]]"]}) == []


def test_neither_a_recorded_sender_nor_members_that_disagree_nor_another_operation_is_blamed() -> None:
    assert told("768 vs 512", {0: ["all_reduce [[1024]]"], 2: ["all_reduce [[1024]]"]}) == []
    assert told("768 vs 512", {1: ["all_reduce [[512]]"], 2: ["all_reduce [[1024]]"]}) == []
    assert told("768 vs 512", {2: ["broadcast [[1024]]"]}) == []
    assert told("768 vs 512", {3: ["all_reduce [[1024]]"]}) == []
