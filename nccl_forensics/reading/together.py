"""Reading many small sources at once.

What a short log costs is the start of some hundred small queries, whatever it holds. Here the lines of many stand in one frame, the numbers
of each source's lines behind a multiple of ``STRIDE``, and each query is started once for all of them. Formats that cannot read sources
together get one after the other. Documents of a format that reads several at once are given to it. What comes out is the same as from
reading each by itself (``tests/test_together.py``), which is also what is done with whatever is neither such a document nor plain text of
few bytes, and with all of them where a format falls over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import polars as pl
from polars.exceptions import PanicException, PolarsError

from nccl_forensics.decoding import journal
from nccl_forensics.formats import document_formats, text_formats
from nccl_forensics.formats.base import PLACE, DocumentFormat, Gap, Reading, Several, Text, TextFormat
from nccl_forensics.masking import mask_series
from nccl_forensics.reading.prefixes import bare, peel
from nccl_forensics.reading.source import (
    HEAD,
    UTF16,
    SourceReading,
    Sum,
    finished,
    gap_frame,
    is_text,
    lines_of,
    made_of,
    numbers_of,
    read_documents,
    read_source,
    safely,
    shapes_of,
    sniffs,
)

#: A longer source is worth its own queries.
LONGEST = 256 << 10
#: No source of ``LONGEST`` bytes has as many lines, and no block of lines reaches over what is left between two sources.
STRIDE = 1 << 19
_LINE_COLUMNS = ("line_no", "end_line")


def read_sources(contents: Sequence[bytes]) -> list[SourceReading]:
    """What ``read_source`` makes of each."""
    readings, shared = read_shared(contents)
    for several in shared:
        for place, reading in several.each():
            readings[place] = replace(readings[place], frames=reading.frames, folded=reading.folded)
    return readings


def read_shared(contents: Sequence[bytes]) -> tuple[list[SourceReading], list[Several]]:
    """The same, but the tables of documents that a format read together are not among what is told of each."""
    plain: dict[int, bytes] = {}
    documents: dict[str, list[int]] = {}
    formats = list(document_formats())
    for place, content in enumerate(contents):
        text = _plain(content, formats)
        if text is not None:
            plain[place] = text
        elif (document := next((d for d in formats if sniffs(d, content[:HEAD])), None)) is not None and document.together:
            documents.setdefault(document.name, []).append(place)
    found: dict[int, SourceReading] = {}
    shared: list[Several] = []
    for document in formats:
        places = documents.get(document.name, ())
        several = read_documents(document, [contents[place] for place in places]) if len(places) > 1 else None
        if several is not None and several.records:
            names = (document.name,)
            found |= {places[n]: SourceReading(formats=names, filled=names, records=records) for n, records in several.records.items()}
            shared.append(several.at(places))
    if len(plain) > 1:
        with suppress(Exception, PanicException):  # by itself, each source tells what is wrong with it
            found |= dict(zip(plain, _read(list(plain.values()), [contents[place] for place in plain]), strict=True))
    return [found[place] if place in found else read_source(content) for place, content in enumerate(contents)], shared


def _plain(content: bytes, documents: Sequence[DocumentFormat]) -> bytes | None:
    """A small source that is text for none of these formats to take, as UTF-8 without its mark, each line ended; else None."""
    head = content[:HEAD]
    if not content or len(content) > LONGEST or head[:2] in UTF16 or journal.is_journal(head) or not is_text(head):
        return None
    if any(sniffs(document, head) for document in documents):
        return None
    content = content.removeprefix(b"\xef\xbb\xbf")
    try:
        content.decode()
    except UnicodeDecodeError:
        return None
    return content if content.endswith(b"\n") else content + b"\n"


@dataclass(slots=True)
class _Sources:
    """The lines of all sources with their place, and what was made of each so far: lines that became records, and lines that are gaps."""

    lines: pl.DataFrame
    totals: list[Sum]
    records: pl.Series
    torn: pl.Series

    def mask(self, numbers: pl.Series) -> pl.Series:
        """True for the lines of these numbers."""
        return self.lines["line_no"].is_in(numbers.implode()) if numbers.len() else self.records.clone() & False

    def of(self, mask: pl.Series) -> list[int]:
        """The places of the sources of which lines are masked."""
        found: list[int] = self.lines[PLACE].filter(mask).unique().to_list()
        return found


def _read(texts: Sequence[bytes], contents: Sequence[bytes]) -> list[SourceReading]:
    """The readings of plain texts, which stand for these contents. Raises whatever a format raises that takes them together."""
    lines = _lines(texts)
    none = pl.repeat(False, lines.height, dtype=pl.Boolean, eager=True)
    sources = _Sources(lines, [Sum(SourceReading(lines=0)) for _ in texts], none, none)
    anchors = sorted({anchor for f in text_formats() for anchor in f.anchors})
    anchored = lines["text"].str.contains_any(anchors)
    waiting = lines.filter(anchored)
    here = set(waiting["text"].str.extract_many(pl.Series([anchors], dtype=pl.List(pl.String)), overlapping=True).explode().unique())
    for text_format in text_formats():
        holds = waiting["text"].str.contains_any(list(text_format.anchors)) if here.intersection(text_format.anchors) else None
        if holds is None or not holds.any():
            continue
        taken = sources.records | sources.torn
        hit = sources.mask(waiting["line_no"].filter(holds))
        offered = lines.drop(PLACE).with_columns(hit=hit).filter(~taken)
        fresh = False
        for reading in _readings(text_format, Text(offered, stride=STRIDE)):
            fresh |= _take(text_format, reading, taken, sources)
        if fresh:
            waiting = lines.filter(anchored & ~(sources.records | sources.torn))
    told = lines.select(PLACE, record=sources.records, gap=sources.torn).group_by(PLACE, maintain_order=True)
    for place, height, records, gaps in told.agg(pl.len(), pl.col("record").sum(), pl.col("gap").sum().alias("gaps")).iter_rows():
        result = sources.totals[place].result
        result.lines, result.records, result.gap_lines, result.foreign = height, records, gaps, height - records - gaps
    return [finished(total, content) for total, content in zip(sources.totals, contents, strict=True)]


def _lines(texts: Sequence[bytes]) -> pl.DataFrame:
    """``source``, ``line_no`` and the columns of lines that are peeled and masked. Raises ``PolarsError``."""
    heights = [text.count(b"\n") for text in texts]
    text = lines_of(b"".join(texts))
    if text.len() != sum(heights):
        raise PolarsError("lines that are counted otherwise")
    places = pl.select(pl.int_range(len(texts), dtype=pl.UInt32()).repeat_by(pl.Series(heights)).explode()).to_series()
    starts = pl.Series(heights, dtype=pl.UInt32()).cum_sum() - pl.Series(heights, dtype=pl.UInt32())
    numbers = pl.int_range(text.len(), dtype=pl.UInt32(), eager=True) - starts.gather(places) + 1 + places * STRIDE
    lines = pl.DataFrame([places.alias(PLACE), numbers.cast(pl.UInt32).alias("line_no"), text])
    prefixed = lines[PLACE].filter(~bare(lines["text"])).unique()
    if prefixed.is_empty():
        peeled = peel(lines.drop(PLACE), bare_left_out=True)
    else:
        among = lines[PLACE].is_in(prefixed.implode())
        # What lines of a source are told of a prefix decides whether it is one: such sources are peeled one by one.
        apart = lines.filter(among).partition_by(PLACE, maintain_order=True, include_key=False)
        rest = lines.filter(~among).drop(PLACE)
        peeled = pl.concat([peel(rest, bare_left_out=True), *map(peel, apart)]).sort("line_no")
    return peeled.with_columns(mask_series(peeled["text"])).insert_column(0, places.alias(PLACE))


def _readings(text_format: TextFormat, text: Text) -> Iterator[Reading]:
    """What a format makes of all sources, or of one after the other."""
    if text_format.together:
        yield made_of(text_format, text)
        return
    for own in text.by_source():
        offset = int(own["line_no"][0]) // STRIDE * STRIDE
        yield _moved(safely(text_format, Text(own.with_columns(pl.col("line_no") - pl.lit(offset, dtype=pl.UInt32)))), offset)


def _moved(reading: Reading, offset: int) -> Reading:
    """A reading of one source with the numbers of its lines behind a multiple of ``STRIDE``."""
    by = pl.lit(offset, dtype=pl.UInt32)
    frames = {
        name: frame.with_columns(pl.col(c) + by for c in _LINE_COLUMNS if c in frame.columns) for name, frame in reading.frames.items()
    }
    gaps = tuple(replace(gap, line_no=_plus(gap.line_no, offset), end_line=_plus(gap.end_line, offset)) for gap in reading.gaps)
    return replace(reading, frames=frames, lines=reading.lines + offset, unmodelled=reading.unmodelled + offset, gaps=gaps)


def _plus(number: int | None, offset: int) -> int | None:
    return None if number is None else number + offset


def _take(text_format: TextFormat, reading: Reading, taken: pl.Series, sources: _Sources) -> bool:
    """Share out what a format read, as ``reading`` does for one source; returns whether it took lines that were free."""
    name = text_format.name
    claimed = sources.mask(reading.lines)
    given_up = sources.mask(numbers_of(reading.gaps))
    fresh = claimed & ~taken
    sources.records = sources.records | fresh
    sources.torn = sources.torn | (given_up & ~taken & ~claimed)
    for place, gaps in _gaps_of(reading.gaps).items():
        sources.totals[place].used.add(name)
        sources.totals[place].add("gaps", gap_frame(name, gaps))
    for place in sources.of(fresh):
        sources.totals[place].used.add(name)
        sources.totals[place].filled.add(name)
    for table, frame in reading.frames.items():
        for place, own in _apart(frame):
            sources.totals[place].add(table, own)
    if reading.unmodelled.len():
        vague = sources.lines.filter(sources.mask(reading.unmodelled) & fresh)
        for place, own in _apart(vague.drop(PLACE)):
            sources.totals[place].result.unmodelled += own.height
            sources.totals[place].add("unmodelled", shapes_of(name, own))
    return bool(fresh.any())


def _gaps_of(gaps: Sequence[Gap]) -> dict[int, tuple[Gap, ...]]:
    found: dict[int, tuple[Gap, ...]] = {}
    for gap in gaps:
        if gap.line_no is None:
            raise ValueError("a gap of nobody knows which source")
        place = gap.line_no // STRIDE
        own = replace(gap, line_no=gap.line_no - place * STRIDE, end_line=_plus(gap.end_line, -place * STRIDE))
        found[place] = (*found.get(place, ()), own)
    return found


def _apart(frame: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
    """The rows of each source with the numbers of its own lines, in their order."""
    if frame.is_empty():
        return
    place = pl.col("line_no") // STRIDE
    own = frame.with_columns(*(pl.col(c) - place * STRIDE for c in _LINE_COLUMNS if c in frame.columns), place.alias(PLACE))
    if not own[PLACE].is_sorted():
        own = own.sort(PLACE, maintain_order=True)
    start = 0
    for length, number in own[PLACE].rle().struct.unnest().iter_rows():
        yield number, own.slice(start, length).drop(PLACE)
        start += length
