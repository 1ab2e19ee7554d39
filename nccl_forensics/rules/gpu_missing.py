"""A host lists fewer GPUs than it had, than its ranks use, or than its peers have, and no tool says why.

## What it finds
GPUs that an earlier listing of the same source holds and a later one does not; GPUs that ranks named as theirs and that their host does not
list; hosts with fewer GPUs of the same model than most hosts of the job; hosts on which the driver finds none.

## Why it matters
A GPU that fell off the bus is often told by nothing but its absence: the tools list what is left and end well. Ranks that need it fail to
start or stop in the middle, and the next job fails again.

## What would refute it
The listing was asked for some GPUs only (nvidia-smi -i), is cut off, or was taken where the scheduler hides the others; or the host was built with fewer.

## What to do next
Compare nvidia-smi -L with lspci | grep -i nvidia, and look for Xid 79 in the kernel log. Reboot the node; if the GPU does not come back, have it
replaced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Confidence, Culprit, Evidence, Finding, Severity, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import EXPLAINS_STOP, People, located, people, place, ranks_of
from nccl_forensics.rules.common.ties import closest, job_of, tied
from nccl_forensics.words import first_label, ranks_words

Row = dict[str, object]
#: The code of a GPU that the driver no longer reaches.
_FALLEN = 79
#: What a host may lack and still be a host that lost some, not one that was given some.
_FEW = 0.25


@dataclass(slots=True)
class _Listing:
    """What one source lists of one host with one tool: the GPUs of each sample in order, with a row for each."""

    host: str | None
    samples: list[dict[str, Row]] = field(default_factory=list)

    @property
    def largest(self) -> dict[str, Row]:
        return max(self.samples, key=len)

    @property
    def by_address(self) -> bool:
        return all(row["bus_id"] is not None for row in self.largest.values())


@rule(
    name="gpu-missing",
    code="GP06",
    cause="gpu-fault",
    severity="critical",
    at_most=32,
    # A rank that asks for the GPU which is not there is refused it.
    explains=(*EXPLAINS_STOP, "nvlink-fault", "pcie-degraded", "invalid-usage"),
)
def gpu_missing(
    gpu_samples: pl.LazyFrame | None,
    gpu_tool_errors: pl.LazyFrame | None,
    processes: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    job_signs: pl.LazyFrame | None = None,
    failures: pl.LazyFrame | None = None,
    xids: pl.LazyFrame | None = None,
    raised: pl.LazyFrame | None = None,
    *,
    alike: Annotated[float, "share of the hosts that must have the same number of GPUs for another to lack some"] = 0.5,
) -> Iterator[Finding]:
    """One finding per host, by the surest of its signs."""
    job = job_of(job_signs, None, failures)
    asked = _asked_in_vain(raised, source_hosts)
    for finding in _missing(gpu_samples, gpu_tool_errors, processes, source_hosts, xids, alike):
        gpus = [c.gpu for c in finding.culprits or ()]
        ties = [job.tie(None, h, gpu=g, lasting=True) for h in finding.hosts or (None,) for g in gpus]
        yield tied(finding, "own" if asked & set(map(first_label, finding.hosts)) else closest(ties), "critical")


def _asked_in_vain(raised: pl.LazyFrame | None, source_hosts: pl.LazyFrame | None) -> set[str | None]:
    """Hosts of ranks that asked for a GPU by a number that their process does not see."""
    if raised is None:
        return set()
    rows = located(raised.filter(pl.col("message").str.contains("invalid device ordinal", literal=True)), source_hosts)
    return {first_label(h) for h in rows["host"].drop_nulls().to_list()}


def _missing(
    gpu_samples: pl.LazyFrame | None,
    gpu_tool_errors: pl.LazyFrame | None,
    processes: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    xids: pl.LazyFrame | None,
    alike: float,
) -> Iterator[Finding]:
    who = people(processes)
    listings = _listings(gpu_samples) if gpu_samples is not None else []
    told: set[str | None] = set()
    for listing in listings:
        if listing.host not in told and (finding := _gone(listing, who)) is not None:
            told.add(listing.host)
            yield finding
    hosts: dict[str, list[_Listing]] = {}
    for listing in listings:
        if listing.host is not None:
            hosts.setdefault(listing.host, []).append(listing)
    for host, mine in hosts.items():
        if host not in told and (finding := _used(host, mine, who)) is not None:
            told.add(host)
            yield finding
    fallen = located(xids.filter(pl.col("code") == _FALLEN), source_hosts).sort("source_id", "line_no") if xids is not None else None
    for host, mine in hosts.items():
        if fallen is not None and host not in told and (finding := _fell(host, mine, who, fallen)) is not None:
            told.add(host)
            yield finding
    yield from _fewer({h: m for h, m in hosts.items() if h not in told}, hosts, who, alike)
    if gpu_tool_errors is not None:
        yield from _none(located(gpu_tool_errors.filter(pl.col("kind") == "no-devices"), source_hosts), set(hosts), who)


def _listings(gpu_samples: pl.LazyFrame) -> list[_Listing]:
    found: dict[tuple[object, ...], _Listing] = {}
    for row in gpu_samples.collect().iter_rows(named=True):
        listing = found.setdefault((row["source_id"], row["tool"], row["host"]), _Listing(row["host"]))
        while len(listing.samples) <= row["sample"]:
            listing.samples.append({})
        listing.samples[row["sample"]][row["gpu"]] = row
    return list(found.values())


def _gone(listing: _Listing, who: People) -> Finding | None:
    """GPUs that a source listed and then did not. A listing of a few on demand and one that is cut off at its end are no loss."""
    if not listing.by_address or len(listing.samples) < 2:
        return None
    last = listing.samples[-1]
    before: dict[str, Row] = {}
    for sample in listing.samples[:-1]:
        before |= sample
    lost = sorted(set(before) - set(last))
    if not lost or len(lost) * 2 > len(before) or set(last) - set(before):
        return None
    at_end = not any(gpu > lost[-1] for gpu in last)
    if at_end and set(listing.samples[-2]) != set(last):
        return None
    return _finding(
        listing.host,
        lost,
        who,
        title="{} is no longer listed: an earlier listing of the same source has {}",
        summary=f"The last of {len(listing.samples)} listings holds {len(last)} GPUs, one before it held {len(before)}.",
        confidence="high",
        evidence=(*cite([before[g] for g in lost], "listed before"), *cite([next(iter(last.values()))], "the last listing begins here")),
    )


def _used(host: str, listings: Sequence[_Listing], who: People) -> Finding | None:
    """GPUs that ranks named as theirs, missing in every listing of their host."""
    label = first_label(host)
    ours = {gpu: rank for (name, gpu), rank in who.gpus.items() if name == label}
    listed = [s for listing in listings if listing.by_address for s in listing.samples]
    seen: dict[str, Row] = {}
    for sample in listed:
        seen |= sample
    lost = sorted(set(ours) - set(seen))
    # Another numbering (a virtual machine, a container) shows in most of the addresses.
    if not seen or not lost or len(lost) * 4 > len(ours):
        return None
    at_end = not any(gpu > lost[-1] for gpu in seen)
    return _finding(
        host,
        lost,
        who,
        title="{} is not listed on its host, though NCCL used {}",
        summary=f"NCCL's log names {len(ours)} GPUs of {host}, the listings hold {len(set(ours) & set(seen))} of them.",
        confidence="medium" if at_end else "high",
        evidence=cite([row for _, row in sorted(seen.items())], "GPUs that the host lists"),
    )


def _fell(host: str, listings: Sequence[_Listing], who: People, fallen: pl.DataFrame) -> Finding | None:
    """GPUs that the kernel says have fallen off the bus, and that no listing of their host holds: they have not come back."""
    own = fallen.filter(pl.col("host").map_elements(first_label, return_dtype=pl.String) == first_label(host))
    seen = {gpu for listing in listings if listing.by_address for s in listing.samples for gpu in s}
    gone = own.filter(pl.col("bus_id").is_not_null() & ~pl.col("bus_id").is_in(sorted(seen)))
    if not seen or not gone.height or gone["bus_id"].n_unique() > _FEW * (len(seen) + 1):
        return None
    return _finding(
        host,
        sorted(set(gone["bus_id"].to_list())),
        who,
        title="{} fell off the bus, and no listing of its host has {} since",
        summary=f"The kernel reported Xid {_FALLEN}; {len(seen)} GPUs of the host are listed, and {'this one is' if gone.height == 1 else 'these are'} not among them.",
        confidence="high",
        evidence=cite(gone, f"Xid {_FALLEN}"),
    )


def _fewer(hosts: dict[str, list[_Listing]], every: dict[str, list[_Listing]], who: People, alike: float) -> Iterator[Finding]:
    """Hosts with fewer GPUs of one model than most."""
    sizes = {h: max((listing.largest for listing in m), key=len) for h, m in every.items()}
    models = {h: Counter(str(r["name"]) for r in rows.values() if r["name"]).most_common(1) for h, rows in sizes.items()}
    for model in sorted({m[0][0] for m in models.values() if m}):
        peers = {h: sizes[h] for h in sizes if models[h] and models[h][0][0] == model}
        usual, count = Counter(len(r) for r in peers.values()).most_common(1)[0]
        if len(peers) < 3 or count <= alike * len(peers):
            continue
        full = next(h for h, r in peers.items() if len(r) == usual)
        common = set.intersection(*(set(r) for r in peers.values() if len(r) == usual))
        for host in sorted(h for h, r in peers.items() if len(r) < usual and h in hosts):
            rows, lack = peers[host], usual - len(peers[host])
            ranks = len(who.of_host(host))
            meant = ranks == len(rows)
            if lack > _FEW * usual and (meant or not ranks):
                continue  # a share of the host, as schedulers give
            lost = sorted(common - set(rows)) if set(rows) < common and len(common) == usual else []
            yield _finding(
                host,
                lost,
                who,
                title=f"{host} lists {len(rows)} GPUs ({model}), {count} other hosts list {usual}",
                summary="No tool says why: a GPU that the driver lost at boot leaves no other trace in a listing."
                + (f" As many ranks ran there as it lists ({ranks}): they were started to fit." if meant else ""),
                severity="warning" if meant else "critical",
                confidence="low" if meant else "medium",
                evidence=(
                    *cite([r for _, r in sorted(rows.items())], f"all that {host} lists"),
                    *cite([r for _, r in sorted(peers[full].items())][-1:], f"the last GPU that {full} lists"),
                ),
            )


def _none(rows: pl.DataFrame, peers: set[str], who: People) -> Iterator[Finding]:
    """Hosts whose driver finds no GPU at all, where the job needs some."""
    for (host,), part in rows.unique("host", maintain_order=True).group_by("host", maintain_order=True):
        if host in peers or not (peers or who.of_host(host)):
            continue
        yield _finding(
            name_of(host),
            [],
            who,
            title=f"{place(host)} has no GPU that the driver finds"
            + (f", {len(peers)} other hosts list theirs" if len(peers) > 1 else ", another host lists its own" if peers else ""),
            summary="No process of the job can have started there, or all of its GPUs were lost.",
            confidence="medium",
            evidence=cite(part, "what nvidia-smi says"),
        )


def _finding(
    host: str | None,
    lost: Sequence[str],
    who: People,
    *,
    title: str,
    summary: str,
    evidence: tuple[Evidence, ...],
    confidence: Confidence,
    severity: Severity = "critical",
) -> Finding:
    culprits = tuple(Culprit(rank=who.of_gpu(host, g), host=host, gpu=g) for g in lost) or (Culprit(host=host),)
    ranks, hosts = ranks_of(culprits), names_of(host)
    named = f"GPU {', '.join(lost)} of {place(host)}" + (f" ({ranks_words(ranks)})" if ranks else "")
    return Finding(
        title=title.format(named, "it" if len(lost) == 1 else "them"),
        summary=summary,
        severity=severity,
        confidence=confidence,
        ranks=ranks,
        hosts=hosts,
        culprits=culprits,
        subject=("missing", host or "", *lost),
        evidence=evidence,
        evidence_total=len(evidence),
        remedy="Reboot the node; if a GPU stays away, have it replaced. Keep the node out of the job until all are listed.",
        prevention="Count GPUs in the job's prologue, and let the node fail its health check where one is missing.",
        would_refute=(
            "the listing was asked for some GPUs only, or is cut off",
            "the host was built with fewer GPUs, or the job was given some of them",
        ),
        actions=(
            Action(
                "reboot_node",
                hosts=hosts,
                gpus=tuple(lost),
                ranks=ranks,
                command="nvidia-smi -L; lspci | grep -i nvidia; dmesg -T | grep -i xid",
                confidence=confidence,
            ),
        ),
    )
