"""Lines of operations as NCCL itself sets them, read by words: logs with ``NCCL_DEBUG_SUBSYS=COLL`` hold little else, by the million.

What is taken here is a subset of what ``nccl_prefix.lark`` and ``nccl.lark`` take (``nccl_operation.lark``), with the same rows; anything
set otherwise is left to them.
"""

from __future__ import annotations

from functools import cache

import polars as pl
from polars.exceptions import PolarsError

from nccl_forensics import grammar
from nccl_forensics.formats._nccl_rows import tables_of
from nccl_forensics.formats.base import Bulk

_KIND = "operation"
_MESSAGE = r" NCCL INFO (.*)$"
#: What a prefix of a launcher would have told; lines that carry one are not taken.
_UNTOLD = {
    "time_raw_ns": pl.Int64(),
    "time_kind": pl.String(),
    "hint_rank": pl.Int32(),
    "hint_scope": pl.String(),
    "hint_host": pl.String(),
    "hint_pid": pl.Int64(),
}


@cache
def _line() -> grammar.WordLine:
    return grammar.word_line(grammar.load("nccl_operation").kinds[_KIND])


def bulk(text: pl.Series, data: bytes, first: int) -> Bulk | None:
    """The operations among the lines of a text; ``data`` are its bytes, ``first`` the number of its first line."""
    line = _line()
    taken = text.str.contains(line.pattern)
    if not taken.any():
        return None
    try:
        words = line.cut(data)
    except (PolarsError, OSError, TypeError, ValueError):  # TypeError: a Polars whose reader has no such options
        return None
    if words.height != text.len():
        return None
    numbers = pl.int_range(first, first + text.len(), dtype=pl.UInt32(), eager=True).alias("line_no")
    if not taken.all():
        words, numbers = words.filter(taken), numbers.filter(taken)
    sorts = {word.place: words.get_column(f"w{word.place}").arg_unique() for word in line.words if word.columns and not word.bare}
    samples = text.gather(numbers.gather(pl.concat(list(sorts.values())).unique().sort()) - first)
    if not _understood(samples):
        return None
    columns = []
    for word in line.words:
        if word.columns:
            values = words.get_column(f"w{word.place}")
            columns += [values.alias(word.columns[0])] if word.bare else _columns(values, values.gather(sorts[word.place]), word)
    rows = pl.DataFrame([numbers, *columns]).with_columns(pl.lit(None, dtype=t).alias(c) for c, t in _UNTOLD.items())
    rows = rows.with_columns(pl.col("pid", "tid").cast(pl.Int64, strict=False), pl.col("dev").cast(pl.Int32, strict=False))
    one_writer = sorts[0].len() == 1
    return Bulk(numbers, dict(tables_of(_KIND, rows)), samples, _ends(rows, text, first, one_writer))


def _columns(values: pl.Series, distinct: pl.Series, word: grammar.Word) -> list[pl.Series]:
    """The columns of one word of every line, from those of its distinct values: a word with more than its value in it has few."""
    parts = distinct.str.extract_groups(word.pattern).struct.unnest()
    if distinct.len() == 1:
        return [parts.get_column(c).new_from_index(0, values.len()) for c in word.columns]
    return [values.replace_strict(distinct, parts.get_column(c)).alias(c) for c in word.columns]


def _understood(samples: pl.Series) -> bool:
    """Whether the messages of these lines are operations for the grammar of all messages too."""
    found = grammar.load("nccl").extract(samples.str.extract(_MESSAGE, 1))
    return bool((found.kind == _KIND).fill_null(False).all())


def _ends(rows: pl.DataFrame, text: pl.Series, first: int, one_writer: bool) -> pl.DataFrame:
    """The last line of each process with its ``message`` and the number of its ``lines``."""
    if one_writer:
        last = rows.tail(1).with_columns(lines=pl.lit(rows.height, dtype=pl.Int64))
    else:
        counted = rows.select("line_no", "host", "pid").group_by("host", "pid").agg(pl.col("line_no").max(), lines=pl.len().cast(pl.Int64))
        last = rows.join(counted.select("line_no", "lines"), on="line_no", maintain_order="left")
    message = text.gather(last.get_column("line_no") - first).str.extract(_MESSAGE, 1)
    return last.with_columns(message=message)
