"""A process that was gone while its peers went on."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.peer_gone import peer_gone
from nccl_forensics.views.gone_peers import GONE_PEERS
from tests.rules.frames import cited, endings, told
from tests.views.frames import progress, rows


def gone(how: str = "closed") -> pl.LazyFrame:
    return rows(GONE_PEERS, {"rank": 5, "host": "node1", "how": how, "seen_by": [0, 4], "source_id": 0, "line_no": 83})


def test_a_rank_that_peers_lost_is_named_with_low_confidence() -> None:
    [finding] = peer_gone.check(gone(), None, None, None)
    assert (finding.cause, *told(finding)) == ("rank-died", "critical", "low", (5,))
    assert cited(finding)[0] == (0, 83)
    assert finding.title == "rank 5 was gone while the others went on: ranks 0, 4 found its connection closed and went on"


def test_a_refused_connection_is_told_as_such() -> None:
    [finding] = peer_gone.check(gone("refused"), None, None, None)
    assert finding.title.endswith("ranks 0, 4 are refused connections to it after the bootstrap")


def test_a_rank_that_left_before_its_peers_last_call_is_surer() -> None:
    [finding] = peer_gone.check(gone("left"), None, None, None)
    assert (finding.cause, *told(finding)) == ("rank-died", "critical", "medium", (5,))
    assert finding.title.endswith("ranks 0, 4 lost the connection to it before their last collective")


def test_a_rank_that_ended_its_communicator_early_is_told_by_that_line() -> None:
    [finding] = peer_gone.check(gone("ended"), None, None, None)
    assert (finding.cause, *told(finding)) == ("rank-died", "critical", "medium", (5,))
    assert finding.title.endswith("ranks 0, 4 entered two collectives and more after it had ended its communicator")
    assert finding.evidence[0].why == "its end of the communicator"


def test_a_rank_of_which_anything_else_tells_is_left_to_that() -> None:
    assert peer_gone.check(gone(), endings({"rank": 5, "kind": "killed"}), None, None) == []
    assert peer_gone.check(gone(), None, progress({"pg:0": {5: (9, None)}}), None) == []
