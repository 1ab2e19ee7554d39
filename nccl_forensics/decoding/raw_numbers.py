"""Numbers that stand in bytes, as columns, without an object of Python for each.

Polars has no way that its older releases share to take numbers from bytes. But a stream of Arrow IPC holds a column's numbers one behind
the other (https://arrow.apache.org/docs/format/Columnar.html): the stream that Polars writes of as many other numbers, with these in their
place, is the column.
"""

from __future__ import annotations

import io
import struct
from functools import lru_cache

import polars as pl

#: What ``struct`` calls numbers, and the type of their columns. Of big-endian ones the bytes are to be turned round before.
_TYPES: dict[str, pl.DataType] = {"B": pl.UInt8(), "H": pl.UInt16(), "i": pl.Int32(), "q": pl.Int64(), "d": pl.Float64()}
#: Polars cuts streams of more numbers into pieces.
_MOST = 1 << 18


def byte_column(data: bytes) -> pl.Series:
    """Bytes as UInt8."""
    bytes_: pl.Series = pl.Series([data], dtype=pl.Binary).cast(pl.List(pl.UInt8))[0]
    return bytes_


def number_column(data: bytes, kind: str) -> pl.Series:
    """Little-endian numbers one behind the other (``kind`` as ``struct`` calls it) as a column."""
    size = _MOST * struct.calcsize(kind)
    pieces = [_numbers(data[at : at + size], kind) for at in range(0, len(data), size)]
    return pl.concat(pieces, rechunk=True) if len(pieces) > 1 else pieces[0] if pieces else pl.Series([], dtype=_TYPES[kind])


def bytes_of(column: pl.Series) -> bytes:
    """The numbers of a column of one of these types without nulls, little-endian, one behind the other."""
    pieces = [_bytes(column.slice(at, _MOST)) for at in range(0, column.len(), _MOST)]
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _numbers(data: bytes, kind: str) -> pl.Series:
    count = len(data) // struct.calcsize(kind)
    around = _around(kind, _rounded(count))
    if around is None:
        return pl.Series(struct.unpack(f"<{count}{kind}", data), dtype=_TYPES[kind])
    padding = bytes((_rounded(count) - count) * struct.calcsize(kind))
    return pl.read_ipc_stream(io.BytesIO(b"".join((around[0], data, padding, around[1])))).to_series().head(count)


def _bytes(column: pl.Series) -> bytes:
    kind = next(kind for kind, dtype in _TYPES.items() if dtype == column.dtype)
    count = column.len()
    around = _around(kind, _rounded(count))
    if around is None:
        return struct.pack(f"<{count}{kind}", *column.to_list())
    padded = column if _rounded(count) == count else pl.concat([column, column.new_from_index(0, _rounded(count) - count)])
    start = len(around[0])
    return _written(padded)[start : start + count * struct.calcsize(kind)]


def _rounded(count: int) -> int:
    """So many numbers or a few more, so that streams of few lengths serve for all."""
    step = 1 << 10 if count < 1 << 14 else 1 << 14
    return -(-count // step) * step


def _written(column: pl.Series) -> bytes:
    buffer = io.BytesIO()
    pl.DataFrame([column.alias("")]).rechunk().write_ipc_stream(buffer)
    return buffer.getvalue()


@lru_cache(maxsize=64)
def _around(kind: str, count: int) -> tuple[bytes, bytes] | None:
    """What stands before and behind so many numbers in the stream of a column of them; None where they do not stand in one piece."""
    width = struct.calcsize(kind)
    one, other = (
        _written(pl.repeat(struct.unpack(f"<{kind}", bytes([n]) * width)[0], count, dtype=_TYPES[kind], eager=True)) for n in (1, 2)
    )
    at = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    size = count * width
    if one[at : at + size] != b"\x01" * size or len(one) != len(other):
        return None
    return one[:at], one[at + size :]
