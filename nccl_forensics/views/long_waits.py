"""How long ranks of a group had to wait in a collective that all of them entered, beside their timeout."""

from __future__ import annotations

import polars as pl

from nccl_forensics.frames import typed
from nccl_forensics.views import view
from nccl_forensics.views.arrivals import AT_ONCE, Arrivals, Entered, arrivals, entered
from nccl_forensics.views.calls import Calls
from nccl_forensics.views.columns import GROUP

LONG_WAITS = typed(
    GROUP,
    "comm_id:str seq:i64 op:str wait_ms:f64 timeout_ms:i64 members:u32 late:i32 source_id:u32 record:str call_site:str first_source_id:u32",
    "first_record:str",
)
#: Share of a timeout below which a wait is none that is told of.
SHARE = 0.05
_EDGES = typed("at:u32 first:f64 latest:f64 low:f64 high:f64 timeout_ms:i64")
_ROWS = typed("at:u32 row:u32 latest_row:u32 first_row:u32")


@view(rows="groups x timeouts")
def long_waits(operations: pl.LazyFrame | Calls) -> pl.LazyFrame:
    """Per group and timeout, the collective that all seen ranks called alike in which the first waited longest for the ``late`` one, if
    that is a twentieth of the timeout or more. A clock offset of a rank is the median of its distance to the others. Cites the operation of
    the late rank (``source_id`` …) and of the first (``first_source_id`` …)."""
    known = entered(operations)
    if not _far_apart(known):
        return pl.LazyFrame(schema=LONG_WAITS)
    with arrivals(known) as arrived:
        longest = _longest(arrived, known)
    rows = pl.concat([longest.get_column(c) for c in ("row", "latest_row", "first_row")])
    place, group = ("source_id", "record"), ("group_key", "seq", "op", "group_name", "group_desc", "comm_id")
    cited = known.named(rows).select("row", "rank", "call_site", *place, *group).collect()
    found = (
        longest.join(cited.select("row", *group), on="row")
        .join(cited.select(*place, "call_site", latest_row="row", late="rank"), on="latest_row")
        .join(cited.select(first_row="row", **{f"first_{c}": c for c in place}), on="first_row")
        .sort("wait_ms", "group_key", "seq", descending=[True, False, False])
        .unique(["group_key", "timeout_ms"], keep="first", maintain_order=True)
    )
    return found.select([pl.col(c).cast(t) for c, t in LONG_WAITS.items()]).lazy()


def _far_apart(known: Entered) -> bool:
    """Whether members came to some collective so far apart that clock offsets taken off could leave a wait that counts. An offset is a
    median of distances to the middle of arrivals, so none is larger than the largest distance between two arrivals, and two ranks have
    two."""
    timeout = known.words.filter(pl.col("timeout_ms") > 0).get_column("timeout_ms").min()
    if timeout is None:
        return False
    created = pl.col("created_ns")
    spans: list[pl.DataFrame] = []
    for part in known.parts():
        spans.append(part.group_by("placed").agg(created.min().alias("first"), created.max().alias("last")))
        if sum(one.height for one in spans[1:]) > AT_ONCE:
            spans = [_spans(spans)]
    if not spans:
        return False
    span = _spans(spans).select((pl.col("last") - pl.col("first")).max()).item()
    return span is not None and 3 * span >= SHARE * int(str(timeout)) * 1e6


def _spans(parts: list[pl.DataFrame]) -> pl.DataFrame:
    return parts[0] if len(parts) == 1 else pl.concat(parts).group_by("placed").agg(pl.col("first").min(), pl.col("last").max())


def _longest(arrived: Arrivals, known: Entered) -> pl.DataFrame:
    """Collectives with ``wait_ms``, ``timeout_ms``, ``members`` and the rows of all: the first ``row``, the ``latest_row``, the
    ``first_row`` to come."""
    middles = [rows.group_by("at").agg(middle=pl.col("created_ns").median()) for rows in arrived.stretches()]
    middle = arrived.by_collective(pl.concat([pl.DataFrame(schema={"at": pl.UInt32(), "middle": pl.Float64()}), *middles]), "middle")
    clocks = [pl.DataFrame(schema={"life": pl.UInt32(), "clock": pl.Float64()})]
    for _, rows in arrived.parts():
        apart = rows.select("life", distance=pl.col("created_ns") - middle.gather(rows.get_column("at")))
        clocks.append(apart.group_by("life").agg(clock=pl.col("distance").median()))
    clock = arrived.by_life(pl.concat(clocks), "clock")
    words = known.words.with_columns(kind=pl.col("op").rank("dense"), timeout=pl.when(pl.col("timeout_ms") > 0).then("timeout_ms"))
    edges = [pl.DataFrame(schema=_EDGES)]
    for _, rows in arrived.parts():
        called = _arrived(rows, clock).join(words.select("word", "kind", "timeout"), on="word", how="left", maintain_order="left")
        arrival, kind = pl.col("arrival"), pl.col("kind")
        bounds = called.group_by("at").agg(
            first=arrival.min(), latest=arrival.max(), low=kind.min(), high=kind.max(), timeout_ms=pl.col("timeout").min()
        )
        edges.append(bounds.select([pl.col(c).cast(t) for c, t in _EDGES.items()]))
        if sum(one.height for one in edges[1:]) > AT_ONCE:
            edges = [_merged(edges)]
    wait = (pl.col("latest") - pl.col("first")) / 1e6
    long = _merged(edges).filter((pl.col("low") == pl.col("high")) & (wait >= SHARE * pl.col("timeout_ms")))
    found = [pl.DataFrame(schema=_ROWS)]
    for _, rows in arrived.parts() if long.height else ():
        here = _arrived(rows, clock).join(long.select("at", "first", "latest"), on="at", how="inner")
        row = pl.col("row")
        own = here.group_by("at").agg(
            row.min(),
            latest_row=row.filter(pl.col("arrival") == pl.col("latest")).max(),
            first_row=row.filter(pl.col("arrival") == pl.col("first")).min(),
        )
        found.append(own.select(list(_ROWS)))
    rows = pl.concat(found).group_by("at").agg(pl.col("row").min(), pl.col("latest_row").max(), pl.col("first_row").min())
    members = arrived.sizes.alias("members").to_frame().with_row_index("at")
    return long.select("at", "timeout_ms", wait_ms=wait).join(rows, on="at").join(members, on="at")


def _arrived(rows: pl.DataFrame, clock: pl.Series) -> pl.DataFrame:
    return rows.with_columns(arrival=pl.col("created_ns") - clock.gather(rows.get_column("life")))


def _merged(edges: list[pl.DataFrame]) -> pl.DataFrame:
    """The edges of collectives, of parts that hold some ranks each."""
    lowest, highest = (pl.col(c).min() for c in ("first", "low", "timeout_ms")), (pl.col(c).max() for c in ("latest", "high"))
    return pl.concat(edges).group_by("at").agg(*lowest, *highest).select(list(_EDGES))
