"""Buckets of gradients that some ranks passed."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views.gloo_rings import RING_RECEIVERS
from nccl_forensics.views.reducer_skips import reducer_skips
from tests.rules.frames import divergences
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
