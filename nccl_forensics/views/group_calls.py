"""What the ranks of a group called around the place where it parts: put into words for the groups and the ranks that are asked for only."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass

import polars as pl

from nccl_forensics.views.calls import Calls, Entries, placed, with_sized
from nccl_forensics.views.doubts import Row

#: Operations that have no data type of their own, or not on every rank.
ONE_SIDED = ["scatter", "barrier", "coalesced", "split", "reduce_scatter_v", "all_gather_v", "all_gatherv", "new_window"]
#: Positions that are looked at before and after the one at which a group parts.
_BEFORE, AFTER = 512, 64
#: The domain of operations that may be kept as numbers.
_RECORDED = "fr"
#: What is looked at of an operation, and of its group.
_ROW = (
    *("seq", "op", "shape", "out_shape", "dtype", "red_op", "root", "call_site", "state", "done"),
    *("order", "op_count", "source_id", "line_no", "record"),
)
_GROUP = ("domain", "group_key", "group_name", "group_desc", "comm_id")
#: Positions within which groups that part are looked at in one scan, and how many scans there are at most.
_SPAN, _SCANS = 2048, 16


def signature(row: Row) -> tuple[Hashable, ...]:
    """What identifies an operation across ranks and steps, without arguments that may differ by right."""
    return (str(row["op"]), row["shape"] if row["sized"] else None, row["dtype"] if row["op"] not in ONE_SIDED else None)


def whole(row: Row) -> tuple[Hashable, ...]:
    """All that an operation says of itself."""
    return tuple(str(row[name]) for name in ("op", "shape", "dtype", "red_op", "root"))


def groups_around(calls: Calls, first: pl.DataFrame) -> Iterator[PartedGroup]:
    """The groups that part, with what was called around it."""
    numbered = first.filter(pl.col("domain") == _RECORDED) if calls.recorded is not None else first.clear()
    for part in _alike_places(numbered):
        assert calls.recorded is not None
        yield from _numbered(calls.recorded, calls.counts, part)
    others = first.filter(pl.col("domain") != _RECORDED) if calls.recorded is not None else first
    if others.height:
        window = pl.concat([_near(calls, part) for part in _alike_places(others)]).sort("rank", "seq", "source_id", "order")
        for group in window.partition_by("domain", "group_key", maintain_order=True):
            base = {name: group[name][0] for name in (*_GROUP, "later_seqs")} | {"last_seq": group["seq"].max()}
            lines = {rank: _line_of_rows(own.select(*_ROW, "sized")) for (rank,), own in group.group_by(["rank"], maintain_order=True)}
            yield PartedGroup(int(group["at"][0]), base, lines)


def _near(calls: Calls, first: pl.DataFrame) -> pl.DataFrame:
    """The operations around the first disagreements of some groups, with ``at`` and ``later_seqs``."""
    # The bounds over all these groups are for the scan of all operations, which knows no others.
    places = first["at"].to_list()
    near = calls.every.filter(
        placed()
        & pl.col("seq").is_between(min(places) - _BEFORE, max(places) + AFTER)
        & pl.col("group_key").is_in(first["group_key"].unique().implode())
    )
    return (
        with_sized(near.select(*_GROUP, "rank", *_ROW), calls.counts)
        .join(first.lazy(), on=["domain", "group_key"])
        .filter(pl.col("seq").is_between(pl.col("at") - _BEFORE, pl.col("at") + AFTER))
        .collect(engine="streaming")
    )


def _alike_places(first: pl.DataFrame) -> list[pl.DataFrame]:
    """The same with groups together that part within ``_SPAN`` positions of each other, as one scan serves them; in ``_SCANS`` at most."""
    if first.is_empty():
        return []
    ordered = first.sort("at", "domain", "group_key")
    places = ordered["at"].to_list()
    starts = [0]
    for n, at in enumerate(places):
        if at - places[starts[-1]] > _SPAN and len(starts) < _SCANS:
            starts.append(n)
    return [ordered[start:end] for start, end in zip(starts, [*starts[1:], len(places)], strict=True)]


class CallLine(Mapping[int, Row]):
    """The collectives of one rank by their position. Each is told when it is first asked for: those of many ranks are alike, and few are.

    ``places``: for each position the place by which it is told; a range where these follow each other from ``first`` on.
    """

    def __init__(self, places: range | Mapping[int, int], first: int, tell: Callable[[int], Row]) -> None:
        self._places = places
        self._first = first
        self._tell = tell
        self._told: dict[int, Row] = {}

    def __getitem__(self, seq: int) -> Row:
        row = self._told.get(seq)
        if row is None:
            place = self.place(seq)
            if place is None:
                raise KeyError(seq)
            row = self._told[seq] = self._tell(place)
        return row

    def place(self, seq: int) -> int | None:
        """The place of a position, if it is there."""
        if isinstance(self._places, range):
            return self._first + seq - self._places.start if seq in self._places else None
        return self._places.get(seq)

    def __contains__(self, seq: object) -> bool:
        return seq in self._places

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def run(self, at: int, step: int) -> int:
        """How many positions follow each other from one on, forwards (1) or backwards (-1)."""
        if isinstance(self._places, range):
            return 0 if at not in self._places else self._places.stop - at if step > 0 else at - self._places.start + 1
        end = at
        while end in self._places:
            end += step
        return abs(end - at)


ByRank = Mapping[int, CallLine]


def _by_position(seqs: pl.Series, first: int = 0) -> dict[int, int]:
    """Positions with their places; of one that is there twice the first."""
    places: dict[int, int] = {}
    for place, seq in enumerate(seqs.to_list(), first):
        places.setdefault(seq, place)
    return places


def _line_of_rows(rows: pl.DataFrame) -> CallLine:
    return CallLine(_by_position(rows.get_column("seq")), 0, lambda place: rows.row(place, named=True))


@dataclass(frozen=True, slots=True)
class PartedGroup:
    """A group that parts at ``at``: what ``DIVERGENCES`` says of it, and what each rank called around. ``alike``: call sites of all calls
    but that of a rank at ``at`` that are like it, where they are found faster than one by one."""

    at: int
    base: dict[str, object]
    by_rank: dict[int, CallLine]
    alike: Callable[[int], set[object]] | None = None

    def sites(self, rank: int) -> set[object]:
        """Call sites of the calls that are like that of this rank at ``at``, without it."""
        if self.alike is not None:
            return self.alike(rank)
        mine = signature(self.by_rank[rank][self.at])
        return {
            row["call_site"]
            for own, line in self.by_rank.items()
            for seq, row in line.items()
            if (own, seq) != (rank, self.at) and signature(row) == mine
        }


def _numbered(recorded: Entries, counts: pl.LazyFrame, first: pl.DataFrame) -> Iterator[PartedGroup]:
    """The groups of recorders that part, of operations that are kept as numbers: told of them is only what is asked for."""
    group_of = recorded.words.select("group_key", group=recorded.facts.get_column("group").gather(recorded.words.get_column("at")))
    known = first.join(group_of.unique("group_key"), on="group_key").select("group", "at", "later_seqs")
    places = known.get_column("at")
    low, high = int(str(places.min())) - _BEFORE, int(str(places.max())) + AFTER
    found = []
    for numbers in recorded.numbers((low, high)):
        group = recorded.facts.get_column("group").gather(numbers.get_column("word"))
        near = numbers.select("row", "word", "life", "seq", "order").with_columns(group.alias("group"))
        near = near.filter(pl.col("group").is_in(known.get_column("group").implode()))
        if known.height > 1:
            near = near.join(known.select("group", "at"), on="group", how="left", maintain_order="left")
            near = near.filter(pl.col("seq").is_between(pl.col("at") - _BEFORE, pl.col("at") + AFTER)).drop("at")
        found.append(near)
    window = pl.concat(found)
    life, seq = window.get_column("life"), window.get_column("seq")
    strict = not ((life == life.shift(1)) & (seq <= seq.shift(1))).any()
    if not (strict and life.is_sorted()):
        window = window.sort("life", "seq", "order", maintain_order=True)
        life, seq = window.get_column("life"), window.get_column("seq")
    used = window.get_column("word").unique().sort()
    shared = with_sized(recorded.words.lazy().filter(pl.col("at").is_in(used.implode())), counts).collect()
    where = dict(zip(shared.get_column("at").to_list(), range(shared.height), strict=True))
    texts: dict[int, Row] = {}
    said = shared.select(*(c for c in _ROW if c in shared.columns), "sized")
    own = window.select("seq", "order", "row", "word")

    def tell(place: int) -> Row:
        at, order, row, word = own.row(place)
        text = texts.get(word)
        if text is None:
            text = texts[word] = said.row(where[word], named=True)
        return {**text, "seq": at, "order": order, "record": row}

    starts = (life != life.shift(1)).fill_null(True).arg_true()
    lengths = [end - start for start, end in zip(starts.to_list(), [*starts.to_list()[1:], window.height], strict=True)]
    firsts = window.select(pl.col("group", "seq", "word").gather(starts))
    lasts = seq.gather(starts + pl.Series(lengths, dtype=pl.UInt32()) - 1) if window.height else seq
    ranks = recorded.facts.get_column("rank").gather(firsts.get_column("word"))
    lines: dict[int, dict[int, CallLine]] = {}
    highest: dict[int, int] = {}
    for (group_no, low_seq, _), high_seq, rank, start, length in zip(
        firsts.iter_rows(), lasts.to_list(), ranks.to_list(), starts.to_list(), lengths, strict=True
    ):
        follow = strict and high_seq - low_seq + 1 == length
        seqs = range(low_seq, high_seq + 1) if follow else _by_position(seq.slice(start, length), start)
        lines.setdefault(group_no, {})[rank] = CallLine(seqs, start, tell)
        highest[group_no] = max(high_seq, highest.get(group_no, high_seq))
    for group_no, at, later in known.sort("group").iter_rows():
        by_rank = dict(sorted(lines[group_no].items()))
        lowest = next(iter(by_rank.values()))
        head = shared.select(_GROUP).row(where[own.row(_first_place(lowest))[3]], named=True)

        def alike(rank: int, by_rank: ByRank = by_rank, at: int = at, group_no: int = group_no) -> set[object]:
            mine, place = signature(by_rank[rank][at]), by_rank[rank].place(at)
            same = [word for word, n in where.items() if signature(said.row(n, named=True)) == mine]
            others = window.with_row_index("place").filter(
                (pl.col("group") == group_no) & pl.col("word").is_in(same) & (pl.col("place") != place)
            )
            met = others.get_column("word").unique()
            return set(shared.filter(pl.col("at").is_in(met.implode())).get_column("call_site").to_list())

        yield PartedGroup(at, {**head, "later_seqs": later, "last_seq": highest[group_no]}, by_rank, alike)


def _first_place(line: CallLine) -> int:
    place = line.place(min(line))
    assert place is not None
    return place
