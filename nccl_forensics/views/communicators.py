"""Communicators of each process, and which of them are the same one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import polars as pl

from nccl_forensics.views import view

COMMS_SCHEMA = {
    "source_id": pl.UInt32(),
    "line_no": pl.UInt32(),
    "end_line_no": pl.UInt32(),
    "host": pl.String(),
    "pid": pl.Int64(),
    "comm": pl.String(),
    "comm_key": pl.String(),
    "comm_id": pl.String(),
    "rank": pl.Int32(),
    "nranks": pl.Int32(),
    "bus_id": pl.String(),
    "nvml_dev": pl.Int32(),
    "parent": pl.String(),
    "started": pl.Boolean(),
    "completed": pl.Boolean(),
    "ended": pl.String(),
    "hint_rank": pl.Int32(),
    "hint_scope": pl.String(),
}


@view(rows="processes x communicators")
def comms(nccl_comms: pl.LazyFrame) -> pl.LazyFrame:
    """Communicators per process: one row per (host, pid, pointer, incarnation), with a key equal on all ranks of the communicator.

    A pointer may be reused after Destroy, so an incarnation ends at its end-of-life line. Children carry no commId from NCCL 2.23 on:
    their key is (key of the parent, splitCount, color).
    """
    order = ["source_id", "line_no"]
    events = nccl_comms.filter(pl.col("comm").is_not_null()).sort(order).collect()
    rows: list[dict[str, object]] = []
    live: dict[tuple[object, ...], dict[str, object]] = {}
    legacy: dict[tuple[object, ...], int] = defaultdict(int)
    by_pointer: dict[tuple[object, ...], list[dict[str, object]]] = defaultdict(list)
    for e in events.iter_rows(named=True):
        key = (e["host"], e["pid"], e["comm"], e["bus_id"] if e["pid"] is None else None)
        row = live.get(key)
        event = str(e["event"])
        begins = event == "init-start" or (event == "init-complete" and (row is None or bool(row["completed"])))
        if begins:
            if row is not None and event == "init-start":
                rows.append(row)
            row = {name: e.get(name) for name in COMMS_SCHEMA}
            row.update(started=event == "init-start", completed=False, ended=None, end_line_no=None, comm_key=None)
            row["split"] = (e["split_count"], e["color"])
            live[key] = row
            by_pointer[(e["host"], e["pid"], e["comm"])].append(row)
        if row is None:
            row = {name: e.get(name) for name in COMMS_SCHEMA}
            row.update(started=False, completed=False, ended=None, end_line_no=None, comm_key=None, split=(e["split_count"], e["color"]))
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
    return pl.DataFrame([{k: r[k] for k in COMMS_SCHEMA} for r in rows], schema=COMMS_SCHEMA, infer_schema_length=None).lazy()


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
    if row["parent"] is not None and depth < 8:
        parents = [
            p
            for p in by_pointer[(row["host"], row["pid"], row["parent"])]
            if p is not row and (p["source_id"] != row["source_id"] or int(str(p["line_no"])) <= int(str(row["line_no"])))
        ]
        if parents:
            pair = row["split"]
            split, color = pair if isinstance(pair, tuple) else (None, None)
            return f"{_comm_key(parents[-1], by_pointer, legacy, depth + 1)}/{split}/{color}"
    # Up to NCCL 2.15 there is no commId: the k-th communicator of a size in each process is taken for the same one.
    ordinal_key = (row["host"], row["pid"], row["bus_id"], row["nranks"])
    legacy[ordinal_key] += 1
    row["comm_key"] = f"size{row['nranks']}#{legacy[ordinal_key]}"
    return str(row["comm_key"])
