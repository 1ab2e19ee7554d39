"""A rank that went on without its half of a send or receive."""

from __future__ import annotations

from nccl_forensics.model import Divergence
from nccl_forensics.rules.p2p_deadlock import p2p_half_left_out
from nccl_forensics.views.unmet import UNMET
from tests.rules.frames import cited, told
from tests.views.frames import rows


def test_the_rank_that_left_its_half_out_is_named_with_what_its_peer_waits_in() -> None:
    row = {
        "rank": 4,
        "waiter": 7,
        "op": "send",
        "waits_in": "recv",
        "number": 5,
        "group_name": "pp",
        "beyond_name": "0",
        "beyond_desc": "default_pg",
    }
    row |= {
        "beyond_seq": 2,
        "call_site": "recv_forward (pp.py:8)",
        "source_id": 7,
        "record": "entries[4]",
        "own_source_id": 4,
        "own_record": "entries[2]",
    }
    [finding] = p2p_half_left_out.check(rows(UNMET, row))
    assert told(finding) == ("critical", "medium", (4,))
    assert cited(finding) == [(7, "entries[4]"), (4, "entries[2]")]
    assert finding.title == "rank 4 never called its send to rank 7 and went on; rank 7 waits in that recv of process group pp"
    assert "recv_forward (pp.py:8)" in finding.remedy
    assert finding.divergence == Divergence("pp", None, None, "send")
    [finding] = p2p_half_left_out.check(rows(UNMET, row | {"siblings": [5, 6], "beyond_seq": 5}))
    assert finding.divergence == Divergence("pp", None, 5, "send")
    assert finding.summary.startswith("Ranks 5-6, at the same place of other pipelines, all posted it as #5, and rank 4 did as they did")


def test_where_all_halves_are_there_nothing_is_told() -> None:
    assert p2p_half_left_out.check(rows(UNMET)) == []
