"""The collectives of one group of ranks take much longer than those of all groups like it.

## What it finds
Profiler traces in which one group (of tensor parallelism, say) reaches less than half of the bus bandwidth that the other groups of as many
ranks reach in the same operation of the same size, while those are alike; of two or three groups without a common rank less than a quarter.
Only groups of which every rank left a trace are compared, by the shortest duration among their ranks, so that waiting for a late one is not
billed to the links.

## Why it matters
The ranks of that group come late to everything else, and whoever waits for them looks like a victim of slow ranks, which they are not.

## What would refute it
That group is spread over more hosts than the others: then its links are others, and it is a matter of where ranks were put.

## What to do next
Compare links and transports among these ranks with those of another group: NVLink, peer access, the NIC that is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.traces import balance
from nccl_forensics.words import ranks_words

#: Groups are alike that differ by no more than this share, and so many of all must be.
_ALIKE, _MOST = 0.25, 0.7


@rule(
    name="slow-group", code="BW04", cause="low-bus-bandwidth", severity="error", at_most=16, explains=("communication-bound", "low-overlap")
)
def slow_group(
    trace_bandwidth: pl.LazyFrame,
    trace_measures: pl.LazyFrame,
    *,
    alike: Annotated[int, "groups of the same kind that must be compared, the slow one among them"] = 4,
    group_share: Annotated[float, "share of the usual bus bandwidth that a group must reach"] = 0.5,
    few_share: Annotated[float, "share of the fastest group's that it must reach where fewer are compared"] = 0.25,
    time_share: Annotated[float, "share of the traced time that a slow group must take longer by"] = 0.1,
) -> Iterator[Finding]:
    """One finding per group, by the operation and size in which it takes longer most."""
    same = ["collective", "dtype", "bytes", "ranks"]
    span = float(str(balance(trace_measures, None)["span_ms"].median() or 0.0))
    many = pl.len().over(same) >= alike
    # Of two or three groups the fastest tells what there is to be had.
    usual = pl.when(many).then(pl.col("bus_bw_gb_s").median().over(same)).otherwise(pl.col("bus_bw_gb_s").max().over(same))
    usual_ms = pl.when(many).then(pl.col("median_ms").median().over(same)).otherwise(pl.col("median_ms").min().over(same))
    # Groups of two kinds, of one size by chance, meet in some rank.
    apart = pl.col("members").list.len().sum().over(same) == pl.col("members").explode().n_unique().over(same)
    compared = (
        trace_bandwidth.filter((pl.col("ranks_seen") == pl.col("ranks")) & (pl.col("count") >= 3) & pl.col("bus_bw_gb_s").is_not_null())
        .with_columns(groups=pl.len().over(same), many=many, usual=usual, usual_ms=usual_ms, apart=apart)
        # All but the slow ones are alike: where links are shared unevenly every group has a bandwidth of its own.
        .with_columns(alike=((pl.col("bus_bw_gb_s") - pl.col("usual")).abs() <= _ALIKE * pl.col("usual")).sum().over(same))
        .with_columns(longer_ms=pl.col("count") * (pl.col("median_ms") - pl.col("usual_ms")))
        .filter(pl.col("many") | (pl.col("apart") & (pl.col("groups") > 1)))
        .filter(
            pl.col("alike") >= pl.max_horizontal(pl.col("groups").clip(upper_bound=alike) - 1, _MOST * pl.col("groups") * pl.col("many"))
        )
        .filter(pl.col("best_bus_bw_gb_s") < pl.when("many").then(group_share).otherwise(few_share) * pl.col("usual"))
        .filter(pl.col("longer_ms") >= time_share * span)
        .sort("longer_ms", "group_key", descending=[True, False])
        .collect()
        .unique("group_key", keep="first", maintain_order=True)
    )
    for row in compared.iter_rows(named=True):
        ranks = tuple(row["members"])
        yield Finding(
            title=f"{row['collective']} of {row['bytes'] / (1 << 20):,.1f} MiB among {ranks_words(ranks)} reaches {row['bus_bw_gb_s']:.1f} GB/s bus bandwidth, "
            f"among {_others(row['groups'] - 1)} of as many ranks {row['usual']:.1f} GB/s",
            summary=f"By the shortest duration among the ranks, so waiting for a late one is not in it. That is {row['longer_ms']:,.0f} ms of "
            f"{span:,.0f} ms, and whoever waits for these ranks in other groups loses it too.",
            confidence="medium" if row["many"] else "low",
            ranks=ranks,
            subject=("traces", str(row["group_desc"] or row["group_name"]), *map(str, ranks)),
            evidence=cite([row], "the shortest of them"),
            evidence_total=row["count"],
            remedy="Compare links and transports between these ranks with those of another group: NVLink, peer access, the NIC that is used.",
            prevention="Run all_reduce_perf among the ranks of each group before a job starts.",
            would_refute=("these ranks are spread over more hosts than those of the other groups",),
            actions=(Action("collect-more", ranks=ranks, command="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,P2P,NET"),),
            metrics={"bus_bw_gb_s": round(row["bus_bw_gb_s"], 2), "usual_gb_s": round(row["usual"], 2)},
        )


def _others(count: int) -> str:
    return f"the other {count} groups" if count > 1 else "the other group"
