"""From lines of text to NCCL messages: the prefix taken off, lines that broke into each other taken apart."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

import polars as pl

from nccl_forensics.formats.base import PLACE, Text
from nccl_forensics.grammar.lines import Extraction, load
from nccl_forensics.tables.nccl import TORN_AT_MOST

_MARK = r"NCCL (?:INFO|WARN|CALL|TRACE)(?: |$)"
_MARK_RE = re.compile(_MARK)
#: Longest stretch before the mark that can be a prefix: host name, ids, source file and function.
_PREFIX_AT_MOST = 512
#: NCCL 2.0 to 2.2 named no library in its lines: ``gpu1:5:7 [0] INFO NET : ...``, ``gpu1:5:7 [0] include/socket.h:360 WARN Call ...``.
_NAMELESS = r"^([0-9A-Za-z_.-]+:[0-9]+:[0-9]+ \[-?[0-9]+\] (?:[0-9A-Za-z_./-]+:[0-9]+ )?)(INFO|WARN)( |$)"
_HOST_TAIL = re.compile(r"(?<![0-9A-Za-z_.-])[0-9A-Za-z_.-]*+$")
_LEVEL = {
    "info": "INFO",
    "info_bare": "INFO",
    "call": "CALL",
    "call_bare": "CALL",
    "warn": "WARN",
    "warn_bare": "WARN",
    "trace": "TRACE",
    "version": "VERSION",
}
_CARRIED = ("line_no", "time_raw_ns", "time_kind", "hint_rank", "hint_scope", "hint_host", "hint_pid")
_PARTS = ("ts", "host", "pid", "tid", "dev", "file", "file_line", "func", "message")
#: Layouts of the timestamp that NCCL >= 2.26 puts before the host; the default first. The others are free-form settings seen in the field.
_TIME_LAYOUTS = ("[%Y-%m-%d %H:%M:%S%.f]", "[%Y-%m-%dT%H:%M:%S%.f]", "[%Y/%m/%d %H:%M:%S%.f]")


@dataclass(frozen=True, slots=True)
class Messages:
    """``rows``: one row per message with the prefix's columns, ``level``, ``message`` and ``torn`` (a line gave several, or a part of one).
    ``pieces``: line number and text of what a break left without a prefix. ``claimed``: lines that hold NCCL's text at all.
    """

    rows: pl.DataFrame
    pieces: pl.DataFrame
    claimed: pl.Series


def messages(text: Text, more_hosts: pl.Series | None = None) -> Messages:
    """The messages of all lines that hold an anchor of NCCL; ``more_hosts`` are named by lines that are not among them."""
    lines = text.hits.select(*_CARRIED, pl.col("text").str.replace(_NAMELESS, "${1}NCCL ${2}${3}"))
    marked = lines.get_column("text").str.count_matches(_MARK)
    whole = load("nccl_prefix").extract(lines)
    broken = (marked > 1) | ((marked == 1) & whole.kind.is_null())
    clean = _prefixed(lines, whole).filter(~pl.col("row").is_in(broken.arg_true().cast(pl.UInt32).implode()))
    if not broken.any():
        return _result(clean, lines.clear(), lines)
    pieces = _taken_apart(text, lines.filter(broken), clean, more_hosts)
    again = load("nccl_prefix").extract(pieces)
    found = _prefixed(pieces, again).with_columns(
        torn=pl.col("row").is_in(pieces.with_row_index("row").filter("torn").get_column("row").implode())
    )
    return _result(
        pl.concat([clean, found], how="diagonal").sort("line_no", maintain_order=True), pieces.filter(again.kind.is_null()), lines
    )


def _result(rows: pl.DataFrame, pieces: pl.DataFrame, lines: pl.DataFrame) -> Messages:
    rows = rows.drop("row").with_columns(
        pl.col("pid", "tid").cast(pl.Int64, strict=False),
        pl.col("dev", "file_line").cast(pl.Int32, strict=False),
        pl.col("message").str.strip_chars_start(" "),
        pl.col("torn").fill_null(False),
    )
    stamp = pl.col("ts").str.strip_chars(" ")
    own = pl.coalesce([stamp.str.to_datetime(layout, strict=False, time_unit="ns") for layout in _TIME_LAYOUTS]).cast(pl.Int64)
    if rows.get_column("ts").null_count() < rows.height:
        rows = rows.with_columns(
            time_raw_ns=pl.coalesce(own, "time_raw_ns"),
            time_kind=pl.when(own.is_not_null()).then(pl.lit("local-unzoned")).otherwise("time_kind"),
        )
    left = pieces.select("line_no", pl.col("text").str.strip_chars().str.slice(0, TORN_AT_MOST)).filter(pl.col("text") != "")
    if "torn" in pieces.columns:
        left = (
            pieces.filter("torn")
            .select("line_no", pl.col("text").str.strip_chars().str.slice(0, TORN_AT_MOST))
            .filter(pl.col("text") != "")
        )
    claimed = rows.get_column("line_no").unique().sort()
    return Messages(rows, left.filter(pl.col("line_no").is_in(lines.get_column("line_no").implode())), claimed)


def _prefixed(lines: pl.DataFrame, found: Extraction) -> pl.DataFrame:
    """Rows of all prefix kinds with the same columns; a bare version line is its own message."""
    frames = []
    carried = lines.select(_CARRIED)
    for kind, frame in found.frames.items():
        if "version" in frame.columns:
            frame = frame.rename({"version": "message"})
        columns = [pl.col(c) if c in frame.columns else pl.lit(None, dtype=pl.String).alias(c) for c in _PARTS]
        own = frame.select("row", *columns).with_columns(
            level=pl.lit(_LEVEL[kind]), bare=pl.lit(kind.endswith("_bare") or kind == "version"), torn=pl.lit(False)
        )
        frames.append(pl.concat([carried[own.get_column("row")], own], how="horizontal"))
    if not frames:
        empty = dict.fromkeys(_PARTS, pl.String()) | {"level": pl.String(), "bare": pl.Boolean(), "torn": pl.Boolean()}
        return pl.concat([carried.clear(), pl.DataFrame(schema={"row": pl.UInt32(), **empty})], how="horizontal")
    return frames[0] if len(frames) == 1 else pl.concat(frames).sort("row")


def _taken_apart(text: Text, lines: pl.DataFrame, clean: pl.DataFrame, more_hosts: pl.Series | None) -> pl.DataFrame:
    """One row per piece of a line in which prefixes stand inside, in the order of the text; hosts are those that clean lines of a source
    name."""
    if not text.stride:
        named = clean.get_column("host") if more_hosts is None else pl.concat([clean.get_column("host"), more_hosts])
        return _pieces(lines, frozenset(named.drop_nulls().unique().to_list()))
    told = clean.select(text.source.alias(PLACE), "host").drop_nulls().group_by(PLACE).agg(pl.col("host").unique())
    hosts = dict(told.iter_rows())
    return pl.concat([_pieces(own, frozenset(hosts.get(int(own["line_no"][0]) // text.stride, ()))) for own in text.apart(lines)])


def _pieces(lines: pl.DataFrame, hosts: frozenset[str]) -> pl.DataFrame:
    """Each line cut where prefixes begin."""
    texts: list[list[str]] = []
    torn: list[list[bool]] = []
    for text in lines.get_column("text").to_list():
        cuts = [0, *sorted({at for mark in _MARK_RE.finditer(text) if (at := prefix_start(text, mark.start(), hosts)) > 0}), len(text)]
        pieces = [text[a:b] for a, b in pairwise(cuts)]
        # What stands before the only prefix and ends in a blank is a launcher's or a clock's, not a piece of another line.
        # A line without any prefix only talks about NCCL.
        opaque = len(pieces) == 1 or (len(pieces) == 2 and not _MARK_RE.search(pieces[0]) and pieces[0].endswith(" "))
        texts.append(pieces)
        torn.append([not opaque] * len(pieces))
    return (
        lines.drop("text")
        .with_columns(pl.Series("text", texts, dtype=pl.List(pl.String)), pl.Series("torn", torn, dtype=pl.List(pl.Boolean)))
        .explode("text", "torn")
    )


def prefix_start(text: str, mark: int, hosts: frozenset[str]) -> int:
    """Where the prefix begins that ends at ``mark`` ('NCCL INFO'); 0 where none is found.

    A host that another line's end is glued to ('0x55e1stone:298:298') is told by the hosts that clean lines name.
    """
    start = max(0, mark - _PREFIX_AT_MOST)
    words = text[start:mark].rstrip(" ").split(" ")
    place = mark
    for word in reversed(words[-5:]):
        place = text.rfind(word, start, place) if word else place
        head, _, tail = word.rpartition(":")
        glued, _, pid = head.rpartition(":")
        if glued and pid.isdigit() and tail.isdigit():
            known = [host for host in hosts if glued.endswith(host)]
            match = _HOST_TAIL.search(glued[-_PREFIX_AT_MOST:])
            host = max(known, key=len) if known and glued not in hosts else (match.group() if match else glued)
            return place + len(glued) - len(host)
    last = words[-1]
    return mark - 1 - len(last) if last.startswith("[") and last.endswith("]") and text[:mark].endswith(f"{last} ") else 0
