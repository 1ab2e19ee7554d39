"""Who waits for whom in sends and receives."""

from __future__ import annotations

from nccl_forensics.views.stack_pairs import circles


def standing(**ranks: str | tuple[str, int]) -> dict[int, dict[str, object]]:
    """What each rank stands in: r0="all_reduce", r1="recv", or with whom it is for, r1=("recv", 2)."""
    out: dict[int, dict[str, object]] = {}
    for name, told in ranks.items():
        op, peer = (told, None) if isinstance(told, str) else told
        out[int(name[1:])] = {"place": "p2p" if op in ("send", "recv") else "collective", "op": op, "peer": peer}
    return out


def test_ranks_that_wait_for_each_other_are_told_from_one_that_waits_for_them() -> None:
    stacks = standing(r0=("send", 1), r1=("recv", 2), r2=("recv", 1), r3="all_reduce")
    assert circles(stacks, range(4)) == {1: [1, 2], 2: [1, 2]}


def test_a_circle_of_three_is_found_whole() -> None:
    assert circles(standing(r0=("send", 1), r1=("send", 2), r2=("send", 0)), range(3)) == {r: [0, 1, 2] for r in range(3)}


def test_a_send_that_its_receiver_answers_closes_no_circle() -> None:
    assert circles(standing(r0=("send", 1), r1=("recv", 0)), range(2)) == {}
    assert circles(standing(r0=("recv", 1), r1=("recv", 2), r2=("send", 1)), range(3)) == {}


def test_without_arguments_two_ranks_can_only_mean_each_other_and_more_cannot_be_told() -> None:
    assert circles(standing(r0="recv", r1="recv"), range(2)) == {0: [0, 1], 1: [0, 1]}
    assert circles(standing(r0="send", r1="recv"), range(2)) == {}
    assert circles(standing(r0="recv", r1="recv", r2="all_reduce"), range(3)) == {}
    assert circles(standing(r0="recv", r1="recv"), range(4)) == {}


def test_one_whose_peer_is_elsewhere_is_in_no_circle() -> None:
    assert circles(standing(r0=("recv", 1), r1="all_reduce"), range(2)) == {}
