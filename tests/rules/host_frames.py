"""Builders of small frames for the rules of host evidence."""

from __future__ import annotations

import polars as pl

from nccl_forensics.model import Finding
from nccl_forensics.rules import Rule
from nccl_forensics.tables import TABLES
from nccl_forensics.views.identity import PROCESSES_SCHEMA

SECOND = 1_000_000_000


def table(name: str, *rows: dict[str, object]) -> pl.LazyFrame:
    """Rows of a table in one source, numbered by line where they do not say."""
    numbered = [{"source_id": 0, "line_no": n + 1, **row} for n, row in enumerate(rows)]
    schema = {"source_id": pl.UInt32(), **TABLES[name].schema}
    return (
        pl.DataFrame(numbered, schema_overrides=schema, strict=False, infer_schema_length=None)
        .select(pl.col(c).cast(t) if any(c in r for r in numbered) else pl.lit(None, dtype=t).alias(c) for c, t in schema.items())
        .lazy()
        if rows
        else pl.LazyFrame(schema=schema)
    )


def check(rule: Rule, **inputs: pl.LazyFrame) -> list[Finding]:
    """What a rule says of these tables and views, given by name; all others are missing."""
    code = rule.function.__code__
    names = code.co_varnames[: code.co_argcount]
    assert not set(inputs) - set(names), set(inputs) - set(names)
    return rule.check(*(inputs.get(name) for name in names))


def xid(code: int, bus_id: str = "0000:17:00.0", host: str | None = "node7", second: int = 0, **more: object) -> dict[str, object]:
    """One Xid line."""
    return {"code": code, "bus_id": bus_id, "host": host, "time_raw_ns": second * SECOND, "message": "text", "implied": False, **more}


def processes(*rows: tuple[int, str, int, str]) -> pl.LazyFrame:
    """(rank, host, pid, bus id as NCCL prints it)."""
    known = [{"rank": r, "host": h, "pid": p, "bus_id": b} for r, h, p, b in rows]
    return (
        pl.DataFrame(known, schema={n: t for n, t in PROCESSES_SCHEMA.items() if n in known[0]})
        .lazy()
        .with_columns(pl.lit(None, dtype=t).alias(n) for n, t in PROCESSES_SCHEMA.items() if n not in known[0])
    )
