"""What a Flight Recorder dump says besides its entries: the dump itself, its groups and their counters, as rows of tables."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import orjson
import polars as pl

from nccl_forensics.formats._recorder_columns import counter, integer, text_of_value
from nccl_forensics.ranklist import fold
from nccl_forensics.tables import TABLES

Row = dict[str, object]
#: What entries are told apart by, in whatever encoding.
IDENTITY = ("pg_id", "collective_seq_id", "p2p_seq_id", "op_id", "op_raw", "time_created_ns")
#: First and last of these are told of a dump.
SPANS = ("record_id", "time_created_ns")
_COUNTERS = [c for c in TABLES["fr_status"].columns if c != "record"]


def dump_row(
    document: Mapping[str, object] | Mapping[object, object],
    encoding: str,
    identity: pl.DataFrame,
    spans: Sequence[object],
    threads: Iterable[str | None],
    counters: Sequence[Mapping[str, object]],
) -> Row:
    """The row of ``fr_dumps``. ``identity``: the columns ``IDENTITY`` of its entries; ``spans``: the least and the greatest of each of ``SPANS``;
    ``threads``: those of its entries; ``counters``: its rows of ``fr_status``."""
    version = text_of_value(document.get("version"))
    parts = (version or "").split(".")
    numbers = [int(p) if p.isdecimal() and len(p) < 6 else None for p in (*parts, "", "")[:2]]
    key = hashlib.sha256(f"{identity.write_csv()}\n{_csv(counters)}".encode()).hexdigest()[:32]
    return {
        "record": "",
        "encoding": encoding,
        "version": version,
        "version_major": numbers[0],
        "version_minor": numbers[1],
        "comm_lib_version": text_of_value(document.get("comm_lib_version")) or text_of_value(document.get("nccl_version")),
        "entries": identity.height,
        "first_record_id": spans[0],
        "last_record_id": spans[1],
        "first_created_ns": spans[2],
        "last_created_ns": spans[3],
        "thread_ids": sorted({thread for thread in threads if thread is not None}),
        "content_key": key,
    }


def _csv(counters: Sequence[Mapping[str, object]]) -> str:
    """Counters of groups in the order of their numbers, as lines of separated values."""
    ordered = sorted(counters, key=lambda row: (row["pg_id"] is not None, row["pg_id"]))
    lines = [",".join("" if row[c] is None else str(row[c]) for c in _COUNTERS) for row in ordered]
    return "".join(f"{line}\n" for line in (",".join(_COUNTERS), *lines))


def group_rows(config: object) -> list[Row]:
    """Rows of ``fr_groups`` of ``pg_config``."""
    rows: list[Row] = []
    if isinstance(config, dict):
        for key in sorted(config, key=str):
            value = config[key]
            if isinstance(value, dict):
                ranks = _ranks(value.get("ranks"))
                name = text_of_value(value.get("name", key))
                if name is None and not ranks:
                    continue  # gloo's recorder writes one nameless empty group
                rows.append({"record": f"pg_config[{key}]", "pg_name": name, "pg_desc": text_of_value(value.get("desc")), "ranks": ranks})
            elif isinstance(value, (list, tuple)):
                rows.append({"record": f"pg_config[{key}]", "pg_name": str(key), "pg_desc": None, "ranks": _ranks(value)})
    return rows


def _ranks(value: object) -> str | None:
    """Global ranks from ``"[0, 1]"``, ``"0, 1"`` or a list, folded; None where there are none (gloo does not know them)."""
    if isinstance(value, str):
        return _spelled(value) if len(value) < 10_000_000 else None
    if not isinstance(value, (list, tuple)):
        return None
    ranks = [r for r in value if isinstance(r, int) and not isinstance(r, bool) and 0 <= r < 1 << 31]
    return fold(ranks) if ranks and len(ranks) == len(value) else None


@lru_cache(maxsize=16)
def _spelled(text: str) -> str | None:
    """The same from a text. All dumps of a job spell out the same list of all ranks."""
    try:
        value = orjson.loads(text if text.startswith("[") else f"[{text}]")
    except orjson.JSONDecodeError:
        return None
    return _ranks(value) if isinstance(value, list) else None


def status_rows(status: object) -> list[Row]:
    """Rows of ``fr_status`` of ``pg_status``."""
    rows: list[Row] = []
    if isinstance(status, dict):
        for key in sorted(status, key=str):
            value = status[key]
            if isinstance(value, dict):
                rows.append(
                    {
                        "record": f"pg_status[{key}]",
                        "pg_id": integer(key),
                        "last_enqueued": counter(value.get("last_enqueued_collective")),
                        "last_started": counter(value.get("last_started_collective")),
                        "last_completed": counter(value.get("last_completed_collective")),
                    }
                )
    return rows
