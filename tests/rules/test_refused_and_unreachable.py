"""Calls that the framework refuses, and a store that cannot be reached, told by the exceptions of ranks."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from nccl_forensics.api import analyze
from nccl_forensics.facts.signatures import classify
from nccl_forensics.reading.engine import InlineEngine
from nccl_forensics.rules.nccl_errors_usage import invalid_usage_by_exception
from nccl_forensics.rules.store_unreachable import store_unreachable
from nccl_forensics.views.last_calls import LAST_CALLS
from tests.rules.frames import cited, endings, told
from tests.rules.host_frames import table
from tests.views.frames import rows

REFUSED = {"kind": "usage", "own": True, "type": "ValueError", "message": "Tensors must be contiguous", "frame": "step (train.py:9)"}
VICTIM = {"kind": "victim", "own": False, "signature": "gloo-closed"}


def test_the_rank_whose_call_was_refused_is_named_with_its_line():
    [finding] = invalid_usage_by_exception.check(
        endings({"rank": 2, "exc_source_id": 5, "exc_line_no": 80} | REFUSED, {"rank": 0} | VICTIM)
    )
    assert told(finding) == ("critical", "high", (2,))
    assert "at step (train.py:9)" in finding.title
    assert cited(finding) == [(5, 80)]


def test_where_all_ranks_made_the_mistake_none_is_special():
    [finding] = invalid_usage_by_exception.check(endings(*[{"rank": r} | REFUSED for r in range(4)]))
    assert (finding.ranks, finding.culprits) == ((), ())
    assert invalid_usage_by_exception.check(endings({"rank": 0} | VICTIM)) == []


def test_what_a_launcher_repeats_with_its_rank_makes_no_second_process() -> None:
    """The console of all ranks, without prefixes, and the block at its end: all may have said so, or the one that the launcher names."""
    [finding] = invalid_usage_by_exception.check(endings({"rank": None} | REFUSED, {"rank": 3} | REFUSED))
    assert (finding.ranks, finding.confidence) == ((3,), "medium")
    [finding] = invalid_usage_by_exception.check(endings({"rank": None} | REFUSED, *[{"rank": r} | REFUSED for r in range(2)]))
    assert finding.ranks == ()  # two of which the launcher says so, and nobody else


def test_splits_by_which_a_rank_sends_itself_another_length_than_it_expects_are_wrong_arguments() -> None:
    said = (
        "[enforce fail at /pytorch/third_party/gloo/gloo/alltoallv.cc:138] inLengthPerRank[myRank] == outLengthPerRank[myRank]. 192 vs 64"
    )
    assert classify("RuntimeError", said) == "refused"
    [finding] = invalid_usage_by_exception.check(endings({"rank": 1} | REFUSED | {"message": said}, {"rank": 0} | VICTIM))
    assert (finding.cause, finding.confidence, finding.ranks) == ("argument-mismatch", "medium", (1,))
    [finding] = invalid_usage_by_exception.check(endings({"rank": 1} | REFUSED, {"rank": 0} | VICTIM))
    assert (finding.cause, finding.confidence, finding.alternatives) == ("invalid-usage", "high", ())


def test_tensors_of_different_types_in_one_call_may_be_a_mismatch_between_ranks() -> None:
    said = "Invalid usage of tensors with different dtypesFound torch.float32 and  torch.float64"
    assert classify("ValueError", said) == "refused"
    [finding] = invalid_usage_by_exception.check(endings({"rank": 1} | REFUSED | {"message": said}, {"rank": 0} | VICTIM))
    assert (finding.cause, finding.confidence, [a[0] for a in finding.alternatives]) == ("invalid-usage", "medium", ["dtype-mismatch"])


def test_a_list_of_tensors_that_do_not_fit_may_be_a_mismatch_between_ranks() -> None:
    said = "ProcessGroupGloo::allgather: invalid tensor size at index 0 (expected (300), got (3))"
    assert classify("RuntimeError", said) == "refused"
    [finding] = invalid_usage_by_exception.check(endings({"rank": 1} | REFUSED | {"message": said}, {"rank": 0} | VICTIM))
    assert (finding.cause, finding.confidence, [a[0] for a in finding.alternatives]) == ("invalid-usage", "medium", ["shape-mismatch"])
    assert classify("RuntimeError", "invalid tensor size") != "refused"
    for said in ("allgather: invalid output tensor list at index 0 (expected length 8, got 1)", "reduce: requires non-empty tensor list"):
        assert classify("RuntimeError", f"ProcessGroupGloo::{said}") == "refused"
    assert classify("RuntimeError", "invalid input tensor list size, must be world size") == "refused"
    assert classify("RuntimeError", "frame #5: c10d::ProcessGroupGloo::runLoop(int)") == "user"


HEAD = "The client socket has failed to connect to any network address of (node0, 29500). The IPv4 network addresses of (node0, 29500) "


def unreachable(*ranks: int, said: str = HEAD + "cannot be retrieved (gai error: -2 - Name or service not known).") -> pl.LazyFrame:
    rows = [{"source_id": r, "line_no": 7, "rank": r, "signature": "store-unreachable", "message": said} for r in ranks]
    return table("exceptions", *rows)


def ended(*ranks: int) -> pl.LazyFrame:
    return endings(*[{"rank": r, "exc_source_id": r} | VICTIM for r in ranks])


def test_one_process_that_does_not_find_the_store_has_the_trouble_itself():
    [finding] = store_unreachable.check(unreachable(2), ended(0, 1, 2, 3))
    assert told(finding) == ("critical", "medium", (2,))
    assert "node0:29500: its name does not resolve there" in finding.title


def test_where_most_do_not_it_is_the_stores_host():
    [finding] = store_unreachable.check(unreachable(1, 2, 3), ended(0, 1, 2, 3))
    assert (finding.ranks, [c.host for c in finding.culprits]) == ((), ["node0"])


def test_a_store_whose_rank_has_not_come_to_it_is_no_failed_connection():
    def found(place: str, rank: int = 0) -> int:
        own = rows(LAST_CALLS, {"rank": rank, "place": place, "witness": "stack"})
        return len(store_unreachable.check(unreachable(1, 2, 3), ended(1, 2, 3), None, None, None, own))

    assert (found("user-code"), found("sleep")) == (0, 0)
    assert (found("rendezvous"), found("collective"), found("user-code", rank=1)) == (1, 1, 1)


def test_launchers_of_few_hosts_that_do_not_find_the_store_at_which_others_waited_have_the_trouble_themselves():
    homes = pl.LazyFrame({"source_id": range(4), "host": [f"node{n}" for n in range(4)]}, {"source_id": pl.UInt32(), "host": pl.String()})
    failed = unreachable(2).with_columns(rank=pl.lit(None, dtype=pl.Int32))
    waited = [{"source_id": n, "line_no": 9, "message": "Timed out waiting for clients. 3/4 clients joined."} for n in (0, 1, 3)]
    both = pl.concat([failed, table("exceptions", *waited)], how="diagonal")
    [finding] = store_unreachable.check(both, None, None, None, homes)
    assert (finding.hosts, [c.host for c in finding.culprits]) == (("node2",), ["node2"])
    [finding] = store_unreachable.check(failed, None, None, None, homes)
    assert [c.host for c in finding.culprits] == ["node0"], "nobody is seen to have reached it"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("The client socket has timed out after 60000ms while trying to connect to (node0, 29500).", "nothing answers"),
        (HEAD + "failed to connect (errno: 111 - Connection refused).", "nobody listens"),
        (HEAD + "failed to connect (errno: 113 - No route to host).", "no route"),
    ],
)
def test_what_the_system_said_is_told(said: str, words: str):
    [finding] = store_unreachable.check(unreachable(1, said=said), ended(0, 1))
    assert words in finding.title


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("RuntimeError: CUDA error: device-side assert triggered", "rank-died"),
        ("RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version", "version-mismatch"),
        ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", "gpu-fault"),
        ("ValueError: Tensors must be contiguous", "invalid-usage"),
        ("RuntimeError: unable to write to file </torch_123_456_0>: No space left on device (28)", "shm-exhausted"),
        (
            f"torch.distributed.DistNetworkError: {HEAD}cannot be retrieved (gai error: -2 - Name or service not known).",
            "connection-failed",
        ),
    ],
)
def test_an_end_with_a_known_text_is_never_left_unexplained(tmp_path: Path, text: str, cause: str):
    trace = 'Traceback (most recent call last):\n  File "/opt/job/train.py", line 44, in main\n    step(batch)\n'
    lost = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:23456"
    for rank in range(4):
        (tmp_path / f"rank{rank}.log").write_text(f"{trace}{text if rank == 2 else lost}\n")
    verdict = analyze([tmp_path], engine=InlineEngine()).report["verdict"]
    assert isinstance(verdict, dict)
    assert (verdict["cause"], [c["rank"] for c in verdict["culprits"]]) == (cause, [2])
