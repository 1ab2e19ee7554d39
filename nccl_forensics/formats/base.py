"""What a format is, and what reading one source yields.

Reading is pure: a reader sees the bytes of one source and nothing else (no path, no other source, no clock, no time zone).
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import polars as pl

from nccl_forensics.folding import ROWS, WORDS, Folded
from nccl_forensics.grammar.writers import WRITER
from nccl_forensics.tables import TABLES

#: A row as a reader makes it: values by the columns of its table.
Row = dict[str, object]
#: A column beside those of a table: which of several sources a row is of, from 0.
PLACE = "_place"


@dataclass(frozen=True, slots=True)
class Gap:
    """A place that a format claims and cannot read. Lines are 1-based; ``record`` points into a document."""

    reason: str
    line_no: int | None = None
    end_line: int | None = None
    record: str | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one format made of one source.

    ``frames`` hold rows by table name, with the columns of ``tables.TABLES`` (without ``source_id``); ``folded`` more of them, folded.
    ``lines`` are the line numbers (UInt32) that became records (all lines of a block), ``gaps`` what could not be read,
    ``unmodelled`` the lines (a subset of ``lines``) of which only the prefix was understood.
    """

    frames: dict[str, pl.DataFrame] = field(default_factory=dict)
    lines: pl.Series = field(default_factory=lambda: line_numbers(()))
    gaps: tuple[Gap, ...] = ()
    unmodelled: pl.Series = field(default_factory=lambda: line_numbers(()))
    records: int = 0
    folded: dict[str, Folded] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Several:
    """What a format made of several sources: as in ``Reading``, each row with the ``PLACE`` of its source in front, in the order of places.
    ``records`` by place; a place that is not there was not read."""

    frames: dict[str, pl.DataFrame]
    folded: dict[str, Folded]
    records: dict[int, int]

    def at(self, places: Sequence[int]) -> Several:
        """The same with other places: those that stand at the places that it has."""
        if all(place == n for n, place in enumerate(places)):
            return self
        other = pl.Series(PLACE, places, dtype=pl.UInt32())
        folded = {name: Folded(_numbered(f.rows, other), _numbered(f.words, other)) for name, f in self.folded.items()}
        frames = {name: _numbered(frame, other) for name, frame in self.frames.items()}
        return Several(frames, folded, {places[place]: records for place, records in self.records.items()})

    def parts(self, numbers: pl.Series) -> dict[str, pl.DataFrame]:
        """All frames by the names by which they go, each row with the one of these numbers that stands at its place in front."""
        frames = dict(self.frames)
        for name, folded in self.folded.items():
            frames |= {name + ROWS: folded.rows, name + WORDS: folded.words}
        return {name: _numbered(frame, numbers) for name, frame in frames.items()}

    def each(self) -> Iterator[tuple[int, Reading]]:
        """The readings of the sources, with their places: parts of the same frames."""
        frames: dict[int, dict[str, pl.DataFrame]] = {place: {} for place in self.records}
        rows: dict[int, dict[str, pl.DataFrame]] = {place: {} for place in self.records}
        words: dict[int, dict[str, pl.DataFrame]] = {place: {} for place in self.records}
        for name, frame in self.frames.items():
            for place, own in _by_place(frame):
                frames[place][name] = own
        for name, folded in self.folded.items():
            for part, into in ((folded.rows, rows), (folded.words, words)):
                for place, own in _by_place(part):
                    into[place][name] = own
        for place, records in self.records.items():
            own_folded = {name: Folded(own, words[place][name]) for name, own in rows[place].items()}
            yield place, Reading(frames=frames[place], records=records, folded=own_folded)


def several(made: Sequence[Several]) -> Several:
    """What was made of some sources and what was made of others as one, where no source is among both."""
    if len(made) == 1:
        return made[0]
    tables = {name for one in made for name in one.frames}
    frames = {name: _in_order([one.frames[name] for one in made if name in one.frames]) for name in sorted(tables)}
    kept: dict[str, list[Folded]] = {}
    for one in made:
        for name, own in one.folded.items():
            kept.setdefault(name, []).append(own)
    folded = {name: Folded(_in_order([f.rows for f in parts]), _in_order([f.words for f in parts])) for name, parts in kept.items()}
    return Several(frames, folded, {place: records for one in made for place, records in one.records.items()})


def _in_order(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The rows of frames in the order of their places."""
    frame = pl.concat(frames)
    return frame if frame.get_column(PLACE).is_sorted() else frame.sort(PLACE, maintain_order=True)


def _numbered(frame: pl.DataFrame, numbers: pl.Series) -> pl.DataFrame:
    """The rows with other numbers in front: those that stand at their places."""
    columns = [column for column in frame.get_columns() if column.name != PLACE]
    return pl.DataFrame([numbers[frame.get_column(PLACE)], *columns])


def _by_place(frame: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
    """The rows of each place, without it."""
    own = frame.drop(PLACE)
    start = 0
    for length, place in frame.get_column(PLACE).rle().struct.unnest().iter_rows():
        yield place, own.slice(start, length)
        start += length


@dataclass(frozen=True, slots=True)
class Bulk:
    """Lines that a format could read as they stand, whatever else the source holds: no launcher's prefix, nothing torn, nothing to look up.

    ``lines`` are their numbers in order, ``folded`` their rows by table name, and ``ends`` what the format has to know of them when it
    reads the lines that are left; ``whole``: none are left.
    """

    lines: pl.Series
    folded: dict[str, Folded]
    ends: pl.DataFrame
    whole: bool


@dataclass(frozen=True, slots=True)
class Found:
    """What could be read in bulk of a piece of text that has ``height`` lines: so many are ``taken``, the ``rest`` (``line_no``, ``text``)
    are left. ``samples``: a text of each sort among them that no piece before had. Nothing of it counts before it is kept (``keep``)."""

    height: int
    taken: int
    rest: pl.DataFrame
    samples: Sequence[str]
    keep: Callable[[], None]


class BulkReader(Protocol):
    """Reads the lines of one kind, piece after piece of one text."""

    @property
    def full(self) -> bool:
        """Whether what was kept should be asked for before more is."""
        ...

    def look(self, data: bytes, first: int, lines: Callable[[], pl.Series]) -> Found | None:
        """What of a piece can be read in bulk, if any and if that is sure. ``first`` is the number of its first line, ``lines`` gives
        all."""
        ...

    def bulk(self) -> Bulk:
        """What was kept since the last call."""
        ...


@dataclass(frozen=True, slots=True)
class Text:
    """A text source as the dispatcher hands it to a text format.

    ``lines`` has one row per line that no earlier format claimed: ``line_no`` (UInt32), ``text`` (launcher prefixes, ANSI colour, CR and
    NUL removed), ``hint_rank``, ``hint_scope``, ``hint_host``, ``hint_pid``, ``time_raw_ns``, ``time_kind`` (of the launcher's
    prefix), and ``hit`` (the line holds one of the format's anchors). Lines that the format has read by itself before (``bulk``) are not
    among them.

    A format that reads small sources ``together`` may get the lines of several: then the numbers of each source's lines start behind a
    multiple of ``stride``, in the order of the sources. Otherwise it is 0.
    """

    lines: pl.DataFrame
    bulk: Bulk | None = None
    stride: int = 0

    @property
    def source(self) -> pl.Expr:
        """Of lines with their numbers, the place of the source that they are of."""
        return pl.col("line_no") // self.stride if self.stride else pl.lit(0, dtype=pl.UInt32)

    def by_source(self) -> Iterator[pl.DataFrame]:
        """The lines of each source that has hits."""
        if not self.stride:
            yield self.lines
            return
        held = self.hits.select(self.source.unique()).to_series()
        yield from self.apart(self.lines.filter(self.source.is_in(held.implode())))

    def apart(self, rows: pl.DataFrame) -> list[pl.DataFrame]:
        """Rows with the numbers of lines, those of each source by themselves."""
        return rows.with_columns(self.source.alias(PLACE)).partition_by(PLACE, maintain_order=True, include_key=False)

    @property
    def hits(self) -> pl.DataFrame:
        """The lines that hold one of the format's anchors."""
        return self.lines.filter(pl.col("hit"))


@dataclass(frozen=True, slots=True)
class TextFormat:
    """A text format: claims lines or blocks of a text source.

    ``anchors`` are literal substrings; only sources with a line that holds one are offered. ``priority``: smaller reads first, and a
    line claimed by one format is not offered to the next. ``bulk`` makes what reads the lines of one kind at once; ``read`` gets what that
    found and says of it what it would have said of these lines.

    ``together``: ``read`` takes several sources at once (``Text.stride``), which spares each the start of some hundred small queries. What
    it says of a line then depends on no line of another source.
    """

    name: str
    title: str
    tables: tuple[str, ...]
    anchors: tuple[str, ...]
    read: Callable[[Text], Reading]
    priority: int = 50
    bulk: Callable[[], BulkReader] | None = None
    together: bool = False


@dataclass(frozen=True, slots=True)
class DocumentFormat:
    """A format that claims the whole file: pickle, JSON, XML, SQLite. ``sniff`` sees at most the first 64 KiB.

    ``mapped``: ``read`` takes the mapped file as it is and reads it in pieces; others get its content as bytes. What such a format claims
    is no text. ``together`` takes the contents of several small sources and reads those of them that it can at once, just as ``read`` does.
    """

    name: str
    title: str
    tables: tuple[str, ...]
    sniff: Callable[[bytes], bool]
    read: Callable[[bytes], Reading] | Callable[[bytes | mmap.mmap], Reading]
    priority: int = 50
    mapped: bool = False
    together: Callable[[Sequence[bytes]], Several] | None = None


Format = TextFormat | DocumentFormat


class LineWalk:
    """Rows by table, claimed lines and gaps over one walk through a text; a class because every block adds to all."""

    def __init__(self, text: Text) -> None:
        self.numbers: list[int] = text.lines["line_no"].to_list()
        self.texts: list[str] = text.lines["text"].to_list()
        self.hits: list[bool] = text.lines["hit"].to_list()
        self.hints = text.lines.select(WRITER).rows(named=True)
        self.rows: dict[str, list[Row]] = {}
        self.used: list[int] = []
        self.gaps: list[Gap] = []

    def add(self, table: str, i: int, row: Row) -> Row:
        """A row with its line, as it is kept: what following lines tell may be added to it."""
        full = {**self.hints[i], "line_no": self.numbers[i], **row}
        self.rows.setdefault(table, []).append(full)
        return full

    def use(self, i: int) -> None:
        """Claim a line."""
        self.used.append(self.numbers[i])

    def blocks(self, block: Callable[[LineWalk, int], int]) -> Reading:
        """What ``block`` finds: it is asked where a block may begin, and tells where what it read ends (there too, if it read nothing)."""
        i = 0
        while i < len(self.texts):
            i = max(block(self, i), i + 1)
        return self.reading()

    def reading(self) -> Reading:
        """What was found."""
        return Reading(frames=filled(self.rows), lines=line_numbers(sorted(set(self.used))), gaps=tuple(self.gaps))


def filled(rows: Mapping[str, list[Row]]) -> dict[str, pl.DataFrame]:
    """Rows by table as the frames that ``Reading`` carries: of the tables that have any."""
    return {name: TABLES[name].frame(own) for name, own in rows.items() if own}


def line_of(row: Row) -> int:
    """The number of a row's line, by which rows are put in order."""
    return int(str(row["line_no"]))


def line_numbers(numbers: Sequence[int]) -> pl.Series:
    """Line numbers as the series that ``Reading`` carries."""
    return pl.Series("line_no", numbers, dtype=pl.UInt32)
