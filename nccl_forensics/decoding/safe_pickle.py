"""Pickles of plain data: every class, call and persistent id is refused, so that a planted dump cannot execute anything.

Two locks. The unpickler refuses every look-up of a name. Before it runs, the opcodes are scanned, because a pickle can also harm without
naming a class: a memo number of two thousand million fills memory, tuples of tuples take for ever to hash, a duplicated top of the stack
grows without bound. The scan is exact, and linear: one pattern passes over runs of harmless opcodes, as torch's own writer
(torch/csrc/jit/serialization/pickler.cpp, protocol 2) emits them; everything else is read opcode by opcode.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import warnings
from functools import lru_cache


class RefusedPickle(ValueError):
    """The pickle asks for a class, a call, a persistent object, or for more memory or time than its size justifies."""


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        raise RefusedPickle(f"refused: the pickle names {module}.{name}"[:200])

    def persistent_load(self, pid: object) -> object:
        raise RefusedPickle("refused: the pickle names a persistent object")


def load_plain(data: bytes) -> object:
    """The containers, numbers, strings, bools and None of a pickle. Raises ``RefusedPickle`` or ``pickle.UnpicklingError``/``EOFError``."""
    with warnings.catch_warnings():
        # Escapes that are none, in a damaged argument of text, are no matter for a warning.
        warnings.simplefilter("ignore", DeprecationWarning)
        return _load_plain(data)


def _load_plain(data: bytes) -> object:
    if not _is_torch_like(data):
        _check_each(data)
    try:
        return _Plain(io.BytesIO(data)).load()
    except RefusedPickle:
        raise
    except (AttributeError, ImportError, IndexError, KeyError, TypeError, ValueError, OverflowError) as problem:
        raise pickle.UnpicklingError(f"broken pickle: {type(problem).__name__}: {problem}"[:200]) from problem


def is_pickle(head: bytes) -> bool:
    """Looks like a binary pickle: PROTO opcode with a known protocol and an opcode after it."""
    return len(head) >= 3 and head[0] == 0x80 and head[1] in (2, 3, 4, 5) and head[2:3] in _OPCODES


_OPCODES = {bytes([ord(op.code)]) for op in pickletools.opcodes if op.name not in ("STOP", "PROTO")}

_GET = rb"(?:h.|j....)"
#: A run of opcodes that push plain values or fill lists and dicts. A GET that leads to TUPLE2 or stands before a string ends it, because
#: there it counts whether it gets a string. PUT ends it, because it can change what a memo number holds.
_HARMLESS = (
    rb"[(}\]aesuN\x88\x89]|"
    + _GET
    + rb"(?![X\x86]|"
    + _GET
    + rb"\x86)|K.|M..|J....|G.{8}|\x8a(?:\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8}|\x09.{9})"
)
#: Pairs of strings known by number (the name and the description of a group stand in every entry) that a run may hold, at most.
_PAIRS = 16


@lru_cache(maxsize=64)
def _run(pairs: tuple[bytes, ...]) -> re.Pattern[bytes]:
    """The pattern of a run in which these opcodes, each a tuple of two strings by their memo numbers, may stand too."""
    return re.compile(rb"(?:" + b"".join(re.escape(pair) + b"|" for pair in pairs) + _HARMLESS + rb")*+", re.DOTALL)


_X, _H, _J, _Q, _R, _TUPLE2 = b"Xhjqr\x86"


def _is_torch_like(data: bytes) -> bool:
    """All opcodes are among those torch writes, in the way it uses them: nothing can go wrong with it. False means: look closer."""
    if data[:2] != b"\x80\x02" or len(data) >= 1 << 30:
        return False
    strings: set[int] = set()  # memo numbers that hold a string
    at, end = 2, len(data)
    pushed = 0  # strings on top of the stack, as far as just pushed
    literal = False  # the last opcode pushed a new string
    known: list[tuple[int, int]] = []  # place and number of the strings just pushed by number, without others between
    pairs: dict[bytes, None] = {}
    paired: set[int] = set()  # the numbers of these
    run = _run(())
    while at < end:
        opcode = data[at]
        if opcode == _X:
            at += 5 + int.from_bytes(data[at + 1 : at + 5], "little")
            pushed += 1
            known.clear()
            number = data[at + 1] if data[at : at + 1] == b"q" and at + 1 < end else None
            literal = number is None or number > end or number in paired
            if literal or number is None:
                continue
            # The usual case, in one step: a new string and its number, behind which a run begins.
            strings.add(number)
            at += 2
            after = run.match(data, at)
            if after is not None and after.end() > at:
                at, pushed = after.end(), 0
            continue
        if opcode in (_Q, _R):
            width = 2 if opcode == _Q else 5
            number = int.from_bytes(data[at + 1 : at + width], "little")
            if number > end:
                return False
            (strings.add if literal else strings.discard)(number)
            if number in paired:
                pairs, paired, run = {}, set(), _run(())
            known.clear()
            at += width
        elif opcode in (_H, _J):
            width = 2 if opcode == _H else 5
            number = int.from_bytes(data[at + 1 : at + width], "little")
            if number in strings:
                pushed += 1
                known.append((at, number))
            else:
                pushed = 0
                known.clear()
            at += width
        elif opcode == _TUPLE2 and pushed >= 2:
            at, pushed = at + 1, 0
            if len(known) >= 2 and len(pairs) < _PAIRS:
                # What these two numbers hold cannot change before a PUT, so the same opcodes are harmless wherever they stand.
                (start, one), (_, other) = known[-2:]
                pairs[data[start:at]] = None
                paired.update((one, other))
                run = _run(tuple(pairs))
            known.clear()
        else:
            after = run.match(data, at)
            if after is None or after.end() == at:
                return data[at : at + 1] == b"."
            at, pushed = after.end(), 0
            known.clear()
        literal = False
    return False


#: What an opcode takes off the stack (-1: down to the mark) where that is not nothing.
_TAKES = {"APPEND": 1, "SETITEM": 2, "POP": 1, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_TO_MARK = frozenset({"APPENDS", "SETITEMS", "TUPLE", "LIST", "DICT", "POP_MARK"})
_FILLS = frozenset({"APPEND", "APPENDS", "SETITEM", "SETITEMS", "POP", "POP_MARK"})
_PUSHES = frozenset(
    {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "NONE", "NEWTRUE", "NEWFALSE"}
    | {"STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
    | {"EMPTY_LIST", "EMPTY_DICT", "LIST", "DICT", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
)
_GET_NAMES, _PUT_NAMES = frozenset({"GET", "BINGET", "LONG_BINGET"}), frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_MARK, _TUPLE, _OTHER = "mark", "tuple", "other"


def _check_each(data: bytes) -> None:
    """Refuse what is not plain, opcode by opcode: the slow way, exact for every protocol."""
    stack: list[str] = []
    memo: dict[int, str] = {}
    try:
        for opcode, argument, position in pickletools.genops(data):
            name = opcode.name
            if name in ("PROTO", "FRAME", "STOP"):
                continue
            if name == "MARK":
                stack.append(_MARK)
            elif name in _GET_NAMES:
                stack.append(memo.get(int(str(argument)), _OTHER))
            elif name in _PUT_NAMES or name == "MEMOIZE":
                number = len(memo) if name == "MEMOIZE" else int(str(argument))
                if not 0 <= number <= len(data):
                    raise RefusedPickle(f"refused: memo number {number} at byte {position} of a pickle of {len(data)} bytes")
                memo[number] = stack[-1] if stack else _OTHER
            elif name in _PUSHES or name in _FILLS:
                taken: list[str] = []
                if name in _TO_MARK:
                    while stack and (top := stack.pop()) != _MARK:
                        taken.append(top)
                else:
                    count = _TAKES.get(name, 0)
                    taken = stack[len(stack) - count :] if count else []
                    del stack[len(stack) - len(taken) :]
                if name.startswith("TUPLE") and _TUPLE in taken:
                    raise RefusedPickle(f"refused: a tuple inside a tuple at byte {position}")
                if name in _PUSHES:
                    stack.append(_TUPLE if "TUPLE" in name else _OTHER)
            else:
                raise RefusedPickle(f"refused: the pickle uses {name} at byte {position}, which plain data does not need")
    except RefusedPickle:
        raise
    except (ValueError, IndexError, EOFError) as problem:
        # It must not reach the unpickler, which allocates what a length claims before it looks whether so much is there.
        raise pickle.UnpicklingError(f"truncated, or no pickle: {problem}"[:200]) from problem
