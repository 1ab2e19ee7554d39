"""What Polars is asked for in one way only: because the other way fails, or so that it is said once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

#: Evidence up to so many bytes is small: what its tables need in memory is no matter.
_SMALL = 1 << 30


def text_of(template: str, *parts: pl.Expr | str) -> pl.Expr:
    """A template such as ``pg:{}`` filled with columns; null where one of them is null.

    ``pl.format`` does the same and panics in Polars 2.0 and 2.1 on a frame whose first chunk is empty ("assertion failed: i <
    self.len()", polars-arrow binview): what a filter leaves of several frames put together.
    """
    pieces = template.split("{}")
    if len(pieces) != len(parts) + 1:
        raise ValueError(f"{template!r} has {len(pieces) - 1} places for {len(parts)} columns")
    out: list[pl.Expr] = []
    for piece, part in zip(pieces, [*parts, None], strict=True):
        if piece:
            out.append(pl.lit(piece))
        if part is not None:
            out.append((pl.col(part) if isinstance(part, str) else part).cast(pl.String))
    return pl.concat_str(out)


#: Types by the names that Polars prints.
_TYPES: dict[str, pl.DataType] = {
    "str": pl.String(),
    "bool": pl.Boolean(),
    "u8": pl.UInt8(),
    "u16": pl.UInt16(),
    "u32": pl.UInt32(),
    "i32": pl.Int32(),
    "i64": pl.Int64(),
    "f64": pl.Float64(),
}


def typed(*columns: str | Mapping[str, pl.DataType]) -> dict[str, pl.DataType]:
    """Columns with their types, in this order: texts such as ``rank:i32 host:str others:list[i32]``, and what is typed already."""
    named: dict[str, pl.DataType] = {}
    for part in columns:
        for name, of in (column.split(":") for column in part.split()) if isinstance(part, str) else ():
            named[name] = pl.List(_TYPES[of[5:-1]]) if of.startswith("list[") else _TYPES[of]
        named |= {} if isinstance(part, str) else part
    return named


#: First bytes of gzip's, zlib's and Zstandard's streams.
_PACKED = (b"\x1f\x8b", b"x\x01", b"x^", b"x\x9c", b"x\xda", b"\x28\xb5\x2f\xfd")


def taken_for_packed(text: bytes) -> bool:
    """Whether Polars' readers of text would unpack this text, or fail to: they go by the first bytes, which a host's name can begin
    with."""
    return text.startswith(_PACKED)


def has_rows(frame: pl.LazyFrame | None, *such: pl.Expr) -> bool:
    """Whether a table or view is there and has a row (of which all this is true)."""
    return frame is not None and (frame.filter(*such) if such else frame).head(1).collect().height > 0


def values_in(frame: pl.LazyFrame | None, column: str, *such: pl.Expr) -> set[Any]:
    """What a column of a table or view holds (in the rows of which all this is true): nothing where it is not there, or null."""
    if frame is None:
        return set()
    return set((frame.filter(*such) if such else frame).select(pl.col(column).drop_nulls().unique()).collect()[column].to_list())


def ranks_in(frame: pl.LazyFrame | None, *such: pl.Expr) -> set[int]:
    """The ranks that a table or view tells of (in the rows of which all this is true)."""
    return values_in(frame, "rank", *such)


@contextlib.contextmanager
def engine_for(size: int) -> Iterator[None]:
    """Queries in the block, and in readers that it starts, run on Polars' in-memory engine where evidence of ``size`` bytes is small.

    From 2.0 on Polars collects with its streaming engine, which hands each query to other threads: of some hundred small ones that is a
    tenth of all CPU time. Queries that ask for an engine themselves get it.
    """
    with pl.Config() as config:
        if size <= _SMALL:
            config.set_engine_affinity("in-memory")
        yield


__all__ = ["engine_for", "has_rows", "ranks_in", "taken_for_packed", "text_of", "typed", "values_in"]
