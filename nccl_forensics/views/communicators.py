"""Communicators of each process, and which of them are the same one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Literal

import polars as pl

from nccl_forensics.frames import typed
from nccl_forensics.values.ranklist import MOST_RANKS
from nccl_forensics.views import view

COMMS_SCHEMA = typed(
    "source_id:u32 line_no:u32 end_line_no:u32 host:str pid:i64 comm:str comm_key:str comm_id:str rank:i32 nranks:i32 bus_id:str",
    "nvml_dev:i32 parent:str orphan:bool started:bool completed:bool ended:str hint_rank:i32 hint_scope:str",
)


@view(rows="processes x communicators")
def comms(nccl_comms: pl.LazyFrame) -> pl.LazyFrame:
    """Communicators per process: one row per (host, pid, pointer, incarnation), with a key equal on all ranks of the communicator.

    A pointer may be reused after Destroy, so an incarnation ends at its end-of-life line. Children carry no commId from NCCL 2.23 on:
    their key is (key of the parent, splitCount, color), and where 2.23, which prints no splitCount, made several of one color of a parent,
    their size or turn in its place. ``orphan``: a child whose parent no line of its process tells, as where the
    beginning of a log is lost.
    """
    order = ["source_id", "line_no"]
    possible = [pl.when(pl.col(name) <= MOST_RANKS).then(name).alias(name) for name in ("rank", "nranks")]
    events = nccl_comms.filter(pl.col("comm").is_not_null()).with_columns(possible).sort(order).collect()
    rows: list[dict[str, object]] = []
    live: dict[tuple[object, ...], dict[str, object]] = {}
    legacy: dict[tuple[object, ...], int] = defaultdict(int)
    by_pointer: dict[tuple[object, ...], list[dict[str, object]]] = defaultdict(list)
    for e in events.iter_rows(named=True):
        key = (e["host"], e["pid"], e["comm"], e["bus_id"] if e["pid"] is None else None)
        row = live.get(key)
        event = str(e["event"])
        if row is None or event == "init-start" or (event == "init-complete" and bool(row["completed"])):
            if row is not None and event == "init-start":
                rows.append(row)
            row = {name: e.get(name) for name in COMMS_SCHEMA}
            row.update(started=event == "init-start", completed=False, ended=None, end_line_no=None, comm_key=None)
            row["split"] = (e["split_count"], e["color"])
            live[key] = row
            by_pointer[(e["host"], e["pid"], e["comm"])].append(row)
        for name in ("comm_id", "bus_id", "nvml_dev", "parent", "rank", "nranks", "hint_rank"):
            if row[name] is None:
                row[name] = e[name]
        if event == "init-complete":
            row["completed"] = True
        elif not event.startswith("init"):
            row["ended"] = event
            row["end_line_no"] = e["line_no"]
            if event.endswith("-complete"):
                rows.append(row)
                live.pop(key, None)
    rows.extend(live.values())
    rows.sort(key=lambda r: (r["source_id"], r["line_no"]))
    for row, by_turn in _ambiguous(rows):
        row["comm_key"] = by_turn
    for row in rows:
        row["comm_key"] = _comm_key(row, by_pointer, legacy, 0)
    _tell_apart(rows)
    _by_turn(rows)
    for row in rows:
        row["orphan"] = row["parent"] is not None and not by_pointer.get((row["host"], row["pid"], row["parent"]))
    return pl.DataFrame([{k: r[k] for k in COMMS_SCHEMA} for r in rows], schema=COMMS_SCHEMA, infer_schema_length=None).lazy()


def of_the_job() -> pl.Expr:
    """Whether a communicator of ``comms`` is the largest, in which ranks are those of the job: not where all of that size are orphans."""
    largest = pl.col("nranks") == pl.col("nranks").max()
    return largest & (largest & ~pl.col("orphan").fill_null(False)).any()


def _ambiguous(rows: list[dict[str, object]]) -> Iterator[tuple[dict[str, object], str]]:
    """Children whose commId some process has twice, or of which one rank is claimed in two splits, with a key by the number of the split on
    their parent: up to NCCL 2.22 the id of a child is made of its parent's and its color alone (src/init.cc), so that two splits of one
    parent make children of one id. Releases up to 2.19 print no parent: there all communicators of a process are counted."""
    turns: dict[tuple[object, ...], int] = defaultdict(int)
    met: dict[tuple[object, ...], set[object]] = defaultdict(set)
    claimed: dict[tuple[object, ...], set[int]] = defaultdict(set)
    children: list[tuple[dict[str, object], int]] = []
    for row in rows:
        if row["comm_id"] is not None:
            process = (row["host"], row["pid"], row["bus_id"])  # one that drives several GPUs has several ranks of one communicator
            turns[*process, row["parent"]] += 1
            met[*process, row["comm_id"]].add(row["comm"])
            if row["rank"] is not None:
                claimed[row["rank"], row["comm_id"]].add(turns[*process, row["parent"]])
            children.append((row, turns[*process, row["parent"]]))
    twice = {key[-1] for seen in (met, claimed) for key, values in seen.items() if len(values) > 1}
    yield from ((row, f"{row['comm_id']}#{turn}") for row, turn in children if row["comm_id"] in twice)


def _comm_key(
    row: dict[str, object], by_pointer: dict[tuple[object, ...], list[dict[str, object]]], legacy: dict[tuple[object, ...], int], depth: int
) -> str:
    if row["comm_key"] is not None:
        return str(row["comm_key"])
    if row["comm_id"] is not None:
        return str(row["comm_id"])
    split, color = row["split"] if isinstance(row["split"], tuple) else (None, None)
    if row["parent"] is not None and depth < 8:
        parents = [
            p
            for p in by_pointer[(row["host"], row["pid"], row["parent"])]
            if p is not row and (p["source_id"] != row["source_id"] or int(str(p["line_no"])) <= int(str(row["line_no"])))
        ]
        if parents:
            return f"{_comm_key(parents[-1], by_pointer, legacy, depth + 1)}/{split}/{color}"
    if color is not None:
        # A child whose parent no line tells, as the beginning of the log is lost: how many came before it in this process is not known.
        return f"split of unknown/{row['nranks']}/{split}/{color}"
    # Up to NCCL 2.15 there is no commId: the k-th communicator of a size in each process is taken for the same one.
    ordinal_key = (row["host"], row["pid"], row["bus_id"], row["nranks"])
    legacy[ordinal_key] += 1
    row["comm_key"] = f"size{row['nranks']}#{legacy[ordinal_key]}"
    return str(row["comm_key"])


def _tell_apart(rows: list[dict[str, object]]) -> None:
    """Keys of communicators without a commId, where the k-th of a size is another one in other processes: one rank of it is claimed twice.

    Groups of one layout (tensor, pipeline, data parallel) order their members as the whole job does, and are ordered by them: the k-th
    claims of each rank, by rank in the job, are one communicator. Where a claim is missing they stay together under one key.
    """
    claims: dict[str, list[dict[str, object]]] = defaultdict(list)
    for row in rows:
        if row["rank"] is not None and row["pid"] is not None and str(row["comm_key"]).startswith("size"):
            claims[str(row["comm_key"])].append(row)
    twice = {key: of for key, of in claims.items() if len({r["rank"] for r in of}) < len(of)}
    whole = max((of for key, of in claims.items() if key not in twice), key=len, default=[])
    in_job = {(r["host"], r["pid"], r["bus_id"]): int(str(r["rank"])) for r in whole}
    for key, of in twice.items():
        by_rank: dict[object, list[tuple[int, dict[str, object]]]] = defaultdict(list)
        for row in of:
            by_rank[row["rank"]].append((in_job.get((row["host"], row["pid"], row["bus_id"]), -1), row))
        counts = {len(claimed) for claimed in by_rank.values()}
        if len(by_rank) != of[0]["nranks"] or len(counts) != 1 or any(at < 0 for claimed in by_rank.values() for at, _ in claimed):
            continue
        for claimed in by_rank.values():
            for k, (_, row) in enumerate(sorted(claimed, key=lambda c: c[0])):
                row["comm_key"] = f"{key}.{k}"


def _by_turn(rows: list[dict[str, object]]) -> None:
    """Keys of children of one parent and color of which no line tells which split made them (NCCL 2.23, src/init.cc). Those of several sizes
    are several communicators. Where some process has several of one size: by their turn among those of the color, as a color of PyTorch's
    stands for the ranks of a group, or among all children of the parent, as a color that the caller counts up may be of other ranks each
    time. The turn counts by which each rank is there once."""
    children: dict[object, int] = defaultdict(int)
    alike: dict[tuple[object, ...], list[tuple[dict[str, object], dict[str, int]]]] = defaultdict(list)
    for row in rows:
        split, color = row["split"] if isinstance(row["split"], tuple) else (None, None)
        if row["comm_id"] is None and split is None and color is not None and row["parent"] is not None and row["rank"] is not None:
            process = (row["host"], row["pid"], row["bus_id"])
            children[*process, row["parent"]] += 1
            alike[row["comm_key"], row["nranks"]].append((row, {"all": children[*process, row["parent"]]}))
    sizes = Counter(key for key, _ in alike)
    for (key, size), of in alike.items():
        own: dict[object, int] = defaultdict(int)
        if sizes[key] > 1:
            for row, _ in of:
                row["comm_key"] = str(key).replace("/None/", f"/of {size}/")
        for row, turn in of:
            own[row["host"], row["pid"], row["bus_id"]] += 1
            turn["color"] = own[row["host"], row["pid"], row["bus_id"]]
        if max(own.values()) == 1:
            continue
        for way in ("color", "all"):
            ranks: dict[int, list[object]] = defaultdict(list)
            for row, turn in of:
                ranks[turn[way]].append(row["rank"])
            if all(len(there) == len(set(there)) == size for there in ranks.values()):
                for row, turn in of:
                    row["comm_key"] = str(key).replace("/None/", f"/turn {turn[way]} of {size}/")
                break


@view(rows="processes x communicators")
def comm_channels(nccl_channels: pl.LazyFrame, nccl_comms: pl.LazyFrame, comms: pl.LazyFrame) -> pl.LazyFrame:
    """'N coll channels' lines with the communicator that was made as they were printed: the columns of ``nccl_channels``, and ``comm_key``,
    ``rank``, ``nranks``, null where no line tells.

    The thread that makes a communicator prints them before its 'Init COMPLETE' (``src/init.cc``), which is the first line of it in releases
    that print no 'Init START'; of an init that never ended, the start before is all there is.
    """
    thread = [pl.col("source_id"), pl.col("host").fill_null(""), pl.col("pid").fill_null(-1), pl.col("tid").fill_null(-1)]
    by = ["source_id", "host", "pid", "tid"]
    lines = nccl_channels.with_row_index("row")
    events = nccl_comms.filter(pl.col("event").is_in(["init-start", "init-complete"]) & pl.col("comm").is_not_null())
    near = lines.select("row", "line_no", *thread).sort("line_no")
    sides: dict[str, Literal["forward", "backward"]] = {"after": "forward", "before": "backward"}
    for side, way in sides.items():
        told = events.select(*thread, pl.col("line_no").alias(side), *(pl.col(c).alias(f"{side}_{c}") for c in ("event", "comm")))
        near = near.join_asof(told.sort(side), left_on="line_no", right_on=side, by=by, strategy=way, check_sortedness=False)
    ends, begins = pl.col("after_event") == "init-complete", pl.col("before_event") == "init-start"
    made = near.select(
        "row",
        *("source_id", "host", "pid"),
        comm=pl.when(ends).then("after_comm").when(begins).then("before_comm"),
        told=pl.when(ends).then("after").when(begins).then("before"),
    ).filter(pl.col("comm").is_not_null())
    whose = comms.select("source_id", *thread[1:3], *("comm", "comm_key", "rank", "nranks"), begin="line_no").sort("begin")
    known = made.sort("told").join_asof(
        whose, left_on="told", right_on="begin", by=["source_id", "host", "pid", "comm"], strategy="backward", check_sortedness=False
    )
    return lines.join(known.select("row", "comm_key", "rank", "nranks"), on="row", how="left").sort("row").drop("row")
