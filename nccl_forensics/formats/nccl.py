"""The debug log of NCCL (and RCCL): what ``NCCL_DEBUG`` makes the library print.

Text is defined by three grammars: ``nccl_prefix`` (what stands before every message), ``nccl`` (messages) and ``nccl_errors`` (what is
wrong, by signature). NCCL 2.0 to 2.30.7. A line with NCCL's prefix and a message that no grammar knows is a record of which only the
prefix was understood (``Reading.unmodelled``); a line that another process broke into is taken apart, and its rows say ``torn``.
"""

from __future__ import annotations

import re

import polars as pl

from nccl_forensics.formats._nccl_lines import Messages, messages
from nccl_forensics.formats._nccl_operations import Operations
from nccl_forensics.formats._nccl_rows import errors_of, tables_of
from nccl_forensics.formats.base import PLACE, Gap, Reading, Text, TextFormat, line_numbers
from nccl_forensics.grammar.lines import load
from nccl_forensics.tables import TABLES
from nccl_forensics.tables.nccl import TORN_AT_MOST

#: Message kinds that take any text after a known start: the signatures of errors are asked first for these.
_LOOSE = ("chatter_plugin_words", "chatter_ras", "chatter_load", "chatter_init", "chatter_proxy_threads", "chatter_topology", "note_ras")
#: Error signatures that only say where a text comes from: they do not make an INFO line an error.
_VAGUE = ("plugin", "topology", "topology_2", "proxy", "nvls", "mnnvl", "ipc", "invalid_argument", "ib_event", "ras")
#: How lines of NCCL 2.0 to 2.2 go on behind the device, and behind the line of the source: the library is not named.
_NAMELESS = (*(f"[{device}] INFO " for device in range(16)), *(f"{digit} WARN " for digit in range(10)))
#: Messages that go on for lines without a prefix (NCCL 2.24+ and 2.27+), with how many follow at most.
_CONTINUED = {
    "Enabled NCCL Func/Proto/Algo Matrix:": (9, r"\|"),
    "Failed to bind NVLink SHARP (NVLS) Multicast memory": (2, ""),
    "RCCL version : ": (4, r"^(HIP version|ROCm version|Hostname|Librccl path) *: "),
}


def read(text: Text) -> Reading:
    """Tables of all NCCL lines of one source."""
    if text.bulk is not None and text.lines.is_empty():
        bulk = text.bulk
        return Reading({"nccl_tails": _tails(text, bulk.ends.clear(), bulk.ends)}, bulk.lines, records=bulk.lines.len(), folded=bulk.folded)
    ends = text.bulk.ends if text.bulk is not None else None
    found = messages(text, ends.get_column("host") if ends is not None else None)
    frames: dict[str, list[pl.DataFrame]] = {}
    warns = found.rows.get_column("level") == "WARN"
    said = found.rows.filter(~warns)
    extracted = load("nccl").extract(said.get_column("message").fill_null(""))
    doubtful = extracted.kind.is_null() | extracted.kind.is_in(list(_LOOSE))
    errors = load("nccl_errors").extract(said.filter(doubtful).get_column("message").fill_null(""))
    is_error = errors.kind.is_not_null() & ~(errors.kind.is_in(list(_VAGUE)).fill_null(False))
    at = doubtful.arg_true().cast(pl.UInt32)
    error_rows = at.filter(is_error)

    for kind, frame in extracted.frames.items():
        if kind in _LOOSE:
            frame = frame.filter(~pl.col("row").is_in(error_rows.implode()))
        own = [c for c in frame.columns if c != "row"]
        rows = said[frame.get_column("row")].drop(own, strict=False)
        for table, made in tables_of(kind, pl.concat([rows, frame.select(own)], how="horizontal")) if frame.height else ():
            frames.setdefault(table, []).append(made)
    warned = found.rows.filter(warns)
    bad = [(warned, load("nccl_errors").extract(warned.get_column("message").fill_null("")))]
    if is_error.any():
        wrong = said[error_rows]
        bad.append((wrong, load("nccl_errors").extract(wrong.get_column("message").fill_null(""))))
    frames["nccl_errors"] = [errors_of(rows, signatures) for rows, signatures in bad if rows.height]

    frames["nccl_tails"] = [_tails(text, found.rows, ends)]
    unknown = said[at.filter(extracted.kind.filter(doubtful).is_null() & errors.kind.is_null())]
    lost = _lost_pieces(unknown, found)
    frames.setdefault("nccl_notes", []).append(lost)
    around = _lines_around(text, found)
    lines = pl.concat([found.claimed, around]).unique().sort()
    if text.bulk is not None:
        lines = pl.concat([lines, text.bulk.lines])
    tables = {name: _in_order(held) for name, parts in frames.items() if (held := [part for part in parts if part.height])}
    return Reading(
        frames=tables,
        lines=lines.alias("line_no"),
        gaps=_gaps(found),
        unmodelled=unknown.filter(~pl.col("torn")).get_column("line_no").unique().sort(),
        records=found.rows.height + (text.bulk.lines.len() if text.bulk is not None else 0),
        folded=text.bulk.folded if text.bulk is not None else {},
    )


def _in_order(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """The rows of all parts in the order of their lines."""
    rows = pl.concat(parts)
    return rows if rows.get_column("line_no").is_sorted() else rows.sort("line_no", maintain_order=True)


def _tails(text: Text, rows: pl.DataFrame, ends: pl.DataFrame | None) -> pl.DataFrame:
    """The last line of each process, with the number of its lines; ``ends`` are such rows of lines that are not among ``rows``. Threads
    that set no device of their own (RAS) say 0, whichever the process has."""
    tails = TABLES["nccl_tails"]
    known = tails.conform(rows.filter(pl.col("pid").is_not_null()).with_columns(lines=pl.lit(1, dtype=pl.Int64)))
    if ends is not None:
        known = pl.concat([known, tails.conform(ends)])
    known = known.with_columns(text.source.alias(PLACE)).with_columns(
        pl.col("lines").sum().over(PLACE, "host", "pid"), pl.col("dev").max().over(PLACE, "host", "pid")
    )
    last = known.sort("line_no").unique([PLACE, "host", "pid"], keep="last", maintain_order=True)
    return last.drop(PLACE).with_columns(pl.col("message").str.head(200))


def _lost_pieces(unknown: pl.DataFrame, found: Messages) -> pl.DataFrame:
    """What a break made unreadable, kept as notes so that it is not lost in silence."""
    notes = TABLES["nccl_notes"]
    cut = unknown.filter("torn").with_columns(kind=pl.lit("torn"), message=pl.col("message").str.slice(0, TORN_AT_MOST))
    pieces = found.pieces.select("line_no", kind=pl.lit("torn"), message="text")
    return pl.concat([notes.conform(cut), notes.conform(pieces)])


def _gaps(found: Messages) -> tuple[Gap, ...]:
    """Lines of which no piece could be read."""
    whole = found.pieces.filter(~pl.col("line_no").is_in(found.claimed.implode()))
    return tuple(Gap("torn", line_no, text=text) for line_no, text in whole.select("line_no", "text").iter_rows())


def _lines_around(text: Text, found: Messages) -> pl.Series:
    """Lines that belong to a message without bearing a prefix: the empty line before a WARN, and the rest of what spans several lines."""
    warned = found.rows.filter(pl.col("level") == "WARN").get_column("line_no")
    numbers = line_numbers([])
    others = text.lines.filter(~pl.col("hit"))
    if warned.len():
        empty = others.filter(pl.col("text").str.strip_chars() == "").get_column("line_no")
        numbers = empty.filter((empty + 1).is_in(warned.implode()))
    for start, (at_most, looks) in _CONTINUED.items():
        heads = found.rows.filter(pl.col("message").str.starts_with(start)).get_column("line_no").to_list()
        for head in heads:
            following = others.filter(pl.col("line_no").is_between(head + 1, head + at_most)).select("line_no", "text")
            taken = []
            for offset, (line_no, line) in enumerate(following.iter_rows(), start=1):
                if line_no != head + offset or not line.strip() or not re.search(looks, line):
                    break
                taken.append(line_no)
            numbers = pl.concat([numbers, line_numbers(taken)])
    return numbers


FORMAT = TextFormat(
    name="nccl-log",
    title="NCCL debug log",
    tables=(
        "nccl_versions",
        "nccl_comms",
        "nccl_placement",
        "nccl_ops",
        "nccl_connections",
        "nccl_rings",
        "nccl_trees",
        "nccl_channels",
        "nccl_env",
        "nccl_network",
        "nccl_notes",
        "nccl_errors",
        "nccl_tuning",
        "nccl_tails",
    ),
    anchors=("NCCL INFO", "NCCL WARN", "NCCL CALL", "NCCL TRACE", "NCCL version ", "RCCL version", *_NAMELESS),
    read=read,
    priority=20,
    bulk=Operations,
    together=True,
)
