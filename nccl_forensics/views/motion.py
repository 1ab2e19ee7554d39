"""Per rank: moving, stuck since when, or unknown, from several samples of its process."""

from __future__ import annotations

import polars as pl

from nccl_forensics.evidence import PLACE
from nccl_forensics.frames import typed
from nccl_forensics.stacks.places import WAITING
from nccl_forensics.views import view
from nccl_forensics.views.calls import Calls, calls_of
from nccl_forensics.views.columns import read_at
from nccl_forensics.views.looks import in_flight_for_longer
from nccl_forensics.views.watchdogs import watchdog_lines

MOTION = typed("rank:i32 motion:str since_ns:i64 timeout_ms:i64 waited_ms:i64 why:str", read_at())
_WEIGHT = {"unknown": 0, "stuck": 1, "moving": 2}
_WAITS = (*WAITING, "rendezvous")


@view(rows="ranks")
def motion(
    thread_states: pl.LazyFrame | None,
    dumps: pl.LazyFrame | None,
    watchdog: pl.LazyFrame | None,
    operations: pl.LazyFrame | Calls | None,
    looks: pl.LazyFrame | None = None,
) -> pl.LazyFrame:
    """``motion``: ``moving`` where two samples of the process differ in what it does (stacks, the last two recorder dumps), ``stuck`` where
    two samples agree, its watchdog timed out, or what it has open is in flight for far longer than anything before, else ``unknown``: one
    look tells no motion.

    ``since_ns`` (epoch, by the clock of its host): when the oldest operation that it has not finished was enqueued, or, where it has none,
    when the last one ended; both are the latest time at which it can still have moved. ``timeout_ms``: the timeout in force for that
    operation; ``waited_ms``: how long the watchdog says that it ran, else how long it had been in flight when its recorder was asked. Cites
    the sample, the line or the operation.
    """
    rows: dict[int, dict[str, object]] = {}

    def say(rank: int, motion: str, why: str, cite: dict[str, object]) -> None:
        known = rows.get(rank)
        # Any movement counts: a rank that once moved between samples is not stuck.
        if known is None or _WEIGHT[motion] > _WEIGHT[str(known["motion"])]:
            rows[rank] = {"rank": rank, "motion": motion, "why": why} | {k: cite.get(k) for k in PLACE}

    if watchdog is not None:
        for line in watchdog_lines(watchdog).filter(pl.col("kind") == "timeout").collect().iter_rows(named=True):
            say(line["rank"], "stuck", "its watchdog timed out", line)
            rows[line["rank"]].setdefault("waited_ms", line["elapsed_ms"])
            rows[line["rank"]].setdefault("timeout_ms", line["timeout_ms"])
    if dumps is not None:
        stand = looks.filter(in_flight_for_longer()).select("rank").collect()["rank"].to_list() if looks is not None else []
        _dumps(dumps, frozenset(stand), say)
    if thread_states is not None:
        main = thread_states.filter(pl.col("rank").is_not_null() & pl.col("role").is_null()).sort("rank").collect()
        for row in main.iter_rows(named=True):
            if row["moved"]:
                say(row["rank"], "moving", f"its stack differs between {row['samples']} samples", row)
            elif (row["samples"] or 1) > 1:
                where = "waiting for others" if row["place"] in _WAITS else f"in {row['place']}"
                say(row["rank"], "stuck", f"{row['samples']} samples of its stack agree: {where}", row)
            else:
                say(row["rank"], "unknown", "one sample of its stack", row)
    if operations is not None:
        _since(calls_of(operations).telling, rows, say)
    if looks is not None:
        for row in looks.collect().iter_rows(named=True):
            if row["rank"] in rows and rows[row["rank"]]["motion"] == "stuck":
                rows[row["rank"]].setdefault("waited_ms", int(row["age_ms"]))
    order = [{**dict.fromkeys(MOTION), **rows[rank]} for rank in sorted(rows)]
    return pl.DataFrame(order, schema=MOTION, infer_schema_length=None).lazy()


def advances(motion: pl.LazyFrame | None) -> bool:
    """Whether at least half of the ranks of which two samples were taken, at least two, moved between them."""
    if motion is None:
        return False
    told = motion.filter(pl.col("motion") != "unknown").select(pl.col("motion") == "moving").collect()["motion"]
    return int(told.sum()) > 1 and int(told.sum()) * 2 >= told.len()


def _dumps(dumps: pl.LazyFrame, stand: frozenset[int], say: object) -> None:
    """The last two dumps of one process: operations that were enqueued or ended between them, or none. ``stand``: ranks that stood still
    when they were looked at last."""
    assert callable(say)
    known = dumps.filter(pl.col("rank").is_not_null() & pl.col("use").is_in(["chosen", "older"])).sort(
        "rank", "last_created_ns", "finished", nulls_last=False
    )
    moment = pl.struct("last_created_ns", "finished")
    looks = known.group_by("rank", maintain_order=True).agg(
        pl.col("source_id").last(), dumps=pl.len(), before=moment.get(-2, null_on_oob=True), last=moment.last()
    )
    for row in looks.collect().iter_rows(named=True):
        if row["dumps"] < 2:
            say(row["rank"], "unknown", "one dump of its recorder", row)
        elif row["before"]["last_created_ns"] is not None and row["last"] != row["before"] and row["rank"] not in stand:
            say(row["rank"], "moving", f"{row['dumps']} dumps of its recorder, the last beyond the one before", row)
        else:
            why = "its oldest operation is in flight for longer than any before" if row["rank"] in stand else "the last with nothing new"
            say(row["rank"], "stuck", f"{row['dumps']} dumps of its recorder, {why}", row)


def _since(operations: pl.LazyFrame, rows: dict[int, dict[str, object]], say: object) -> None:
    """When the oldest unfinished operation of each rank was enqueued, else when its last one ended."""
    assert callable(say)
    ops = operations.filter((pl.col("domain") == "fr") & pl.col("rank").is_not_null() & pl.col("created_ns").is_not_null())
    open_ones = ops.filter(pl.col("pending")).sort("created_ns", "order")
    oldest = open_ones.unique("rank", keep="first", maintain_order=True).select(
        "rank", "created_ns", "timeout_ms", "source_id", "line_no", "record"
    )
    ended = ops.group_by("rank").agg(pl.max_horizontal("completed_ns", "created_ns").max().alias("ended_ns"))
    for row in ended.join(oldest, on="rank", how="left").sort("rank").collect().iter_rows(named=True):
        say(row["rank"], "unknown", "one look at its operations", row)
        known = rows[row["rank"]]
        if known["motion"] == "moving":
            continue
        known["since_ns"] = row["created_ns"] if row["created_ns"] is not None else row["ended_ns"]
        if known.get("timeout_ms") is None:
            known["timeout_ms"] = row["timeout_ms"]
