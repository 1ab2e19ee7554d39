"""Where the ranks parted, of verdicts whose rule tells of a rank and not of a collective."""

from __future__ import annotations

import polars as pl

from nccl_forensics.conclusions.parting import parting
from nccl_forensics.model import Culprit, Divergence, Finding
from nccl_forensics.views.blockers import BLOCKERS
from nccl_forensics.views.matching import PROGRESS
from nccl_forensics.views.process_groups import GROUPS
from tests.views.frames import rows

DEATH = Finding(title="rank 1 died", severity="critical", culprits=(Culprit(rank=1),))
WORLD = {"domain": "fr", "group_key": "pg:0", "group_name": "0", "members": [0, 1, 2]}


def awaited(**facts: object) -> pl.LazyFrame:
    return rows(BLOCKERS, {"rank": 1, "kind": "behind", "waiters": [0, 2], "group_name": "0", "seq": 14, "op": "all_reduce"} | facts)


def stands(rank: int, **facts: object) -> dict[str, object]:
    return {"domain": "fr", "group_key": "pg:0", "rank": rank, "last_seq": 14, "last_op": "all_reduce"} | facts


def test_what_the_others_wait_in_is_where_a_rank_that_died_parted_from_them() -> None:
    assert parting(DEATH, awaited(), None, None, None) == Divergence("0", None, 14, "all_reduce")
    assert parting(DEATH, awaited(rank=2), None, None, None) is None, "they wait for somebody else"
    assert parting(DEATH, awaited(kind="gpu"), None, None, None) is None, "it had entered that"


def test_what_the_finding_tells_itself_comes_first_and_a_loss_parts_nobody() -> None:
    own = Divergence("1", None, 3, "broadcast")
    assert parting(Finding(title="", severity="critical", divergence=own), awaited(), None, None, None) == own
    assert parting(Finding(title="", severity="error", culprits=(Culprit(rank=1),)), awaited(), None, None, None) is None


def test_what_recorders_of_the_others_hold_open_tells_it_where_the_dead_rank_has_none() -> None:
    progress = rows(PROGRESS, *(stands(r, first_pending=13, pending_op="broadcast") for r in (0, 2)))
    assert parting(DEATH, None, progress, rows(GROUPS, WORLD), None) == Divergence("0", None, 13, "broadcast")
    assert parting(DEATH, None, progress, rows(GROUPS, WORLD | {"members": [0, 2]}), None) is None, "a group without it"
    entered = rows(PROGRESS, stands(0, first_pending=13, pending_op="broadcast"), stands(1, last_seq=13))
    assert parting(DEATH, None, entered, rows(GROUPS, WORLD), None) is None


def test_gloo_takes_what_failed_for_done_so_the_last_call_of_those_who_lost_a_peer_counts() -> None:
    progress = rows(PROGRESS, stands(0), stands(2))
    lost = pl.LazyFrame({"rank": [0], "kind": ["victim"]})
    assert parting(DEATH, None, progress, rows(GROUPS, WORLD), lost) == Divergence("0", None, 14, "all_reduce")
    assert parting(DEATH, None, progress, rows(GROUPS, WORLD), None) is None, "nothing says that they failed in it"
