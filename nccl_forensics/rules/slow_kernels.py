"""A rank's device takes longer than its peers' for the same kernels, or the same copies.

## What it finds
Profiler traces in which nearly every computing kernel of one rank, or of fewer than most, takes clearly longer than the kernel of that name takes on
the others, the shortest run of each too, while the others are alike. No clock and no collective is needed for that: it also tells a slow stage of
a pipeline, the slower one of two ranks, and several slow ranks at once. Where all ranks of a stage of a pipeline take longer alike, the stage may have more to do,
and that is a warning only; so is a rank that is alone in its stage; unless they take half as long again. Copies in one direction that move as many bytes are compared
alike: a rank for which they take twice as long and more has a slow way between its host and its device.

## Why it matters
A job runs at the pace of its slowest device. Its peers show the loss as time in collectives, where it looks like a slow network.

## What would refute it
The ranks have unlike devices, or longer batches are given to that rank in every step; its memory is not pinned, or of another NUMA node.

## What to do next
Compare clocks, throttle reasons, power and temperature of that GPU with its neighbours' (`nvidia-smi -q -d CLOCK,PERFORMANCE`); look for another
process on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import AT_MOST, cite, whereabouts
from nccl_forensics.model import Action, Confidence, Finding
from nccl_forensics.rules import rule
from nccl_forensics.words import ranks_words, time_words, verb

#: Stages are shared out unevenly by what they run more often; kernels of one name that run as often seldom differ by so much.
_HALF_AS_LONG_AGAIN = 1.5
_LOOK_AT_CLOCKS = "nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE"
_LOOK_AT_LINKS = "nvidia-smi topo -m; nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.width.current --format=csv"


@rule(name="slow-kernels", code="ST19", cause="straggler", severity="error", at_most=2, explains=("communication-bound", "low-overlap"))
def slow_kernels(
    kernel_pace: pl.LazyFrame,
    *,
    slower: Annotated[float, "share by which a rank's kernels must take longer than the usual"] = 0.25,
    apart: Annotated[float, "share of that by which the others may differ from each other"] = 0.35,
    agreeing: Annotated[float, "share of the compared time in kernels that must show it"] = 0.8,
    window_share: Annotated[float, "share of the traced time that the rank must compute longer by"] = 0.08,
    launches: Annotated[int, "kernels of the rank that must be comparable"] = 24,
    copies_slower: Annotated[float, "share by which a rank's copies must take longer than the usual"] = 1.0,
    copies: Annotated[int, "copies of the rank that must be comparable"] = 3,
) -> Iterator[Finding]:
    """At most one finding, for all ranks that are slow, by their kernels and one by their copies."""
    every = kernel_pace.sort("pace", "rank", descending=[True, False]).collect()
    for kind, least, enough in (("compute", slower, launches), ("memcpy", copies_slower, copies)):
        yield from _slow(every.filter(pl.col("kind") == kind), kind, least, apart, agreeing, window_share, enough)


def _slow(
    rows: pl.DataFrame, kind: str, slower: float, apart: float, agreeing: float, window_share: float, launches: int
) -> Iterator[Finding]:
    """The finding for the ranks whose kernels, or copies, are slow."""
    if rows.height < 2:
        return
    slow = rows.filter(
        (pl.col("pace") >= 1 + slower)
        & (pl.col("least_pace") >= 1 + slower / 2)
        & (pl.col("agreeing_share") >= agreeing)
        & (pl.col("excess_ms") >= window_share * pl.col("span_ms"))
        & (pl.col("launches") >= launches)
    )
    others = rows.filter(~pl.col("rank").is_in(slow["rank"].to_list()))
    if not slow.height or slow.height > others.height:
        return
    least = float(str(slow["pace"].min()))
    # Where work is shared out unevenly all differ from each other; a slow device differs from many that are alike.
    if float(str((others["pace"] - 1).abs().max())) > apart * (least - 1):
        return
    ranks = tuple(sorted(slow["rank"].to_list()))
    few = 4 * slow.height <= rows.height
    confidence: Confidence = "high" if few and least >= 1 + 1.5 * slower and int(str(slow["launches"].min())) >= 4 * launches else "medium"
    excess = float(str(slow["excess_ms"].max()))
    copied = kind == "memcpy"
    what = "copies" if copied else "kernels"
    if copied:
        confidence = "medium"  # a few copies, which share their way with others
    uneven = all(stages and not set(mates or ()) - set(ranks) for stages, mates in slow.select("stages", "mates").iter_rows())
    if uneven:
        confidence = "low"
    theirs = {gpu for kinds in others["gpus"].to_list() for gpu in kinds or ()}
    unlike = {gpu for kinds in slow["gpus"].to_list() for gpu in kinds or ()} if theirs else set()
    unlike = set() if unlike & theirs else unlike
    if unlike and confidence == "high":
        confidence = "medium"
    yield Finding(
        title=f"{ranks_words(ranks)} {verb(ranks, 'takes', 'take')} {least:.2f} times as long as the {_others(others.height)} for the same {what}",
        summary=f"{_compared(int(str(slow['names'].min())), copied)} on the others; of the compared time "
        f"{float(str(slow['agreeing_share'].min())):.0%} is in {what} that show it, and their shortest runs take {float(str(slow['least_pace'].min())):.2f} times "
        f"as long. The others differ from each other by {float(str((others['pace'] - 1).abs().max())):.0%} at most. That is {excess:,.0f} ms of "
        f"{float(str(slow['span_ms'].max())):,.0f} ms."
        + (" They are all that stand at their place in the pipeline: the stage may have more to do than the others." if uneven else "")
        + (f" Its device is another one: {', '.join(sorted(unlike))}, and the others' {', '.join(sorted(theirs))}." if unlike else ""),
        severity="warning" if uneven and least < _HALF_AS_LONG_AGAIN else None,
        confidence=confidence,
        ranks=ranks,
        subject=("straggler", what, ",".join(map(str, ranks))),
        evidence=tuple(e for row in slow.iter_rows(named=True) for e in cite([whereabouts(row)], _most(row)))[:AT_MOST],
        evidence_total=slow.height,
        remedy="Compare the PCIe link of its GPU, the NUMA node that its process runs on and whether its memory is pinned with its neighbours'."
        if copied
        else "Compare clocks, throttle reasons, power and temperature of its GPU with its neighbours'; look for another process on it.",
        prevention=f"Time one fixed {'copy' if copied else 'matrix product'} on every GPU before a job starts and leave out the nodes that are slow.",
        would_refute=(*(() if theirs else ("its GPU is of another kind",)), "it is given longer batches in every step"),
        actions=(Action("collect-more", ranks=ranks, command=_LOOK_AT_LINKS if copied else _LOOK_AT_CLOCKS),),
        metrics={"pace": round(least, 3), "excess_ms": round(excess, 1), "compared": rows.height},
    )


def _others(count: int) -> str:
    return f"other {count} traced ranks" if count > 1 else "other traced rank"


def _compared(names: int, copied: bool) -> str:
    if copied:
        return f"Copies in {names} direction{'s' if names > 1 else ''} are compared, as many and of as many bytes in all as"
    return f"{names} kernels are compared by name, each run as often"


def _most(row: Mapping[str, object]) -> str:
    """The kernel in which most of the loss is."""
    if row["kernel"] is None:
        return "its kernels, by name"
    name = str(row["kernel"])
    return f"{name[:80]}{'…' * (len(name) > 80)} takes {time_words(row['kernel_ms'])} a run, on the others {time_words(row['usual_ms'])}"
