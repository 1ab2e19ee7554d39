"""The surroundings of evidence: raw lines around a line, the neighbours of a Flight Recorder entry, and what a dump says of a group."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import polars as pl

from nccl_forensics.extras import ContextLine
from nccl_forensics.masking import mask
from nccl_forensics.views import Resolver

Quote = Callable[[int, int, int, int], list[tuple[int, str]]]
_FINDINGS, _ITEMS, _CONTEXT, _NEIGHBOURS, _LONGEST = 200, 6, 3, 2, 600
_ENTRY = re.compile(r"entries\[(\d{1,9})\]")
_STATUS = re.compile(r"pg_status\[.{1,40}\]")


def contexts(
    report: Mapping[str, object], resolver: Resolver, ids: Mapping[str, int], quote: Quote
) -> dict[tuple[str, int], tuple[ContextLine, ...]]:
    """By finding and index of the evidence item."""
    out: dict[tuple[str, int], tuple[ContextLine, ...]] = {}
    wanted: dict[tuple[str, int], tuple[int, int]] = {}
    standings: dict[tuple[str, int], tuple[int, str]] = {}
    for key, e in _cited(report):
        path, record = str(e["path"]), str(e["record"] or "")
        if path not in ids:
            continue
        entry = _ENTRY.fullmatch(record)
        if e["line"] is not None:
            first = int(str(e["line"]))
            last = int(str(e["end_line"] or first))
            lines = quote(ids[path], first, _CONTEXT, min(last - first, 12) + _CONTEXT)
            out[key] = tuple((n, mask(t)[:_LONGEST], first <= n <= last) for n, t in lines)
        elif entry:
            wanted[key] = (ids[path], int(entry[1]))
        elif _STATUS.fullmatch(record):
            standings[key] = (ids[path], record)
    return out | _entries(wanted, resolver) | _standings(standings, resolver)


def _cited(report: Mapping[str, object]) -> Iterator[tuple[tuple[str, int], Mapping[str, object]]]:
    findings = report["findings"]
    assert isinstance(findings, list)
    for finding in findings[:_FINDINGS]:
        for index, e in enumerate(finding["evidence"][:_ITEMS]):
            if e["path"] is not None:
                yield (str(finding["id"]), index), e


def _entries(wanted: Mapping[tuple[str, int], tuple[int, int]], resolver: Resolver) -> dict[tuple[str, int], tuple[ContextLine, ...]]:
    """Entries of a dump as one line each, with those before and after."""
    entries = resolver.get("fr_entries")
    if entries is None or not wanted:
        return {}
    index = pl.col("record").str.extract(r"^entries\[(\d+)\]$").cast(pl.Int64)
    near = pl.any_horizontal(
        *(
            (pl.col("source_id") == s) & pl.col("index").is_between(n - _NEIGHBOURS, n + _NEIGHBOURS)
            for s, n in sorted(set(wanted.values()))
        )
    )
    # Only of dumps that are cited is every record looked at.
    cited = entries.filter(pl.col("source_id").is_in(sorted({s for s, _ in wanted.values()})))
    rows = cited.with_columns(index.alias("index")).filter(near).sort("source_id", "index").collect()
    by_place = {(r["source_id"], r["index"]): _line(r) for r in rows.iter_rows(named=True)}
    return {
        key: tuple((n, text, n == at) for n in range(at - _NEIGHBOURS, at + _NEIGHBOURS + 1) if (text := by_place.get((source, n))))
        for key, (source, at) in wanted.items()
        if (source, at) in by_place
    }


def _standings(wanted: Mapping[tuple[str, int], tuple[int, str]], resolver: Resolver) -> dict[tuple[str, int], tuple[ContextLine, ...]]:
    """What a dump says of a whole group, as one line: how far its rank was with it."""
    status = resolver.get("fr_status")
    if status is None or not wanted:
        return {}
    cited = status.filter(pl.col("source_id").is_in(sorted({s for s, _ in wanted.values()}))).collect()
    by_place = {(r["source_id"], r["record"]): r for r in cited.iter_rows(named=True)}
    return {key: ((row["pg_id"] or 0, _standing(row), True),) for key, place in wanted.items() if (row := by_place.get(place)) is not None}


def _standing(row: Mapping[str, object]) -> str:
    steps = ((step, row[f"last_{step}"]) for step in ("enqueued", "started", "completed"))
    return ", ".join(f"last {step} #{seq}" for step, seq in steps if seq is not None) or "no operation enqueued, started or completed yet"


def _line(row: Mapping[str, object]) -> str:
    """``all_reduce #18 [[1]] Float scheduled, group default_pg, at log_metrics (train_loop.py:49)``."""
    seq = row["p2p_seq_id"] if row["is_p2p"] else row["collective_seq_id"]
    name = f"{row['op'] or row['op_raw']}" + (f" #{seq}" if seq is not None else "")
    dtypes = row["input_dtypes"]
    dtype = ", ".join(dict.fromkeys(str(d) for d in dtypes)) if isinstance(dtypes, list) else str(dtypes or "")
    parts = [" ".join(t for t in (name, str(row["input_sizes"] or ""), dtype) if t), str(row["state"] or "")]
    group = row["pg_desc"] or row["pg_name"]
    parts += [f"group {group}" if group else "", f"at {row['user_frame']}" if row["user_frame"] else ""]
    return mask(", ".join(p for p in parts if p))[:_LONGEST]
