"""Another size at the same position."""

from __future__ import annotations

import polars as pl
import pytest

from nccl_forensics.rules.shape_mismatch import shape_mismatch, shape_mismatch_by_transport
from nccl_forensics.views.gloo_rings import RING_RECEIVERS, RING_SENDERS, SENT_MORE
from nccl_forensics.views.last_calls import LAST_CALLS
from nccl_forensics.views.left_exchanges import LEFT_EXCHANGES
from nccl_forensics.views.step_leads import STEP_LEADS
from tests.rules.frames import cited, divergences, endings, told
from tests.views.frames import groups, progress, rows

DETAILS = {"found_detail": "[6]", "expected_detail": "[4]"}


def test_the_rank_with_another_size_is_named_with_both_values() -> None:
    [finding] = shape_mismatch.check(divergences("shape", [1], [0, 2], **DETAILS))
    assert told(finding) == ("critical", "high", (1,))
    assert cited(finding) == [(9, "entries[17]"), (0, "entries[18]")]
    assert finding.cause == "shape-mismatch"
    assert finding.title.endswith(f"another size: {DETAILS['found_detail']} against {DETAILS['expected_detail']}")


def test_where_nobody_can_tell_who_is_right_nobody_is_named() -> None:
    [finding] = shape_mismatch.check(divergences("shape", [1], [0], sure=False, **DETAILS))
    assert (finding.confidence, finding.ranks, finding.culprits) == ("low", (1,), ())
    assert finding.title.startswith("ranks 0-1 called ")
    assert [action.ranks for action in finding.actions] == [(0, 1)], "either side may have to be mended"


LEADS = {"rank": 1, "step": 7, "others": [0, 2, 3], "others_step": 6, "source_id": 5, "line_no": 8}


def test_of_two_sizes_that_of_the_rank_whose_loop_told_a_step_more_is_of_a_later_call() -> None:
    apart = divergences("shape", [0], [1], sure=False, call_site="validate (t.py:26)", peer_call_site="step (t.py:43)", **DETAILS)
    [finding] = shape_mismatch.check(apart, None, rows(STEP_LEADS, LEADS))
    assert (*told(finding), finding.cause) == ("critical", "medium", (1,), "collective-skipped")
    assert cited(finding)[0] == (5, 8)
    assert "validate (t.py:26)" in finding.title


def test_a_lead_of_another_rank_or_over_others_settles_no_size() -> None:
    for lead in ({"rank": 3, "others": [0, 1, 2]}, {"rank": 1, "others": [2, 3]}):
        [finding] = shape_mismatch.check(divergences("shape", [0], [1], sure=False, **DETAILS), None, rows(STEP_LEADS, LEADS | lead))
        assert (finding.cause, finding.culprits) == ("shape-mismatch", ())
    for near in ({"expected_op": "broadcast"}, {}):
        lead = LEADS | ({} if near else {"others": [0]})
        [finding] = shape_mismatch.check(divergences("shape", [0], [1], sure=False, **DETAILS | near), None, rows(STEP_LEADS, lead))
        assert finding.culprits == (), "a root is done before the others; of two one may have lost its line"
    [finding] = shape_mismatch.check(divergences("shape", [1], [0, 2], **DETAILS), None, rows(STEP_LEADS, LEADS))
    assert (finding.cause, finding.ranks) == ("shape-mismatch", (1,)), "where the calls tell who is right they count"


def further(op: str = "all_reduce", own: str = "step (t.py:43)", theirs: str = "validate (t.py:27)", **lead: object) -> tuple[object, ...]:
    place = "backward" if op == "backward" else "collective"
    stood = rows(
        LAST_CALLS,
        {"rank": 1, "place": "backward", "user_frame": own},
        {"rank": 2, "place": place, "user_frame": theirs, "op": None if op == "backward" else op},
    )
    leads = rows(STEP_LEADS, LEADS | lead)
    [finding] = shape_mismatch_by_transport.check(ABORTED, None, None, None, None, stood, None, None, None, leads)
    return finding.cause, finding.confidence, finding.ranks, tuple(c.rank for c in finding.culprits)


def test_who_told_a_step_more_than_those_that_it_met_left_a_call_out() -> None:
    assert further() == ("collective-skipped", "medium", (1,), (1,))
    assert further("backward")[:2] == ("ddp-unused-parameter", "medium"), "the others reduce gradients"


def test_a_step_more_is_no_lead_of_a_root_at_one_line_or_over_one_other_rank() -> None:
    nobody = ("shape-mismatch", "low", ())
    assert further("broadcast")[:2] + further("broadcast")[3:] == nobody
    for told_so in (further(own="validate (t.py:27)"), further(others=[2]), further(rank=7, others=[4, 5])):
        assert told_so[:2] + told_so[3:] == nobody


def test_who_went_on_to_the_next_exchange_is_named() -> None:
    row = {"rank": 5, "receivers": [4, 6], "group_name": "2", "seq": 25, "op": "all_to_all", "left_shape": "[[4]]", "made_shape": "[[8,8]]"}
    row |= {"got_bytes": 64, "expected_bytes": 8, "call_site": "send (e.py:25)", "source_id": 2, "record": "entries[30]"}
    left = rows(LEFT_EXCHANGES, row | {"said_source_id": 6, "said_line_no": 1})
    [finding] = shape_mismatch_by_transport.check(ABORTED, None, None, None, None, None, None, None, left)
    assert (*told(finding), finding.cause) == ("critical", "medium", (5,), "collective-skipped")
    assert cited(finding) == [(2, "entries[30]"), (6, 1)]
    [finding] = shape_mismatch_by_transport.check(ABORTED, None, None, None, None, None, None, None, rows(LEFT_EXCHANGES))
    assert (finding.confidence, finding.culprits) == ("low", ())


def test_a_differing_() -> None:
    assert shape_mismatch.check(divergences("dtype", [1], [0, 2], **DETAILS)) == []


ABORTED = endings({"rank": 2, "kind": "victim", "own": False, "signature": "gloo-size-mismatch", "exc_source_id": 2, "exc_line_no": 60})


def test_who_received_too_much_is_told_and_not_blamed() -> None:
    [finding] = shape_mismatch_by_transport.check(ABORTED, None, None, None)
    assert told(finding) == ("critical", "low", ())
    assert {cause for cause, _, _ in finding.alternatives} == {"dtype-mismatch", "collective-skipped"}
    assert cited(finding) == [(2, 60)]
    assert "rank 2 received more bytes than expected" in finding.title


def test_where_operations_tell_whose_size_is_wrong_the_transport_is_silent() -> None:
    assert shape_mismatch_by_transport.check(ABORTED, divergences("shape", [1], [0, 2]), None, None) == []
    assert shape_mismatch_by_transport.check(endings({"rank": 2, "signature": "gloo-closed"}), None, None, None) == []


def standing(place: str, frame: str, op: str | None = None) -> pl.LazyFrame:
    return rows(LAST_CALLS, {"rank": 2, "place": place, "op": op, "user_frame": frame, "witness": "stack", "source_id": 2, "line_no": 64})


def test_the_member_without_a_record_is_asked_where_it_aborted() -> None:
    known = groups({"pg:0": [0, 1, 2]})
    level = progress({"pg:0": {0: (9, None), 1: (9, None)}}).with_columns(last_call_site=pl.lit("reduce (train.py:8)"))
    # In that very operation, told with a class and a folder: it brought another size.
    there = standing("collective", "Trainer.reduce (job/train.py:9)", "all_reduce")
    [finding] = shape_mismatch_by_transport.check(ABORTED, None, level, known, None, there)
    assert told(finding) == ("critical", "medium", (2,))
    assert finding.cause == "shape-mismatch"
    # In another call: it left that operation out.
    [finding] = shape_mismatch_by_transport.check(
        ABORTED, None, level, known, None, standing("collective", "log (train.py:30)", "broadcast")
    )
    assert (finding.cause, finding.ranks) == ("collective-skipped", (2,))
    # In the function of that operation, but in another one than all others stand in: it made that in its place.
    branch = standing("collective", "Trainer.reduce (job/train.py:6)", "reduce_scatter")
    others = [{"rank": r, "place": "collective", "op": "all_reduce", "user_frame": "reduce (train.py:8)"} for r in (0, 1)]
    beside = pl.concat([branch, rows(LAST_CALLS, *others)])
    [finding] = shape_mismatch_by_transport.check(ABORTED, None, level, known, None, beside)
    assert (finding.cause, finding.confidence, finding.ranks) == ("collective-mismatch", "medium", (2,))
    # In a line that tells no collective, a wait for what somebody sent it: nothing says that its own size is wrong.
    [finding] = shape_mismatch_by_transport.check(ABORTED, None, level, known, None, standing("user-code", "rotate (train.py:21)"))
    assert finding.culprits == ()


def test_the_one_member_without_a_record_is_named_where_all_others_agree() -> None:
    known = groups({"pg:0": [0, 1, 2]})
    [finding] = shape_mismatch_by_transport.check(ABORTED, None, progress({"pg:0": {0: (9, None), 1: (9, None)}}), known)
    assert "TORCH_DISTRIBUTED_DEBUG=DETAIL" in [a.command for a in finding.actions], "bytes alone do not tell a size from a type"
    assert told(finding) == ("critical", "medium", (2,))
    assert cited(finding) == [(2, 60), (0, "entries[9]"), (1, "entries[9]")]
    # One other member alone, or members that are not level, say nothing.
    for state in ({0: (9, None)}, {0: (9, None), 1: (8, None)}):
        [finding] = shape_mismatch_by_transport.check(ABORTED, None, progress({"pg:0": state}), known)
        assert finding.culprits == ()


def test_who_sent_more_than_all_others_in_an_exchange_is_named_by_what_was_received_too_much() -> None:
    said = {
        "sender": 1,
        "receiver": 2,
        "agreeing": [0, 3],
        "op": "all_to_all",
        "seq": 26,
        "dtype": "Float",
        "shape": "[[16,64]]",
        "usual_shape": "[[11,64]]",
    }
    lengths = {"got_bytes": 1792, "expected_bytes": 512, "line_source_id": 2, "line_no": 60, "source_id": 1, "record": "entries[31]"}
    [finding] = shape_mismatch_by_transport.check(ABORTED, None, None, None, None, None, None, rows(SENT_MORE, said | lengths))
    assert told(finding) == ("critical", "medium", (1,))
    assert finding.title == "rank 1 sent rank 2 1,280 bytes more in all_to_all #26 than that one expected"
    assert cited(finding) == [(2, 60), (1, "entries[31]")]


def sent(got: int, expected: int) -> pl.LazyFrame:
    return rows(
        RING_SENDERS,
        {
            **{"receiver": 2, "sender": 0, "agreeing": [1, 2], "group_key": "pg:0", "group_name": "0", "group_desc": "default_pg"},
            **{"seq": 9, "op": "all_reduce", "shape": "[[1024]]", "dtype": "Float", "width": 4},
            **{"got_bytes": got, "expected_bytes": expected, "call_site": "step (train.py:9)"},
            **{"line_source_id": 2, "line_no": 60, "source_id": 1, "record": "entries[8]"},
        },
    )


def test_who_sent_too_much_is_named_with_both_sizes() -> None:
    [finding] = shape_mismatch_by_transport.check(ABORTED, None, None, None, sent(768, 512))
    assert told(finding) == ("critical", "medium", (0,))
    assert (finding.cause, cited(finding)) == ("shape-mismatch", [(2, 60), (1, "entries[8]")])
    assert finding.title.startswith("rank 0 sent 1.5 times the bytes in all_reduce #9")
    assert finding.actions[0].where == "step (train.py:9)"


def test_who_sent_what_comes_next_in_each_step_left_a_call_out() -> None:
    later = {"ahead": pl.lit(1, dtype=pl.Int32()), "ahead_shape": pl.lit("[[1536]]")}
    [finding] = shape_mismatch_by_transport.check(ABORTED, None, None, None, sent(768, 512).with_columns(**later))
    assert (finding.cause, *told(finding)) == ("collective-skipped", "critical", "medium", (0,))
    assert "all_reduce of [[1536]] that comes 1 later" in finding.summary
    [finding] = shape_mismatch_by_transport.check(ABORTED, None, None, None, sent(1024, 512).with_columns(**later))
    assert finding.cause == "dtype-mismatch", "twice the bytes are what a wider type sends as well"


def test_twice_the_bytes_are_most_likely_a_wider_type() -> None:
    [finding] = shape_mismatch_by_transport.check(ABORTED, None, None, None, sent(1024, 512))
    assert (finding.cause, *told(finding)) == ("dtype-mismatch", "critical", "low", (0,))
    assert finding.alternatives[0][:2] == ("shape-mismatch", (0,))
    # No type of numbers is sixteen bytes wide.
    [finding] = shape_mismatch_by_transport.check(ABORTED, None, None, None, sent(2048, 512))
    assert finding.cause == "shape-mismatch"


def ends(*signatures: str | None) -> pl.LazyFrame:
    """How ranks 0, 1, ... ended; each cited by line 60 of source number rank."""
    return endings(
        *[
            {
                "rank": r,
                "kind": "victim",
                "own": False,
                "signature": s,
                "source_id": r,
                "line_no": 60,
                "exc_source_id": r,
                "exc_line_no": 60,
            }
            for r, s in enumerate(signatures)
        ]
    )


MUCH = "gloo-size-mismatch"


def test_the_one_that_sent_too_much_to_all_others_is_named() -> None:
    [finding] = shape_mismatch_by_transport.check(ends("gloo-reset", MUCH, MUCH, MUCH), None, None, None)
    assert told(finding) == ("critical", "medium", (0,))
    assert cited(finding) == [(1, 60), (2, 60), (3, 60), (0, 60)]


def test_messages_of_unlike_length_that_are_all_twice_as_long_are_of_a_wider_type() -> None:
    def cause(*lengths: str) -> str | None:
        said = pl.Series(
            "message", [None, *(f"op.preamble.length <= op.nbytes. {pair}. Received data size" for pair in lengths)], dtype=pl.String
        )
        told = ends("gloo-reset", MUCH, MUCH).collect().with_columns(said).lazy()
        [finding] = shape_mismatch_by_transport.check(told, None, None, None)
        assert finding.ranks == (0,)
        return finding.cause

    assert cause("32 vs 16", "96 vs 48") == "dtype-mismatch"
    assert cause("32 vs 16", "32 vs 16") != "dtype-mismatch", "one length may as well be a larger tensor's"
    assert cause("32 vs 16", "96 vs 64") != "dtype-mismatch"


def test_nobody_is_named_where_fewer_aborted_or_somebody_is_not_heard_of() -> None:
    for some in (ends("gloo-reset", MUCH, MUCH, "gloo-closed"), ends("gloo-reset", MUCH), ends(MUCH, MUCH, MUCH)):
        [finding] = shape_mismatch_by_transport.check(some, None, None, None)
        assert finding.ranks == ()
    unheard = ends("gloo-reset", MUCH, MUCH, MUCH).filter(pl.col("rank") != 1)
    [finding] = shape_mismatch_by_transport.check(unheard, None, None, None)
    assert finding.ranks == ()


def raised(**lines: str) -> pl.LazyFrame:
    """The line of the program in which each rank raised: r0="evaluate (train.py:9)"."""
    rows_ = ({"rank": int(r[1:]), "user_frame": line, "witness": "exception", "place": "collective"} for r, line in lines.items())
    return rows(LAST_CALLS, *rows_)


def test_ranks_that_torch_compared_at_two_lines_of_the_program_made_two_calls() -> None:
    compared = divergences("shape", [3], [0, 1, 2], domain="detail", found_detail="[64]", expected_detail="[3]")
    lines = {"r0": "evaluate (train.py:9)", "r1": "evaluate (train.py:9)", "r2": "evaluate (train.py:9)"}
    [finding] = shape_mismatch.check(compared, raised(**lines, r3="exchange (train.py:4)"))
    assert (finding.cause, finding.confidence, finding.ranks) == ("collective-skipped", "medium", (3,))
    assert "at exchange (train.py:4), where ranks 0-2 called it at evaluate (train.py:9)" in finding.title
    assert [cause for cause, *_ in finding.alternatives] == ["collective-mismatch", "shape-mismatch"]
    [finding] = shape_mismatch.check(compared, raised(**lines, r3="evaluate (train.py:7)"))
    assert (finding.cause, finding.ranks) == ("collective-mismatch", (3,)), "a branch of one function"


@pytest.mark.parametrize("odd", [{"r3": "evaluate (train.py:9)"}, {}])
def test_at_one_line_or_where_a_line_is_not_known_the_size_is_at_fault(odd: dict[str, str]) -> None:
    compared = divergences("shape", [3], [0, 1, 2], domain="detail", found_detail="[64]", expected_detail="[3]")
    lines = dict.fromkeys(("r0", "r1", "r2"), "evaluate (train.py:9)")
    [finding] = shape_mismatch.check(compared, raised(**lines, **odd))
    assert finding.cause == "shape-mismatch"
    assert "with another size" in finding.title


def placed(*receivers: int, **more: object) -> pl.LazyFrame:
    usual = {
        **{"agreeing": [0, 1, 3], "group_name": "0", "seq": 9, "op": "all_reduce", "shape": "[[4800]]", "dtype": "Float", "width": 4},
        **{"got_bytes": 2400, "expected_bytes": 36, "call_site": "step (train.py:9)", "by_reducer": False},
        **{"line_no": 60, "source_id": 1, "record": "entries[8]"},
    }
    return rows(RING_RECEIVERS, *[usual | {"receiver": r, "odd": r, "line_source_id": r} | more for r in receivers])


def by_length(known: pl.LazyFrame, stood: pl.LazyFrame | None = None) -> tuple[object, ...]:
    [finding] = shape_mismatch_by_transport.check(ABORTED, None, None, None, None, stood, known)
    return finding.cause, finding.confidence, finding.ranks


def test_who_was_in_another_call_than_the_one_that_came_left_it_out() -> None:
    behind = {"own_seq": 10, "own_call_site": "log (train.py:30)"}
    assert by_length(placed(2, **behind)) == ("collective-skipped", "medium", (2,))
    assert by_length(placed(2), standing("collective", "log (train.py:30)", "all_reduce")) == ("collective-skipped", "medium", (2,))
    # It stood in that very call, or in a wait that tells no call: its size is another, or its type where that is as many times as wide.
    there = standing("collective", "Trainer.step (job/train.py:9)", "all_reduce")
    assert by_length(placed(2, **behind), there) == ("shape-mismatch", "medium", (2,))
    branch = standing("collective", "Trainer.step (job/train.py:7)", "all_reduce")
    assert by_length(placed(2), branch) == ("shape-mismatch", "medium", (2,))
    assert by_length(placed(2), standing("collective", "finish (train.py:40)")) == ("shape-mismatch", "medium", (2,))
    assert by_length(placed(2, expected_bytes=1200)) == ("dtype-mismatch", "low", (2,))
    # Its own record tells that the type is the one that it always brought there.
    assert by_length(placed(2, expected_bytes=1200, one_type=True)) == ("shape-mismatch", "medium", (2,))


def test_a_bucket_of_gradients_that_ranks_passed_is_one_of_unused_parameters() -> None:
    behind = {"own_seq": 8, "own_call_site": "clip (train.py:12)"}
    assert by_length(placed(2, **behind, by_reducer=True)) == ("ddp-unused-parameter", "medium", (2,))
    assert by_length(placed(2, 4, **behind, by_reducer=True)) == ("ddp-unused-parameter", "medium", (2, 4))
    [finding] = shape_mismatch_by_transport.check(ABORTED, None, None, None, None, None, placed(2, **behind, by_reducer=True))
    assert [a.action for a in finding.actions] == ["fix-code"], "a comparison of calls tells nothing of gradients"
    # In backward itself: nothing says that the bucket was passed.
    within = standing("collective", "step (train.py:9)", "all_reduce")
    assert by_length(placed(2, by_reducer=True), within) == ("shape-mismatch", "medium", (2,))


def test_as_many_odd_ranks_as_agree_name_nobody() -> None:
    [finding] = shape_mismatch_by_transport.check(ABORTED, None, None, None, None, None, placed(2, 4, agreeing=[0, 1]))
    assert finding.culprits == ()
