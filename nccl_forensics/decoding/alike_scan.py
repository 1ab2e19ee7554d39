"""One scan over a pickle that holds a list of many dictionaries of a few sorts: where each begins, and of which sort it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import sub
from struct import calcsize, iter_unpack

from nccl_forensics.decoding.pickle_walk import (
    APPENDS,
    DICT,
    GET,
    LIST,
    LONG_GET,
    LONG_PUT,
    MARK,
    PUT,
    STOP,
    STRING,
    WIDTHS,
    Known,
    Memo,
    Otherwise,
    Shape,
    Walk,
    dictionary_at,
    walked,
)
from nccl_forensics.decoding.safe_pickle import load_plain

#: A shorter list is not worth the walk.
_FEWEST = 256
#: That many stand in so many bytes where there are many more of them.
_NEAR = 1 << 16
#: So many dictionaries are walked at most, and one of so many: a list of ever new sorts is quicker unpickled as it is.
_WALKED, _ONE_OF = 64, 4
#: Ways in which dictionaries of one length may differ in where their numbers stand.
_SHAPES = 8
#: So many bytes of dictionaries that were walked are kept.
_KEPT = 4 << 20


class Walked:
    """Dictionaries that were walked, of lists under one ``name``.

    ``columns``: for each column of numbers the keys of a dictionary that tell it, of which the first counts that it has; ``floats`` are
    those that are not whole.
    """

    def __init__(self, name: str, columns: Mapping[str, Sequence[str]], floats: frozenset[str]) -> None:
        self.name = name.encode()
        self.columns, self.floats = columns, floats
        #: By the length of their bytes, their shape and their bytes but for numbers.
        self._known: dict[int, dict[Shape, dict[bytes, list[Known]]]] = {}
        self._size = 0

    def find(self, dictionary: bytes, memo: Memo) -> Known | None:
        """A dictionary that was walked before and does as this one does. The dumps of a job hold the same entries, rank for rank."""
        for shape, by_bytes in self._known.get(len(dictionary), {}).items():
            for known in by_bytes.get(shape.bare(dictionary), ()):
                if known.here(memo):
                    return known
        return None

    def keep(self, known: Known) -> None:
        """Remember a dictionary that was walked."""
        self._size += len(known.bare)
        if self._size > _KEPT:
            self._known, self._size = {}, len(known.bare)
        shapes = self._known.setdefault(len(known.bare), {})
        if known.shape in shapes or len(shapes) < _SHAPES:
            same = shapes.setdefault(known.shape, {}).setdefault(known.bare, [])
            if len(same) < _SHAPES:
                same.append(known)


def worth(many: int) -> None:
    """Raises ``Otherwise`` where a list of so many dictionaries is quicker unpickled."""
    if many < _FEWEST:
        raise Otherwise


def few(data: bytes) -> bool:
    """Whether a pickle can hold no list of so many dictionaries that it is worth a walk, as each begins with these opcodes."""
    begins = b"}("
    return data.count(begins, 0, _NEAR) < _FEWEST and data.count(begins) < _FEWEST


class Scan:
    """One pickle: ``begin`` is where the list's dictionaries begin, ``starts`` and ``ends`` where each does; ``kept`` are the first ones of
    each sort, from byte to byte, and ``known`` what was found there."""

    def __init__(self, of: Walked, data: bytes) -> None:
        self.of, self.data = of, data
        self.memo = Memo()
        self.begin = 0
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.sorts: list[int] = []
        self.kept: list[tuple[int, int]] = []
        self.known: list[Known] = []
        self._sort_of: dict[tuple[Shape, bytes], int] = {}

    def head(self) -> None:
        """Walk to where the first dictionary of the list begins. Raises ``Otherwise`` or ``IndexError``."""
        if self.data[:2] != b"\x80\x02":
            raise Otherwise
        walk = Walk(self.data, 2, self.memo)
        while not (walk.at_key() and walk.string(walk.at) == self.of.name):
            walk.step()
        walk.step()
        if self.data[walk.at] in (PUT, LONG_PUT):
            walk.step()
        if self.data[walk.at : walk.at + 2] != b"](":
            raise Otherwise
        self.begin = walk.at + 2

    def tail(self, at: int) -> None:
        """What follows must end the list and be the rest of the document, in which the name is no key once more."""
        walk = Walk(self.data, at, self.memo, [DICT, MARK, STRING, LIST, MARK, DICT], [0] * 6)
        if self.data[at] != APPENDS:
            raise Otherwise
        while self.data[walk.at] != STOP:
            if walk.at_key() and walk.string(walk.at) == self.of.name:
                raise Otherwise
            walk.step()

    def split(self, at: int) -> tuple[list[int], list[int]]:
        """Where the dictionaries from there on begin and end, the first of which begins there."""
        again = self.again()
        pieces = self.data[at + 1 :].split(again)
        starts = [at, *accumulate(map(len(again).__add__, map(len, pieces[1:])), initial=at + 1 + len(pieces[0]))]
        starts.pop()  # behind the last piece, which is longer than its dictionary
        return starts, [*starts[1:], dictionary_at(self.data, starts[-1], Memo()).at]

    def again(self) -> bytes:
        """What dictionaries of the list begin with after the first: the same key, which then is in the memo."""
        at = self.begin
        key = at + 2
        if self.data[key] in (GET, LONG_GET):
            return self.data[at : key + WIDTHS[self.data[key]]]
        behind = key + 5 + int.from_bytes(self.data[key + 1 : key + 5], "little")
        if self.data[key] != STRING or self.data[behind] not in (PUT, LONG_PUT):
            raise Otherwise
        width, opcode = (1, b"h") if self.data[behind] == PUT else (4, b"j")
        return b"}(" + opcode + self.data[behind + 1 : behind + 1 + width]

    def every(self) -> None:
        """The sort of each dictionary. Raises ``Otherwise`` or ``IndexError``."""
        starts, ends = self.starts, self.ends = self.split(self.begin)
        worth(len(starts))
        by_length: defaultdict[int, list[int]] = defaultdict(list)
        for place, length in enumerate(map(sub, ends, starts)):
            by_length[length].append(place)
        shapes: dict[int, dict[Shape, dict[bytes, list[int]]]] = {}
        sorts = self.sorts = [-1] * len(starts)
        most = _WALKED + len(starts) // _ONE_OF
        for place, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if sorts[place] >= 0:
                continue
            if len(self.kept) == most:
                raise Otherwise
            known = self.first(start, end)
            number = sorts[place] = self.add(start, end, known)
            if known.writes:
                continue
            own = shapes.setdefault(end - start, {})
            twins = own.get(known.shape)
            if twins is None:
                if len(own) == _SHAPES:
                    raise Otherwise
                twins = own[known.shape] = self._twins(known.shape, end - start, by_length[end - start])
            for twin in twins[known.bare]:
                if sorts[twin] < 0:
                    sorts[twin] = number
        self.tail(ends[-1])

    def _twins(self, shape: Shape, length: int, places: list[int]) -> dict[bytes, list[int]]:
        """Dictionaries of one length by their bytes but for the numbers of a shape: byte by byte, which is many times as fast as one by
        one."""
        rest = bytearray(b"".join([self.data[self.starts[n] : self.ends[n]] for n in places]))
        nothing = bytes(len(places))
        for start, code, _ in shape.spans:
            for at in range(start, start + calcsize(code)):
                rest[at::length] = nothing
        twins: defaultdict[bytes, list[int]] = defaultdict(list)
        for place, (row,) in zip(places, iter_unpack(f"{length}s", rest), strict=True):
            twins[row].append(place)
        return twins

    def first(self, start: int, end: int) -> Known:
        """A dictionary that is met for the first time."""
        known = self.of.find(self.data[start:end], self.memo)
        if known is not None:
            self.memo.write(known.writes)
            return known
        known, at = walked(self.data, start, self.memo, self.of.columns, self.of.floats)
        if at != end:
            raise Otherwise
        self.of.keep(known)
        return known

    def add(self, start: int, end: int, known: Known) -> int:
        """Keep the first one of a sort; returns its number."""
        self.kept.append((start, end))
        self.known.append(known)
        if not known.writes:
            self._sort_of[known.shape, known.bare] = len(self.kept) - 1
        return len(self.kept) - 1

    def sort_of(self, start: int, end: int) -> int:
        """The number of the sort of a dictionary, which is kept where it is the first one."""
        known = self.first(start, end)
        number = None if known.writes else self._sort_of.get((known.shape, known.bare))
        return self.add(start, end, known) if number is None else number

    def document(self, end: int) -> dict[object, object]:
        """The document with what is kept of the list, which ends there. Raises ``Otherwise``, and what ``load_plain`` raises."""
        kept = b"".join([self.data[a:b] for a, b in self.kept])
        document = load_plain(self.data[: self.begin] + kept + self.data[end:])
        held = document.get(self.of.name.decode()) if isinstance(document, dict) else None
        if not isinstance(document, dict) or not isinstance(held, list) or len(held) != len(self.kept):
            raise Otherwise
        for dictionary, known in zip(held, self.known, strict=True):
            if len(dictionary) != known.shape.fields:  # a key stands twice
                raise Otherwise
        return document
