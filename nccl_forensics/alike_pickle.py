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

import re
from dataclasses import dataclass, field
from struct import Struct, unpack

from nccl_forensics.safe_pickle import load_plain

#: A shorter list is not worth the walk.
_FEWEST = 256
#: So many dictionaries are walked at most, and one of so many: a list of ever new sorts is quicker unpickled as it is.
_WALKED, _ONE_OF = 64, 4


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers that dictionaries of one sort, or of a few, do not share: by key, of those that stand at ``places`` in the list. ``like`` has
    the same keys in the same order."""

    like: dict[object, object]
    places: list[int]
    by_key: dict[str, list[int] | list[float]]


@dataclass(frozen=True, slots=True)
class Alike:
    """``document`` with one dictionary of each sort in its list; ``sorts`` has for each dictionary of the whole list the place of its sort
    there, and ``numbers`` what its own are."""

    document: dict[object, object]
    sorts: list[int]
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
        like = kept[layout.like]
        if len(like) != layout.fields:  # a key stands twice
            return None
        numbers.append(Numbers(like, layout.places, layout.columns()))
    return Alike(document, scan.sorts, numbers)


class _Otherwise(Exception):
    """Not as torch's writer sets it."""


_DICT, _LIST, _MARK, _TUPLE2, _LONG1, _SETITEMS, _APPENDS, _STOP = b"}](\x86\x8aue."
_STRING, _GET, _LONG_GET, _PUT, _LONG_PUT = b"Xhjqr"
#: Opcodes that push one value, with their width.
_WIDTHS = {_DICT: 1, _LIST: 1, _MARK: 1, **dict.fromkeys(b"N)\x88\x89", 1), **dict.fromkeys(b"Kh", 2), **dict.fromkeys(b"M", 3)}
_WIDTHS |= {**dict.fromkeys(b"Jj", 5), **dict.fromkeys(b"G", 9)}
#: Numbers of fixed width: their opcode, and how to read what follows. A float has its first byte first, which ``Struct`` does not mix.
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
    writes: bool = False

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
        self.writes = True
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
        if opcode not in (_GET, _LONG_GET):
            return None
        return self.memo.strings.get(int.from_bytes(self.data[at + 1 : at + _WIDTHS[opcode]], "little"))

    def at_key(self) -> bool:
        """Whether the next value is a key of the document, which lies at the bottom of the stack."""
        return self.stack[:2] == [_DICT, _MARK] and len(self.stack) % 2 == 0 and _MARK not in self.stack[2:]


@dataclass(slots=True)
class _Layout:
    """Dictionaries of one length with numbers at the same places; ``known`` are all their other bytes, each with the sort."""

    shape: Struct
    codes: tuple[str, ...]
    keys: tuple[str, ...]
    fields: int
    like: int
    known: dict[tuple[object, ...], int] = field(default_factory=dict)
    places: list[int] = field(default_factory=list)
    told: list[tuple[int | bytes, ...]] = field(default_factory=list)

    def columns(self) -> dict[str, list[int] | list[float]]:
        """The numbers by key."""
        columns: dict[str, list[int] | list[float]] = {}
        for key, code, values in zip(self.keys, self.codes, zip(*self.told, strict=True), strict=True):
            columns[key] = list(unpack(f">{len(values)}d", b"".join(values))) if code == "8s" else list(values)
        return columns


class _Scan:
    """One pickle: ``kept`` are the first dictionaries of each sort, from byte to byte."""

    def __init__(self, data: bytes, name: bytes, own: frozenset[str]) -> None:
        self._data, self._name, self._own = data, name, own
        self._memo = _Memo()
        self.kept: list[tuple[int, int]] = []
        self.sorts: list[int] = []
        self.layouts: list[_Layout] = []

    def run(self) -> tuple[int, int]:
        """Where the dictionaries of the list begin and end. Raises ``_Otherwise`` or ``IndexError``."""
        begin = self._head()
        again = self._beginning(begin)
        starts = [begin, *(match.start() for match in re.finditer(re.escape(again), self._data[begin + 1 :]))]
        starts[1:] = [start + begin + 1 for start in starts[1:]]
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
        data, sorts, kept = self._data, self.sorts, self.kept
        by_length: dict[int, list[_Layout]] = {}
        most = _WALKED + len(starts) // _ONE_OF
        for place, (start, end) in enumerate(zip(starts, ends, strict=True)):
            for layout in by_length.get(end - start, ()):
                told = layout.shape.unpack_from(data, start)
                sort = layout.known.get(told[::2])
                if sort is not None:
                    break
            else:
                sort = len(kept)
                if sort == most:
                    raise _Otherwise
                kept.append((start, end))
                met = self._first(start, end, sort, by_length)
                if met is None:
                    sorts.append(sort)
                    continue
                layout, told = met
            sorts.append(sort)
            layout.places.append(place)
            layout.told.append(told[1::2])

    def _first(
        self, start: int, end: int, sort: int, by_length: dict[int, list[_Layout]]
    ) -> tuple[_Layout, tuple[int | bytes, ...]] | None:
        """The layout of a dictionary that is met for the first time, and what it holds by it; None for one that no other can be like."""
        walk = self._dictionary(start, self._memo)
        if walk.at != end:
            raise _Otherwise
        if walk.writes:
            return None
        spans, codes, keys, at = ["<"], list[str](), list[str](), start
        for key_at, value_at in zip(walk.places[::2], walk.places[1::2], strict=True):
            key = (walk.string(key_at) or b"").decode("utf-8", "replace")
            opcode = self._data[value_at : value_at + (2 if self._data[value_at] == _LONG1 else 1)]
            code = _NUMBERS.get(opcode)
            if key in self._own and code is not None:
                value_at += len(opcode)
                spans += f"{value_at - at}s", code
                codes.append(code)
                keys.append(key)
                at = value_at + _BYTES[code]
        shape = Struct("".join([*spans, f"{end - at}s"]))
        layouts = by_length.setdefault(end - start, [])
        layout = next((known for known in layouts if known.shape.format == shape.format and known.keys == tuple(keys)), None)
        if layout is None:
            layout = _Layout(shape, tuple(codes), tuple(keys), len(walk.places) // 2, sort)
            layouts.append(layout)
            self.layouts.append(layout)
        told = shape.unpack_from(self._data, start)
        layout.known[told[::2]] = sort
        return layout, told

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
