"""A GPU's clocks are held down by heat, power or the hardware itself.

## What it finds
GPUs with a thermal or power-brake reason active, with a noticeable share of time spent so, at no temperature margin, or with a busy
clock clearly below the other GPUs'; and GPUs of which DCGM counted, over a job, a share of time in a slowdown by heat or by the board.

## Why it matters
A collective runs at the pace of its slowest rank: one hot GPU slows the whole job, and nothing fails.

## What would refute it
All GPUs are alike and only the software power cap is active: that is normal under load. Clocks at idle say nothing.

## What to do next
Check fans, air flow, power supplies and rack power; compare the inlet temperature with the neighbours.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import AT_MOST, cite
from nccl_forensics.facts.gpu import HARMFUL_THROTTLE
from nccl_forensics.model import CONFIDENCES, Action, Culprit, Finding, Severity, given, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import People, addressed, located, people, place, place_by_pace, with_placements
from nccl_forensics.rules.common.ties import job_of, tied
from nccl_forensics.words import ranks_words

_US_PER_H = 3_600_000_000
#: Fewer samples tell nothing of how long something lasted.
_MANY = 10


@rule(name="gpu-throttled", code="GP04", cause="gpu-throttled", severity="error", at_most=64, explains=("straggler", "low-bus-bandwidth"))
def gpu_throttled(
    gpus: pl.LazyFrame | None,
    dcgm_results: pl.LazyFrame | None,
    processes: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    placements: pl.LazyFrame | None,
    job_signs: pl.LazyFrame | None = None,
    failures: pl.LazyFrame | None = None,
    kernel_pace: pl.LazyFrame | None = None,
    *,
    clock_share: Annotated[float, "share of the median SM clock of busy GPUs below which a busy GPU is slow"] = 0.9,
    busy_percent: Annotated[float, "utilization above which clocks are judged"] = 50.0,
    time_minutes: Annotated[float, "minutes of hardware slowdown since the driver's start that are worth a warning"] = 10.0,
    moment: Annotated[float, "share of a GPU's samples, of ten or more, below which what they show was a moment's"] = 0.1,
    job_percent: Annotated[float, "percent of a job's time in a slowdown by heat or by the board that are worth a warning"] = 5.0,
) -> Iterator[Finding]:
    """One finding per GPU, or for all GPUs of a host that are held down alike: from their samples, then from DCGM's figures of a job."""
    who = people(processes, placements)
    if gpus is not None:
        samples = _samples(gpus, source_hosts, busy_percent)
        job = job_of(job_signs, None, failures)
        limits = (clock_share, busy_percent, time_minutes)
        bad = [any(s == "error" for s, _ in _signs(row, *limits)) for row in samples.iter_rows(named=True)]
        place_by_pace(who, samples.filter(pl.Series(bad, dtype=pl.Boolean)).with_columns(bus_id="gpu"), kernel_pace, "compute")
        held = _held_down(samples, who, clock_share, busy_percent, time_minutes, moment)
        yield from with_placements((tied(f, job.place(next(iter(f.hosts), None))) for f in _together(held)), who)
    if dcgm_results is not None:
        yield from with_placements(_over_job(located(dcgm_results, source_hosts), who, job_percent), who)


def _samples(gpus: pl.LazyFrame, source_hosts: pl.LazyFrame | None, busy_percent: float) -> pl.DataFrame:
    """The samples with the usual clock of busy GPUs of their kind."""
    # One look names a GPU by its address, another by its UUID alone.
    rows = addressed(located(gpus, source_hosts), gpus, None, source_hosts)
    rows = rows.with_columns(bus_id=pl.when(pl.col("bus_id") != pl.col("uuid").fill_null("")).then("bus_id")).with_columns(
        gpu=pl.coalesce("bus_id", "uuid", pl.lit("index ") + pl.col("gpu_index").cast(pl.String))
    )
    # A listing that names no models is of one host, and so is one that names no host: no other's.
    source = pl.lit("source ") + pl.col("source_id").cast(pl.String)
    rows = rows.with_columns(listing=pl.when(pl.col("host").is_null()).then(source))
    kin = pl.coalesce("name", source).alias("kin")
    busy = rows.with_columns(kin).filter((pl.col("utilization_percent") >= busy_percent) & (pl.col("sm_clock_mhz") > 0))
    usual = busy.group_by("kin").agg(pl.col("sm_clock_mhz").median().alias("usual"), pl.col("gpu").n_unique().alias("peers"))
    return rows.with_columns(kin).join(usual, on="kin", how="left", maintain_order="left")


def _held_down(
    rows: pl.DataFrame, who: People, clock_share: float, busy_percent: float, time_minutes: float, moment: float
) -> Iterator[Finding]:
    for (host, _, gpu), part in rows.group_by("host", "listing", "gpu", maintain_order=True):
        if gpu is None:
            continue
        signs: list[tuple[Severity, str, int]] = []
        for index, row in enumerate(part.iter_rows(named=True)):
            signs.extend((severity, words, index) for severity, words in _signs(row, clock_share, busy_percent, time_minutes))
        if not signs:
            continue
        # One sample among many is a moment; of a single look the clocks alone may be those of a moment.
        bad = {index for severity, _, index in signs if severity == "error"}
        brief = part.height >= _MANY and len(bad) < moment * part.height
        worst: Severity = "error" if bad and not brief else "warning"
        signs = [("warning", words, index) for _, words, index in signs] if brief else signs
        words = list(dict.fromkeys(w for s, w, _ in signs if s == worst))
        rank = who.of_listed(host, part["bus_id"][0], part["gpu_index"][0])
        # One that was put there by its pace is known by the word that its listing has for the GPU.
        rank = who.of_gpu(host, gpu) if rank is None else rank
        yield Finding(
            title=f"{place(host, gpu)}{f' (rank {rank})' if rank is not None else ''}: {'; '.join(words[:3])}",
            summary=f"{next((n for n in part['name'].to_list() if n), 'The GPU')} in {part.height} {'sample' if part.height == 1 else 'samples'}."
            + (f" Only {len(bad)} of them {'shows' if len(bad) == 1 else 'show'} it: it was over in a moment." if brief else ""),
            severity=worst,
            confidence="high" if worst == "error" else "low" if brief else "medium",
            ranks=given(rank),
            hosts=names_of(host),
            culprits=(Culprit(rank=rank, host=name_of(host), gpu=str(gpu)),),
            subject=(str(host or ""), str(gpu), *sorted({w.split(":")[0] for w in words})),
            evidence=cite(part[sorted({i for s, _, i in signs if s == worst})], words[0]),
            remedy="Check fans, air flow and power; move the job off this GPU until it is mended.",
            prevention="Watch clock event reasons and temperature margin of every GPU during jobs.",
            would_refute=("the sample was taken outside the job",),
            actions=(Action("check_power_or_cooling", hosts=names_of(host), gpus=(str(gpu),), ranks=given(rank)),),
        )


def _together(held: Iterable[Finding]) -> Iterator[Finding]:
    """GPUs of one host that lose clocks for the same reason have one cause: its power supply, its air."""
    alike: dict[tuple[object, ...], list[Finding]] = defaultdict(list)
    for found in held:
        said = found.title.partition(": ")[2].partition("; ")[0]
        listing = (found.subject, found.evidence[0].source_id)
        alike[found.severity, found.hosts, re.sub(r"\d+", "#", said) if found.hosts else listing].append(found)
    for parts in alike.values():
        first = parts[0]
        if len(parts) == 1:
            yield first
            continue
        ranks = tuple(r for f in parts for r in f.ranks)
        gpus = tuple(g for f in parts for a in f.actions for g in a.gpus)
        behind = f" ({ranks_words(ranks)})" if ranks else ""
        yield replace(
            first,
            title=f"{len(parts)} GPUs of {first.hosts[0]}{behind}: {first.title.partition(': ')[2]}",
            summary=f"First of them: {first.summary}",
            confidence=max((f.confidence for f in parts), key=CONFIDENCES.index),
            ranks=ranks,
            culprits=tuple(c for f in parts for c in f.culprits or ()),
            subject=(first.subject[0], *gpus, *first.subject[2:]),
            evidence=tuple(e for f in parts for e in f.evidence)[:AT_MOST],
            evidence_total=sum(f.evidence_total or len(f.evidence) for f in parts),
            actions=tuple(replace(a, gpus=gpus, ranks=ranks) for a in first.actions),
        )


def _over_job(rows: pl.DataFrame, who: People, least: float) -> Iterator[Finding]:
    slowed = rows.filter(
        (pl.col("category") == "Job statistics")
        & pl.col("test").is_in(["slowdown by heat", "slowdown by the board's limit"])
        & (pl.col("number") >= least)
    )
    for (host, index), part in slowed.group_by("host", "gpu_index", maintain_order=True):
        gpu = f"index {index}" if index is not None else None
        rank = who.of_index(host, index)
        listed = ", ".join(f"{share:g} % of it in a {test}" for test, share in part.select("test", "number").iter_rows())
        yield Finding(
            title=f"{place(host, gpu)}{f' (rank {rank})' if rank is not None else ''} was held down during the job: {listed}",
            summary="DCGM's figures cover the whole job; its samples tell when.",
            severity="warning",
            confidence="medium",
            ranks=given(rank),
            hosts=names_of(host),
            culprits=(Culprit(rank=rank, host=name_of(host), gpu=gpu),),
            subject=(str(host or ""), str(gpu), "job"),
            evidence=cite(part, "share of the job's time"),
            remedy="Check fans, air flow and power of the host; compare with GPUs of other hosts.",
            would_refute=("the figures are of another job",),
            actions=(Action("check_power_or_cooling", hosts=names_of(host), gpus=names_of(gpu)),),
        )


def _signs(row: dict[str, object], clock_share: float, busy_percent: float, minutes: float) -> Iterator[tuple[Severity, str]]:
    def value(column: str) -> float | None:
        raw = row[column]
        return float(str(raw)) if raw is not None else None

    reasons = row["throttle"] if isinstance(row["throttle"], list) else []
    specific = [r for r in reasons if r in HARMFUL_THROTTLE and not (r == "hw-slowdown" and {"hw-thermal", "power-brake"} & set(reasons))]
    for reason in specific:
        yield "error", f"clocks held down: {HARMFUL_THROTTLE[reason]}"
    clock, usual, load = value("sm_clock_mhz"), value("usual"), value("utilization_percent")
    peers = value("peers") or 0
    if clock and usual and load is not None and load >= busy_percent and peers >= 3 and clock < clock_share * usual:
        yield "error", f"runs at {clock:.0f} MHz under load where its neighbours run at {usual:.0f} MHz"
    margin, now, limit = value("temperature_margin_c"), value("temperature_c"), value("temperature_slowdown_c")
    if margin is not None and margin <= 0:
        yield "error", f"no temperature margin left ({margin:.0f} degrees)"
    elif margin is None and now is not None and limit is not None and 0 < limit <= now:
        yield "error", f"at {now:.0f} degrees, where slowdown begins"
    for column, words in (("throttle_hw_thermal_us", "hardware thermal slowdown"), ("throttle_power_brake_us", "power brake")):
        spent = value(column)
        if spent is not None and spent > minutes * 60_000_000 and not specific:
            yield "warning", f"spent {spent / _US_PER_H:.1f} h in {words} since the driver started"
    power, default = value("power_limit_w"), value("power_limit_default_w")
    if power is not None and default is not None and power < 0.9 * default and load is not None and load >= busy_percent:
        yield "warning", f"power limit set to {power:.0f} W (default {default:.0f} W)"
