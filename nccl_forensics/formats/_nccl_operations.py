"""Lines of operations as NCCL itself sets them, read by pieces: logs with ``NCCL_DEBUG_SUBSYS=COLL`` hold little else, by the million.

What is taken here is a subset of what ``nccl_prefix.lark`` and ``nccl.lark`` take (``nccl_operation.lark``), with the same rows; anything
set otherwise is left to them. Of a line only its number and ``opCount`` are its own: all that stands before and behind is one of a few
sorts, of each of which the words are read once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import polars as pl
from polars.exceptions import PolarsError

from nccl_forensics import grammar
from nccl_forensics.folding import SORT, Folded, told
from nccl_forensics.formats._nccl_rows import tables_of
from nccl_forensics.formats.base import Bulk
from nccl_forensics.tables import TABLES

_KIND, _TABLE, _OWN = "operation", "nccl_ops", "op_count"
_MESSAGE = r" NCCL INFO (.*)$"
#: A letter of "opCount", "sendbuff", "recvbuff" and "count" that no number and no pointer holds.
_CUT = "u"
#: Host names and operations hold it too; so many times, and no more, in the lines that are looked at first.
_SAMPLE = 16 << 10
#: What a prefix of a launcher would have told; lines that carry one are not taken.
_UNTOLD = {
    "time_raw_ns": pl.Int64(),
    "time_kind": pl.String(),
    "hint_rank": pl.Int32(),
    "hint_scope": pl.String(),
    "hint_host": pl.String(),
    "hint_pid": pl.Int64(),
}
#: Longest piece of a line that is taken, in bytes.
_LONGEST = 4096


@cache
def _line() -> grammar.CutLine:
    return grammar.cut_line(grammar.load("nccl_operation").kinds[_KIND], _CUT)


def bulk(data: bytes, first: int, lines: Callable[[], pl.Series]) -> Bulk | None:
    """The operations among the lines of a text (UTF-8, LF), of which the first has the number ``first``; ``lines`` gives them where they are
    needed. None where there is no operation, or where that is not sure.
    """
    line = _line()
    try:
        cut = line.cut(data, _letters_before(data)).with_columns(pl.col("p0").fill_null(""))
    except (PolarsError, OSError, TypeError, ValueError):  # TypeError: a Polars whose reader has no such options
        return None
    pieces = [column for column in cut.get_columns() if column.null_count() < column.len()]
    # Each cut and each end of a line takes a byte: where all bytes are accounted for, no line was passed over and none is cut short.
    length = sum(int(piece.str.len_bytes().sum()) + piece.len() - piece.null_count() for piece in pieces)
    whole = None
    if length != len(data) + (not data.endswith(b"\n")):
        text = lines()
        if text.len() != cut.height:
            return None
        lengths = cut.select(pl.sum_horizontal([pl.col(p.name).str.len_bytes().fill_null(-1) + 1 for p in pieces]) - 1).to_series()
        whole = lengths == text.str.len_bytes()
    found = _found(line, cut, whole)
    return _bulk(line, cut, found, first) if found is not None else None


def _letters_before(data: bytes) -> int:
    """How often the letter stands in the first piece of a line, at most, in samples of its lines."""
    starts = (0, len(data) // 2, max(0, len(data) - _SAMPLE))
    heads = (part.rpartition(b"\n")[2] for start in starts for part in data[start : start + _SAMPLE].split(b"unt ")[:-1])
    return max((head.count(_CUT.encode()) for head in heads if head.endswith(b": opCo")), default=0)


@dataclass(frozen=True, slots=True)
class _Found:
    """Operations among lines: of each line the number of its sort (null: no operation) and its ``opCount``, and the words of each sort."""

    sorts: pl.Series
    counts: pl.Series
    words: pl.DataFrame


def _found(line: grammar.CutLine, cut: pl.DataFrame, whole: pl.Series | None) -> _Found | None:
    """What of the lines is an operation; ``whole``: which lines have all of their bytes in their pieces (None: all)."""
    last = len(line.pieces) - 1
    sorts = pl.repeat(None, cut.height, dtype=pl.UInt32, eager=True)
    counts = pl.repeat(None, cut.height, dtype=pl.Int64, eager=True)
    words: list[pl.DataFrame] = []
    for extra in range(cut.width - len(line.pieces)):
        fits = cut.get_column(f"p{last + extra}").is_not_null() & cut.get_column(f"p{last + extra + 1}").is_null()
        if whole is not None:
            fits &= whole
        if not fits.any():
            continue
        part = cut.select([f"p{place}" for place in range(last + extra + 1)])
        read = _read(line, part if fits.all() else part.filter(fits), extra)
        if read.words.height:
            places = fits.arg_true()
            sorts = sorts.scatter(places, read.sorts + sum(w.height for w in words))
            counts = counts.scatter(places, read.counts)
            words.append(read.words)
    if not words:
        return None
    return _Found(sorts, counts, pl.concat(words))


def _read(line: grammar.CutLine, part: pl.DataFrame, extra: int) -> _Found:
    """Operations among lines that have as many pieces as one, and ``extra`` before them that belong to the first."""
    good = pl.repeat(True, part.height, dtype=pl.Boolean, eager=True)
    counts: pl.Series | None = None
    sorting = [part.get_column(f"p{place}") for place in range(extra + 1)]
    for place, piece in enumerate(line.pieces[1:], start=1 + extra):
        column = part.get_column(f"p{place}")
        if piece.columns and piece.columns != (_OWN,):
            sorting.append(column)
            continue
        good &= column.str.contains(piece.pattern)
        if piece.bare is not None:
            before, behind = piece.bare
            counts = column.str.head(-behind).str.slice(before).str.to_integer(base=16, strict=False)
    assert counts is not None
    good &= counts.is_not_null()
    numbers, firsts = _numbered(sorting)
    distinct = part[firsts]
    pieces = [distinct.select(pl.concat_str([f"p{n}" for n in range(extra + 1)], separator=line.letter)).to_series()]
    pieces += [distinct.get_column(f"p{place + extra}") for place in range(1, len(line.pieces))]
    told_by = [
        piece.str.extract_groups(kind.pattern).struct.unnest() for piece, kind in zip(pieces, line.pieces, strict=True) if kind.columns
    ]
    words = pl.concat(told_by, how="horizontal").with_columns(text=pl.concat_str(pieces, separator=line.letter))
    known = words.select(pl.all_horizontal(pl.exclude(_OWN).is_not_null()) & (pl.col("text").str.len_bytes() <= _LONGEST)).to_series()
    if not known.all():
        good &= known.gather(numbers)
    if not good.all():
        used = numbers.filter(good).unique().sort()
        renumbered = pl.repeat(0, words.height, dtype=pl.UInt32, eager=True).scatter(
            used, pl.int_range(used.len(), dtype=pl.UInt32(), eager=True)
        )
        numbers = pl.select(pl.when(good).then(renumbered.gather(numbers))).to_series()
        words = words[used]
    return _Found(numbers, counts, words)


def _numbered(columns: list[pl.Series]) -> tuple[pl.Series, pl.Series]:
    """Numbers from 0 for rows that are equal in these columns, of few values each, and the first row of each number."""
    key, sizes = None, 1
    for column in columns:
        codes = column.cast(pl.Categorical).to_physical().cast(pl.UInt64)
        size = int(str(codes.max())) + 1
        if key is not None and sizes * size >= 1 << 63:
            key = _dense(key)[0].cast(pl.UInt64)
            sizes = int(str(key.max())) + 1
        key = codes if key is None else key * size + codes
        sizes *= size
    assert key is not None
    return _dense(key)


def _dense(key: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Numbers from 0, in the order in which they are met, for equal values, and the first row of each."""
    firsts = key.arg_unique().sort()
    values = key.gather(firsts)
    if values.len() == 1:
        return pl.repeat(0, key.len(), dtype=pl.UInt32, eager=True), firsts
    return key.replace_strict(values, pl.int_range(values.len(), dtype=pl.UInt32(), eager=True), return_dtype=pl.UInt32()), firsts


def _bulk(line: grammar.CutLine, cut: pl.DataFrame, found: _Found, first: int) -> Bulk | None:
    samples = found.words.get_column("text")
    if not _understood(samples):
        return None
    sorts, counts = found.sorts, found.counts
    numbers = pl.int_range(first, first + cut.height, dtype=pl.UInt32(), eager=True).alias("line_no")
    if sorts.null_count():
        taken = sorts.is_not_null()
        sorts, counts, numbers = sorts.filter(taken), counts.filter(taken), numbers.filter(taken)
    words = found.words.drop("text").with_columns(
        pl.lit(0, dtype=pl.UInt32).alias("line_no"), *(pl.lit(None, dtype=t).alias(c) for c, t in _UNTOLD.items())
    )
    words = words.with_columns(pl.col("pid", "tid").cast(pl.Int64, strict=False), pl.col("dev").cast(pl.Int32, strict=False))
    [(_, table)] = tables_of(_KIND, words)
    own = TABLES[_TABLE].own
    flags = [pl.lit(c != "time_raw_ns").alias(told(c)) for c in own]
    folded = Folded(
        pl.DataFrame(
            [
                numbers,
                counts.alias(_OWN),
                pl.repeat(None, numbers.len(), dtype=pl.Int64, eager=True).alias("time_raw_ns"),
                sorts.alias(SORT),
            ]
        ),
        table.select(pl.all().exclude(own), *flags).with_row_index(SORT),
    )
    return Bulk(numbers, {_TABLE: folded}, samples, _ends(line, cut, words, folded.rows, first), whole=numbers.len() == cut.height)


def _understood(samples: pl.Series) -> bool:
    """Whether the messages of these lines are operations for the grammar of all messages too."""
    found = grammar.load("nccl").extract(samples.str.extract(_MESSAGE, 1))
    return bool((found.kind == _KIND).fill_null(False).all())


def _ends(line: grammar.CutLine, cut: pl.DataFrame, words: pl.DataFrame, rows: pl.DataFrame, first: int) -> pl.DataFrame:
    """The last line of each process with its ``message`` and the number of its ``lines``."""
    told_of = rows.group_by(SORT).agg(pl.col("line_no").max(), lines=pl.len().cast(pl.Int64)).sort("line_no")
    sorts = pl.concat([told_of, words.drop("line_no", _OWN)[told_of.get_column(SORT)]], how="horizontal")
    last = sorts.with_columns(pl.col("lines").sum().over("host", "pid")).unique(["host", "pid"], keep="last", maintain_order=True)
    texts = cut[last.get_column("line_no") - first].select(pl.concat_str(pl.all(), separator=line.letter, ignore_nulls=True)).to_series()
    return last.drop(SORT).with_columns(message=texts.str.extract(_MESSAGE, 1))
