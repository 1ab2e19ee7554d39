"""A walk over pickles as torch's writer sets them, opcode by opcode: what lies on the stack and in the memo, without building anything.

torch's writer (torch/csrc/jit/serialization/pickler.cpp, protocol 2) uses few opcodes. Any other, or one in a place where it would change
what was set before, ends the walk (``Otherwise``).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


class Otherwise(Exception):
    """Not as torch's writer sets it."""


DICT, LIST, MARK, TUPLE2, LONG1, SETITEMS, APPENDS, STOP = b"}](\x86\x8aue."
STRING, GET, LONG_GET, PUT, LONG_PUT = b"Xhjqr"
#: Opcodes that push one value, with their width.
WIDTHS = {DICT: 1, LIST: 1, MARK: 1, **dict.fromkeys(b"N)\x88\x89", 1), **dict.fromkeys(b"Kh", 2), **dict.fromkeys(b"M", 3)}
WIDTHS |= {**dict.fromkeys(b"Jj", 5), **dict.fromkeys(b"G", 9)}
#: Numbers of fixed width: their opcode, and how ``struct`` reads what follows. The bytes of a float stand the other way round.
_NUMBERS = {b"K": "<B", b"M": "<H", b"J": "<i", b"\x8a\x08": "<q", b"G": ">d"}
FLOAT = ">d"


@dataclass(slots=True)
class Memo:
    """What the pickle wrote into the memo so far: all numbers, and those of strings; ``sure`` are pairs that were found to be so. No number
    is written twice, so that they stay so."""

    written: set[int] = field(default_factory=set)
    strings: dict[int, bytes] = field(default_factory=dict)
    sure: set[tuple[int, bytes | None]] = field(default_factory=set)

    def write(self, writes: Sequence[tuple[int, bytes | None]]) -> None:
        """Add numbers, with their strings where they are of strings."""
        self.written.update(number for number, _ in writes)
        self.strings.update((number, text) for number, text in writes if text is not None)

    def copy(self) -> Memo:
        """One that can be written to by itself."""
        return Memo(set(self.written), dict(self.strings), set(self.sure))

    def has(self, pairs: frozenset[tuple[int, bytes | None]]) -> bool:
        """Whether these numbers are of these strings, or of none where None stands for one."""
        if pairs <= self.sure:
            return True
        if any(self.strings.get(number) != text for number, text in pairs):
            return False
        self.sure.update(pair for pair in pairs if pair[1] is not None)
        return True


@dataclass(slots=True)
class Walk:
    """Opcode by opcode from ``at``: what lies on the stack, as the opcodes that pushed it and where they stand."""

    data: bytes
    at: int
    memo: Memo
    stack: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)

    def step(self) -> list[int]:
        """Take one opcode; returns where the items stand that it took off the stack. Raises ``Otherwise``, or ``IndexError`` at the end."""
        data, at, stack = self.data, self.at, self.stack
        opcode = data[at]
        width = WIDTHS.get(opcode)
        if width is None:
            if opcode == STRING:
                width = 5 + int.from_bytes(data[at + 1 : at + 5], "little")
            elif opcode == LONG1:
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
        if opcode in (PUT, LONG_PUT):
            width = 2 if opcode == PUT else 5
            self._write(int.from_bytes(self.data[self.at + 1 : self.at + width], "little"))
            self.at += width
            return []
        self.at += 1
        if opcode == TUPLE2:
            if len(stack) < 2 or MARK in stack[-2:]:
                raise Otherwise
            stack[-2:], places[-2:] = [TUPLE2], [places[-2]]
            return []
        filled = {SETITEMS: DICT, APPENDS: LIST}.get(opcode)
        if filled is None or MARK not in stack:
            raise Otherwise
        mark = len(stack) - 1 - stack[::-1].index(MARK)
        taken = places[mark + 1 :]
        if mark == 0 or stack[mark - 1] != filled or (filled == DICT and len(taken) % 2):
            raise Otherwise
        del stack[mark:], places[mark:]
        return taken

    def _write(self, number: int) -> None:
        if number in self.memo.written or not self.stack:
            raise Otherwise
        self.memo.written.add(number)
        if self.stack[-1] == STRING:
            start = self.places[-1]
            self.memo.strings[number] = self.data[start + 5 : self.at]

    def string(self, at: int) -> bytes | None:
        """The string that the opcode there pushes; None where it pushes something else, or what is not known."""
        opcode = self.data[at]
        if opcode == STRING:
            return self.data[at + 5 : at + 5 + int.from_bytes(self.data[at + 1 : at + 5], "little")]
        number = self.number(at)
        return None if number is None else self.memo.strings.get(number)

    def number(self, at: int) -> int | None:
        """The number of the memo whose value the opcode there pushes."""
        opcode = self.data[at]
        return int.from_bytes(self.data[at + 1 : at + WIDTHS[opcode]], "little") if opcode in (GET, LONG_GET) else None

    def at_key(self) -> bool:
        """Whether the next value is a key of the document, which lies at the bottom of the stack."""
        return self.stack[:2] == [DICT, MARK] and len(self.stack) % 2 == 0 and MARK not in self.stack[2:]


@dataclass(frozen=True, slots=True)
class Shape:
    """A dictionary but for its numbers: where these stand in its bytes, how ``struct`` reads them and for which column; and how many keys
    it has."""

    spans: tuple[tuple[int, str, str], ...]
    fields: int

    def bare(self, dictionary: bytes) -> bytes:
        """The bytes of one with nothing in place of its numbers."""
        rest = bytearray(dictionary)
        for at, code, _ in self.spans:
            width = struct.calcsize(code)
            rest[at : at + width] = bytes(width)
        return bytes(rest)

    def numbers(self, dictionary: bytes) -> dict[str, int | float]:
        """The numbers of one, by column."""
        return {column: struct.unpack_from(code, dictionary, at)[0] for at, code, column in self.spans}


@dataclass(frozen=True, slots=True)
class Known:
    """A dictionary that was walked: what it writes into the memo, and the numbers of the memo by which it has its keys. The walk over the
    same opcodes is the same where these keys are."""

    shape: Shape
    bare: bytes
    writes: tuple[tuple[int, bytes | None], ...]
    gets: frozenset[tuple[int, bytes | None]]

    def here(self, memo: Memo) -> bool:
        """Whether the walk would be the same with this memo."""
        return memo.has(self.gets) and (not self.writes or memo.written.isdisjoint([n for n, _ in self.writes]))


def dictionary_at(data: bytes, at: int, memo: Memo) -> Walk:
    """The walk over one dictionary, with the places of its keys and values by turns. Raises ``Otherwise`` where none stands there that
    changes only what it began itself."""
    walk = Walk(data, at, memo)
    if data[at : at + 2] != b"}(":
        raise Otherwise
    taken: list[int] = []
    while walk.stack != [DICT] or not taken:
        taken = walk.step()
    if data[walk.at] in (PUT, LONG_PUT):
        walk.step()
    walk.places = taken
    return walk


def walked(data: bytes, at: int, memo: Memo, columns: Mapping[str, Sequence[str]], floats: frozenset[str]) -> tuple[Known, int]:
    """The dictionary there, and where it ends. Raises ``Otherwise``.

    ``columns``: for each the keys that tell it, of which the first counts that a dictionary has; one of whole numbers is not told by a
    float.
    """
    before = set(memo.written)
    walk = dictionary_at(data, at, memo)
    written = memo.written - before
    values: dict[str, int] = {}
    gets: dict[int, bytes | None] = {}
    for key_at, value_at in zip(walk.places[::2], walk.places[1::2], strict=True):
        text = walk.string(key_at)
        if (number := walk.number(key_at)) is not None and number not in written:
            gets[number] = text
        values[(text or b"").decode("utf-8", "replace")] = value_at
    spans: list[tuple[int, str, str]] = []
    for column, keys in columns.items():
        value = next((values[key] for key in keys if key in values), None)
        if value is not None:
            opcode = data[value : value + (2 if data[value] == LONG1 else 1)]
            code = _NUMBERS.get(opcode)
            if code is not None and (code != FLOAT or column in floats):
                spans.append((value + len(opcode) - at, code, column))
    shape = Shape(tuple(spans), len(walk.places) // 2)
    bare = shape.bare(data[at : walk.at])
    return Known(shape, bare, tuple((n, memo.strings.get(n)) for n in sorted(written)), frozenset(gets.items())), walk.at
