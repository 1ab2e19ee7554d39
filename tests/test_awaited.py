"""Whose process a fault of a host struck."""

from __future__ import annotations

import pytest

from nccl_forensics.conclusions.awaited import struck
from nccl_forensics.model import Culprit, Finding


def found(*culprits: Culprit) -> Finding:
    return Finding(title="node3 waits for storage", confidence="high", culprits=culprits)


HOST, CARD = Culprit(host="node3.cluster"), Culprit(host="node3.cluster", gpu="1b000")


def test_the_ranks_that_others_wait_for_are_those_whom_a_fault_of_their_host_struck() -> None:
    both = struck(found(HOST), {4: "node3", 5: "node3.cluster"})
    assert both.ranks == (4, 5)
    assert both.culprits == (Culprit(rank=4, host="node3.cluster"), Culprit(rank=5, host="node3.cluster"))
    assert struck(found(CARD), {4: "node3"}).culprits == (Culprit(rank=4, host="node3.cluster", gpu="1b000"),)
    link = Culprit(host="node3", gpu="1b000", link="NVLink 14")
    assert struck(found(link), {4: "node3"}).culprits == (Culprit(rank=4, host="node3", gpu="1b000", link="NVLink 14"),)


@pytest.mark.parametrize(
    ("culprits", "awaited"),
    [
        ((HOST,), {}),
        ((HOST,), {4: "node3", 9: "node4"}),
        ((HOST,), {4: None}),
        ((CARD,), {4: "node3", 5: "node3"}),
        ((Culprit(host="node3", rank=6),), {4: "node3"}),
        ((Culprit(host="node3", nic="mlx5_0"),), {4: "node3"}),
        ((Culprit(host="node3", link="port 1"),), {4: "node3"}),
        ((HOST, Culprit(host="node4")), {4: "node3"}),
        ((Culprit(pid=7),), {4: "node3"}),
        ((), {4: "node3"}),
    ],
)
def test_nobody_is_added_where_one_waits_for_others_too_or_a_card_or_rank_or_adapter_is_told(
    culprits: tuple[Culprit, ...], awaited: dict[int, str | None]
) -> None:
    said = found(*culprits)
    assert struck(said, awaited) is said
