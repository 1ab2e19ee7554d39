"""Buckets of gradients that some ranks passed."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views.gloo_rings import RING_RECEIVERS
from nccl_forensics.views.last_calls import LAST_CALLS
from nccl_forensics.views.reducer_skips import past_backward, reducer_skips
from tests.rules.frames import divergences, endings
from tests.rules.host_frames import table
from tests.views.frames import operations, rows

BACKWARD = "_engine_run_backward (/venv/torch/autograd/graph.py:1113)\nbackward (/venv/torch/_tensor.py:623)\nstep (/job/train.py:9)"
HOOK = "launch (/job/train.py:4)\n" + BACKWARD
LOG = "all_reduce (/venv/torch/distributed/distributed_c10d.py:4181)\nlog (/job/train.py:30)"
#: Two steps of a bucket and a log; rank 2 leaves out the third bucket.
CALLS = ["all_reduce [[400]]", "all_reduce [[1]]"] * 2
WITHOUT = [*CALLS, "all_reduce [[1]]"]


def passed(
    found: str = "log (train.py:30)",
    bucket: str = BACKWARD,
    aborted: pl.LazyFrame | None = None,
    made_first: str = LOG,
    kind: str = "skipped",
) -> list[list[int]]:
    sites = pl.when(pl.col("shape") == "[[1]]").then(pl.lit("log (train.py:30)")).otherwise(pl.lit("step (train.py:9)"))
    made = operations({0: [*CALLS, "all_reduce [[400]]"], 2: WITHOUT}).with_columns(call_site=sites)
    last = (pl.col("rank") == 2) & (pl.col("seq") == 5)
    made = made.with_columns(call_site=pl.when(last).then(pl.lit(found)).otherwise("call_site"))
    entries = [
        {"source_id": r, "record": f"entries[{n}]", "collective_seq_id": n + 1, "frames": LOG if shape == "[[1]]" else bucket}
        for r, calls in {0: [*CALLS, "all_reduce [[400]]"], 2: WITHOUT}.items()
        for n, shape in enumerate(call.partition(" ")[2] for call in calls)
    ]
    entries.append({"source_id": 0, "record": "entries[9]", "collective_seq_id": 0, "frames": made_first})
    at = {"seq": 5, "source_id": 2, "record": "entries[4]", "peer_source_id": 0, "peer_record": "entries[4]"}
    told = divergences(kind, [2], [0, 1], **at)
    return reducer_skips(told, made, table("fr_entries", *entries), aborted).collect()["ranks"].to_list()


def test_who_went_on_to_what_follows_backward_passed_a_bucket() -> None:
    assert passed() == [[2]]
    # Where the others' records end in this bucket it looks like another call in its place.
    assert passed(kind="different") == [[2]]


def test_another_call_and_a_reduction_of_the_program_itself_are_no_passed_buckets() -> None:
    # It never called that before, such as the last barrier of a job whose data ran out on this rank.
    assert passed("evaluate (train.py:50)") == []
    assert passed(bucket=HOOK) == []


def test_a_hook_that_runs_in_backward_of_a_model_that_ddp_wraps_is_its_communication_hook() -> None:
    assert passed(bucket=HOOK, made_first="__init__ (/venv/torch/nn/parallel/distributed.py:880)\nfit (/job/train.py:3)") == [[2]]
    # Not in backward at all.
    assert passed(bucket=LOG, made_first="__init__ (/venv/torch/nn/parallel/distributed.py:880)\nfit (/job/train.py:3)") == []


def test_those_who_aborted_on_the_bucket_passed_it_too() -> None:
    usual = {"group_name": "0", "seq": 5, "receiver": 3, "odd": 3, "by_reducer": True}
    assert passed(aborted=rows(RING_RECEIVERS, usual)) == [[2, 3]]
    assert passed(aborted=rows(RING_RECEIVERS, usual | {"by_reducer": False})) == [[2]]


IN_BACKWARD, IN_LOG = (
    ["_engine_run_backward (graph.py:9)", "step (train.py:9)"],
    ["all_reduce (distributed_c10d.py:9)", "log (train.py:30)"],
)
IN_HOOK = ["all_reduce (distributed_c10d.py:9)", "launch (train.py:4)", *IN_BACKWARD]


def went_past(stood: dict[int, list[str]], **signatures: str) -> list[tuple[int, list[int], str | None]]:
    """Ranks that stood in these frames, and how they ended: r2="gloo-closed" is rank 2, which lost a peer."""
    places = {IN_BACKWARD[0]: "backward", IN_LOG[0]: "collective"}
    last = [
        {"rank": r, "frames": f, "place": places.get(f[0], "user-code"), "user_frame": f[-1], "witness": "exception"}
        for r, f in stood.items()
    ]
    ended = endings(*[{"rank": int(r[1:]), "signature": s} for r, s in signatures.items()])
    return past_backward(rows(LAST_CALLS, *last), ended).collect().select("rank", "in_backward", "call_site").rows()


def test_who_aborted_in_another_call_while_most_waited_in_backward_passed_a_bucket() -> None:
    lost = {"r0": "gloo-closed", "r1": "gloo-reset", "r2": "gloo-size-mismatch"}
    found = [(2, [0, 1], "log (train.py:30)")]
    assert went_past({0: IN_BACKWARD, 1: IN_BACKWARD, 2: IN_LOG}, **lost) == found
    assert went_past({0: IN_BACKWARD, 1: IN_BACKWARD}, **lost) == [(2, [0, 1], None)], "its own stack is not known"
    five = dict.fromkeys((0, 1, 3), IN_BACKWARD) | {2: IN_LOG, 4: IN_LOG}
    both = went_past(five, **lost, r3="gloo-timeout", r4="gloo-closed")
    assert [rank for rank, *_ in both] == [2, 4], "and whoever stood in a call beyond with it"


def test_where_ranks_stood_elsewhere_or_backward_may_be_the_odd_place_nobody_passed_a_bucket() -> None:
    lost = {"r0": "gloo-closed", "r1": "gloo-reset", "r2": "gloo-size-mismatch"}
    assert went_past({0: IN_BACKWARD, 1: IN_BACKWARD, 2: IN_BACKWARD}, **lost) == [], "it aborted in backward itself"
    assert went_past({0: IN_BACKWARD, 1: IN_BACKWARD, 2: IN_LOG}, r0="gloo-closed", r1="gloo-reset", r2="gloo-closed") == []
    assert went_past({0: IN_BACKWARD, 1: IN_LOG, 2: IN_LOG}, **lost) == [], "most are beyond"
    assert went_past({0: IN_BACKWARD, 1: IN_BACKWARD, 2: IN_LOG}, **lost, r3="gloo-closed", r4="gloo-closed") == [], "most are not known"
    assert went_past({0: IN_BACKWARD, 1: IN_BACKWARD, 2: IN_LOG, 3: ["load (data.py:4)"]}, **lost) == [], "one is in neither"
    assert went_past({0: IN_BACKWARD, 1: IN_BACKWARD, 2: IN_LOG, 3: IN_HOOK}, **lost) == [], (
        "a hook of the program may reduce what it likes"
    )
    four = {0: IN_BACKWARD, 1: IN_BACKWARD, 2: IN_LOG, 3: IN_LOG, 4: IN_BACKWARD}
    assert went_past(four, **lost, r3="gloo-closed", r4="gloo-closed") == [], "what came was sent by one that is beyond as well"
