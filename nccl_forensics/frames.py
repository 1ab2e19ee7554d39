"""What Polars is asked for in one way only, because the other way fails."""

from __future__ import annotations

import polars as pl


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
