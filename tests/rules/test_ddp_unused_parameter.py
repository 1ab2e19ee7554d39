"""Parameters without gradients."""

from __future__ import annotations

import polars as pl

from nccl_forensics.rules.ddp_unused_parameter import ddp_bucket_passed, ddp_unused_parameter
from nccl_forensics.views.reducer_skips import PAST_BACKWARD
from tests.rules.frames import cited, divergences, endings, told
from tests.rules.host_frames import table
from tests.views.frames import rows


def report(**more: object) -> pl.LazyFrame:
    return table("reports", {"kind": "ddp-unused", "detail": "head.weight", "line_no": 4} | more)


def test_the_ranks_that_print_and_raise_it_are_named_with_the_parameters() -> None:
    raised = endings({"rank": 3, "kind": "ddp-unused", "signature": "ddp-unused", "exc_source_id": 3, "exc_line_no": 50})
    [finding] = ddp_unused_parameter.check(report(rank=1), raised)
    assert told(finding) == ("critical", "high", (1, 3))
    assert cited(finding) == [(0, 4), (3, 50)]
    assert "head.weight" in finding.title


def test_a_rank_of_a_launchers_prefix_counts_only_if_it_is_global() -> None:
    [finding] = ddp_unused_parameter.check(report(hint_rank=2, hint_scope="global"), None)
    assert told(finding) == ("critical", "high", (2,))
    assert ddp_unused_parameter.check(report(hint_rank=2, hint_scope="local"), None) == []


def test_other_reports_and_other_exceptions_stay_quiet() -> None:
    assert ddp_unused_parameter.check(report(rank=1, kind="barrier-missing"), endings({"rank": 3, "signature": "user"})) == []


def test_a_parameter_and_a_place_are_told_once_whoever_says_so() -> None:
    lines = table(
        "reports",
        {"kind": "ddp-unused", "rank": 1, "detail": "aux.bias", "line_no": 4},
        {"kind": "ddp-unused", "rank": 1, "detail": "aux.bias, aux.weight", "line_no": 5},
    )
    raised = endings({"rank": 1, "kind": "ddp-unused", "signature": "ddp-unused", "exc_source_id": 0, "exc_line_no": 5})
    [finding] = ddp_unused_parameter.check(lines, raised)
    assert finding.title.endswith(": aux.bias, aux.weight")
    assert cited(finding) == [(0, 4), (0, 5)]


def test_who_left_out_the_same_reduction_is_named_with_the_one_that_could_still_raise_it() -> None:
    [finding] = ddp_unused_parameter.check(report(rank=2), None, divergences("skipped", [0, 2], [1, 3, 4]))
    assert told(finding) == ("critical", "high", (0, 2))
    for other in (
        divergences("skipped", [0, 1], [2, 3]),
        divergences("skipped", [0, 2], [1, 3], sure=False),
        divergences("shape", [0, 2], [1]),
    ):
        [finding] = ddp_unused_parameter.check(report(rank=2), None, other)
        assert told(finding) == ("critical", "high", (2,))


def test_ranks_that_passed_a_bucket_are_named_where_nobody_came_to_raise_it() -> None:
    passed = divergences("skipped", [0, 2], [1, 3, 4])
    [finding] = ddp_bucket_passed.check(passed, report(kind="barrier-missing"), None)
    assert (*told(finding), finding.cause) == ("critical", "medium", (0, 2), "ddp-unused-parameter")
    assert [a[0] for a in finding.alternatives] == ["collective-skipped"]
    assert cited(finding) == [(9, "entries[17]"), (0, "entries[18]")]
    # DDP itself says whose gradients did not come.
    assert ddp_bucket_passed.check(passed, report(rank=2), None) == []
    assert ddp_bucket_passed.check(passed, None, endings({"rank": 2, "signature": "ddp-unused"})) == []


def test_where_recorders_tell_nothing_the_ends_of_the_ranks_do():
    place = {"source_id": 3, "line_no": 50, "peer_source_id": 0, "peer_line_no": 9}
    row = {"rank": 2, "in_backward": [0, 1], "call_site": "log (train.py:30)", "backward_at": "step (train.py:9)"} | place
    past = rows(PAST_BACKWARD, row)
    [finding] = ddp_bucket_passed.check(None, None, None, past)
    assert (*told(finding), finding.cause) == ("critical", "medium", (2,), "ddp-unused-parameter")
    assert cited(finding) == [(3, 50), (0, 9)]
    assert "log (train.py:30)" in finding.summary
    assert ddp_bucket_passed.check(None, None, None, past, divergences("shape", [2], [0, 1])) == [], "a recorder tells more"
    assert ddp_bucket_passed.check(None, report(rank=2), None, past) == []
    assert ddp_bucket_passed.check(None, None, None, rows(PAST_BACKWARD)) == []


def test_where_no_rank_is_known_of_who_says_so_nobody_is_named():
    said = table("exceptions", {"signature": "ddp-unused", "line_no": 7})
    [finding] = ddp_unused_parameter.check(report(kind="barrier-missing"), None, None, said)
    assert (finding.confidence, finding.ranks, finding.culprits, cited(finding)) == ("medium", (), (), [(0, 7)])
    [finding] = ddp_unused_parameter.check(report(rank=1), None, None, said)
    assert (finding.confidence, finding.ranks) == ("high", (1,))
    assert (
        ddp_unused_parameter.check(report(kind="barrier-missing"), None, None, table("exceptions", {"signature": "user", "line_no": 7}))
        == []
    )
