"""Reading one source: bytes in, frames out, and nothing else (no path, no clock, no other source)."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import polars as pl
from polars.exceptions import PanicException, PolarsError

from nccl_forensics.decoding import journal
from nccl_forensics.folding import Folded, fold, joined
from nccl_forensics.formats import document_formats, text_formats
from nccl_forensics.formats.base import PLACE, Bulk, BulkReader, DocumentFormat, Found, Gap, Reading, Several, Text, TextFormat
from nccl_forensics.frames import taken_for_packed
from nccl_forensics.masking import has_sign, mask, mask_frame, mask_series
from nccl_forensics.reading.prefixes import BARE_SHARE, peel
from nccl_forensics.tables import TABLES

HEAD = 64 << 10
#: A text source is read in pieces of about this size, cut at line ends, so that memory does not grow with its length.
CHUNK_BYTES = 16 << 20
#: The first and the last piece of a longer source.
_ENDS = 1 << 20
#: How far back from the end of a piece an empty line is looked for: blocks seldom hold one.
_LOOK_BACK = 64 << 10
_LONGEST_LINE = 1 << 20
_SHORT = 128 << 10
#: A table of few sorts with so many rows is kept folded; of a document, whose rows are made at once, one with so many.
_MANY, _MANY_AT_ONCE = 20_000, 1_000
_SAMPLE = 16 << 10
#: What a program writes to a file or a pipe goes out in pieces of so many bytes, or a multiple (glibc ``_IO_file_doallocate``: the block
#: size of the
#: file); what it held when it was killed is lost.
_BUFFER = 4096
#: What programs write line by line, each with its end; of fewer lines people paste a piece without one.
_LINEWISE, _EXCERPT = {"nccl-log", "c10d-log", "launcher-log", "training-log", "traceback"}, 20
UTF16 = (b"\xff\xfe", b"\xfe\xff")

#: The bytes of a source; a mapped file is never copied whole unless a document format claims it.
Content = bytes | mmap.mmap


@dataclass(slots=True)
class SourceReading:
    """What all formats made of one source. For text: records + gap lines + foreign lines = lines.

    ``formats`` claimed the source or lines of it, ``filled`` are those of them that got something out of it. A table is among ``frames``
    or, where it has many rows of few sorts, among ``folded``.
    """

    frames: dict[str, pl.DataFrame] = field(default_factory=dict)
    formats: tuple[str, ...] = ()
    filled: tuple[str, ...] = ()
    lines: int | None = None
    records: int = 0
    gap_lines: int = 0
    unmodelled: int = 0
    foreign: int = 0
    invalid_utf8: int = 0
    error: str | None = None
    folded: dict[str, Folded] = field(default_factory=dict)

    def table(self, name: str) -> pl.DataFrame:
        """The rows of a table, folded or not. Raises ``KeyError`` where it has none."""
        folded = self.folded.get(name)
        return self.frames[name] if folded is None else folded.frame(TABLES[name].schema)


def read_source(data: Content) -> SourceReading:
    """Read one source with every format that claims it or lines of it."""
    if not len(data):
        return SourceReading(error="empty file")
    head = bytes(data[:HEAD])
    broken: list[SourceReading] = []
    for document in document_formats():
        if not sniffs(document, head):
            continue
        data = data if document.mapped or isinstance(data, bytes) else data[:]
        result = _read_document(document, data)
        if result.records or (document.mapped and result.gap_lines and not _refused(result)):
            return result
        if result.gap_lines and not _refused(result):
            broken.append(result)
    if journal.is_journal(head):
        return _read_journal(data)
    if not is_text(_start(data)):
        return broken[0] if broken else SourceReading(error=_binary(head))
    text = _read_text(data)
    # Where no text format knows it either, it is the broken document that it looks like.
    return broken[0] if broken and not text.formats else text


def sniffs(document: DocumentFormat, head: bytes) -> bool:
    try:
        return document.sniff(head)
    except Exception:
        return False


def _refused(result: SourceReading) -> bool:
    """A document that is whole but not this format's: what it says (not a ...) is no gap."""
    return bool(result.frames["gaps"]["reason"].str.starts_with("not a ").all())


def _start(data: Content) -> bytes:
    """The first bytes, after the NULs that a rotated log starts with when its writer keeps its place in the file."""
    head = bytes(data[:HEAD])
    if head.count(0) == len(head):
        found = re.search(rb"[^\x00]", data)
        return bytes(data[found.start() : found.start() + HEAD]) if found else head
    return head


def is_text(head: bytes) -> bool:
    """No binary: UTF-16 by its mark, else few control bytes other than TAB, LF, CR, ESC and runs of NUL (torn network appends)."""
    if head[:2] in UTF16:
        return True
    stripped = head.replace(b"\x00", b"") or b"\x01"
    start = stripped[:4096]
    odd, high = _among(stripped, _CONTROL), _among(start, _HIGH)
    return odd * 20 < len(stripped) and (high * 3 < len(start) or _is_utf8(start)) and len(stripped) * 4 >= len(head)


#: Control bytes that no text holds, and those beyond ASCII.
_CONTROL, _HIGH = bytes(b for b in range(32) if b not in (8, 9, 10, 12, 13, 27)), bytes(range(0x80, 0x100))


def _among(piece: bytes, these: bytes) -> int:
    """How many bytes of a piece are among these."""
    return len(piece) - len(piece.translate(None, these))


def _is_utf8(piece: bytes) -> bool:
    return len(piece.decode("utf-8", "ignore").encode()) > 0.9 * len(piece)


#: What unreadable files are, so that the report can say more than "binary".
_BINARY: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"GIF8", "a GIF picture"),
    (b"%PDF", "a PDF document"),
    (b"\x7fELF", "an ELF program or core dump"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive, which is not unpacked"),
    (b"Rar!", "a RAR archive, which is not unpacked"),
    (b"\x04\x22\x4d\x18", "LZ4 data, which is not unpacked"),
    (b"\x1f\x9d", "data of compress(1), which is not unpacked"),
    (b"SQLite format 3\x00", "an SQLite database of no known kind"),
    (b"PAR1", "a Parquet file"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x80", "a pickle of no known kind"),
)


def _binary(head: bytes) -> str:
    kind = next((words for magic, words in _BINARY if head.startswith(magic)), None)
    return f"not read: {kind}" if kind else "binary content of no known kind"


def _read_document(document: DocumentFormat, data: Content) -> SourceReading:
    try:
        reading = document.read(data)  # type: ignore[arg-type]  # bytes, but for a format that takes the mapped file
        frames = {name: mask_frame(frame, _OWN_WORDS) for name, frame in _conformed(reading).items()}
        folded = {name: Folded(f.rows, mask_frame(f.words, _OWN_WORDS)) for name, f in reading.folded.items()}
        many = [name for name, frame in frames.items() if frame.height > _MANY_AT_ONCE and TABLES[name].own]
        folded |= {name: fold(frames.pop(name), TABLES[name].own) for name in many}
    except (Exception, PanicException) as problem:
        reading, frames, folded = Reading(gaps=(_unreadable(problem),)), {}, {}
    result = SourceReading(frames, (document.name,), gap_lines=len(reading.gaps), folded=folded)
    result.records = reading.records or sum(f.height for f in frames.values()) + sum(f.rows.height for f in folded.values())
    if result.records:
        result.filled = result.formats
    if reading.gaps:
        result.frames["gaps"] = gap_frame(document.name, reading.gaps)
        if not result.records:
            result.error = f"{document.name}: {mask(reading.gaps[0].reason)}"
    return result


def read_documents(document: DocumentFormat, contents: Sequence[bytes]) -> Several | None:
    """What a format makes of those of several documents that it reads together, which is what ``read_source`` would make of each. None
    where it falls over, which the document that brings it about tells by itself."""
    assert document.together is not None
    try:
        made = document.together(contents)
        frames = {name: mask_frame(_placed(name, frame), _OWN_WORDS) for name, frame in made.frames.items() if frame.height}
        folded = {name: Folded(f.rows, mask_frame(f.words, _OWN_WORDS)) for name, f in made.folded.items()}
        return Several(frames, folded, {place: records for place, records in made.records.items() if records})
    except (Exception, PanicException):
        return None


def _placed(name: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Rows of several sources with exactly their table's columns."""
    schema = {PLACE: pl.UInt32(), **TABLES[name].schema}
    if list(frame.schema.items()) == list(schema.items()):
        return frame
    return TABLES[name].conform(frame).insert_column(0, frame.get_column(PLACE).cast(pl.UInt32))


def _conformed(reading: Reading) -> dict[str, pl.DataFrame]:
    """The frames that hold rows, with exactly their tables' columns."""
    held = {name: frame for name, frame in reading.frames.items() if frame.height}
    return {n: f if list(f.schema.items()) == list(TABLES[n].schema.items()) else TABLES[n].conform(f) for n, f in held.items()}


#: Columns of our own words.
_OWN_WORDS = frozenset({"time_kind", "hint_scope", "format", "record"})


def _unreadable(problem: BaseException, line_no: int | None = None) -> Gap:
    return Gap(f"unreadable: {type(problem).__name__}: {problem}"[:200], line_no, line_no)


def gap_frame(name: str, gaps: tuple[Gap, ...]) -> pl.DataFrame:
    return TABLES["gaps"].frame(
        [
            {
                "line_no": g.line_no,
                "end_line": g.end_line,
                "record": g.record,
                "format": name,
                "reason": mask(g.reason),
                "text": mask(g.text)[:200],
            }
            for g in gaps
        ]
    )


@dataclass(slots=True)
class Sum:
    """What the pieces of one text source add up to."""

    result: SourceReading
    parts: dict[str, list[pl.DataFrame]] = field(default_factory=dict)
    folded: dict[str, list[Folded]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    filled: set[str] = field(default_factory=set)

    def add(self, name: str, frame: pl.DataFrame) -> None:
        if frame.height > _MANY and TABLES[name].own:
            self.folded.setdefault(name, []).append(fold(frame, TABLES[name].own))
        elif frame.height:
            self.parts.setdefault(name, []).append(frame)


def _read_text(data: Content) -> SourceReading:
    if data[:2] in UTF16:
        data = data[:].decode("utf-16", "replace").encode("utf-8", "replace")
    result = SourceReading(lines=0)
    total = Sum(result)
    result.lines = sum(_read_piece(piece, total) for piece in _parts(data, result))
    return finished(total, data)


#: The end of a line, with or without what sets a terminal's colours back behind it.
_LINE_END = re.compile(rb"\n(?:\x1b\[[0-9;?]*[A-Za-z]|[ \t\r])*\Z")
_END = 64


def finished(total: Sum, data: Content) -> SourceReading:
    """The reading of one text source of which all lines were read."""
    result = total.result
    names = [f.name for f in text_formats()]
    amid = bool(result.records) and not _LINE_END.search(data[-_END:])
    full = len(data) % _BUFFER == 0
    if amid and (full or ((result.lines or 0) >= _EXCERPT and _LINEWISE & total.used)):
        total.add("cut_ends", TABLES["cut_ends"].frame([{"line_no": result.lines, "bytes": len(data), "buffer": full}]))
    result.formats = tuple(n for n in names if n in total.used)
    result.filled = tuple(n for n in names if n in total.filled)
    for name, folded in total.folded.items():
        own = TABLES[name].own
        result.folded[name] = joined([*folded, *(fold(part, own) for part in total.parts.pop(name, []))], "line_no")
    for name, parts in sorted(total.parts.items()):
        frame = parts[0] if len(parts) == 1 else pl.concat(parts)
        if len(parts) > 1 and "line_no" in frame.columns and not frame["line_no"].is_sorted(nulls_last=True):
            frame = frame.sort("line_no", nulls_last=True, maintain_order=True)
        result.frames[name] = frame
    if "unmodelled" in result.frames:
        shapes = (
            result.frames["unmodelled"]
            .group_by("format", "shape", maintain_order=True)
            .agg(pl.col("line_no").min(), pl.col("end_line").first(), pl.col("count").sum())
        )
        result.frames["unmodelled"] = TABLES["unmodelled"].conform(shapes)
    return result


def _read_journal(data: Content) -> SourceReading:
    """A binary journal, as the text that journalctl makes of it; what is wrong with it is a gap without a line."""
    text = bytearray()
    problem = journal.write_text(data, text.extend)
    result = _read_text(bytes(text))
    if problem is not None:
        gap = gap_frame("systemd-journal", (Gap(problem),))
        held = result.frames.get("gaps")
        result.frames["gaps"] = gap if held is None else pl.concat([held, gap])
        result.error = None if text else f"systemd-journal: {problem}"
    return result


def _pieces(data: Content) -> Iterator[bytes]:
    """Pieces that end with a line, and with an empty one if one is near.

    A big log begins and ends with other lines than it holds in between: the first and the last piece are smaller, so that all others may be
    read in bulk as they are.
    """
    start, size = 0, len(data)
    ends = min(_ENDS, CHUNK_BYTES)
    while start < size:
        left = size - start
        if start == 0 and size > CHUNK_BYTES:
            end = ends
        elif left > CHUNK_BYTES + ends:
            end = start + CHUNK_BYTES
        else:
            end = size - ends if left > 2 * ends and size > CHUNK_BYTES else size
        if end >= size:
            yield data[start:]
            return
        cut = data.rfind(b"\n\n", max(start, end - _LOOK_BACK), end) + 1 or data.rfind(b"\n", start, end)
        cut = data.find(b"\n", end) if cut < 0 else cut
        cut = size - 1 if cut < 0 else cut
        yield data[start : cut + 1]
        start = cut + 1


@dataclass(frozen=True, slots=True)
class _Piece:
    """The lines of a piece, their prefixes peeled off, but for those that a format could read in bulk.

    ``places`` are the rows of the piece that ``lines`` are (None: all), ``none`` is a mask over the piece that is false everywhere,
    ``size`` are the bytes of ``lines``.
    """

    lines: pl.DataFrame
    none: pl.Series
    first: int
    size: int
    places: pl.Series | None = None
    bulk: Bulk | None = None
    bulk_format: str = ""

    def mask(self, numbers: pl.Series) -> pl.Series:
        """True for the lines of these numbers."""
        if not numbers.len():
            return self.none
        if self.bulk is not None and self.bulk.whole and numbers.len() == self.none.len():
            return ~self.none
        places = numbers.cast(pl.Int64) - self.first
        return self.none.clone().scatter(places.filter((places >= 0) & (places < self.none.len())), True)

    def left(self, mask: pl.Series) -> pl.Series:
        """The same mask over ``lines``."""
        return mask if self.places is None else mask.gather(self.places)


def _read_piece(piece: _Piece, total: Sum) -> int:
    """Read a piece; returns how many lines it has."""
    lines, none = piece.lines, piece.none
    records, torn = none, none
    anchored = _anchored(lines)
    waiting = lines.filter(anchored)
    for text_format in _likely(waiting, piece):
        bulk = piece.bulk if text_format.name == piece.bulk_format else None
        holds = waiting["text"].str.contains_any(list(text_format.anchors))
        if bulk is None and not holds.any():
            continue
        taken = records | torn
        hit = piece.left(piece.mask(waiting["line_no"].filter(holds)))
        reading = safely(text_format, Text(lines.with_columns(hit=hit).filter(~piece.left(taken)), bulk))
        claimed = piece.mask(reading.lines)
        given_up = piece.mask(numbers_of(reading.gaps))
        fresh = claimed & ~taken
        records = records | fresh
        torn = torn | (given_up & ~taken & ~claimed)
        if reading.gaps:
            total.used.add(text_format.name)
            total.add("gaps", gap_frame(text_format.name, reading.gaps))
        if fresh.any():
            total.used.add(text_format.name)
            total.filled.add(text_format.name)
            waiting = lines.filter(anchored & ~piece.left(records | torn))
        for name, frame in reading.frames.items():
            total.add(name, frame)
        for name, folded in reading.folded.items():
            total.folded.setdefault(name, []).append(folded)
        if reading.unmodelled.len():
            vague = piece.mask(reading.unmodelled) & fresh
            total.result.unmodelled += int(vague.sum() or 0)
            total.add("unmodelled", shapes_of(text_format.name, lines.filter(piece.left(vague))))
    total.result.records += int(records.sum() or 0)
    total.result.gap_lines += int(torn.sum() or 0)
    total.result.foreign += none.len() - int((records | torn).sum() or 0)
    return none.len()


def _parts(data: Content, result: SourceReading) -> Iterator[_Piece]:
    """The pieces of a text; those of which a format reads nearly all lines in bulk become one as long as they follow each other."""
    run: _Run | None = None
    first = 1
    for content in _pieces(data):
        content = content.removeprefix(b"\xef\xbb\xbf") if first == 1 else content
        split = _Split(content, result)
        before, run = run, _in_bulk(content, first, split, run)
        if before is not None and before is not run:
            yield before.piece()
        if run is not None:
            first = run.first + run.height
            if run.full:
                yield run.piece()
                run = None
            continue
        lines = _numbered(split.lines(), first)
        yield _Piece(_peeled(lines), _none(lines.height), first, len(content))
        first += lines.height
    if run is not None:
        yield run.piece()


@dataclass(slots=True)
class _Run:
    """Pieces that follow each other, of which a format reads lines in bulk: where they begin, and the lines that are left."""

    text_format: TextFormat
    reader: BulkReader
    first: int
    height: int = 0
    size: int = 0
    rest: list[pl.DataFrame] = field(default_factory=list)

    def add(self, found: Found) -> None:
        found.keep()
        self.height += found.height
        if found.rest.height:
            self.rest.append(found.rest)
            self.size += int(found.rest["text"].str.len_bytes().sum())

    @property
    def full(self) -> bool:
        return self.reader.full or self.size >= CHUNK_BYTES

    def piece(self) -> _Piece:
        """All of them as one."""
        none, bulk = _none(self.height), self.reader.bulk()
        rest = pl.concat(self.rest, rechunk=True) if self.rest else _NO_LINES
        places = (rest["line_no"] - self.first).cast(pl.UInt32)
        lines = _peeled(rest.with_columns(_within(rest["text"])), bare_left_out=True)
        return _Piece(lines, none, self.first, self.size, places, bulk, self.text_format.name)


def _in_bulk(content: bytes, first: int, split: _Split, run: _Run | None) -> _Run | None:
    """The pieces of which lines can be read in bulk, where that is sure to change nothing: with this one ``run`` goes on, or another
    begins."""
    for order, text_format in enumerate(text_formats()):
        if text_format.bulk is None or not _repeats(content, text_format):
            continue
        own = run if run is not None and run.text_format is text_format else _Run(text_format, text_format.bulk(), first)
        found = own.reader.look(content, first, split.lines)
        if found is not None and _harmless(found, order):
            own.add(found)
            return own
    return None


_NO_LINES = pl.DataFrame(schema={"line_no": pl.UInt32(), "text": pl.String()})


def _numbered(text: pl.Series, first: int) -> pl.DataFrame:
    return pl.DataFrame({"line_no": pl.int_range(first, first + text.len(), dtype=pl.UInt32(), eager=True), "text": text})


def _none(height: int) -> pl.Series:
    """As many times no."""
    return pl.repeat(False, height, dtype=pl.Boolean, eager=True)


def _anchors_before(order: int) -> list[str]:
    """The anchors of the text formats before one."""
    return sorted({a for f in text_formats()[:order] for a in f.anchors})


#: What may hold other text than it shows: colour codes and NULs within words, and what Docker wraps lines in.
_VEILS = ("\x1b", "\x00", '{"log":')


def _harmless(found: Found, order: int) -> bool:
    """Whether no format that is asked before could want such lines, or the lines between them for its blocks, and none holds a secret that
    would have to be masked."""
    # Prefixes that need nearly all lines are ruled out only where enough lines carry none.
    if found.taken < BARE_SHARE * found.height:
        return False
    before = _anchors_before(order)
    if (before and _may_hold(found.samples, before)) or any(has_sign(text) for text in found.samples):
        return False
    if not before or found.rest.is_empty():
        return True
    text = "\n".join(found.rest["text"].to_list())
    if not any(sign in text for sign in (*before, *_VEILS)):
        return True  # nor does any where its prefix is peeled off
    return not _peeled(found.rest, bare_left_out=True)["text"].str.contains_any(before).any()


def _peeled(lines: pl.DataFrame, *, bare_left_out: bool = False) -> pl.DataFrame:
    """Lines without prefixes and without secrets: before any format cuts a line into columns, as half a secret is not told for one."""
    peeled = peel(lines, bare_left_out=bare_left_out)
    return peeled.with_columns(mask_series(peeled["text"]))


def _repeats(content: bytes, text_format: TextFormat) -> bool:
    """Whether a format's anchors stand in many lines at the start, in the middle or at the end of a piece: else it is no case for bulk."""
    starts = (0, len(content) // 2, max(0, len(content) - _SAMPLE))
    samples = [content[start : start + _SAMPLE] for start in starts]
    return any(sum(sample.count(a.encode()) for a in text_format.anchors) * 4 > sample.count(b"\n") > 4 for sample in samples)


#: Numbers, in hex too, and the null pointer: what differs between lines of one sort.
_VARIES = re.compile(r"\(nil\)|0x[0-9a-f]+|[0-9a-f-]+")


def _may_hold(samples: Sequence[str], anchors: list[str]) -> bool:
    """Whether a line like one of the samples, but with other numbers, could hold an anchor."""
    texts = [_VARIES.sub("0", text) for text in samples]
    return any("nil" in anchor or any(_VARIES.sub("0", anchor) in text for text in texts) for anchor in anchors)


@dataclass(slots=True)
class _Split:
    """The lines of a piece, split when they are first asked for. A last line without LF counts as one, as ``sed`` counts it."""

    content: bytes
    result: SourceReading
    _text: pl.Series | None = None

    def lines(self) -> pl.Series:
        """The lines; what is no UTF-8 is replaced, and counted."""
        if self._text is None:
            try:
                lines = lines_of(self.content)
            except (PolarsError, UnicodeDecodeError):
                text = self.content.decode("utf-8", "replace")
                mark = "\N{REPLACEMENT CHARACTER}"
                self.result.invalid_utf8 += text.count(mark) - self.content.count(mark.encode())
                lines = lines_of(text.encode())
            self._text = _within(lines)
        return self._text


def _within(lines: pl.Series) -> pl.Series:
    """Lines up to the longest that is looked at."""
    return lines.str.head(_LONGEST_LINE) if int(str(lines.str.len_bytes().max() or 0)) > _LONGEST_LINE else lines


def lines_of(content: bytes) -> pl.Series:
    """The lines of UTF-8 text, without LF or CR LF. Raises ``PolarsError`` or ``UnicodeDecodeError`` where it is no UTF-8."""
    # Polars' reader of lines is six times faster than its split.
    if content not in (b"", b"\n") and not taken_for_packed(content) and hasattr(pl, "read_lines"):
        return pl.read_lines(content, name="text").to_series()
    return pl.Series("text", [content.removesuffix(b"\n").decode()]).str.split("\n").explode()


def _anchored(lines: pl.DataFrame) -> pl.Series:
    """Which lines hold an anchor of any format: one scan for all of them."""
    anchors = sorted({a for f in text_formats() for a in f.anchors})
    return lines["text"].str.contains_any(anchors) if anchors else pl.Series([False] * lines.height, dtype=pl.Boolean)


def _likely(waiting: pl.DataFrame, piece: _Piece) -> Iterator[TextFormat]:
    """The formats to ask. In a short text each anchor is looked for at once, which spares most formats the start of a scan."""
    if waiting.is_empty() and piece.bulk is None:
        return
    short = "\n".join(waiting["text"].to_list()) if piece.size < _SHORT else None
    for text_format in text_formats():
        if short is None or text_format.name == piece.bulk_format or any(anchor in short for anchor in text_format.anchors):
            yield text_format


def numbers_of(gaps: tuple[Gap, ...]) -> pl.Series:
    return pl.Series([n for g in gaps if g.line_no is not None for n in range(g.line_no, (g.end_line or g.line_no) + 1)], dtype=pl.UInt32())


def made_of(text_format: TextFormat, text: Text) -> Reading:
    """What a format makes of a text. Raises whatever it raises, and where it gives something else than a reading."""
    reading = text_format.read(text)
    frames = _conformed(reading)
    # An extension's reader is not type-checked here: what it does wrong is to come up now.
    numbers = (reading.lines.cast(pl.UInt32), reading.unmodelled.cast(pl.UInt32))
    if not all(isinstance(gap, Gap) for gap in reading.gaps):
        raise TypeError("gaps of another type than Gap")
    return Reading(frames, numbers[0], reading.gaps, numbers[1], folded=reading.folded)


def safely(text_format: TextFormat, text: Text) -> Reading:
    """The same, but a format that falls over costs a gap, and the others go on."""
    try:
        return made_of(text_format, text)
    except (Exception, PanicException) as problem:
        hits = text.hits["line_no"] if text.bulk is None else pl.concat([text.hits["line_no"], text.bulk.lines])
        return Reading(gaps=(_unreadable(problem, int(str(hits.min()))),))


def shapes_of(name: str, lines: pl.DataFrame) -> pl.DataFrame:
    """One row for each distinct text with its numbers folded."""
    folded = pl.col("text").str.replace_all(r"0x[0-9a-f]+", "#").str.replace_all(r"[0-9]+", "#").str.head(160).alias("shape")
    counted = lines.select("line_no", folded).group_by("shape", maintain_order=True).agg(pl.col("line_no").min(), pl.len().alias("count"))
    return TABLES["unmodelled"].conform(counted.with_columns(format=pl.lit(name)))
