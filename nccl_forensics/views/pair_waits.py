"""Who waits for whom in sends and receives: halves of pairs that have no other half."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import polars as pl

from nccl_forensics.frames import ranks_in
from nccl_forensics.views.calls import Calls
from nccl_forensics.views.wait_edges import Edge, edge, members_of

#: No ring has lost an entry.
NOT_CUT: Mapping[int, int] = MappingProxyType({})
#: Members of a group in which a send of one is a receive of the other.
_PAIR = 2
#: A send or receive of which its entry does not tell whether it is done.
_OF_BATCH = pl.col("is_p2p") & pl.col("done").is_null() & pl.col("pending").is_null()


def unfinished(calls: Calls) -> pl.LazyFrame | None:
    """Entries of recorders that are not completed, of the ranks that have such a send or receive; None where nothing is sent from one to
    one."""
    every = (pl.col("domain") == "fr") & ~pl.col("done").fill_null(False)
    recorded = calls.recorded
    if recorded is None:
        return _of_open_batches(calls.every.filter(every), ["group_key", "rank", "seq"], _OF_BATCH, pl.col("op") == "coalesced")
    facts = recorded.facts
    if not facts.get_column("is_p2p").any():
        return None
    found = [pl.DataFrame(schema={"row": pl.UInt32(), "rank": pl.Int32(), "is_p2p": pl.Boolean()})]
    # Up to PyTorch 2.4 batches are numbered among the collectives, and the number of sends stands still.
    key = ["life", "seq", "collective"]
    for numbers in recorded.numbers():
        left = numbers.filter(~facts.get_column("done").gather(numbers.get_column("word")))
        kinds = (facts.get_column(c).gather(left.get_column("word")) for c in ("batched", "batch"))
        left = _of_open_batches(left.with_columns(kinds).lazy(), key, pl.col("batched"), pl.col("batch")).collect()
        found.append(left.select("row", *(facts.get_column(c).gather(left.get_column("word")) for c in ("rank", "is_p2p"))))
    left = pl.concat(found)
    sending = left.filter("is_p2p").get_column("rank").unique()
    return recorded.named(left.filter(pl.col("rank").is_in(sending.implode())).get_column("row"))


def _of_open_batches(left: pl.LazyFrame, key: list[str], of_batch: pl.Expr, batch: pl.Expr) -> pl.LazyFrame:
    """Of what is not known to be done, the sends and receives of a batch only where the entry that ends the batch is there, and open as
    well."""
    opened = left.filter(batch & pl.col("seq").is_not_null()).select(key).unique()
    members = left.filter(of_batch).join(opened, on=key, how="semi", maintain_order="left")
    return pl.concat([left.filter(~of_batch), members])


def numbered_with_batches(calls: Calls) -> set[tuple[str, str]]:
    """Groups in which a batch of sends and receives takes a number of the collectives, as recorders before schema 2.5 have it, so that the
    number of its sends stands still: stages have unlike many batches, and one number is not one collective on all of them."""
    batches = calls.every.filter((pl.col("domain") == "fr") & (pl.col("op") == "coalesced") & pl.col("is_p2p"))
    counted = batches.group_by("domain", "group_key", "rank").agg(pl.len().alias("batches"), pl.col("seq").n_unique().alias("numbers"))
    still = counted.filter((pl.col("batches") > 1) & (pl.col("numbers") == 1))
    return set(still.select("domain", "group_key").unique().collect().iter_rows())


def left_open(calls: Calls) -> set[int]:
    """Ranks whose recorder has entries that it says are not completed, sends and receives among them."""
    recorded = calls.recorded
    # Entries that are not kept as numbers are all among those that ``apart`` has; the lines of NCCL's logs, which may be millions, are not.
    every = calls.apart.filter(pl.col("domain") == "fr") if recorded is None else recorded.words.lazy()
    # Where completion is never marked (gloo), nothing is known to be open.
    left = every.filter(pl.col("pending") & pl.col("done").is_not_null()).select("rank").unique().collect()
    return set(left["rank"].to_list())


@dataclass(frozen=True, slots=True, eq=False)
class _Half:
    """What one rank has open of its sends to one peer, or of its receives from it; ``single`` where it stands in the first of them."""

    group: dict[str, object]
    rank: int
    peer: int
    op: str
    count: int
    #: With those of a batch that its ring may have cut.
    posted: int
    single: bool
    #: The first of them: the columns of an operation.
    first: dict[str, object]

    @property
    def other(self) -> str:
        """What its partner is."""
        return "recv" if self.op == "send" else "send"

    @property
    def number(self) -> int:
        """Where it stands among the sends and receives of the group on its rank; -1 where its entry has lost that."""
        return -1 if self.first["seq"] is None else int(str(self.first["seq"]))

    def edge(self, kind: str) -> Edge:
        """That its rank waits in it for the peer."""
        first = self.first
        fact = first | {"last_op": self.op, "last_call_site": first["call_site"], "last_created_ns": first["created_ns"]}
        return edge(self.group, fact, self.rank) | {"kind": kind, "awaited": self.peer, "seq": first["seq"], "behind": None}


def pair_edges(
    calls: Calls,
    info: dict[tuple[str, str], dict[str, object]],
    seen: set[tuple[str, int]],
    gpus: Collection[int] = (),
    cut: Mapping[int, int] = NOT_CUT,
) -> list[Edge]:
    """Recorder entries of send/recv that are not completed and have no partner among the pending ones of the peer; ``info`` has the rows of
    ``groups`` by domain and key, ``seen`` the (domain, rank) of which there is evidence at all: of others it is not known what they posted.
    A rank of ``gpus``, whose GPU has not done what its peers' have, waits for nobody in what it enqueued behind that. The rings of ``cut``
    have lost their oldest entries before this one: of a batch at their beginning the other calls may be among these, so that nobody is seen
    to wait in it. Where that one is open itself, so may be others before it: what such a rank stands in, and what it has not posted, is not
    known."""
    left = unfinished(calls)
    if left is None:
        return []
    lost = _begin_open(left, cut)
    halves = [replace(h, single=h.single and h.rank not in lost) for h in _halves(left, info, gpus, cut)]
    over = _over(calls, halves)
    # What the peer is done with keeps nobody waiting for it: it is the own GPU of a rank that has not finished it.
    halves = [h for h in halves if (h.group["group_key"], h.peer, h.other, h.number) not in over]
    # Of whoever has work open there is evidence, though it be sends and receives alone.
    seen = seen | {("fr", rank) for rank in left_open(calls)}
    posted = {(h.group["group_key"], h.rank, h.op, h.peer): h.posted for h in halves}
    halves = [h for h in halves if h.count]
    # Where ranks stand in a single send or receive, before all else that they have open: the other half of what a peer waits in comes after
    # it.
    stands = {(h.group["group_key"], h.rank): (h.op, h.peer) for h in halves if h.single}
    alike = _alike(halves)
    rows: list[Edge] = []
    told: set[_Half] = set()
    held: set[tuple[object, int]] = set()
    for half in halves:
        key = half.group["group_key"]
        elsewhere = half.single and stands.get((key, half.peer), (half.other, half.rank)) != (half.other, half.rank)
        if half in alike:
            rows.append(half.edge("p2p"))
        elif elsewhere or (half.peer not in lost and posted.get((key, half.peer, half.other, half.rank), 0) < half.count):
            rows.append(half.edge(_kind(half, seen)))
        else:
            continue
        told.add(half)
        if elsewhere:
            held.add((key, half.peer))
    # Whom others wait for because it stands elsewhere waits there itself, for one that has its half behind other work.
    for half in halves:
        key = half.group["group_key"]
        if half.single and half not in told and (key, half.rank) in held and (key, half.peer) not in stands:
            rows.append(half.edge(_kind(half, seen)))
    return rows


def _begin_open(left: pl.LazyFrame, cut: Mapping[int, int]) -> set[int]:
    """Ranks whose rings are cut and begin with an entry that is known to be open."""
    oldest = pl.col("order") == pl.col("rank").replace_strict(cut, default=None, return_dtype=pl.Int64())
    return ranks_in(left, oldest, pl.col("pending"))


def _over(calls: Calls, halves: list[_Half]) -> set[tuple[object, int, str, int]]:
    """Group, rank, operation and number of the sends and receives that are done under the numbers of these halves, in groups of two: both
    number them alike."""
    pairs = {str(h.group["group_key"]) for h in halves if len(members_of(h.group)) == _PAIR}
    if not pairs:
        return set()
    numbers = sorted({h.number for h in halves if str(h.group["group_key"]) in pairs})
    done = (
        (pl.col("domain") == "fr")
        & pl.col("is_p2p")
        & pl.col("done")
        & pl.col("group_key").is_in(sorted(pairs))
        & pl.col("seq").is_in(numbers)
    )
    found = calls.every.filter(done & pl.col("op").is_in(["send", "recv"])).select("group_key", "rank", "op", "seq").unique()
    return set(found.collect().iter_rows())


def _kind(half: _Half, seen: set[tuple[str, int]]) -> str:
    return "p2p" if (str(half.group["domain"]), half.peer) in seen else "unseen"


def _halves(
    left: pl.LazyFrame, info: dict[tuple[str, str], dict[str, object]], gpus: Collection[int], cut: Mapping[int, int]
) -> list[_Half]:
    # Calls of one batch run together; and what stands behind other unfinished work tells nothing by itself.
    of_rank, ends_batch = ["group_key", "rank"], pl.col("op") == "coalesced"
    ordered = left.sort("order", maintain_order=True).with_columns(batch=ends_batch.cast(pl.Int64).cum_sum(reverse=True).over(of_rank))
    together = (pl.col("is_p2p") & ~ends_batch).sum().over(*of_rank, "batch")
    numbered = pl.len().over(*of_rank, "seq", "is_p2p")
    oldest = (pl.col("order") == pl.col("rank").replace_strict(cut, default=None, return_dtype=pl.Int64())).fill_null(False)
    at_the_cut = ends_batch.any().over(of_rank) & pl.col("is_p2p") & (pl.col("batch") > 1) & oldest.any().over(*of_rank, "batch")
    ordered = ordered.with_columns(
        begins=pl.col("created_ns") == pl.col("created_ns").min().over("rank"), at_the_cut=at_the_cut.fill_null(False)
    )
    alone = ordered.with_columns(
        single=(pl.when(ends_batch.any().over(of_rank)).then(together).otherwise(numbered) == 1) & pl.col("begins") & ~pl.col("at_the_cut")
    )
    columns = ("seq", "source_id", "line_no", "record", "call_site", "timeout_ms", "created_ns", "single")
    pending = (
        alone.filter(pl.col("is_p2p") & pl.col("peer").is_not_null())
        .filter(pl.col("op").is_in(["send", "recv"]) & (pl.col("begins") | ~pl.col("rank").is_in(sorted(gpus))).fill_null(True))
        .group_by("domain", "group_key", "rank", "op", "peer")
        .agg(
            (~pl.col("at_the_cut")).sum().alias("count"),
            pl.len().alias("posted"),
            *[pl.col(c).sort_by("at_the_cut", "order").first() for c in columns],
        )
        .sort("domain", "group_key", "rank", "op", "peer")
        .collect()
    )
    found = []
    for row in pending.iter_rows(named=True):
        group = info.get((row["domain"], row["group_key"]))
        if group is not None and 0 <= row["peer"] < len(members := members_of(group)):
            found.append(_Half(group, row["rank"], members[row["peer"]], row["op"], row["count"], row["posted"], row["single"], row))
    return found


def _alike(halves: list[_Half]) -> set[_Half]:
    """Calls of a pair run in order: where the first unfinished one is a send on both sides, or a receive, neither ever ends."""
    first: dict[tuple[object, int, int], _Half] = {}
    for half in halves:
        key = (half.group["group_key"], half.rank, half.peer)
        if key not in first or half.number < first[key].number:
            first[key] = half
    found: set[_Half] = set()
    for (group, rank, peer), half in first.items():
        back = first.get((group, peer, rank))
        if back is not None and back.op == half.op and half.single and back.single:
            found.add(half)
    return found
