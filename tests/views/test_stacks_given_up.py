"""Stacks of ranks whose watchdogs timed out: whatever line of their own code they sleep in, they wait."""

from __future__ import annotations

import polars as pl

from nccl_forensics.tables import TABLES
from nccl_forensics.views.stack_stalls import stack_stalls
from nccl_forensics.views.stack_views import odd_stacks, thread_states
from nccl_forensics.views.watchdogs import CALLS

LOADER = ["get (queue.py:180)", "_try_get_data (torch/utils/data/dataloader.py:1131)", "fit (loop.py:20)", "<module> (loop.py:90)"]
READS = ["log_loss (loop.py:44)", "fit (loop.py:31)", "<module> (loop.py:90)"]


def stacks(*frames: list[str], state: str = "idle") -> pl.LazyFrame:
    rows = [
        {"source_id": n, "line_no": 1, "hint_rank": n, "hint_scope": "global", "pid": 70 + n, "is_main": True, "sampler": "py-spy"}
        | {"state": state, "depth": len(own), "frames": own, "sample": 0}
        for n, own in enumerate(frames)
    ]
    return (
        pl.DataFrame(rows, schema_overrides=TABLES["stacks"].schema, strict=False)
        .lazy()
        .with_columns(pl.lit(None, dtype=t).alias(c) for c, t in TABLES["stacks"].schema.items() if c not in rows[0])
    )


def timed_out(*ranks: int) -> pl.LazyFrame:
    return (
        pl.DataFrame({"rank": list(ranks)}, schema={"rank": pl.Int32()})
        .lazy()
        .with_columns(pl.lit(None, dtype=t).alias(c) for c, t in CALLS.items() if c != "rank")
    )


def test_who_reads_a_number_from_the_gpu_and_times_out_waits_for_the_one_that_loads_data() -> None:
    four = stacks(READS, READS, LOADER, READS)
    failed = pl.LazyFrame({"sign": ["watchdog timeouts"]})
    known = thread_states(four, None, None, timed_out(0, 1, 3))
    assert known.collect()["place"].to_list() == ["cuda-sync", "cuda-sync", "data-loader", "cuda-sync"]
    [stall] = stack_stalls(odd_stacks(known), None, None, None, failed, None, None, None).collect().to_dicts()
    assert (stall["cause"], stall["confidence"], stall["rank"]) == ("input-stall", "medium", 2)
    # Without a timeout, or on a CPU, nothing tells that they wait.
    assert thread_states(four, None, None).collect()["place"][0] == "user-code"
    running = thread_states(stacks(READS, READS, LOADER, READS, state="active"), None, None, timed_out(0, 1, 3))
    assert "cuda-sync" not in running.collect()["place"].to_list()
