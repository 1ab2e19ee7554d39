"""Operation lines of steps that repeat: training calls the same operations again and again, so that its log repeats too.

Where the lines of one step have been matched with the grammar, the next one needs no look at its words: it is the same operations if its
bytes are those of the step before, but for the digits of ``opCount`` and of pointers, and if these are digits again. So whole stretches are
compared with themselves, moved by the length of a step: some tenths of a millisecond for each MB. What is between such stretches (a digit
more, a line of something else) is matched line by line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import polars as pl

from nccl_forensics.grammar.lines import load

_KIND, _OWN = "operation", "op_count"
#: The longest step that is looked for, in lines.
_LONGEST_STEP = 512
#: So many lines are matched one by one before a text counts as one without steps; and one of so many of those that stood in steps.
_PATIENCE, _ONE_OF = 1100, 16
#: Bytes that are compared at a time, which the processor's cache shall hold; fewer at first, to see whether it is worth it.
_FIRST_WINDOW, _WINDOW = 64 << 10, 1 << 20
#: A step that repeats less often is part of a longer one.
_OFTEN = 8
#: More digits make no number of 64 bits.
_DIGITS = 15
_LONGEST_LINE = 4096
#: What each byte counts as a digit.
_VALUES = pl.Series([b"0123456789abcdef".find(byte) if byte else 0 for byte in range(256)], dtype=pl.Int64)


@dataclass(frozen=True, slots=True)
class _Shape:
    """A line of one sort with digits at the same places: its ``length`` with the line's end, where its ``opCount`` stands, and the digits
    of its pointers."""

    sort: int
    length: int
    count: tuple[int, int]
    pointers: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Lines one behind the other from the place ``row`` and the byte ``start`` on: ``times`` a step of these ``shapes``."""

    row: int
    start: int
    times: int
    shapes: tuple[_Shape, ...]


@dataclass(slots=True)
class Steps:
    """What a text holds: the ``places`` of its operations among its ``height`` lines, in order, with their ``counts`` and the number of
    their sort; ``samples`` has a text of each sort, ``rest`` the place and the text of other lines."""

    data: bytes
    height: int = 0
    samples: list[str] = field(default_factory=list)
    rest: list[tuple[int, str]] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    numbers: list[tuple[pl.Series, pl.Series, pl.Series]] = field(default_factory=list)

    def columns(self) -> tuple[pl.Series, pl.Series, pl.Series]:
        """``places`` (UInt32), ``counts`` (Int64) and ``sorts`` (UInt32) of all operations."""
        places, counts, sorts = zip(*self.numbers, strict=True)
        return pl.concat(places), pl.concat(counts), pl.concat(sorts)

    def text(self, place: int) -> str:
        """The line at a place at which there is an operation."""
        stretch = next(s for s in reversed(self.stretches) if s.row <= place)
        times, at = divmod(place - stretch.row, len(stretch.shapes))
        lengths = [shape.length for shape in stretch.shapes]
        start = stretch.start + times * sum(lengths) + sum(lengths[:at])
        return self.data[start : start + lengths[at]].rstrip(b"\n").decode()


@cache
def _pattern() -> tuple[re.Pattern[bytes], tuple[int, ...]]:
    """A line of the grammar with single blanks, and the groups of what is matched and dropped: pointers."""
    kind = load("nccl_operation").kinds[_KIND]
    pattern = re.compile(kind.pattern[1:-1].replace(" +", " ").replace("(?:", "(").encode())
    named = set(pattern.groupindex.values())
    return pattern, tuple(n for n in range(1, pattern.groups + 1) if n not in named)


def steps(data: bytes) -> Steps | None:
    """The operations of a text that is made of steps (each line ended by LF); None where it is not, or where that is not sure."""
    return _Walk(data).run() if data.endswith(b"\n") else None


class _Otherwise(Exception):
    """A text that is better read in another way."""


class _Walk:
    """One walk through a text; a class because each line adds to all that is known of it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.found = Steps(data)
        self.shapes: list[_Shape] = []
        self._shape_of: dict[_Shape, int] = {}
        self._sort_of: dict[tuple[bytes, bytes], int] = {}
        # The lines just before: their shapes, and their opCount where no stretch has them yet.
        self._recent: list[int] = []
        self._begun: tuple[int, int] = (0, 0)
        self._counts: list[int] = []
        # The shapes of the lines up to here, and how many of the last of them have to repeat, at least.
        self._history: list[int] = []
        self._need = 8
        self._matched = 0

    def run(self) -> Steps | None:
        try:
            while self.at < len(self.data):
                self._line()
                length = self._repeated()
                if length:
                    self._stretch(length)
        except (_Otherwise, UnicodeDecodeError):
            return None
        self._put_away()
        return self.found if self.found.numbers else None

    def _line(self) -> None:
        """Match one line. Raises ``_Otherwise`` where that was done too often, ``UnicodeDecodeError`` where it is no text."""
        self._matched += 1
        if self._matched > _PATIENCE + self.found.height // _ONE_OF:
            raise _Otherwise
        end = self.data.index(b"\n", self.at)
        line = self.data[self.at : end]
        pattern, dropped = _pattern()
        hit = pattern.fullmatch(line) if len(line) <= _LONGEST_LINE else None
        count = hit.span(_OWN) if hit is not None else (0, 0)
        if hit is None or count[1] - count[0] > _DIGITS:
            self._put_away()
            self._history = []
            self.found.rest.append((self.found.height, line.decode()))
        else:
            ends = [hit.span(n) for n in dropped]
            digits = tuple((a + 2, b) for a, b in ends if line[a : a + 2] == b"0x")
            # What stands before and behind the numbers is the sort.
            behind = line[max(b for _, b in ends) :]
            sort = self._sort_of.setdefault((line[: count[0]], behind), len(self.found.samples))
            if sort == len(self.found.samples):
                self.found.samples.append(line.decode())
            shape = _Shape(sort, len(line) + 1, count, digits)
            number = self._shape_of.setdefault(shape, len(self.shapes))
            if number == len(self.shapes):
                self.shapes.append(shape)
            if not self._recent:
                self._begun = (self.found.height, self.at)
            self._recent.append(number)
            self._history.append(number)
            self._counts.append(int(line[count[0] : count[1]], 16))
        self.at = end + 1
        self.found.height += 1

    def _put_away(self) -> None:
        """Keep the operations just before, each as a stretch of itself."""
        row, start = self._begun
        if self._counts:
            places = pl.int_range(row, row + len(self._counts), dtype=pl.UInt32(), eager=True)
            sorts = pl.Series([self.shapes[n].sort for n in self._recent], dtype=pl.UInt32)
            self.found.numbers.append((places, pl.Series(self._counts, dtype=pl.Int64), sorts))
            self.found.stretches.append(Stretch(row, start, 1, tuple(self.shapes[n] for n in self._recent)))
        self._recent, self._counts = [], []

    def _repeated(self) -> int:
        """How many lines the step has that was just seen twice, one behind the other; 0 where none was."""
        known, size = len(self._history), self._need
        while size <= min(known, 2 * _LONGEST_STEP):
            # The longer, the less often: so that a line costs the same whatever was before it.
            if known % (size // 2) == 0 and (length := _period(self._history[-size:])):
                return length
            size *= 2
        return 0

    def _stretch(self, length: int) -> None:
        """Take the steps that follow, as long as they are like the last one."""
        numbers = self._history[-length:]
        self._put_away()
        shapes = tuple(self.shapes[n] for n in numbers)
        size = sum(shape.length for shape in shapes)
        start, row = self.at, self.found.height
        layout = _Layout.of(shapes, max(1, _FIRST_WINDOW // size))
        times = 0
        while blocks := min(layout.times, (len(self.data) - self.at) // size):
            if blocks < layout.times:
                layout = _Layout.of(shapes, blocks)
            own = pl.Series([self.data[self.at - size : self.at + blocks * size]], dtype=pl.Binary).cast(pl.List(pl.UInt8)).explode()
            like = layout.alike(own)
            if like:
                self.found.numbers.append(layout.numbers(own, like, row + times * length))
            times += like
            self.at += like * size
            if like < blocks:
                break
            if blocks * size < _WINDOW // 2:
                layout = _Layout.of(shapes, _WINDOW // size)
        if times < _OFTEN:  # a loop of layers within a step repeats too, but not for long
            self._need = min(2 * self._need, 2 * _LONGEST_STEP)
        if times:
            self._history += numbers * min(times, _LONGEST_STEP // length + 1)
            self.found.height += times * length
            self.found.stretches.append(Stretch(row, start, times, shapes))


@dataclass(frozen=True, slots=True)
class _Layout:
    """A step of so many bytes (``size``) and ``lines``, so many ``times`` behind one before them: which bytes are ``fixed`` and which
    ``loose`` (digits), the sorts of the lines, and where the ``digits`` of their ``opCount`` stand, with what each counts: the last of all
    lines, then the last but one, and so on."""

    size: int
    lines: int
    times: int
    fixed: pl.Series
    loose: pl.Series
    sorts: pl.Series
    digits: pl.Series
    worth: pl.Series

    @staticmethod
    def of(shapes: Sequence[_Shape], times: int) -> _Layout:
        """The layout of a step of lines of these shapes."""
        mask: list[bool] = []
        ends: list[int] = []
        for shape in shapes:
            ends.append(len(mask) + shape.count[1])
            own = [True] * shape.length
            for a, b in (shape.count, *shape.pointers):
                own[a:b] = [False] * (b - a)
            mask += own
        size = len(mask)
        fixed = _tiled(pl.Series(mask, dtype=pl.Boolean), times)
        line = pl.int_range(times * len(shapes), dtype=pl.UInt32(), eager=True)
        block = line // len(shapes)
        at = line - block * len(shapes)
        widths = [b - a for a, b in (shape.count for shape in shapes)]
        end = (block + 1) * size + pl.Series(ends, dtype=pl.UInt32).gather(at)
        places = range(max(widths))
        return _Layout(
            size,
            len(shapes),
            times,
            fixed,
            ~fixed,
            pl.Series([shape.sort for shape in shapes], dtype=pl.UInt32).gather(at),
            pl.concat([end - (place + 1) for place in places]),
            pl.concat([pl.Series([16**place * (place < width) for width in widths], dtype=pl.Int64).gather(at) for place in places]),
        )

    def alike(self, data: pl.Series) -> int:
        """How many of the steps, one after the other, are like the one that comes before them in ``data``."""
        own, before = data.slice(self.size), data.slice(0, self.times * self.size)
        # Bytes wrap around: what is below the first digit is far above the last.
        wrong = (self.fixed & (own != before)) | (self.loose & ((own - 48) > 9) & ((own - 97) > 5))
        return int(str(wrong.arg_max())) // self.size if wrong.any() else self.times

    def numbers(self, data: pl.Series, times: int, row: int) -> tuple[pl.Series, pl.Series, pl.Series]:
        """Places, from ``row`` on, opCounts and sorts of the lines of the first so many steps."""
        values = _VALUES.gather(data.gather(self.digits)) * self.worth
        height, lines = self.times * self.lines, times * self.lines
        count = values.slice(0, lines)
        for start in range(height, values.len(), height):
            count = count + values.slice(start, lines)
        return pl.int_range(row, row + lines, dtype=pl.UInt32(), eager=True), count, self.sorts.slice(0, lines)


def _period(items: Sequence[int]) -> int:
    """The length of the shortest list of which these items are a repetition, at least twice; 0 where there is none."""
    # How much of the beginning stands at each end again, by Knuth, Morris and Pratt.
    longest = [0] * len(items)
    for at in range(1, len(items)):
        same = longest[at - 1]
        while same and items[at] != items[same]:
            same = longest[same - 1]
        longest[at] = same + (items[at] == items[same])
    length = len(items) - longest[-1]
    return length if 2 * length <= len(items) else 0


def _tiled(mask: pl.Series, times: int) -> pl.Series:
    """A mask so many times."""
    tiled = mask
    while tiled.len() < times * mask.len():
        tiled = pl.concat([tiled, tiled], rechunk=True)
    return tiled.slice(0, times * mask.len())
