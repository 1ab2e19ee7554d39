"""Sends and receives of NCCL's log that together are an all-to-all."""

from __future__ import annotations

from nccl_forensics.views.communicators import comms
from nccl_forensics.views.matching import operations
from tests.rules.host_frames import table
from tests.views.test_matching import logged, member, people

Line = dict[str, object]
BOTH = [member(0), member(1)]


def exchange(rank: int, line: int, **more: object) -> list[Line]:
    """The lines that one all-to-all between two ranks leaves in a rank's log, from a line on."""
    calls = [("Send", 0), ("Recv", 0), ("Send", 1), ("Recv", 1)]
    return [logged(rank, line + i, op, root=peer, **more) for i, (op, peer) in enumerate(calls)]


def found(*lines: Line) -> list[tuple[object, ...]]:
    frame = operations(None, None, table("nccl_ops", *lines), comms(table("nccl_comms", *BOTH)), people(0, 1), None).collect()
    return frame.sort("rank", "order").select("rank", "seq", "op", "shape", "is_p2p").rows()


def test_a_send_and_a_receive_for_each_peer_in_turn_are_one_all_to_all_with_a_place_among_the_collectives() -> None:
    lines = [logged(0, 2), *exchange(0, 3), *exchange(0, 7), logged(0, 11), *exchange(1, 2)]
    assert found(*lines) == [
        (0, 0, "all_reduce", "8", False),
        (0, 1, "all_to_all", "16", False),
        (0, 2, "all_to_all", "16", False),
        (0, 3, "all_reduce", "8", False),
        (1, 0, "all_to_all", "16", False),
    ]


def test_the_last_all_to_all_of_a_log_that_is_cut_off_counts() -> None:
    assert [row[1:3] for row in found(*exchange(0, 2), *exchange(0, 6)[:3])] == [(0, "all_to_all"), (1, "all_to_all")]


def test_sends_and_receives_between_stages_stay_what_they_are() -> None:
    stages = [logged(0, 2, "Send", root=1), logged(0, 3, "Recv", root=1), logged(1, 2, "Recv", root=0), logged(1, 3, "Send", root=0)]
    assert {row[1:3] for row in found(*stages)} == {(None, "send"), (None, "recv")}


def test_a_communicator_that_also_carries_other_sends_is_left_alone_on_every_rank() -> None:
    lines = [*exchange(0, 2), *exchange(1, 2), logged(1, 6, "Send", root=1)]
    assert all(row[4] for row in found(*lines))


def test_unequal_splits_are_left_alone_as_an_empty_part_prints_nothing() -> None:
    uneven = exchange(0, 2)
    uneven[2]["count"] = 3
    assert all(row[4] for row in found(*uneven, *exchange(1, 2)))
