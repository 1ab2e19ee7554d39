"""Reading one source: bytes in, frames out, and nothing else (no path, no clock, no other source)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import polars as pl

from nccl_forensics.formats import document_formats, text_formats
from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Text, TextFormat
from nccl_forensics.prefixes import peel
from nccl_forensics.tables import TABLES

_HEAD = 64 << 10
#: A text source is read in pieces of about this size, cut at line ends, so that memory does not grow with its length.
CHUNK_BYTES = 64 << 20
_LONGEST_LINE = 1 << 20


@dataclass(slots=True)
class SourceReading:
    """What all formats made of one source. For text: records + gap lines + foreign lines = lines."""

    frames: dict[str, pl.DataFrame] = field(default_factory=dict)
    formats: tuple[str, ...] = ()
    lines: int | None = None
    records: int = 0
    gap_lines: int = 0
    unmodelled: int = 0
    foreign: int = 0
    invalid_utf8: int = 0
    error: str | None = None


def read_source(data: bytes) -> SourceReading:
    """Read one source with every format that claims it or lines of it."""
    if not data:
        return SourceReading(error="empty file")
    head = data[:_HEAD]
    problems: list[str] = []
    for document in document_formats():
        if not _sniffs(document, head):
            continue
        result = _read_document(document, data)
        if result.records or not _is_text(head):
            return result
        problems.append(f"{document.name}: {result.frames['gaps']['reason'][0]}" if "gaps" in result.frames else document.name)
    if not _is_text(head):
        return SourceReading(error="binary content of no known kind")
    result = _read_text(data)
    if problems and not result.formats:
        result.error = f"looks like a broken document ({'; '.join(problems)[:200]})"
    return result


def _sniffs(document: DocumentFormat, head: bytes) -> bool:
    try:
        return document.sniff(head)
    except Exception:
        return False


def _is_text(head: bytes) -> bool:
    """No binary: UTF-16 by its mark, else few control bytes other than TAB, LF, CR, ESC and runs of NUL (torn network appends)."""
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return True
    stripped = head.replace(b"\x00", b"") or b"\x01"
    odd = sum(stripped.count(bytes([b])) for b in range(32) if b not in (9, 10, 13, 27, 12, 8))
    high = sum(1 for b in stripped[:4096] if b >= 0x80)
    return odd * 20 < len(stripped) and (high * 3 < len(stripped[:4096]) or _decodes(stripped[:4096])) and len(stripped) * 4 >= len(head)


def _decodes(piece: bytes) -> bool:
    return piece.decode("utf-8", "ignore").encode()[:-4] in piece or len(piece.decode("utf-8", "ignore").encode()) > 0.9 * len(piece)


def _read_document(document: DocumentFormat, data: bytes) -> SourceReading:
    try:
        reading = document.read(data)
    except Exception as problem:
        reading = Reading(gaps=(Gap(f"unreadable: {type(problem).__name__}: {problem}"[:200]),))
    result = SourceReading(formats=(document.name,), records=reading.records)
    for name, frame in reading.frames.items():
        result.frames[name] = TABLES[name].conform(frame)
    result.gap_lines = len(reading.gaps)
    if reading.gaps:
        result.frames["gaps"] = _gap_frame(document.name, reading.gaps)
        if not reading.records:
            result.error = f"{document.name}: {reading.gaps[0].reason}"
    if not result.records:
        result.records = sum(f.height for n, f in result.frames.items() if n != "gaps")
    return result


def _gap_frame(name: str, gaps: tuple[Gap, ...]) -> pl.DataFrame:
    return TABLES["gaps"].frame(
        [
            {"line_no": g.line_no, "end_line": g.end_line, "record": g.record, "format": name, "reason": g.reason, "text": g.text[:200]}
            for g in gaps
        ]
    )


def _read_text(data: bytes) -> SourceReading:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        data = data.decode("utf-16", "replace").encode("utf-8", "replace")
    total = SourceReading(lines=0)
    parts: dict[str, list[pl.DataFrame]] = {}
    used: set[str] = set()
    first = 1
    for piece in _pieces(data):
        count = _read_piece(piece, first, total, parts, used)
        first += count
    total.lines = first - 1
    total.formats = tuple(f.name for f in text_formats() if f.name in used)
    for name, frames in sorted(parts.items()):
        total.frames[name] = pl.concat(frames)
    if "unmodelled" in total.frames:
        shapes = (
            total.frames["unmodelled"]
            .group_by("format", "shape", maintain_order=True)
            .agg(pl.col("line_no").min(), pl.col("end_line").first(), pl.col("count").sum())
        )
        total.frames["unmodelled"] = TABLES["unmodelled"].conform(shapes)
    return total


def _pieces(data: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(data):
        end = start + CHUNK_BYTES
        if end >= len(data):
            yield data[start:]
            return
        cut = data.rfind(b"\n", start, end)
        cut = data.find(b"\n", end) if cut < 0 else cut
        cut = len(data) - 1 if cut < 0 else cut
        yield data[start : cut + 1]
        start = cut + 1


def _read_piece(piece: bytes, first: int, total: SourceReading, parts: dict[str, list[pl.DataFrame]], used: set[str]) -> int:
    body = piece[:-1] if piece.endswith(b"\n") else piece
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        text = body.decode("utf-8", "replace")
        total.invalid_utf8 += text.count("\N{REPLACEMENT CHARACTER}")
    column = pl.Series("text", [text]).str.split("\n").explode()
    count = column.len()
    lines = pl.DataFrame({"line_no": pl.int_range(first, first + count, dtype=pl.UInt32(), eager=True), "text": column})
    if int(str(column.str.len_bytes().max() or 0)) > _LONGEST_LINE:
        lines = lines.with_columns(text=pl.col("text").str.head(_LONGEST_LINE))
    lines = peel(lines)
    formats = _wanted(lines)
    state = pl.Series("state", [0], dtype=pl.UInt8()).extend_constant(0, count - 1)
    for text_format, hit in formats:
        offered = lines.with_columns(hit=hit).filter(state == 0) if used or parts else lines.with_columns(hit=hit)
        if not bool(offered["hit"].any()):
            continue
        reading = _safely(text_format, Text(offered))
        claimed = _mask(reading.lines, first, count)
        for name, frame in reading.frames.items():
            if frame.height:
                parts.setdefault(name, []).append(TABLES[name].conform(frame))
        if reading.gaps:
            parts.setdefault("gaps", []).append(_gap_frame(text_format.name, reading.gaps))
            numbers = [n for g in reading.gaps if g.line_no is not None for n in range(g.line_no, (g.end_line or g.line_no) + 1)]
            torn = _mask(pl.Series(numbers, dtype=pl.UInt32()), first, count) & (state == 0) & ~claimed
            state = pl.select(pl.when(torn).then(pl.lit(2, dtype=pl.UInt8())).otherwise(state)).to_series()
        fresh = claimed & (state == 0)
        if bool(fresh.any()) or reading.gaps:
            used.add(text_format.name)
        state = pl.select(pl.when(fresh).then(pl.lit(1, dtype=pl.UInt8())).otherwise(state)).to_series()
        if reading.unmodelled.len():
            total.unmodelled += reading.unmodelled.n_unique()
            parts.setdefault("unmodelled", []).append(_shapes(text_format.name, reading.unmodelled, lines, first))
    total.records += int((state == 1).sum())
    total.gap_lines += int((state == 2).sum())
    total.foreign += int((state == 0).sum())
    return count


def _wanted(lines: pl.DataFrame) -> list[tuple[TextFormat, pl.Series]]:
    """The formats with an anchor somewhere in these lines, each with its hits. One scan for all anchors, then one for each format found."""
    formats = text_formats()
    anchors = sorted({a for f in formats for a in f.anchors})
    if not anchors:
        return []
    found = lines["text"].str.contains_any(anchors)
    if not bool(found.any()):
        return []
    some = lines.filter(found)
    present: list[tuple[TextFormat, pl.Series]] = []
    for text_format in formats:
        hit_some = some["text"].str.contains_any(list(text_format.anchors))
        if bool(hit_some.any()):
            numbers = some["line_no"].filter(hit_some)
            present.append((text_format, _mask(numbers, int(lines["line_no"][0]), lines.height)))
    return present


def _mask(numbers: pl.Series, first: int, count: int) -> pl.Series:
    """Boolean per line of the piece."""
    if not numbers.len():
        return pl.select(pl.repeat(False, count)).to_series()
    frame = pl.DataFrame({"i": (numbers.cast(pl.Int64) - first)}).filter(pl.col("i").is_between(0, count - 1)).unique()
    base = pl.select(pl.repeat(False, count)).to_series()
    return base.scatter(frame["i"].to_list(), True) if frame.height else base


def _safely(text_format: TextFormat, text: Text) -> Reading:
    try:
        return text_format.read(text)
    except Exception as problem:
        numbers = text.hits["line_no"]
        reason = f"unreadable: {type(problem).__name__}: {problem}"[:200]
        return Reading(gaps=(Gap(reason, int(numbers[0]), int(numbers[0])),))


def _shapes(name: str, numbers: pl.Series, lines: pl.DataFrame, first: int) -> pl.DataFrame:
    picked = lines.filter(_mask(numbers, first, lines.height)).select(
        "line_no", pl.col("text").str.replace_all(r"0x[0-9a-f]+", "#").str.replace_all(r"[0-9]+", "#").str.head(160).alias("shape")
    )
    counted = picked.group_by("shape", maintain_order=True).agg(pl.col("line_no").min(), pl.len().alias("count"))
    return TABLES["unmodelled"].conform(counted.with_columns(format=pl.lit(name)))
