"""All operations, and the few of them that tell how far each rank got and where ranks part.

The operations of a long job are many and alike: of a group's ranks each calls the same as the others, millions of times. So they are
counted by sort, the sequences of the ranks are laid side by side as numbers, and of the rows only those are taken out that a verdict can
turn on: where the ranks of a group differ, and the ends of each rank's sequence. Any other row is there when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import polars as pl

from nccl_forensics.folding import scans_of
from nccl_forensics.frames import typed
from nccl_forensics.views.columns import GROUP, read_at

#: How many of the last collectives of each rank are among the operations that tell.
ENDS = 256
_GROUP = ["domain", "group_key"]
_WORD, _LIFE, _ROW = "word", "life", "row"
#: In place of the sign of a call, where none is known.
_NO_CALL = 0
_DIFFERENCES = {_LIFE: pl.UInt32(), "seq": pl.Int64(), "sign": pl.UInt32()}
#: What is each operation's own where they are numbered; the rest is its word's.
NUMBERED = {_WORD: pl.UInt32(), "seq": pl.Int64(), "line_no": pl.UInt32(), "op_count": pl.Int64()}

OPERATIONS = typed(
    "domain:str",
    GROUP,
    "comm_id:str rank:i32 member:i32 nranks:i32 seq:i64 op:str is_p2p:bool peer:i32 shape:str out_shape:str dtype:str red_op:i32 root:i32",
    "call_site:str state:str done:bool pending:bool created_ns:i64 completed_ns:i64 timeout_ms:i64 order:i64 op_count:i64",
    read_at(),
)

#: What sends and receives are counted by, and how many there are of a sort.
SENT = {c: OPERATIONS[c] for c in ("domain", "group_key", "rank", "member", "op", "peer", "shape", "dtype", "done")} | {"calls": pl.Int64()}

#: NCCL prints AllReduce, the recorder all_reduce or _all_gather_base or ALLGATHER_coalesced: one word per thing.
_OP_WORDS = {
    "allreduce": "all_reduce",
    "all_reduce_barrier": "barrier",
    "allgather": "all_gather",
    "_all_gather_base": "all_gather_base",
    "_allgather_base": "all_gather_base",
    "reducescatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter_base",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "bcast": "broadcast",
}


#: The words of operations. What is none of them is a plugin's own, or a damaged record.
OP_WORDS = frozenset(
    {
        *_OP_WORDS.values(),
        *("reduce", "gather", "scatter", "send", "recv", "all_gather_into_tensor", "reduce_scatter_tensor", "coalesced"),
        *("allreduce_coalesced", "allgather_coalesced", "all_gather_into_tensor_coalesced", "allgather_into_tensor_coalesced"),
        *("reduce_scatter_tensor_coalesced", "_broadcast_oop", "_reduce_oop", "alltoall_base", "monitored_barrier"),
    }
)


def op_word(column: pl.Expr) -> pl.Expr:
    """The field's word for an operation, from any spelling."""
    lowered = column.str.to_lowercase()
    return lowered.replace(_OP_WORDS)


#: Operations whose sizes may rightly differ between ranks, so that sizes say nothing.
UNEVEN = [
    "all_to_all",
    "all_to_all_single",
    "all_to_all_v_single",
    "alltoall",
    "scatter",
    "barrier",
    "coalesced",
    "split",
    "all_gather_v",
    "all_gatherv",
]
#: Of these, what sends something of its own to every member.
EXCHANGES = ["all_to_all", "all_to_all_single", "all_to_all_v_single", "alltoall"]
#: Calls after which a habit of sizes is known.
_KNOWN_CALLS = 20


@dataclass(frozen=True, slots=True)
class Calls:
    """Operations of all ranks, with the columns of ``OPERATIONS`` and in one order.

    ``every``: all of them, lazily. ``telling``: those of them at which the ranks of a group differ in operation, size, type, reduce op or
    root, the first and the last of each rank in each group; where sequences are not kept as numbers, all. ``recent`` gives the last
    ``ENDS`` collectives of each rank, and any others. ``apart``: of the telling ones those at which ranks differ, and any others.
    ``counts``: by ``domain``, ``group_key``, ``rank``, ``op`` and ``shape`` the number ``calls`` of collectives with a position.
    ``recorded``: those of recorders as numbers, where they are kept so. ``sent``: sends and receives that are not of recorders kept so, by
    the columns of ``SENT``, with the number ``calls`` of each sort.
    """

    every: pl.LazyFrame
    telling: pl.LazyFrame
    apart: pl.LazyFrame
    counts: pl.LazyFrame
    recent: Callable[[], pl.LazyFrame]
    recorded: Entries | None = None
    sent: pl.LazyFrame = field(default_factory=lambda: pl.LazyFrame(schema=SENT))

    @staticmethod
    def of(operations: pl.LazyFrame, counts: pl.LazyFrame | None = None) -> Calls:
        """The same of operations that are all told one by one."""
        counts = _counted(operations) if counts is None else counts
        return Calls(operations, operations, operations, counts, lambda: operations, sent=_sent(operations))


class Told(NamedTuple):
    """Operations that tell: all of them, those of them at which ranks differ (and any others), and the last ones of each rank."""

    telling: pl.LazyFrame
    apart: pl.LazyFrame
    recent: Callable[[], pl.LazyFrame]


class Entries(Protocol):
    """Operations of recorders as numbers (``recorded.Recorded``): what of millions of entries is looked at one by one, part by part."""

    @property
    def words(self) -> pl.DataFrame:
        """What entries share, in columns of ``OPERATIONS``, by ``at``."""
        ...

    @property
    def facts(self) -> pl.DataFrame:
        """By the number of a word: ``life``, ``group``, ``rank``, ``is_p2p``, ``done``, ``pending``."""
        ...

    @property
    def scratch(self) -> Path | None:
        """Where files can be laid, if there are so many that they lie in files themselves."""
        ...

    def numbers(self, positions: tuple[int, int] | None = None) -> Iterator[pl.DataFrame]:
        """``row``, ``word``, ``life`` (sorted), ``seq``, ``placed``, ``order``, ``created_ns`` and ``completed_ns``; each life in one
        part."""
        ...

    def named(self, rows: pl.Series) -> pl.LazyFrame:
        """Operations by ``row``, with all that they tell."""
        ...


def calls_of(operations: pl.LazyFrame | Calls) -> Calls:
    """The same of operations that are all told one by one."""
    return operations if isinstance(operations, Calls) else Calls.of(operations)


#: Operations of whole ranks that are held at a time, if no rank alone has more.
AT_ONCE = 2_000_000


def sequences(
    calls: Calls, wanted: Sequence[tuple[object, object, object]], kind: Sequence[str]
) -> Iterator[tuple[tuple[str, str, int], list[int]]]:
    """Domain, group and rank with all collectives of the rank in the group, in the order of their positions, each as a number that is equal
    where the columns ``kind`` are; of those ``wanted`` that have any."""
    key = [*_GROUP, "rank"]
    if not wanted:
        return
    asked = pl.DataFrame(list(wanted), schema={c: OPERATIONS[c] for c in key}, orient="row").unique(maintain_order=True)
    sizes = calls.counts.join(asked.lazy(), on=key, how="semi").group_by(key).agg(pl.col("calls").sum()).collect()
    batches = asked.join(sizes, on=key, maintain_order="left").with_row_index("at").with_columns(batch=pl.col("calls").cum_sum() // AT_ONCE)
    own = calls.every.filter(placed() & pl.col("domain").is_in(asked["domain"].unique().implode()))
    kinds = own.select(kind).unique().collect(engine="streaming").with_row_index("kind")
    for batch in batches.partition_by("batch", maintain_order=True):
        rows = (
            own.join(batch.select(*key, "at").lazy(), on=key)
            .join(kinds.lazy(), on=list(kind), nulls_equal=True)
            .select("at", "seq", "kind")
            .collect(engine="streaming")
            .sort("at", "seq")
        )
        names = dict(zip(batch["at"], batch.select(key).iter_rows(), strict=True))
        for (at,), line in rows.group_by("at", maintain_order=True):
            yield names[at], line["kind"].to_list()


def placed() -> pl.Expr:
    """Collectives of a known rank with a known position in their group."""
    return ~pl.col("is_p2p") & pl.col("rank").is_not_null() & pl.col("seq").is_not_null()


def _counted(operations: pl.LazyFrame) -> pl.LazyFrame:
    return operations.filter(placed()).group_by(*_GROUP, "rank", "op", "shape").agg(calls=pl.len().cast(pl.Int64))


def _sent(operations: pl.LazyFrame) -> pl.LazyFrame:
    return operations.filter("is_p2p").group_by(list(SENT)[:-1]).agg(pl.len().cast(pl.Int64).alias("calls"))


def even_exchanges(counts: pl.LazyFrame) -> pl.LazyFrame:
    """``domain``, ``group_key`` and ``op`` of the all-to-alls whose sizes must agree: those of which all but very few calls of all ranks
    are of one size. The sizes of others may differ by right (experts get what the router sends)."""
    sizes = counts.filter(pl.col("op").is_in(EXCHANGES) & pl.col("shape").is_not_null())
    by_size = sizes.group_by(*_GROUP, "op", "shape").agg(pl.col("calls").sum().alias("n"))
    by_op = by_size.group_by(*_GROUP, "op").agg(pl.col("n").max().alias("most"), pl.col("n").sum().alias("all"))
    habit = (pl.col("all") >= _KNOWN_CALLS) & (pl.col("most") < pl.col("all")) & (pl.col("all") - pl.col("most") <= 0.05 * pl.col("all"))
    return by_op.filter(habit).select(*_GROUP, "op")


def with_sized(ops: pl.LazyFrame, counts: pl.LazyFrame) -> pl.LazyFrame:
    """Adds ``sized``: whether sizes of this operation must agree. NCCL's own all-to-all sends every peer the same, and sends and receives
    that are taken for one do so too."""
    one_size = (pl.col("domain") == "nccl") & (pl.col("op") == "all_to_all")
    even = even_exchanges(counts).with_columns(even=pl.lit(True))
    return (
        ops.join(even, on=[*_GROUP, "op"], how="left", maintain_order="left")
        .with_columns(sized=~pl.col("op").is_in(UNEVEN) | pl.col("even").fill_null(False) | one_size)
        .drop("even")
    )


def signs_of(words: pl.DataFrame, counts: pl.LazyFrame) -> pl.Series:
    """A number above 0 for each word, equal where operations are alike in all in which those of different ranks must agree."""
    sized = with_sized(words.lazy(), counts).collect()
    alike = sized.select("op", pl.when("sized").then("shape").alias("shape"), "dtype", "red_op", "root")
    kinds = alike.unique(maintain_order=True).with_row_index("sign", offset=_NO_CALL + 1)
    signs = alike.join(kinds, on=alike.columns, how="left", nulls_equal=True, maintain_order="left").get_column("sign")
    return signs.cast(pl.UInt16) if kinds.height < 1 << 16 else signs


@dataclass(frozen=True, slots=True)
class Numbered:
    """Operations of NCCL's logs as numbers: parts (frames or files) with the columns of ``NUMBERED``, and the words of each sort.

    ``words``: in the order of their numbers, a row for each ``word`` with all other columns of an operation, ``life`` (the communicator of
    one process in one source) and ``calls`` (how many operations there are of it). A life lies in one part, its operations in their order,
    its collectives under positions of which none is there twice.
    """

    parts: tuple[pl.DataFrame | Path, ...]
    words: pl.DataFrame

    def every(self) -> pl.LazyFrame:
        """All operations."""
        rows = scans_of(self.parts)
        return self._spelled(pl.concat(rows) if rows else pl.LazyFrame(schema=NUMBERED))

    def counts(self) -> pl.LazyFrame:
        """As ``Calls.counts``."""
        placed = self.words.lazy().filter(~pl.col("is_p2p") & pl.col("rank").is_not_null() & (pl.col("calls") > 0))
        return placed.group_by(*_GROUP, "rank", "op", "shape").agg(pl.col("calls").sum())

    def sent(self) -> pl.LazyFrame:
        """As ``Calls.sent``."""
        own = self.words.lazy().filter(pl.col("is_p2p") & (pl.col("calls") > 0))
        return own.group_by(list(SENT)[:-1]).agg(pl.col("calls").sum())

    def told(self) -> Told:
        """As ``Calls.telling``."""
        signs, ranks = signs_of(self.words, self.counts()), self.words.get_column("rank")
        lives = self.words.get_column(_LIFE)
        lines: dict[int, _Line] = {}
        # Numbers of rows, not pieces of frames: a piece would hold the whole frame.
        found = [pl.Series(_ROW, [], dtype=pl.UInt32())]
        for before, rows in self._rows():
            word, seq = rows.get_column(_WORD), rows.get_column("seq")
            placed = seq.is_not_null().arg_true() if seq.null_count() else None
            own_lives = lives.gather(word)
            if placed is not None:
                found += [_ends(own) + before for _, own in _by_value(own_lives, None)]
            for life, own in _by_value(_at_places(own_lives, placed), placed):
                seqs = seq.gather(own)
                lines[life] = _line(seqs, signs.gather(word.gather(own)))
                found.append(_ends(own) + before)
                if lines[life].holed:  # then lines may stand in another order than calls were made
                    found.append(own.filter((seqs == seqs.min()) | (seqs == seqs.max())) + before)
            for _, own in _by_value(_at_places(ranks.gather(word), placed), placed):
                found.append(own.tail(ENDS) + before)
        differ = _differences(lines, self.words)
        span = (differ.get_column("seq").min(), differ.get_column("seq").max())
        for before, rows in self._rows() if differ.height else ():
            near = rows.with_row_index(_ROW, before).filter(pl.col("seq").is_between(*span))
            near = near.with_columns(lives.gather(near.get_column(_WORD)))
            found.append(near.join(differ, on=[_LIFE, "seq"], how="semi").get_column(_ROW))
        told = pl.concat(found).unique().sort()
        numbered = [pl.DataFrame(schema=NUMBERED)]
        for before, rows in self._rows():
            here = told.filter((told >= before) & (told < before + rows.height)) - before
            numbered.append(rows.select(pl.col(list(NUMBERED)).gather(here)))
        telling = self._spelled(pl.concat(numbered).lazy()).collect().lazy()
        return Told(telling, telling, lambda: telling)

    def _rows(self) -> Iterator[tuple[int, pl.DataFrame]]:
        """The parts, each with the number of operations before it."""
        before = 0
        for part in self.parts:
            rows = pl.read_ipc(part) if isinstance(part, Path) else part
            yield before, rows
            before += rows.height

    def _spelled(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        # The domain is a column of the words, so that a query for another one looks at no operation.
        return rows.join(self.words.lazy(), on=_WORD, how="inner", maintain_order="left").with_columns(
            order=pl.col("line_no").cast(pl.Int64)
        )


def _at_places(values: pl.Series, places: pl.Series | None) -> pl.Series:
    return values if places is None else values.gather(places)


def _by_value(values: pl.Series, places: pl.Series | None) -> Iterator[tuple[int, pl.Series]]:
    """Each value with the places of the rows that have it, in their order; ``places`` are those of all (None: 0 and on)."""
    if places is None:
        places = pl.int_range(values.len(), dtype=pl.UInt32(), eager=True)
    if not values.len():
        return
    if not values.null_count() and values.min() == values.max():
        yield int(values[0]), places
        return
    rows = pl.DataFrame([values.alias("value"), places.alias(_ROW)])
    several = rows.group_by("value", maintain_order=True).agg(_ROW)
    yield from zip(several.get_column("value").to_list(), several.get_column(_ROW), strict=True)


def _ends(places: pl.Series) -> pl.Series:
    """The first and the last of them."""
    return pl.concat([places.head(1), places.tail(1)]).alias(_ROW)


@dataclass(frozen=True, slots=True)
class _Line:
    """What a life calls, by position: ``signs`` from position ``first`` on, ``_NO_CALL`` where nothing is known (``holed``)."""

    first: int
    signs: pl.Series
    holed: bool


def _line(seqs: pl.Series, signs: pl.Series) -> _Line:
    """The signs of a life at their positions, which are all different."""
    first, last = int(str(seqs.min())), int(str(seqs.max()))
    if last - first + 1 == seqs.len() and seqs.is_sorted():
        return _Line(first, signs, holed=False)
    return _Line(first, _none(last - first + 1, signs.dtype).scatter(seqs - first, signs), holed=True)


def _none(length: int, dtype: pl.DataType) -> pl.Series:
    return pl.repeat(_NO_CALL, length, dtype=dtype, eager=True)


def _differences(lines: Mapping[int, _Line], words: pl.DataFrame) -> pl.DataFrame:
    """``life`` and ``seq`` of the operations by which it is told that ranks of a group differ there: where a line differs from the longest
    of its group (or where that has none, from the first that has one), that one's and two of each sort that differs."""
    out: list[pl.DataFrame] = [pl.DataFrame(schema=_DIFFERENCES).drop("sign")]
    known = words.filter(pl.col("rank").is_not_null()).unique(_LIFE, keep="first", maintain_order=True)
    for lives in known.group_by("group_key", maintain_order=True).agg(pl.col(_LIFE)).get_column(_LIFE).to_list():
        members = sorted((life for life in lives if life in lines), key=lambda life: -lines[life].signs.len())
        if len(members) < 2:
            continue
        longest = lines[members[0]]
        low = min(lines[life].first for life in members)
        high = max(lines[life].first + lines[life].signs.len() for life in members)
        reference = longest.signs
        if longest.signs.len() < high - low:
            reference = _none(high - low, longest.signs.dtype).scatter(_places(longest, low), longest.signs)
        # Whose call the reference holds, where it is not the longest's.
        given: list[pl.DataFrame] = []
        apart = pl.DataFrame(schema=_DIFFERENCES)
        for life in members[1:]:
            own = lines[life]
            theirs = reference.slice(own.first - low, own.signs.len())
            differ = own.signs != theirs
            if not differ.any():
                continue
            met = (own.signs != _NO_CALL) & (theirs != _NO_CALL)
            places = (differ & met).arg_true()
            fresh = (differ & (own.signs != _NO_CALL) & ~met).arg_true()
            if fresh.len():
                reference = reference.clone().scatter(fresh + (own.first - low), own.signs.gather(fresh))
                given.append(_at(life, fresh + own.first))
            if places.len():
                row = _at(life, places + own.first).with_columns(own.signs.gather(places).cast(pl.UInt32).alias("sign"))
                apart = pl.concat([apart, row]).group_by("seq", "sign", maintain_order=True).head(2).select(apart.columns)
        if apart.height:
            seqs = apart.get_column("seq").unique()
            out += [apart.select(_LIFE, "seq"), _at(members[0], seqs)]
            out += [rows.filter(pl.col("seq").is_in(seqs.implode())) for rows in given]
    return pl.concat(out)


def _places(line: _Line, low: int) -> pl.Series:
    return pl.int_range(line.first - low, line.first - low + line.signs.len(), eager=True)


def _at(life: int, seqs: pl.Series) -> pl.DataFrame:
    own = pl.repeat(life, seqs.len(), dtype=pl.UInt32, eager=True)
    return pl.DataFrame({_LIFE: own, "seq": seqs.cast(pl.Int64)}, schema={_LIFE: pl.UInt32(), "seq": pl.Int64()})


class Many(Protocol):
    """Operations that are many and alike, kept so that they need not be told one by one."""

    def every(self) -> pl.LazyFrame:
        """All of them, in columns of ``OPERATIONS``."""
        ...

    def told(self) -> Told:
        """As ``Calls.telling``, ``Calls.apart`` and ``Calls.recent``."""
        ...

    def counts(self) -> pl.LazyFrame:
        """As ``Calls.counts``."""
        ...


class RecordedMany(Many, Entries, Protocol):
    """Both of those of recorders."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Operations that are told one by one, and others: those of recorders ``before`` them, and those of NCCL's logs ``behind``."""

    others: pl.LazyFrame
    before: RecordedMany | None = None
    behind: Numbered | None = None

    def calls(self) -> Calls:
        """All of them as one, in the columns of the others."""
        columns = self.others.collect_schema()

        def same(rows: pl.LazyFrame) -> pl.LazyFrame:
            have = rows.collect_schema().names()
            return rows.select([pl.col(c).cast(t) if c in have else pl.lit(None, dtype=t).alias(c) for c, t in columns.items()])

        def all_of(others: pl.LazyFrame, before: Sequence[pl.LazyFrame], behind: Sequence[pl.LazyFrame]) -> pl.LazyFrame:
            return pl.concat([*before, others, *behind]) if before or behind else others

        before, behind = ([many] if many else [] for many in (self.before, self.behind))
        first, last = ([many.told() for many in side] for side in (before, behind))
        return Calls(
            all_of(self.others, [same(m.every()) for m in before], [same(m.every()) for m in behind]),
            all_of(self.others, [same(t.telling) for t in first], [same(t.telling) for t in last]),
            all_of(self.others, [same(t.apart) for t in first], [same(t.apart) for t in last]),
            all_of(_counted(self.others), [m.counts() for m in before], [m.counts() for m in behind]),
            lambda: all_of(self.others, [same(t.recent()) for t in first], [same(t.recent()) for t in last]),
            self.before,
            all_of(_sent(self.others), [], [self.behind.sent()] if self.behind else []),
        )
