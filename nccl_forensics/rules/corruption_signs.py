"""Memory or link errors of a GPU stand near a break of the training curve: the numbers may be spoiled.

## What it finds
A loss or gradient norm that broke away from its course, and on a host of the job uncorrected memory errors (Xid 48, 95, 140, counters),
errors that the GPU contained or mended (Xid 63, 64, 92, 94), or CRC errors of NVLink.

## Why it matters
An error that nothing contained can change a weight or a gradient without any message of the program. All-reduce then gives it to every rank,
and checkpoints keep it.

## What would refute it
The errors came after the break, or belong to a GPU that the job did not use; a rerun on the same host with the same batches that breaks at
the same step speaks for the program.

## What to do next
Throw away the checkpoints since the first error, take the GPU out of use, and go on from the one before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.facts.xid import CONTAINED, UNCONTAINED
from nccl_forensics.model import Action, Culprit, Finding, given
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import People, located, people, place, timely

_HOUR_NS = 3600 * 1_000_000_000
#: Counters of uncorrected errors since the last reset, and of uncorrected errors that were mended by remapping.
_COUNTERS = ("sram_uncorrected", "dram_uncorrected", "remapped_uncorrected")
_WALL = ("epoch", "local-unzoned")


@dataclass(frozen=True, slots=True)
class _Sign:
    """An error of one GPU; ``open`` is one that nothing contained."""

    host: str | None
    gpu: str | None
    words: str
    open: bool
    rows: pl.DataFrame


@rule(name="corruption-signs", code="DC02", cause="data-corruption", severity="error", at_most=32)
def corruption_signs(
    loss_jumps: pl.LazyFrame,
    xids: pl.LazyFrame | None,
    gpus: pl.LazyFrame | None,
    nvlink_counters: pl.LazyFrame | None,
    processes: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    job_times: pl.LazyFrame | None,
    *,
    near_h: Annotated[float, "hours before a break of the curve within which an error counts as near"] = 24.0,
    after_h: Annotated[float, "hours after it within which an error still counts, for the lag of logs and zones of clocks"] = 1.0,
    crc_least: Annotated[float, "CRC errors of one NVLink from which they are named"] = 1000.0,
) -> Iterator[Finding]:
    """One finding per GPU with a sign, uncontained errors first."""
    jumps = loss_jumps.sort("source_id", "line_no").collect()
    if jumps.is_empty():
        return
    who = people(processes)
    signs: list[_Sign] = []
    if xids is not None:
        rows = located(xids, source_hosts)
        rows = rows.filter(timely(rows, job_times, near_h))
        signs += _driver(rows.filter(_near(rows, jumps, near_h, after_h)))
    if gpus is not None:
        signs += _counted(located(gpus, source_hosts))
    if nvlink_counters is not None:
        signs += _links(located(nvlink_counters, source_hosts), crc_least)
    for sign in sorted(signs, key=lambda s: (not s.open, s.host or "", s.gpu or "")):
        yield _finding(sign, jumps, who)


def _near(rows: pl.DataFrame, jumps: pl.DataFrame, before_h: float, after_h: float) -> pl.Series:
    """Whether an error lies near a break; where either bears no wall time, it may."""
    times = jumps.filter(pl.col("time_kind").is_in(_WALL))["time_raw_ns"].drop_nulls().to_list()
    if not times:
        return pl.Series([True] * rows.height, dtype=pl.Boolean)
    time = pl.col("time_raw_ns")
    fits = pl.any_horizontal(time.is_between(t - int(before_h * _HOUR_NS), t + int(after_h * _HOUR_NS)) for t in (min(times), max(times)))
    wall = pl.col("time_kind").is_in(_WALL) & time.is_not_null()
    return rows.select(pl.when(wall).then(fits).otherwise(True)).to_series()


def _driver(rows: pl.DataFrame) -> Iterator[_Sign]:
    for (host, bus), part in rows.filter(pl.col("code").is_in([*UNCONTAINED, *CONTAINED])).group_by("host", "bus_id", maintain_order=True):
        codes = sorted(set(part["code"].to_list()))
        words = f"Xid {', '.join(map(str, codes))}"
        yield _Sign(_text(host), _text(bus), words, bool(set(codes) & UNCONTAINED), part)


def _counted(rows: pl.DataFrame) -> Iterator[_Sign]:
    key = pl.coalesce("bus_id", "uuid", pl.lit("index ") + pl.col("gpu_index").cast(pl.String))
    bad = rows.with_columns(gpu=key).filter(pl.any_horizontal(pl.col(c).fill_null(0) > 0 for c in _COUNTERS) & pl.col("gpu").is_not_null())
    for (host, gpu), part in bad.group_by("host", "gpu", maintain_order=True):
        worst = part.tail(1)
        told = [f"{name.replace('_', ' ')} {worst[name][0]}" for name in _COUNTERS if (worst[name][0] or 0) > 0]
        # A remapped row was mended before it was used again; errors since the last reset were not.
        open_errors = any((worst[name][0] or 0) > 0 for name in _COUNTERS[:2])
        yield _Sign(_text(host), _text(gpu), f"memory errors ({', '.join(told)})", open_errors, worst)


def _links(rows: pl.DataFrame, least: float) -> Iterator[_Sign]:
    noisy = rows.filter(pl.col("counter").str.contains(r"(?i)\bCRC\b") & (pl.col("value") >= least))
    for (host, gpu), part in noisy.group_by("host", "bus_id", maintain_order=True):
        yield _Sign(_text(host), _text(gpu), f"NVLink CRC errors ({part['value'].sum():.0f})", False, part)


def _text(value: object) -> str | None:
    return str(value) if value is not None else None


def _finding(sign: _Sign, jumps: pl.DataFrame, who: People) -> Finding:
    first = jumps.row(0, named=True)
    rank = who.of_gpu(sign.host, sign.gpu)
    ranks = given(rank)
    step = f" at step {first['step']}" if first["step"] is not None else ""
    hosts = (sign.host,) if sign.host else ()
    return Finding(
        title=f"{place(sign.host, sign.gpu)} had {sign.words}, and the training curve broke away{step}: numbers may be spoiled",
        summary="The GPU could not hold back the error: what it computed then can be wrong without any message."
        if sign.open
        else "The GPU contained or mended the error, as far as it knows: it is a sign of a part that wears out, no proof.",
        severity="error" if sign.open else "warning",
        confidence="medium" if sign.open else "low",
        ranks=ranks,
        hosts=hosts,
        culprits=(Culprit(rank=rank, host=sign.host, gpu=sign.gpu),),
        subject=(sign.host or "", sign.gpu or "", sign.words.split(" (")[0]),
        evidence=(*cite(sign.rows, sign.words, at_most=10), *cite(jumps, "the curve broke away here", at_most=4)),
        evidence_total=sign.rows.height + jumps.height,
        remedy="Throw away the checkpoints since the first error and go on from the one before, without this GPU.",
        prevention="Drain GPUs on uncontained errors; check losses for jumps when a node reports one.",
        would_refute=("the errors came after the break", "the same batches break at the same step on other hosts"),
        actions=(
            Action(
                "drain_and_reset" if sign.open else "collect-more",
                hosts=hosts,
                gpus=(sign.gpu,) if sign.gpu else (),
                command="dcgmi diag -r 3",
            ),
        ),
        metrics={"step": first["step"]},
    )
