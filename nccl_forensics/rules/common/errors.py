"""Who wrote NCCL's error lines: the ranks and hosts behind them."""

from __future__ import annotations

import polars as pl

from nccl_forensics.views.lost_hosts import INTERFACES

#: Where nothing tells of processes.
NOBODY = pl.LazyFrame(schema={"host": pl.String(), "pid": pl.Int64(), "rank": pl.Int32(), "source_id": pl.UInt32()})


def where_reported(nccl_errors: pl.LazyFrame, processes: pl.LazyFrame) -> pl.DataFrame:
    """Error lines with the global ``rank`` of the process that wrote them, in the order of source and line. Lines without a pid, as where it
    was taken out before they were published, are those of the only process of their source."""
    known = processes.filter(pl.col("rank").is_not_null())
    people = known.filter(pl.col("pid").is_not_null()).select("host", "pid", "rank").unique(["host", "pid"], keep="any")
    bare = known.filter(pl.col("pid").is_null()).select("source_id", alone="rank").unique().unique("source_id", keep="none")
    joined = nccl_errors.join(people, on=["host", "pid"], how="left", nulls_equal=True).join(bare, on="source_id", how="left")
    return (
        joined.with_columns(
            rank=pl.coalesce(
                "rank",
                pl.when(pl.col("hint_scope") == "global").then(pl.col("hint_rank")),
                pl.when(pl.col("pid").is_null()).then(pl.col("alone")),
            )
        )
        .drop("alone")
        .sort("source_id", "line_no")
        .collect()
    )


def hosts_of(rows: pl.DataFrame) -> tuple[str, ...]:
    """Distinct hosts, sorted."""
    return tuple(sorted({str(h) for h in rows["host"].to_list() if h}))


def ranks_of(rows: pl.DataFrame) -> tuple[int, ...]:
    """Distinct known ranks, sorted."""
    return tuple(sorted({int(r) for r in rows["rank"].to_list() if r is not None}))


def garbled() -> pl.Expr:
    """Words of the process that gathers addresses of a message in which as many roots stand as no job has: another release of NCCL lays its
    messages out otherwise (bootstrap.cc, 2.23+)."""
    ranks, roots = (pl.col("message").str.extract(rf"\b{what} (-?\d+)").cast(pl.Int64) for what in ("nranks", r"nroots -?\d+ vs"))
    return (pl.col("kind") == "rank-mismatch") & ((roots < 1) | (roots > ranks)).fill_null(value=False)


#: Times that one process must have tried in vain before it counts.
_TRIES = 3


def still_trying(nccl_errors: pl.LazyFrame, nccl_tails: pl.LazyFrame, kind: str = "connect-retry") -> pl.LazyFrame:
    """The last retry of each process whose log ends with it, or with a torn line behind it, after at least ``_TRIES`` of them: it got no
    further."""
    place = ["source_id", "host", "pid"]
    retries = nccl_errors.filter(pl.col("kind") == kind).sort("source_id", "line_no")
    counted = retries.group_by(place, maintain_order=True).agg(pl.len().alias("tries"), pl.all().exclude(place).last())
    ends = nccl_tails.group_by(place).agg(last_line=pl.col("line_no").max())
    last = counted.join(ends, on=place, nulls_equal=True).filter(
        (pl.col("tries") >= _TRIES) & (pl.col("line_no") + 1 >= pl.col("last_line"))
    )
    return last.drop("tries", "last_line")


def own_addresses(nccl_network: pl.LazyFrame | None, hosts: tuple[str, ...]) -> set[str]:
    """Addresses that processes of ``hosts`` use themselves."""
    if nccl_network is None:
        return set()
    told = nccl_network.filter(pl.col("item").is_in(INTERFACES) & pl.col("host").is_in(hosts))
    return {str(a).split("<")[0] for a in told.select(pl.col("address").drop_nulls().unique()).collect()["address"].to_list()}
