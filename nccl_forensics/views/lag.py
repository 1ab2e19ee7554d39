"""Arrival: how late each rank enters collectives compared with its peers of the same group."""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from nccl_forensics.frames import typed
from nccl_forensics.views import view
from nccl_forensics.views.arrivals import AT_ONCE, Arrivals, arrivals, entered
from nccl_forensics.views.calls import Calls
from nccl_forensics.views.columns import GROUP
from nccl_forensics.views.source_hosts import one_host
from nccl_forensics.words import UNIDENTIFIED

LAG = typed(
    GROUP,
    "comm_id:str rank:i32 collectives:u32 last_count:u32 median_ms:f64 p99_ms:f64 lost_ms:f64 worst_ms:f64 late_count:u32 span_ms:f64",
    "members:u32 one_clock:bool source_id:u32 record:str call_site:str",
)

LATE_MS = 50.0


@view(rows="ranks x groups")
def lag(operations: pl.LazyFrame | Calls, processes: pl.LazyFrame | None = None, path_hints: pl.LazyFrame | None = None) -> pl.LazyFrame:
    """Per group and rank, over collectives that all its seen ranks entered: ``median_ms`` and ``p99_ms`` behind the first arrival,
    ``last_count`` (how often it came last), ``lost_ms`` (how much later it came than the second last, summed where it came last, and no
    more than the time since its operation before), ``worst_ms`` (of that, in one collective alone), ``late_count`` (how often that was at
    least 50 ms: somebody is last to every collective), ``span_ms`` (from the group's first collective in the window to its last).

    Times are the hosts' own clocks: a constant offset of a clock is taken off as the rank's smallest distance to the median arrival (the
    usual one where the rank is merely early to a few), so that only what varies counts as late. Ranks of one host share its clock: of them
    the median offset is taken off. Where the ends of operations were noticed too, they tell the offset of a clock from a constant lateness,
    within what their spread allows: an operation ends on all ranks at once, whoever came late to it. ``one_clock``: the rank's clock is
    known to be that of others of the group. Cites the collective in which the rank was latest.
    """
    hosts = pl.LazyFrame(schema={"rank": pl.Int32(), "host": pl.String()})
    if processes is not None:
        told = processes.filter(pl.col("rank").is_not_null() & pl.col("host").is_not_null())
        hosts = told.select("rank", "host").unique("rank", keep="first", maintain_order=True)
    known = entered(operations)
    with arrivals(known) as arrived:
        seen = arrived.lives.get_column("rank").unique().to_list()
        if path_hints is not None and one_host({r for r in seen if r < UNIDENTIFIED}, processes, path_hints):
            hosts = pl.LazyFrame({"rank": seen, "host": [_ONE_LAUNCHER] * len(seen)}, schema={"rank": pl.Int32(), "host": pl.String()})
        late = _late(arrived, hosts)
    places = pl.concat([late.get_column("row"), late.get_column("first_row")])
    group, place = ("group_key", "group_name", "group_desc", "comm_id"), ("source_id", "record", "call_site")
    cited = known.named(places).select("row", *group, *place).collect()
    worst, named = cited.select("row", *place), cited.select(*group, first_row="row")
    rows = late.join(worst, on="row", how="left").join(named, on="first_row", how="left")
    return rows.select([pl.col(c).cast(t) for c, t in LAG.items()]).sort("group_key", "rank").lazy()


def _late(arrived: Arrivals, hosts: pl.LazyFrame) -> pl.DataFrame:
    """For each rank of each group ``LAG`` but for what the operation that it cites tells: its ``row``, and the ``first_row`` of the
    rank."""
    middles = [
        rows.group_by("at").agg(pl.col("created_ns").median().alias("middle"), pl.col("completed_ns").median().alias("end_middle"))
        for rows in arrived.stretches()
    ]
    middle = pl.concat([pl.DataFrame(schema=_MIDDLES), *middles])
    begins, ends = (arrived.by_collective(middle, c) for c in ("middle", "end_middle"))
    usual = [pl.DataFrame(schema=_USUAL)]
    for part, rows in arrived.parts():
        # Only what a rank is late by beyond its own usual distance: a clock offset is the same in every collective.
        at = rows.get_column("at")
        apart = rows.with_columns(
            distance=pl.col("created_ns") - begins.gather(at), end=pl.col("completed_ns") - ends.gather(at)
        )  # fmt: skip
        usual.append(
            apart.group_by("life").agg(
                _offset(pl.col("distance")).alias("usual"),
                pl.col("end").count().alias("ends"),
                pl.col("end").median().alias("offset"),
                pl.col("end").std().alias("spread"),
                ((pl.col("created_ns").max() - pl.col("created_ns").min()) / pl.len()).alias("apart"),
            )
        )
        arrived.keep(part, apart.drop("end"))
    clocks = _clocks(pl.concat(usual), arrived.lives, hosts)
    clock = arrived.by_life(clocks, "clock")
    bounds = _Edges()
    for part, rows in arrived.parts():
        known = _arrived(rows, begins, clock)
        bounds.add(known)
        arrived.keep(part, known)
    edges = bounds.together()
    first, latest, second = (arrived.by_collective(edges, c) for c in ("first", "latest", "second"))
    told = []
    for _, rows in arrived.parts():
        known = _arrived(rows, begins, clock)
        at = known.get_column("at")
        told.append(_told(known.with_columns(first.gather(at), latest.gather(at), second.gather(at)), arrived))
    empty = pl.DataFrame(schema=_TOLD)
    lives = arrived.lives.select("life", "rank", "members").join(clocks.select("life", "one_clock"), on="life", how="left")
    return pl.concat([empty, *told]).join(lives, on="life", how="left")


def _offset(distance: pl.Expr) -> pl.Expr:
    """The constant part of a rank's distances to the median arrival.

    A rank that is late to many collectives keeps to it in those where it is not, so it is sought at the low end. But a rank that is early
    to a few, as the first to be up, lies below it in these, and taking that for its clock would make it late to all the others: such a few
    are the first of all. Where the low end and the middle differ by more than the clock would be off, the one that asks for less of a
    clock's error is taken.
    """
    low, middle = distance.quantile(0.1), distance.median()
    below = distance < (low + middle) / 2
    first = below.sum()
    low = (
        pl.when((first * _FEW_FIRST <= pl.len()) & below.head(first).all())
        .then(distance.tail(pl.len() - first).quantile(0.1))
        .otherwise(low)
    )
    nearest = pl.min_horizontal(low.abs(), middle.abs())
    return pl.when((nearest < (middle - low)) & (middle.abs() < low.abs())).then(middle).otherwise(low)


#: Those to which a rank is early as the first to be up are one of so many at most.
_FEW_FIRST = 4
#: Stands for the host of ranks of which no host is named, and one launcher started them all.
_ONE_LAUNCHER = ""
_MIDDLES = typed("at:u32 middle:f64 end_middle:f64")
_USUAL = typed("life:u32 usual:f64 ends:u32 offset:f64 spread:f64 apart:f64")
_EDGES = typed("at:u32 first:f64 latest:f64 second:f64")
_TOLD = typed(
    "life:u32",
    {c: LAG[c] for c in ("collectives", "last_count", "median_ms", "p99_ms", "lost_ms", "worst_ms", "late_count", "span_ms")},
    "first_row:u32 row:u32",
)


def _clocks(usual: pl.DataFrame, lives: pl.DataFrame, hosts: pl.LazyFrame) -> pl.DataFrame:
    """``clock`` of each life: how far its times are beside those of the others without its being late."""
    own = usual.lazy().join(lives.lazy(), on="life", how="left").join(hosts, on="rank", how="left")
    together = pl.col("usual").median().over("group", "host")
    # Who waits for the others in each collective is never later than these are apart; that its clock is theirs is known of one launcher
    # only.
    possible = (pl.col("host") != _ONE_LAUNCHER) | ((pl.col("usual") - together).abs() <= pl.col("apart"))
    # Of two of a host only where they are all of their group: beside others, the one that is late would be half of their usual distance.
    beside = pl.len().over("group", "host")
    shared = pl.col("host").is_not_null() & ((beside > 2) | ((beside == 2) & (pl.len().over("group") == 2))) & possible
    clock = pl.when(shared).then(together).otherwise(_between_ends(pl.col("usual")))
    return own.select("life", clock=clock, one_clock=shared.fill_null(value=False)).collect()


def _arrived(rows: pl.DataFrame, begins: pl.Series, clock: pl.Series) -> pl.DataFrame:
    """The rows with ``arrival``: how far from the median the rank came, by the common clock."""
    if "arrival" in rows.columns:
        return rows
    distance = pl.col("distance") if "distance" in rows.columns else pl.col("created_ns") - begins.gather(rows.get_column("at"))
    kept = rows.with_columns(arrival=distance - clock.gather(rows.get_column("life")))
    return kept.select("life", "at", "row", "created_ns", "arrival")


@dataclass(slots=True)
class _Edges:
    """When the first, the last and the second last came to each collective, of parts that are added one by one."""

    seen: list[pl.DataFrame] = field(default_factory=list)

    def add(self, rows: pl.DataFrame) -> None:
        arrival = pl.col("arrival")
        own = rows.group_by("at").agg(
            arrival.min().alias("first"),
            arrival.max().alias("latest"),
            pl.when(pl.len() > 1).then(arrival.top_k(2).min()).alias("second"),
        )
        self.seen.append(own)
        if sum(one.height for one in self.seen[1:]) > AT_ONCE:
            self.seen = [self.together()]

    def together(self) -> pl.DataFrame:
        if len(self.seen) == 1:
            return self.seen[0]
        every = pl.concat([pl.DataFrame(schema=_EDGES), *self.seen])
        late = pl.concat([every.select("at", late="latest"), every.select("at", late="second")]).drop_nulls()
        second = late.group_by("at").agg(pl.when(pl.len() > 1).then(pl.col("late").top_k(2).min()).alias("second"))
        bounds = every.group_by("at").agg(pl.col("first").min(), pl.col("latest").max())
        return bounds.join(second, on="at", how="left")


def _told(rows: pl.DataFrame, arrived: Arrivals) -> pl.DataFrame:
    """``_TOLD`` of ranks that all rows are there of, with ``first``, ``latest`` and ``second`` of their collectives."""
    # A rank that enqueues several operations in a row, none of them waited for, is late to all of them and has lost that time once.
    life, created = pl.col("life"), pl.col("created_ns")
    if rows.select(((life == life.shift(1)) & (created < created.shift(1))).any()).item():
        rows = rows.sort("life", "created_ns", maintain_order=True)
    since = pl.when(life == life.shift(1)).then(created.diff())
    lost = pl.min_horizontal(pl.col("latest") - pl.col("second"), since)
    ranked = rows.select(
        "life",
        "row",
        "created_ns",
        behind_ms=(pl.col("arrival") - pl.col("first")) / 1e6,
        is_last=pl.col("arrival") == pl.col("latest"),
        lost=pl.when(pl.col("arrival") == pl.col("latest")).then(lost),
    )
    told = ranked.group_by("life").agg(
        pl.len().alias("collectives"),
        pl.col("is_last").sum().alias("last_count"),
        pl.col("behind_ms").median().alias("median_ms"),
        pl.col("behind_ms").quantile(0.99).alias("p99_ms"),
        (pl.col("lost").sum() / 1e6).alias("lost_ms"),
        (pl.col("lost").max().fill_null(0) / 1e6).alias("worst_ms"),
        (pl.col("lost") >= LATE_MS * 1e6).sum().alias("late_count"),
        ((pl.col("created_ns").max() - pl.col("created_ns").min()) / 1e6).alias("span_ms"),
        pl.col("behind_ms").max().alias("worst"),
        pl.col("row").min().alias("first_row"),
    )
    worst = arrived.by_life(told, "worst").gather(ranked.get_column("life"))
    cited = ranked.filter(pl.col("behind_ms") == worst).group_by("life").agg(pl.col("row").max())
    return told.join(cited, on="life", how="left").select([pl.col(c).cast(t) for c, t in _TOLD.items()])


#: Ends that must have been noticed on a rank before they tell its clock.
_ENDS = 16
#: The watchdog looks for ends this often (torch 2.9 c10d/ProcessGroupNCCL.cpp ``kWatchdogThreadSleepMillis``).
_LOOKS_MS = 100


def _between_ends(usual: pl.Expr) -> pl.Expr:
    """The usual distance of a rank, held within the offset that the ends of its operations show.

    An end is noticed when the watchdog looks, so a rank's ends scatter over half its interval on both sides of the truth; where they do
    not scatter, its looks keep step with the job, and the ends are off by up to that half.
    """
    unsure = 4 * pl.col("spread") / pl.col("ends").sqrt() + pl.when(pl.col("spread") < _LOOKS_MS / 8 * 1e6).then(
        _LOOKS_MS / 2 * 1e6
    ).otherwise(0.0)
    within = usual.clip(pl.col("offset") - unsure, pl.col("offset") + unsure)
    return pl.when(pl.col("ends") >= _ENDS).then(within).otherwise(usual)
