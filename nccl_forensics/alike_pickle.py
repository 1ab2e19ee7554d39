"""Lists of thousands of dictionaries of a few sorts in a pickle, as recorders of rings write them: one of each sort is unpickled.

torch's writer (torch/csrc/jit/serialization/pickler.cpp, protocol 2) sets equal values with equal opcodes, and what it wrote before by its
number in the memo. Two entries of a ring therefore differ in a few numbers of fixed width, and else only where they tell of something else.
So an entry whose bytes are those of an earlier one but for such numbers need not be built: its numbers are cut out of the bytes, and what it
holds besides is what the earlier one holds.

That is exact, and no guess at what entries look like. The first of each sort is walked opcode by opcode: it must be one dictionary, filled
in one go, that changes nothing it did not begin itself and writes nothing into the memo. Its twins do the same, as they do it by the same
opcodes. No number of the memo is written twice. Whatever is not so is left to ``safe_pickle`` as a whole, which also loads what is kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import sub
from struct import iter_unpack, unpack

from nccl_forensics.safe_pickle import load_plain

#: A shorter list is not worth the walk.
_FEWEST = 256
#: So many dictionaries are walked at most, and one of so many: a list of ever new sorts is quicker unpickled as it is.
_WALKED, _ONE_OF = 64, 4
#: Ways in which dictionaries of one length may differ in where their numbers stand.
_SHAPES = 8


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers that dictionaries of one sort, or of the few in ``sorts``, do not share: by key, of those that stand at ``places`` in the list.
    ``like`` has the same keys in the same order."""

    like: dict[object, object]
    sorts: list[int]
    places: list[int]
    by_key: dict[str, Sequence[int] | Sequence[float]]


@dataclass(frozen=True, slots=True)
class Alike:
    """``document`` with one dictionary of each sort in its list; ``sorts`` has for each dictionary of the whole list the place of its sort
    there, and ``numbers`` what its own are; those at the places ``alone`` are their sorts' only ones."""

    document: dict[object, object]
    sorts: list[int]
    alone: list[int]
    numbers: list[Numbers]


def load_alike(data: bytes, name: str, own: frozenset[str]) -> Alike | None:
    """The dictionaries of the list that the document holds under this name, with the numbers of the keys ``own`` apart.

    None where it is not sure that this tells all, or where it would take longer. Raises what ``load_plain`` raises.
    """
    scan = _Scan(data, name.encode(), own)
    try:
        begin, end = scan.run()
    except (_Otherwise, IndexError):
        return None
    document = load_plain(data[:begin] + b"".join([data[a:b] for a, b in scan.kept]) + data[end:])
    kept = document.get(name) if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(kept, list) or len(kept) != len(scan.kept):
        return None
    numbers = []
    for layout in scan.layouts:
        layout.members.sort()
        like = kept[layout.like]
        if len(like) != layout.shape.fields:  # a key stands twice
            return None
        numbers.append(Numbers(like, layout.sorts, layout.members, layout.columns()))
    return Alike(document, scan.sorts, scan.alone, numbers)


class _Otherwise(Exception):
    """Not as torch's writer sets it."""


_DICT, _LIST, _MARK, _TUPLE2, _LONG1, _SETITEMS, _APPENDS, _STOP = b"}](\x86\x8aue."
_STRING, _GET, _LONG_GET, _PUT, _LONG_PUT = b"Xhjqr"
#: Opcodes that push one value, with their width.
_WIDTHS = {_DICT: 1, _LIST: 1, _MARK: 1, **dict.fromkeys(b"N)\x88\x89", 1), **dict.fromkeys(b"Kh", 2), **dict.fromkeys(b"M", 3)}
_WIDTHS |= {**dict.fromkeys(b"Jj", 5), **dict.fromkeys(b"G", 9)}
#: Numbers of fixed width: their opcode, and how to read what follows. Of a float the first byte stands first.
_NUMBERS = {b"K": "B", b"M": "H", b"J": "i", b"\x8a\x08": "q", b"G": "8s"}
_BYTES = {"B": 1, "H": 2, "i": 4, "q": 8, "8s": 8}


@dataclass(slots=True)
class _Memo:
    """What the pickle wrote into the memo so far: all numbers, and those of strings."""

    written: set[int] = field(default_factory=set)
    strings: dict[int, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class _Walk:
    """Opcode by opcode from ``at``: what lies on the stack, as the opcodes that pushed it and where they stand."""

    data: bytes
    at: int
    memo: _Memo
    stack: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)

    def step(self) -> list[int]:
        """Take one opcode; returns where the items stand that it took off the stack. Raises ``_Otherwise``."""
        data, at, stack = self.data, self.at, self.stack
        opcode = data[at]
        width = _WIDTHS.get(opcode)
        if width is None:
            if opcode == _STRING:
                width = 5 + int.from_bytes(data[at + 1 : at + 5], "little")
            elif opcode == _LONG1:
                width = 2 + data[at + 1]
            else:
                return self._other(opcode)
        stack.append(opcode)
        self.places.append(at)
        self.at = at + width
        return []

    def _other(self, opcode: int) -> list[int]:
        """An opcode that does not push."""
        stack, places = self.stack, self.places
        if opcode in (_PUT, _LONG_PUT):
            width = 2 if opcode == _PUT else 5
            self._write(int.from_bytes(self.data[self.at + 1 : self.at + width], "little"))
            self.at += width
            return []
        self.at += 1
        if opcode == _TUPLE2:
            if len(stack) < 2 or _MARK in stack[-2:]:
                raise _Otherwise
            stack[-2:], places[-2:] = [_TUPLE2], [places[-2]]
            return []
        filled = {_SETITEMS: _DICT, _APPENDS: _LIST}.get(opcode)
        if filled is None or _MARK not in stack:
            raise _Otherwise
        mark = len(stack) - 1 - stack[::-1].index(_MARK)
        taken = places[mark + 1 :]
        if mark == 0 or stack[mark - 1] != filled or (filled == _DICT and len(taken) % 2):
            raise _Otherwise
        del stack[mark:], places[mark:]
        return taken

    def _write(self, number: int) -> None:
        if number in self.memo.written or not self.stack:
            raise _Otherwise
        self.memo.written.add(number)
        if self.stack[-1] == _STRING:
            start = self.places[-1]
            self.memo.strings[number] = self.data[start + 5 : self.at]

    def string(self, at: int) -> bytes | None:
        """The string that the opcode there pushes; None where it pushes something else, or what is not known."""
        opcode = self.data[at]
        if opcode == _STRING:
            return self.data[at + 5 : at + 5 + int.from_bytes(self.data[at + 1 : at + 5], "little")]
        number = self.number(at)
        return None if number is None else self.memo.strings.get(number)

    def number(self, at: int) -> int | None:
        """The number of the memo whose value the opcode there pushes."""
        opcode = self.data[at]
        return int.from_bytes(self.data[at + 1 : at + _WIDTHS[opcode]], "little") if opcode in (_GET, _LONG_GET) else None

    def at_key(self) -> bool:
        """Whether the next value is a key of the document, which lies at the bottom of the stack."""
        return self.stack[:2] == [_DICT, _MARK] and len(self.stack) % 2 == 0 and _MARK not in self.stack[2:]


@dataclass(frozen=True, slots=True)
class _Shape:
    """A dictionary but for its numbers: where these stand in its bytes, as what, and under which keys; and how many keys it has."""

    spans: tuple[tuple[int, str], ...]
    keys: tuple[str, ...]
    fields: int

    def bare(self, dictionary: bytes) -> bytes:
        """The bytes of one with nothing in place of its numbers."""
        rest = bytearray(dictionary)
        for at, code in self.spans:
            rest[at : at + _BYTES[code]] = bytes(_BYTES[code])
        return bytes(rest)


@dataclass(frozen=True, slots=True)
class _Known:
    """A dictionary that was walked before: what it writes into the memo, and the numbers of the memo by which it has its keys. The walk over
    the same opcodes is the same where these keys are."""

    shape: _Shape
    bare: bytes
    writes: tuple[tuple[int, bytes | None], ...]
    gets: tuple[tuple[int, bytes | None], ...]

    def here(self, memo: _Memo) -> bool:
        """Whether the walk would be the same with this memo."""
        strings = memo.strings
        return all(strings.get(number) == text for number, text in self.gets) and memo.written.isdisjoint([n for n, _ in self.writes])


class _Walked:
    """Dictionaries that were walked, by length. The dumps of a job begin with the same entries, rank for rank."""

    #: So many bytes are kept at most.
    MOST = 4 << 20

    def __init__(self) -> None:
        self._by_length: dict[int, list[_Known]] = {}
        self._size = 0

    def find(self, dictionary: bytes, memo: _Memo) -> _Known | None:
        """The one that does as this one does."""
        for known in self._by_length.get(len(dictionary), ()):
            if known.shape.bare(dictionary) == known.bare and known.here(memo):
                return known
        return None

    def add(self, known: _Known) -> None:
        """Keep one."""
        self._size += len(known.bare)
        if self._size > self.MOST:
            self._by_length, self._size = {}, len(known.bare)
        alike = self._by_length.setdefault(len(known.bare), [])
        if len(alike) < _SHAPES:
            alike.append(known)


_WALKS = _Walked()


@dataclass(slots=True)
class _Layout:
    """Dictionaries of one length, of which the ``members`` have numbers at the same places; ``twins``: by all other bytes where in the list they
    stand that have them."""

    shape: _Shape
    like: int
    places: list[int]
    together: bytes
    twins: defaultdict[tuple[bytes, ...], list[int]] = field(default_factory=lambda: defaultdict(list))
    members: list[int] = field(default_factory=list)
    sorts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        many = len(self.places)
        length = len(self.together) // many
        rest = bytearray(self.together)
        nothing, twins = bytes(many), self.twins
        for start, code in self.shape.spans:
            for at in range(start, start + _BYTES[code]):
                rest[at::length] = nothing
        for place, row in zip(self.places, iter_unpack(f"{length}s", rest), strict=True):
            twins[row].append(place)

    def columns(self) -> dict[str, Sequence[int] | Sequence[float]]:
        """The numbers of the members by key, in their order."""
        of = (
            None
            if self.members == self.places
            else list(map(dict(zip(self.places, range(len(self.places)), strict=True)).__getitem__, self.members))
        )
        columns: dict[str, Sequence[int] | Sequence[float]] = {}
        for key, (at, code) in zip(self.shape.keys, self.shape.spans, strict=True):
            values = self._column(at, code)
            columns[key] = values if of is None else list(map(values.__getitem__, of))
        return columns

    def _column(self, at: int, code: str) -> Sequence[int] | Sequence[float]:
        """The numbers that stand at one place in all of them: byte by byte, which is many times as fast as one by one."""
        many, width = len(self.places), _BYTES[code]
        length = len(self.together) // many
        if width == 1:
            return self.together[at::length]
        numbers = bytearray(many * width)
        for byte in range(width):
            numbers[byte::width] = self.together[at + byte :: length]
        return unpack(f">{many}d" if code == "8s" else f"<{many}{code}", numbers)


class _Scan:
    """One pickle: ``kept`` are the first dictionaries of each sort, from byte to byte."""

    def __init__(self, data: bytes, name: bytes, own: frozenset[str]) -> None:
        self._data, self._name, self._own = data, name, own
        self._memo = _Memo()
        self.kept: list[tuple[int, int]] = []
        self.sorts: list[int] = []
        self.alone: list[int] = []
        self.layouts: list[_Layout] = []

    def run(self) -> tuple[int, int]:
        """Where the dictionaries of the list begin and end. Raises ``_Otherwise`` or ``IndexError``."""
        begin = self._head()
        again = self._beginning(begin)
        pieces = self._data[begin + 1 :].split(again)
        starts = [begin, *accumulate(map(len(again).__add__, map(len, pieces[1:])), initial=begin + 1 + len(pieces[0]))]
        starts.pop()  # behind the last piece, which is longer than its dictionary
        if len(starts) < _FEWEST:
            raise _Otherwise
        end = self._dictionary(starts[-1], _Memo()).at
        self._entries(starts, [*starts[1:], end])
        self._tail(end)
        return begin, end

    def _head(self) -> int:
        """Where the first dictionary of the list begins."""
        if self._data[:2] != b"\x80\x02":
            raise _Otherwise
        walk = _Walk(self._data, 2, self._memo)
        while not (walk.at_key() and walk.string(walk.at) == self._name):
            walk.step()
        walk.step()
        if self._data[walk.at] in (_PUT, _LONG_PUT):
            walk.step()
        if self._data[walk.at : walk.at + 2] != b"](":
            raise _Otherwise
        return walk.at + 2

    def _tail(self, at: int) -> None:
        """What follows must end the list and be the rest of the document, in which the name is no key once more."""
        walk = _Walk(self._data, at, self._memo, [_DICT, _MARK, _STRING, _LIST, _MARK, _DICT], [0] * 6)
        if self._data[at] != _APPENDS:
            raise _Otherwise
        while self._data[walk.at] != _STOP:
            if walk.at_key() and walk.string(walk.at) == self._name:
                raise _Otherwise
            walk.step()

    def _beginning(self, at: int) -> bytes:
        """What dictionaries of the list begin with after the first: the same key, which then is in the memo."""
        key = at + 2
        if self._data[key] in (_GET, _LONG_GET):
            return self._data[at : key + _WIDTHS[self._data[key]]]
        behind = key + 5 + int.from_bytes(self._data[key + 1 : key + 5], "little")
        if self._data[key] != _STRING or self._data[behind] not in (_PUT, _LONG_PUT):
            raise _Otherwise
        width, opcode = (1, b"h") if self._data[behind] == _PUT else (4, b"j")
        return b"}(" + opcode + self._data[behind + 1 : behind + 1 + width]

    def _entries(self, starts: list[int], ends: list[int]) -> None:
        """The sort of each dictionary, and its numbers."""
        data, kept = self._data, self.kept
        by_length: defaultdict[int, list[int]] = defaultdict(list)
        for place, length in enumerate(map(sub, ends, starts)):
            by_length[length].append(place)
        layouts: dict[int, list[_Layout]] = {}
        sorts = self.sorts = [-1] * len(starts)
        most = _WALKED + len(starts) // _ONE_OF
        for place, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if sorts[place] >= 0:
                continue
            if len(kept) == most:
                raise _Otherwise
            sorts[place] = len(kept)
            shape = self._first(start, end)
            if shape is None:
                self.alone.append(place)
            else:
                own = layouts.setdefault(end - start, [])
                layout = next((known for known in own if known.shape == shape), None)
                if layout is None:
                    if len(own) == _SHAPES:
                        raise _Otherwise
                    alike = by_length[end - start]
                    layout = _Layout(shape, len(kept), alike, b"".join([data[starts[n] : ends[n]] for n in alike]))
                    own.append(layout)
                    self.layouts.append(layout)
                number = len(kept)
                sorts[place] = -1
                members = layout.members
                layout.sorts.append(number)
                for twin in layout.twins[(shape.bare(data[start:end]),)]:
                    if sorts[twin] < 0:
                        sorts[twin] = number
                        members.append(twin)
            kept.append((start, end))

    def _first(self, start: int, end: int) -> _Shape | None:
        """The shape of a dictionary that is met for the first time; None for one that no other can be like, as it writes into the memo."""
        memo, dictionary = self._memo, self._data[start:end]
        known = _WALKS.find(dictionary, memo)
        if known is None:
            known = self._known(start, end, dictionary)
            _WALKS.add(known)
        else:
            memo.written.update(number for number, _ in known.writes)
            memo.strings.update((number, text) for number, text in known.writes if text is not None)
        return None if known.writes else known.shape

    def _known(self, start: int, end: int, dictionary: bytes) -> _Known:
        """Walk over a dictionary."""
        memo = self._memo
        before = set(memo.written)
        walk = self._dictionary(start, memo)
        if walk.at != end:
            raise _Otherwise
        written = memo.written - before
        spans, keys, gets = list[tuple[int, str]](), list[str](), dict[int, bytes | None]()
        for key_at, value_at in zip(walk.places[::2], walk.places[1::2], strict=True):
            text = walk.string(key_at)
            if (number := walk.number(key_at)) is not None and number not in written:
                gets[number] = text
            key = (text or b"").decode("utf-8", "replace")
            opcode = self._data[value_at : value_at + (2 if self._data[value_at] == _LONG1 else 1)]
            code = _NUMBERS.get(opcode)
            if key in self._own and code is not None:
                spans.append((value_at + len(opcode) - start, code))
                keys.append(key)
        shape = _Shape(tuple(spans), tuple(keys), len(walk.places) // 2)
        return _Known(shape, shape.bare(dictionary), tuple((n, memo.strings.get(n)) for n in sorted(written)), tuple(gets.items()))

    def _dictionary(self, at: int, memo: _Memo) -> _Walk:
        """The walk over one dictionary, with the places of its keys and values by turns. Raises ``_Otherwise`` where none stands there."""
        walk = _Walk(self._data, at, memo)
        if self._data[at : at + 2] != b"}(":
            raise _Otherwise
        taken: list[int] = []
        while walk.stack != [_DICT] or not taken:
            taken = walk.step()
        if self._data[walk.at] in (_PUT, _LONG_PUT):
            walk.step()
        walk.places = taken
        return walk
