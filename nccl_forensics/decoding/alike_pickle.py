"""Lists of thousands of dictionaries of a few sorts in a pickle, as recorders of rings write them: one of each sort is unpickled.

torch's writer sets equal values with equal opcodes, and what it wrote before by its number in the memo. Two entries of a ring therefore
differ in a few numbers of fixed width, and else only where they tell of something else. So an entry whose bytes are those of an earlier one
but for such numbers need not be built: its numbers are cut out of the bytes, and what it holds besides is what the earlier one holds. The
dumps of a job's ranks are alike in the same way: most of one is another's, entry for entry, but for its numbers, and is compared with it at
once.

That is exact, and no guess at what entries look like. The first of each sort is walked opcode by opcode (``alike_scan``, ``pickle_walk``):
it must be one dictionary, filled in one go, that changes nothing it did not begin itself and writes nothing into the memo. Its twins do the
same, as they do it by the same opcodes. No number of the memo is written twice. Whatever is not so is left to ``safe_pickle`` as a whole,
which also loads what is kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import polars as pl

from nccl_forensics.decoding.alike_scan import Scan, Walked, few, worth
from nccl_forensics.decoding.number_places import Places
from nccl_forensics.decoding.pickle_walk import Known, Memo, Otherwise, walked
from nccl_forensics.decoding.raw_numbers import byte_column

#: A list may have so many dictionaries besides those of an earlier one that it follows.
_STRAYS = 64
#: So many lists are kept for others to follow, and none of a bigger pickle.
_PATTERNS, _LONGEST = 4, 4 << 20
#: Places of bytes are numbers of 32 bits.
_MOST = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Alike:
    """``document`` with one dictionary of each sort in its list; ``sorts`` (UInt32) has for each dictionary of the whole list the place of
    its sort there. Documents that are alike may be one object, which nobody may change.

    ``raw`` are the bytes of the numbers of the first ``followed`` dictionaries, which stand at ``places``; the numbers of ``strays`` are
    told for each by itself.
    """

    document: dict[object, object]
    sorts: pl.Series
    places: Places
    raw: pl.Series
    followed: int
    strays: dict[int, dict[str, int | float]] = field(default_factory=dict)

    def others(self, name: str, column: pl.Series) -> pl.Series:
        """A column of the numbers that were cut out, with those of strays in their places."""
        column = column.slice(0, self.followed)
        first = {place: own.get(name) for place, own in self.strays.items() if place < self.followed}
        if first:
            column = column.scatter(list(first), pl.Series(list(first.values()), dtype=column.dtype))
        rest = [self.strays[place].get(name) for place in range(self.followed, self.sorts.len())]
        return pl.concat([column, pl.Series(rest, dtype=column.dtype)]) if rest else column


def numbers_of(alikes: Sequence[Alike], columns: Sequence[str], floats: frozenset[str]) -> dict[str, pl.Series]:
    """The numbers of all dictionaries, list after list: Int64, or Float64 for those columns that are among ``floats``, null where one has
    none."""
    runs = [list(same) for _, same in groupby(range(len(alikes)), lambda n: id(alikes[n].places))]
    numbers = [alikes[run[0]].places.numbers([alikes[n].raw for n in run]) for run in runs]
    told: dict[str, pl.Series] = {}
    for name in columns:
        dtype = pl.Float64() if name in floats else pl.Int64()
        own: list[pl.Series] = []
        for run, cut in zip(runs, numbers, strict=True):
            column, height = cut.column(name, dtype), cut.places.height
            first = 0
            for n, at in enumerate(run):
                if alikes[at].strays or alikes[at].followed < height:
                    own += [column.slice(first * height, (n - first) * height), alikes[at].others(name, column.slice(n * height, height))]
                    first = n + 1
            own.append(column.slice(first * height))
        told[name] = pl.concat(own, rechunk=True).alias(name)
    return told


class Alikes:
    """Reads pickles whose document has a list under one name, and remembers of them what those of a job have in common.

    ``columns``: for each column of numbers the keys of a dictionary that tell it, of which the first counts that it has; ``floats`` are
    those that are not whole.
    """

    def __init__(self, name: str, columns: Mapping[str, Sequence[str]], floats: frozenset[str] = frozenset()) -> None:
        self._walked = Walked(name, columns, floats)
        self._patterns: list[_Pattern] = []

    def load(self, data: bytes) -> Alike | None:
        """The dictionaries of the list of a pickle.

        None where it is not sure that this tells all, or where it would take longer. Raises what ``load_plain`` raises.
        """
        if few(data):
            return None
        for pattern in self._patterns if len(data) <= _LONGEST else ():
            try:
                followed = _Follower(self._walked, data, pattern).run()
            except (Otherwise, IndexError):
                continue
            if followed is not None:
                self._patterns.remove(pattern)
                self._patterns.insert(0, pattern)
                return followed
        if len(data) > _MOST:
            return None
        try:
            pattern = _Pattern.of(Scan(self._walked, data))
        except (Otherwise, IndexError):
            return None
        if len(data) <= _LONGEST:
            self._patterns = [pattern, *self._patterns[: _PATTERNS - 1]]
        return pattern.whole(pattern.bytes)


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A list that was scanned, for others to follow.

    ``starts``: where its dictionaries begin, counted from the first one on, and where the last one ends; ``firsts``: the first one of each
    sort; ``defines``: the sorts of those that write into the memo, by place. ``fixed`` tells which of the ``bytes`` are no numbers; it is
    empty where none will follow.
    """

    head: bytes
    tail: bytes
    memo: Memo
    document: dict[object, object]
    starts: list[int]
    sorts: pl.Series
    firsts: list[int]
    known: list[Known]
    defines: dict[int, int]
    bytes: pl.Series
    fixed: pl.Series
    places: Places

    @staticmethod
    def of(scan: Scan) -> _Pattern:
        """Raises ``Otherwise``, ``IndexError`` and what ``load_plain`` raises."""
        scan.head()
        memo = scan.memo.copy()
        scan.every()
        begin, end = scan.begin, scan.ends[-1]
        document = scan.document(end)
        starts = [start - begin for start in scan.starts]
        sorts = pl.Series(scan.sorts, dtype=pl.UInt32())
        places = Places.of(pl.Series(starts, dtype=pl.UInt32()), sorts, [known.shape for known in scan.known])
        firsts = sorts.arg_unique().sort().to_list()
        defines = {firsts[sort]: sort for sort, known in enumerate(scan.known) if known.writes}
        fixed = pl.Series([], dtype=pl.Boolean)
        if len(scan.data) <= _LONGEST:
            fixed = pl.repeat(True, end - begin, dtype=pl.Boolean, eager=True).scatter(places.bytes.sort(), False)
        return _Pattern(
            *(scan.data[:begin], scan.data[end:], memo, document, [*starts, end - begin], sorts, firsts, scan.known, defines),
            *(byte_column(scan.data[begin:end]), fixed, places),
        )

    def whole(self, data: pl.Series) -> Alike:
        """What is told of a list that has these bytes: the same but for its numbers."""
        return Alike(self.document, self.sorts, self.places, data[self.places.bytes], self.sorts.len())


class _Follower:
    """A pickle whose list is most likely that of a pattern but for its numbers, as far as it goes.

    Where a dictionary that writes into the memo differs (a name, the number of a thread), it is walked, and those behind it are compared
    further on. What follows where any other differs is walked, too, if it is not much.
    """

    def __init__(self, of: Walked, data: bytes, pattern: _Pattern) -> None:
        self._scan = Scan(of, data)
        self._data, self._pattern = data, pattern
        self._all = byte_column(data)
        self._strays: dict[int, dict[str, int | float]] = {}
        #: Of dictionaries that differ, by their sort: from where to where they go, and what they are.
        self._others: dict[int, tuple[int, int, Known]] = {}
        #: From which dictionary on all stand how much further behind than in the pattern.
        self._moved: list[tuple[int, int]] = [(0, 0)]

    def run(self) -> Alike | None:
        """None where it is not that list. Raises ``Otherwise``, ``IndexError`` and what ``load_plain`` raises."""
        pattern, scan, data = self._pattern, self._scan, self._data
        size = pattern.starts[-1]
        same = data.startswith(pattern.head)
        if same:
            scan.begin, scan.memo = len(pattern.head), pattern.memo.copy()
        else:
            scan.head()
        own = self._bytes(scan.begin, size)
        wrong = (own != pattern.bytes) & pattern.fixed
        if same and not wrong.any() and data[scan.begin + size :] == pattern.tail:
            return pattern.whole(own)
        own, followed = self._follow(own, wrong)
        if not followed or not self._keep(followed):
            return None
        rest, end = self._rest(followed)
        if rest is None:
            return None
        worth(followed + len(rest))
        scan.tail(end)
        sorts = pattern.sorts.head(followed)
        sorts = pl.concat([sorts, pl.Series(rest, dtype=pl.UInt32())]) if rest else sorts
        return Alike(scan.document(end), sorts, pattern.places, own[pattern.places.bytes], followed, self._strays)

    def _bytes(self, start: int, size: int) -> pl.Series:
        """So many bytes, behind the end nothing."""
        if start + size <= len(self._data):
            return self._all.slice(start, size)
        return byte_column(self._data[start:].ljust(size, b"\0"))

    def _at(self, place: int) -> int:
        """Where the dictionary at a place begins."""
        _, by = self._moved[bisect_right(self._moved, place, key=lambda moved: moved[0]) - 1]
        return self._scan.begin + self._pattern.starts[place] + by

    def _follow(self, own: pl.Series, wrong: pl.Series) -> tuple[pl.Series, int]:
        """The bytes, each where it stands in the pattern, and how many dictionaries are the pattern's; ``wrong`` tells which bytes are
        not."""
        pattern, scan = self._pattern, self._scan
        starts, size = pattern.starts, pattern.starts[-1]
        waiting = sorted(pattern.defines, reverse=True)
        first = 0
        while True:
            differs = wrong.arg_max() if wrong.any() else None
            place = len(starts) - 1 if differs is None else bisect_right(starts, first + differs) - 1
            while waiting and waiting[-1] < place:
                writes = pattern.known[pattern.defines[waiting.pop()]].writes
                if not scan.memo.written.isdisjoint([number for number, _ in writes]):
                    raise Otherwise
                scan.memo.write(writes)
            if not waiting or waiting[-1] != place or len(self._strays) == _STRAYS:
                return own, place
            start = self._at(waiting.pop())
            known, end = walked(self._data, start, scan.memo, scan.of.columns, scan.of.floats)
            self._strays[place] = known.shape.numbers(self._data[start:end])
            self._others[pattern.defines[place]] = start, end, known
            first = starts[place + 1]
            more = (end - start) - (first - starts[place])
            if more:
                self._moved.append((place + 1, self._moved[-1][1] + more))
                own = pl.concat([own.head(first), self._bytes(end, size - first)], rechunk=True)
            wrong = (own.slice(first) != pattern.bytes.slice(first)) & pattern.fixed.slice(first)

    def _keep(self, followed: int) -> bool:
        """Keep the first ones of the sorts among so many dictionaries; False where their keys are not those of the pattern."""
        pattern, scan = self._pattern, self._scan
        for sort in range(bisect_left(pattern.firsts, followed)):
            known = pattern.known[sort]
            if sort in self._others:
                scan.add(*self._others[sort])
                continue
            if not scan.memo.has(known.gets):
                return False
            start = self._at(pattern.firsts[sort])
            scan.add(start, start + len(known.bare), known)
        return True

    def _rest(self, followed: int) -> tuple[list[int] | None, int]:
        """The sorts of the dictionaries behind so many, None if they are too many to walk, and where the last one ends."""
        scan, data = self._scan, self._data
        at = self._at(followed)
        if data[at : at + 2] != b"}(":
            return [], at
        if data.count(scan.again(), at) >= _STRAYS:
            return None, at
        starts, ends = scan.split(at)
        rest: list[int] = []
        for start, end in zip(starts, ends, strict=True):
            rest.append(scan.sort_of(start, end))
            self._strays[followed + len(rest) - 1] = scan.known[rest[-1]].shape.numbers(data[start:end])
        return rest, ends[-1]
