"""Pickles of plain data: every class, call and persistent id is refused, so that a planted dump cannot execute anything."""

from __future__ import annotations

import io
import pickle
import pickletools


class RefusedPickle(ValueError):
    """The pickle asks for a class, a call or a persistent object."""


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        raise RefusedPickle(f"refused: the pickle names {module}.{name}"[:200])

    def persistent_load(self, pid: object) -> object:
        raise RefusedPickle("refused: the pickle names a persistent object")

    def get_extension(self, code: int) -> object:
        raise RefusedPickle("refused: the pickle uses the extension registry")


def load_plain(data: bytes) -> object:
    """The containers, numbers, strings, bools and None of a pickle. Raises ``RefusedPickle`` or ``pickle.UnpicklingError``/``EOFError``."""
    try:
        return _Plain(io.BytesIO(data)).load()
    except RefusedPickle:
        raise
    except (AttributeError, ImportError, IndexError, KeyError, TypeError, UnicodeDecodeError, OverflowError) as problem:
        raise pickle.UnpicklingError(f"broken pickle: {type(problem).__name__}: {problem}"[:200]) from problem


def is_pickle(head: bytes) -> bool:
    """Looks like a binary pickle: PROTO opcode with a known protocol and an opcode after it."""
    return len(head) >= 3 and head[0] == 0x80 and head[1] in (2, 3, 4, 5) and head[2:3] in _FIRST


_FIRST = {bytes([ord(op.code)]) for op in pickletools.opcodes if op.name not in ("STOP", "PROTO")}
