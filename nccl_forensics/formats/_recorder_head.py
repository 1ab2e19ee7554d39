"""What a Flight Recorder dump says besides its entries: the dump itself, its groups and their counters, as rows of tables."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain

import orjson
import polars as pl

from nccl_forensics.decoding.raw_numbers import bytes_of
from nccl_forensics.formats._recorder_columns import counter, integer, text_of_value
from nccl_forensics.formats.base import PLACE, Row
from nccl_forensics.tables import TABLES
from nccl_forensics.values.ranklist import fold

#: What entries are told apart by, in whatever encoding, besides their operation.
_IDENTITY = ("collective_seq_id", "p2p_seq_id", "op_id", "time_created_ns")
#: By these numbers, which are odd and have nothing in common, the numbers of an entry become one of 64 bits (arithmetic of Polars wraps
#: around).
_FACTORS = (0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9, 0x14D049BB133111EB, 0x2545F4914F6CDD1D)
#: What stands for a number that is missing.
_MISSING = -(1 << 63)
#: First and last of these are told of a dump.
SPANS = ("record_id", "time_created_ns")
_COUNTERS = [c for c in TABLES["fr_status"].columns if c != "record"]


def dump_row(
    document: Mapping[str, object] | Mapping[object, object],
    encoding: str,
    entries: int,
    spans: Sequence[object],
    threads: Iterable[str | None],
    key: str,
) -> Row:
    """The row of ``fr_dumps``. ``spans``: the least and the greatest of each of ``SPANS``; ``threads``: those of its entries."""
    version = text_of_value(document.get("version"))
    parts = (version or "").split(".")
    numbers = [int(p) if p.isdecimal() and len(p) < 6 else None for p in (*parts, "", "")[:2]]
    return {
        "record": "",
        "encoding": encoding,
        "version": version,
        "version_major": numbers[0],
        "version_minor": numbers[1],
        "comm_lib_version": text_of_value(document.get("comm_lib_version")) or text_of_value(document.get("nccl_version")),
        "entries": entries,
        "first_record_id": spans[0],
        "last_record_id": spans[1],
        "first_created_ns": spans[2],
        "last_created_ns": spans[3],
        "thread_ids": sorted({thread for thread in threads if thread is not None}),
        "content_key": key,
    }


def operations(entries: pl.DataFrame) -> pl.Series:
    """What each entry calls in which group, as a number (Int64) that is the same in all dumps."""
    return pl.Series([_operation(*row) for row in entries.select("pg_id", "op_raw").iter_rows()], dtype=pl.Int64())


@lru_cache(maxsize=1024)
def _operation(group: int | None, name: str | None) -> int:
    return int.from_bytes(hashlib.sha256(repr((group, name)).encode()).digest()[:8], "little", signed=True)


def content_keys(
    operations: pl.Series, own: pl.DataFrame, heights: Sequence[int], counters: pl.DataFrame, counted: Sequence[int]
) -> list[str]:
    """By what two encodings of one dump are told to be the same, for each of several. ``operations`` and ``own``: those of all entries, of
    which each dump has so many (``heights``); ``counters``: their rows of ``fr_status``, of which each has so many (``counted``)."""
    told = operations
    for name, factor in zip(_IDENTITY, _FACTORS, strict=True):
        told = told * factor + own.get_column(name).fill_null(_MISSING)
    entries, rows = bytes_of(told), counters.to_dicts()
    keys: list[str] = []
    begin = first = 0
    for height, count in zip(heights, counted, strict=True):
        known = entries[begin * 8 : (begin + height) * 8] + _csv(rows[first : first + count]).encode()
        keys.append(hashlib.sha256(known).hexdigest()[:32])
        begin, first = begin + height, first + count
    return keys


def _csv(counters: Sequence[Mapping[str, object]]) -> str:
    """Counters of groups in the order of their numbers, as lines of separated values."""
    ordered = sorted(counters, key=lambda row: (row["pg_id"] is not None, row["pg_id"]))
    lines = [",".join("" if row[c] is None else str(row[c]) for c in _COUNTERS) for row in ordered]
    return "".join(f"{line}\n" for line in (",".join(_COUNTERS), *lines))


def placed(table: str, places: Sequence[int], rows: Sequence[list[Row]]) -> pl.DataFrame:
    """The rows of each of several dumps as one frame, with the place of the dump in front."""
    frame = TABLES[table].frame(list(chain.from_iterable(rows)))
    return frame.insert_column(0, repeated(places, map(len, rows)))


def repeated(places: Iterable[int], heights: Iterable[int]) -> pl.Series:
    """Each place as many times as told."""
    told = [(place, height) for place, height in zip(places, heights, strict=True) if height]
    own = pl.DataFrame(told, schema={PLACE: pl.UInt32(), "height": pl.UInt32()}, orient="row")
    return own.select(pl.col(PLACE).repeat_by("height").explode()).to_series()


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
