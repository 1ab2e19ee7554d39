"""Ends of processes of which they themselves say nothing: faults that the kernel reports, and communicators that one never took down."""

from __future__ import annotations

import polars as pl

from nccl_forensics.words import first_label


def crashed(
    kernel_events: pl.LazyFrame | None, source_hosts: pl.LazyFrame | None, where: dict[int, tuple[object, object]]
) -> list[dict[str, object]]:
    """Segmentation and protection faults that the kernel reports of a rank's own process: same host and same pid (containers count
    anew)."""
    if kernel_events is None:
        return []
    rows = kernel_events.filter((pl.col("kind") == "segfault") & pl.col("pid").is_not_null())
    if source_hosts is not None:
        known = source_hosts.select("source_id", source_host="host").unique("source_id")
        rows = rows.join(known, on="source_id", how="left").with_columns(host=pl.coalesce("host", "hint_host", "source_host"))
    ranks = {(first_label(host), pid): rank for rank, (host, pid) in where.items() if host is not None and pid is not None}
    found: dict[int, dict[str, object]] = {}
    for row in rows.sort("source_id", "line_no").collect().iter_rows(named=True):
        rank = ranks.get((first_label(row["host"]), row["pid"]))
        if rank is not None and row["host"] is not None:
            kept = {c: row[c] for c in ("host", "pid", "source_id", "line_no", "end_line")}
            found.setdefault(rank, {"rank": rank, "library": row["detail"], **kept})
    return [found[rank] for rank in sorted(found)]


def vanished(
    comms: pl.LazyFrame | None,
    where: dict[int, tuple[object, object]],
    progress: pl.LazyFrame | None,
    nccl_notes: pl.LazyFrame | None,
    nccl_errors: pl.LazyFrame | None,
    processes: pl.LazyFrame | None,
) -> dict[int, dict[str, object]]:
    """Members of a communicator that never took it down although all others of it, at least two, did. One whose log lacks collectives that
    these made was in them all the same, as they ended in order: it is the log that ends early. One that says that it aborts, or that a peer
    closed its connection, was there, done or not. In logs without their beginning a process that never took it down has no line of it at all:
    of as many processes as the communicator has ranks, it is the one of a rank that nothing else tells."""
    if comms is None:
        return {}
    there: set[tuple[object, ...]] = set()
    for lines, kind in ((nccl_notes, "abort-called"), (nccl_errors, "peer-closed")):
        if lines is not None:
            there |= set(lines.filter(pl.col("kind") == kind).select("source_id", "host", "pid").unique().collect().rows())
    last: dict[tuple[str, int], int] = {}
    if progress is not None:
        made = progress.filter((pl.col("domain") == "nccl") & pl.col("last_seq").is_not_null())
        last = {(key, rank): seq for key, rank, seq in made.select("group_key", "rank", "last_seq").collect().iter_rows()}
    done = comms.filter((pl.col("completed") | pl.col("ended").is_not_null()) & pl.col("rank").is_not_null()).collect()
    found: dict[int, dict[str, object]] = {}
    for (key,), part in done.group_by("comm_key", maintain_order=True):
        size = part["nranks"].max()
        if size is None or part["rank"].n_unique() != part.height or part.height < 3:
            continue
        part = _with_unnamed(part, int(str(size)), done, processes)
        open_ones = part.filter(pl.col("ended").is_null())
        closed = part.filter(pl.col("ended").is_not_null())
        if not 0 < open_ones.height <= max(1, part.height // 4) or closed.height < 2:
            continue
        in_order = (closed["ended"] == "destroy-complete").all()
        furthest = max((seq for (k, _), seq in last.items() if k == key), default=-1)
        # A rank of the communicator is not always the global one: meet it again through host and pid.
        ranks = {(h, p): r for r, (h, p) in where.items()}
        for row in open_ones.iter_rows(named=True):
            rank = ranks.get((row["host"], row["pid"]))
            if rank is None or (in_order and last.get((key, rank), furthest) < furthest):
                continue
            if (row["source_id"], row["host"], row["pid"]) in there:
                continue
            found[rank] = {
                "rank": rank,
                "host": row["host"],
                "pid": row["pid"],
                "source_id": row["source_id"],
                "line_no": row["line_no"],
                "why": f"{closed.height} of {part.height} members took the communicator down, this one did not",
            }
    return found


def _with_unnamed(part: pl.DataFrame, size: int, done: pl.DataFrame, processes: pl.LazyFrame | None) -> pl.DataFrame:
    """Members of a communicator of this size whose init no log shows, with the processes that make up its number where every one of these
    has a rank, and those that are not among its members are in no communicator of its size by any line (``done``)."""
    if processes is None or part["completed"].any() or part.height >= size:
        return part
    known = (
        processes.filter(pl.col("rank").is_not_null() & pl.col("pid").is_not_null())
        .select("host", "pid", "rank", "source_id", "line_no")
        .collect()
    )
    rest = known.join(part, on=["host", "pid"], how="anti", nulls_equal=True)
    if rest.join(done.filter(pl.col("nranks") == size), on=["host", "pid"], how="semi", nulls_equal=True).height:
        return part
    if known.height != size or set(rest["rank"].to_list()) | set(part["rank"].to_list()) != set(range(size)):
        return part
    return pl.concat([part, rest.with_columns(pl.col("rank").cast(part.schema["rank"]))], how="diagonal_relaxed")
