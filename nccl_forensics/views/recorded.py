"""Operations of Flight Recorder dumps: what they share is told once for each sort of entry, and of each entry only numbers are looked at.

A ring holds thousands of entries of a few sorts. So the texts and arguments of an operation are derived from the words of the folded table, one
row for each sort of each dump, and rows are joined to them by number where somebody asks for them. Which of them tell how far each rank got and
where ranks part is found from the numbers, part by part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from nccl_forensics.folding import SORT, FoldedTable, told
from nccl_forensics.frames import text_of
from nccl_forensics.views.calls import ENDS, OPERATIONS, op_word, signs_of
from nccl_forensics.words import UNIDENTIFIED

_DOMAIN = "fr"
_GROUP = ["domain", "group_key"]
_KEY, _ROW, _AT = "key", "row", "at"
#: What each entry has of its own, by the column of ``OPERATIONS`` that it becomes.
_OWN = {"created_ns": "time_created_ns", "completed_ns": "time_completed_ns", "order": "record_id", "record": "record"}
#: Columns of rows that operations are made of.
_ROWS = ("source_id", SORT, "collective_seq_id", "p2p_seq_id", *_OWN.values())
#: No recorder counts as far: a group's number and a position in it make one number.
_BEYOND = 1 << 40


def recorded_calls(folded: FoldedTable, dumps: pl.LazyFrame) -> Recorded:
    """Operations of the entries of ``dumps`` that are ``chosen``, under the rank of their dump, or a number of its own where none is known."""
    chosen = dumps.filter(pl.col("use") == "chosen").select(
        "source_id", pl.coalesce("rank", UNIDENTIFIED + pl.col("source_id").cast(pl.Int32)).cast(pl.Int32).alias("rank")
    )
    counted = [at.value_counts(name="calls") for _, at, _ in folded.rows()]
    calls = pl.concat([pl.DataFrame(schema={SORT: pl.UInt32(), "calls": pl.UInt32()}), *counted])
    words = (
        folded.words.with_row_index(_AT)
        .lazy()
        .join(chosen, on="source_id", how="inner", maintain_order="left")
        .join(
            calls.lazy().rename({SORT: _AT}).group_by(_AT).agg(pl.col("calls").sum().cast(pl.Int64)),
            on=_AT,
            how="left",
            maintain_order="left",
        )
    )
    return Recorded(folded, _described(words).collect())


def _described(words: pl.LazyFrame) -> pl.LazyFrame:
    """Sorts of entries in the columns of ``OPERATIONS``, but for what each entry has of its own."""
    p2p = pl.col("is_p2p").fill_null(False) | pl.col("op").is_in(["send", "recv", "isend", "irecv"])
    nameless = pl.col("pg_name").is_null() | (pl.col("pg_name") == "")
    op = op_word(pl.col("op"))
    over = (pl.col("state") == "completed") | pl.col(told("time_completed_ns"))
    gloo = pl.col("backend") == "gloo"
    own = {*_OWN, "seq", "source_id"}
    columns = {
        "domain": pl.lit(_DOMAIN),
        "group_key": pl.when(nameless).then(text_of("pg_id:{}", pl.col("pg_id"))).otherwise(text_of("pg:{}", pl.col("pg_name"))),
        "group_name": pl.col("pg_name"),
        "group_desc": pl.col("pg_desc"),
        "rank": pl.col("rank"),
        "op": op,
        "is_p2p": p2p,
        "peer": pl.when(op == "send").then(pl.col("peer_dst")).when(op == "recv").then(pl.col("peer_src")),
        "shape": pl.col("input_sizes"),
        "out_shape": pl.col("output_sizes"),
        "dtype": pl.col("input_dtypes"),
        "call_site": pl.col("user_frame"),
        "state": pl.col("state"),
        # gloo never marks completion: retired says that the operation is over, well or badly.
        "done": pl.when(~gloo).then(over),
        "pending": pl.when(gloo).then(~pl.col("retired")).otherwise((pl.col("state") != "completed") & ~pl.col(told("time_completed_ns"))),
        "timeout_ms": pl.col("timeout_ms"),
    }
    return words.select(
        *(_AT, "source_id", "calls"),
        _key().alias(_KEY),
        (~p2p & pl.col(told("collective_seq_id"))).alias("placed"),
        *(columns.get(c, pl.lit(None)).cast(t).alias(c) for c, t in OPERATIONS.items() if c not in own),
    )


def _key() -> pl.Expr:
    """A source and one of its sorts as one number: joining by two columns takes several times as long."""
    return pl.col("source_id").cast(pl.Int64) * (1 << 32) + pl.col(SORT).cast(pl.Int64)


@dataclass(frozen=True, slots=True)
class Recorded:
    """Operations of the dumps that count. ``words``: what entries of one sort of one dump share, in the columns of ``OPERATIONS``, by their place
    ``at`` among all words of the table and by ``key``; ``calls``: how many they are, ``placed``: collectives with a position."""

    folded: FoldedTable
    words: pl.DataFrame

    def every(self) -> pl.LazyFrame:
        """All operations."""
        return self._spelled(self.folded.lazy().select(_ROWS))

    def counts(self) -> pl.LazyFrame:
        """As ``Calls.counts``."""
        placed = self.words.lazy().filter("placed")
        return placed.group_by(*_GROUP, "rank", "op", "shape").agg(pl.col("calls").sum())

    def telling(self) -> pl.LazyFrame:
        """As ``Calls.telling``, and of each rank in each group also what it finished last, what is pending first, what was enqueued last by its
        time, and the first of each sort."""
        differ = self._differences()
        found = [pl.DataFrame(schema=self.folded.lazy().select(_ROWS).collect_schema())]
        for rows, numbers in self._parts():
            wanted = [series.alias(_ROW) for series in (*_ends(numbers), *_apart(numbers, differ))]
            found.append(rows.select(pl.col(_ROWS).gather(pl.concat(wanted).drop_nulls().unique().sort())))
        return self._spelled(pl.concat(found).lazy()).collect().lazy()

    def _spelled(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        words = self.words.lazy().drop(_AT, "source_id", "calls", "placed")
        spelled = rows.with_columns(_key().alias(_KEY)).join(words, on=_KEY, how="inner", maintain_order="left")
        own = {c: pl.col(name) for c, name in _OWN.items()}
        # Where nothing is sent from one to one, a query for some positions need not look up the words of all rows.
        seq = pl.col("collective_seq_id")
        own["seq"] = pl.when("is_p2p").then("p2p_seq_id").otherwise(seq) if self.words.get_column("is_p2p").any() else seq
        return spelled.select(own.get(c, pl.col(c)).cast(t).alias(c) for c, t in OPERATIONS.items())

    def _parts(self) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
        """Parts of the table, and the numbers of their operations that count, with the ``row`` of each in its part: ``word``, ``life`` (a rank in a
        group), ``sign`` (equal where calls are alike), ``placed`` (group and position of a collective), ``seq``, ``order``, ``created_ns``."""
        facts = self.words.select(
            "is_p2p",
            pl.col("done").fill_null(False),
            pl.col("pending").fill_null(False),
            group=pl.col("group_key").rank("dense").cast(pl.Int64),
            life=pl.struct("source_id", "group_key").rank("dense").cast(pl.UInt32),
            sign=signs_of(self.words, self.counts()).cast(pl.UInt32),
        )
        bare = [pl.repeat(None, self.folded.words.height, dtype=t, eager=True).alias(c) for c, t in facts.schema.items()]
        by_word = [series.scatter(self.words.get_column(_AT), facts.get_column(series.name)) for series in bare]
        for rows, at, _ in self.folded.rows():
            own = rows.select(pl.col(_ROWS).exclude(SORT, "record")).with_columns(at.alias("word"), *(of.gather(at) for of in by_word))
            seq = pl.when("is_p2p").then("p2p_seq_id").otherwise("collective_seq_id")
            collective = ~pl.col("is_p2p") & pl.col("collective_seq_id").is_not_null()
            numbers = own.with_row_index(_ROW).filter(pl.col("life").is_not_null())
            yield (
                rows,
                numbers.select(
                    *(_ROW, "source_id", "word", "life", "sign", "is_p2p", "done", "pending"),
                    seq.alias("seq"),
                    pl.col("record_id").alias("order"),
                    pl.col("time_created_ns").alias("created_ns"),
                    pl.when(collective).then(pl.col("group") * _BEYOND + pl.col("collective_seq_id")).alias("placed"),
                ),
            )

    def _differences(self) -> pl.DataFrame:
        """``placed`` of the collectives that ranks of a group call differently."""
        sign = pl.col("sign")
        bounds = [
            numbers.filter(pl.col("placed").is_not_null()).group_by("placed").agg(sign.min().alias("low"), sign.max().alias("high"))
            for _, numbers in self._parts()
        ]
        if not bounds:
            return pl.DataFrame(schema={"placed": pl.Int64()})
        together = pl.concat(bounds) if len(bounds) > 1 else bounds[0]
        spans = together.group_by("placed").agg(pl.col("low").min(), pl.col("high").max())
        return spans.filter(pl.col("low") != pl.col("high")).select("placed")


def _apart(numbers: pl.DataFrame, differ: pl.DataFrame) -> Iterator[pl.Series]:
    """Rows of those collectives: two ranks of each sort tell that ranks differ there."""
    if differ.height:
        here = numbers.join(differ, on="placed", how="semi", maintain_order="left")
        here = here.unique(["placed", "sign", "life"], keep="first", maintain_order=True)
        yield here.group_by("placed", "sign", maintain_order=True).head(2).get_column(_ROW)


def _ends(numbers: pl.DataFrame) -> Iterator[pl.Series]:
    """Rows that tell how far each rank got in each group, the last collectives of each rank, and the first row of each sort."""
    row, seq = pl.col(_ROW), pl.col("seq")
    placed = numbers.filter(pl.col("placed").is_not_null())

    def of_each_life(rows: pl.DataFrame, *told: pl.Expr) -> Iterator[pl.Series]:
        yield from rows.group_by("life").agg(e.alias(str(n)) for n, e in enumerate(told)).drop("life").get_columns()

    yield from of_each_life(numbers, row.first(), row.last())
    newest = (row.get(pl.col(c).arg_max()) for c in ("created_ns", "order"))
    yield from of_each_life(placed, row.first(), row.last(), row.get(seq.arg_min()), row.filter(seq == seq.max()).last(), *newest)
    yield from of_each_life(placed.filter("done"), row.get(seq.arg_max()))
    yield from of_each_life(placed.filter("pending"), row.get(seq.arg_min()))
    yield numbers.get_column(_ROW).gather(numbers.get_column("word").arg_unique())
    called = numbers.filter(~pl.col("is_p2p"))
    sources, order = called.get_column("source_id"), called.get_column("order")
    if order.null_count() or ((sources == sources.shift(1)) & (order < order.shift(1))).any():
        called = called.sort("source_id", "order", maintain_order=True)
    yield called.group_by("source_id").agg(row.tail(ENDS)).get_column(_ROW).explode()
