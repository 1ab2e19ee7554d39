"""NVLinks are broken, missing or slower than on the neighbouring GPUs.

## What it finds
NVLink errors of the driver (Xid 74, 136, 144 to 150) and of the switches (SXid); GPUs with fewer or slower links than their neighbours
in nvidia-smi or in the topology matrix; error counters that stand out; the same of AMD's xGMI. (What NCCL's own topology shows is a rule of its own.)

## Why it matters
NCCL builds its rings for the weakest GPU: one GPU with half its links slows the whole job, without any warning. A link that goes down
during a collective hangs it.

## What would refute it
An Xid 79 of the same GPU seconds before: then the links went down with the GPU. Boards whose bridges join only some GPUs rightly differ.

## What to do next
Find the far end (nvidia-smi nvlink -R): several GPUs that complain about one peer point to the peer. Reset; if it comes back, check
cable or baseboard.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.facts.gpu import nvlink_model
from nccl_forensics.facts.sxid import LINK_DOWN, sxid
from nccl_forensics.facts.xid import nvlink5_needs_reset, xid
from nccl_forensics.model import Action, Confidence, Culprit, Finding, Severity, given, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import EXPLAINS_STOP, People, located, people, place, timely, untimely_finding, with_placements
from nccl_forensics.rules.common.thresholds import ZONES_H, AroundHours
from nccl_forensics.rules.common.ties import Job, job_of, tied

#: Counters that grow only on a bad link, across driver branches. FEC bucket 0 and raw lane counters are non-zero on healthy links.
_BAD_COUNTERS = ("Recovery Errors", "Link recovery failed events", "Local link integrity Errors", "Effective Errors", "xGMI errors")
_NS = 1_000_000_000
#: NVLinks of a GPU from which switches join all of a host: with fewer, two of them may rightly have none between them.
_OF_SWITCHED = 12


@rule(
    name="nvlink-fault",
    code="NL01",
    cause="nvlink-fault",
    severity="critical",
    at_most=64,
    explains=(*EXPLAINS_STOP, "gpu-fault", "low-bus-bandwidth", "few-channels", "nvls-disabled", "p2p-disabled"),
)
def nvlink_fault(
    xids: pl.LazyFrame | None,
    sxids: pl.LazyFrame | None,
    nvlinks: pl.LazyFrame | None,
    nvlink_counters: pl.LazyFrame | None,
    gpu_topology: pl.LazyFrame | None,
    fabric_events: pl.LazyFrame | None,
    processes: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    job_times: pl.LazyFrame | None,
    placements: pl.LazyFrame | None,
    job_signs: pl.LazyFrame | None = None,
    failures: pl.LazyFrame | None = None,
    gpus: pl.LazyFrame | None = None,
    *,
    window_h: AroundHours = ZONES_H,
    after_off_bus_s: Annotated[float, "seconds after an Xid 79 within which a switch's link goes down as its consequence"] = 60.0,
    replay_factor: Annotated[float, "times the median of the other links at which replay or CRC counters stand out"] = 100.0,
    replay_least: Annotated[float, "replay or CRC errors below which a link is never named"] = 1000.0,
) -> Iterator[Finding]:
    """Driver and switch errors first, then links that are missing, then counters."""
    who = people(processes, placements)
    job = job_of(job_signs, job_times, failures)
    off_bus = _off_bus(xids, source_hosts)
    if xids is not None:
        rows = located(xids, source_hosts)
        yield from with_placements(_driver(rows.filter(timely(rows, job_times, window_h)), who, job), who)
    if sxids is not None:
        rows = located(sxids, source_hosts)
        inside = timely(rows, job_times, window_h)
        yield from _switch(rows.filter(inside), off_bus, after_off_bus_s, job)
        if not inside.all():
            yield untimely_finding(rows.filter(~inside), "SXid lines")
    if fabric_events is not None:
        rows = located(fabric_events, source_hosts)
        inside = timely(rows, job_times, window_h)
        yield from _fabric(rows.filter(inside), job)
        if not inside.all():
            yield untimely_finding(rows.filter(~inside), "lines of the fabric manager")
    if nvlinks is not None:
        yield from with_placements(_links(located(nvlinks, source_hosts), who, job), who)
    if gpu_topology is not None:
        matrix = located(gpu_topology, source_hosts)
        yield from with_placements(_matrix(matrix, who, job), who)
        if gpus is not None:
            yield from _unlinked(matrix, located(gpus, source_hosts), job)
    if nvlink_counters is not None:
        yield from with_placements(_counters(located(nvlink_counters, source_hosts), replay_factor, replay_least, who), who)


def _off_bus(xids: pl.LazyFrame | None, source_hosts: pl.LazyFrame | None) -> dict[object, list[int]]:
    found: dict[object, list[int]] = defaultdict(list)
    if xids is not None:
        for host, time in located(xids.filter(pl.col("code") == 79), source_hosts).select("host", "time_raw_ns").iter_rows():
            found[host].append(time if time is not None else 0)
    return found


def _finding(
    title: str,
    summary: str,
    rows: pl.DataFrame,
    why: str,
    *,
    severity: Severity,
    confidence: Confidence,
    host: object,
    gpu: object = None,
    link: object = None,
    rank: int | None = None,
    subject: tuple[str, ...] = (),
    action: str = "reset_gpu",
) -> Finding:
    hosts = names_of(host)
    ranks = given(rank)
    gpus = names_of(gpu)
    return Finding(
        title=title,
        summary=summary,
        severity=severity,
        confidence=confidence,
        ranks=ranks,
        hosts=hosts,
        culprits=(Culprit(rank=rank, host=name_of(host), gpu=name_of(gpu), link=f"NVLink {link}" if link is not None else None),),
        subject=(str(host or ""), str(gpu or ""), *subject),
        evidence=cite(rows, why),
        evidence_total=rows.height,
        remedy="Find the far end of the link with nvidia-smi nvlink -R; reset the GPUs of the node; if it comes back, have cable, bridge or baseboard checked.",
        prevention="Compare nvidia-smi nvlink -s and -e of all nodes before jobs start.",
        would_refute=("the link went down because its GPU had fallen off the bus or was reset",),
        actions=(
            Action(action, hosts=hosts, gpus=gpus, ranks=ranks, command="nvidia-smi nvlink -s; nvidia-smi nvlink -e; nvidia-smi nvlink -R"),
        ),
    )


def _driver(rows: pl.DataFrame, who: People, job: Job) -> Iterator[Finding]:
    links = rows.filter(pl.col("code").is_in([c for c in rows["code"].drop_nulls().unique().to_list() if xid(c).kind == "link"]))
    gone = set(rows.filter(pl.col("code") == 79).select("host", "bus_id").iter_rows())
    for (host, bus), part in links.group_by("host", "bus_id", maintain_order=True):
        if (host, bus) in gone:
            continue  # the GPU itself is gone; its links went with it
        numbers = sorted({n for n in part["link"].to_list() if n is not None})
        codes = sorted(set(part["code"].to_list()))
        fatal = any(_is_fatal(row) for row in part.iter_rows(named=True))
        rank = who.of_gpu(host, bus)
        first = part.row(0, named=True)
        at = f", link {', '.join(map(str, numbers[:8]))}" if numbers else ""
        found = _finding(
            f"{place(host, bus)}{f' (rank {rank})' if rank is not None else ''} reported NVLink errors{at} (Xid {', '.join(map(str, codes))})",
            f'{part.height} lines, the first: "{str(first["message"] or "")[:200]}". Both ends of a link may complain; the far GPU or the switch can be the culprit.',
            part,
            "NVLink error of the driver",
            severity="critical" if fatal else "warning",
            confidence="medium" if fatal else "low",
            host=host,
            gpu=bus,
            link=numbers[0] if len(numbers) == 1 else None,
            rank=rank,
            subject=tuple(str(n) for n in numbers),
        )
        yield tied(found, job.tie(part, host, gpu=bus, of=() if rank is None else (rank,)))


def _is_fatal(row: dict[str, object]) -> bool:
    """Xid 74 says so in words; NVLink5 by its own word or by the error status in NVIDIA's sheet; a failed training always."""
    message = str(row["message"] or "")
    if row["code"] in (136,) or "fatal error" in message.lower():
        return "non-fatal" not in message.lower()
    if row["fatal"] is not None:
        words = tuple(int(w, 16) for w in message.rpartition("(")[2].rstrip(")").split() if w.startswith("0x"))
        decoded = nvlink5_needs_reset(str(row["unit"] or ""), words)
        return bool(row["fatal"]) if decoded is None else decoded or bool(row["fatal"])
    return row["code"] == 74


def _switch(rows: pl.DataFrame, off_bus: dict[object, list[int]], after_s: float, job: Job) -> Iterator[Finding]:
    for (host, bus, code), part in rows.group_by("host", "bus_id", "code", maintain_order=True):
        said = [f for f in part["fatal"].to_list() if f is not None]
        facts = sxid(int(str(code)), any(said) if said else None)
        if facts.kind in ("corrected", "watch"):
            continue
        time = part["time_raw_ns"].min()
        before = [t for t in off_bus.get(host, []) if time is None or 0 <= int(str(time)) - t <= after_s * _NS]
        if code == LINK_DOWN and before:
            continue  # a GPU that falls off the bus takes its switch links down
        numbers = sorted({n for n in part["link"].to_list() if n is not None})
        fatal = facts.fatal and (not said or any(said))
        at = f", port {', '.join(map(str, numbers[:8]))}" if numbers else ""
        found = _finding(
            f"NVSwitch {bus} of {host or 'a host'}{at}: SXid {code}, {facts.meaning}",
            f"{part.height} lines of the {part['reporter'][0]}.",
            part,
            f"SXid {code}",
            severity="critical" if fatal else "warning",
            confidence="medium" if fatal else "low",
            host=host,
            gpu=None,
            link=numbers[0] if len(numbers) == 1 else None,
            subject=(str(bus), str(code)),
            action=facts.action,
        )
        yield tied(found, job.tie(part, host))


def _fabric(rows: pl.DataFrame, job: Job) -> Iterator[Finding]:
    words = {
        "multicast-handle": "the fabric manager does not know a GPU that asked for an NVLink SHARP team: NCCL's NVLS setup fails",
        "topology": "the fabric manager found fewer NVSwitches than any known system has and gave up",
        "training": "NVLinks could not be trained",
        "degraded": "the NVLink fabric runs degraded",
        "version-mismatch": "fabric manager and driver have different versions",
    }
    bad = rows.filter(pl.col("kind").is_in(list(words)) & pl.col("severity").is_in(["fatal", "degraded"]))
    for (host, kind), part in bad.group_by("host", "kind", maintain_order=True):
        stop = kind in ("topology", "version-mismatch")
        found = _finding(
            f"{host or 'A host'}: {words[str(kind)]}",
            f'The log says: "{part["message"][0]}".',
            part,
            "line of the fabric manager",
            severity="critical" if stop else "error",
            confidence="medium",
            host=host,
            subject=(str(kind),),
            action="fix_config" if kind in ("multicast-handle", "version-mismatch") else "reboot_node",
        )
        yield tied(found, job.tie(part, host))


def _links(rows: pl.DataFrame, who: People, job: Job) -> Iterator[Finding]:
    """Per GPU the number of active links and their rate, against its model and against the other GPUs of the host."""
    whose = pl.coalesce("uuid", pl.col("gpu_index").cast(pl.String))
    state = (
        rows.with_columns(gpu=whose)
        .group_by("source_id", "host", "gpu", maintain_order=True)
        .agg(
            pl.col("gpu_index").first(),
            pl.col("bus_id").first(),
            pl.col("name").first(),
            pl.col("active").sum().alias("up"),
            (~pl.col("active")).sum().alias("down"),
            pl.col("link").is_null().any().alias("all_down"),
            pl.col("line_no").max().alias("ends_at"),
            pl.col("rate_gb_s").min().alias("slowest"),
        )
    )
    for (source, host), group in state.group_by("source_id", "host", maintain_order=True):
        most, rate = int(str(group["up"].max() or 0)), group["slowest"].max()
        # nvidia-smi lists a link that is down, too: the last GPU of a listing that has fewer, all up, is cut off.
        cut = group.filter(
            (pl.col("ends_at") == group["ends_at"].max()) & (pl.col("down") == 0) & ~pl.col("all_down") & (pl.col("up") < most)
        )
        group = group.filter(~pl.col("gpu").eq_missing(cut["gpu"].first()) if cut.height else pl.lit(value=True))
        for row in group.iter_rows(named=True):
            model = nvlink_model(row["name"])
            expected = max(most, model.links if model else 0)
            slow = row["slowest"] is not None and rate is not None and row["slowest"] < 0.9 * float(str(rate))
            if not expected or (row["up"] >= expected and not slow):
                continue
            gpu = row["bus_id"] or f"index {row['gpu_index']}"
            mine = rows.filter((pl.col("source_id") == source) & whose.eq_missing(row["gpu"]))
            broken = mine.filter(~pl.col("active") | pl.col("link").is_null())
            uneven = most > row["up"]
            compared = "Its neighbours on the same host have more." if uneven else "All GPUs listed are alike; the model has more."
            if row["up"] >= expected:
                compared = "All of its links are up."
                words = f"has NVLinks at {row['slowest']:g} GB/s where its neighbours run at {float(str(rate)):g}"
            elif row["all_down"] or not row["up"]:
                words = f"has no active NVLink ({expected} expected)"
            else:
                words = f"has {row['up']} of {expected} NVLinks active"
            found = _finding(
                f"{place(host, gpu)} {words}",
                f"{row['name'] or 'The GPU'}. {compared}",
                broken if broken.height else mine,
                "state of the link",
                severity="critical" if not row["up"] else "error",
                confidence="high" if uneven or model else "medium",
                host=host,
                gpu=gpu,
                rank=who.of_listed(host, row["bus_id"], row["gpu_index"]),
                subject=("links",),
            )
            yield tied(found, job.place(host))


def _matrix(rows: pl.DataFrame, who: People, job: Job) -> Iterator[Finding]:
    """GPU pairs of one matrix: NVLinked ones beside unlinked ones, or with fewer links, where all should be alike."""
    pairs = rows.filter(pl.col("a").str.starts_with("GPU") & pl.col("b").str.starts_with("GPU") & (pl.col("relation") != "X"))
    for (_, host), group in pairs.group_by("source_id", "host", maintain_order=True):
        most = group["nvlinks"].max()
        xgmi = pl.col("relation") == "XGMI"
        if most is None and group.select(xgmi.any()).item():
            weak, wanted = group.filter(~xgmi), "without xGMI"  # of AMD's GPUs the matrix tells the kind of link only
        elif most is None or int(str(most)) < 8:
            continue  # without a switch or with few links, pairs rightly differ
        else:
            weak, wanted = group.filter(pl.col("nvlinks").fill_null(0) < int(str(most))), f"by fewer than {int(str(most))} NVLinks"
        counts = weak["a"].value_counts(sort=True)
        if not counts.height:
            continue
        worst = [a for a, n in counts.iter_rows() if n == counts["count"].max()]
        total = group["a"].n_unique()
        if len(worst) * 2 > total:
            continue  # two halves: a tray boundary or partition, not a fault of one GPU
        for gpu in sorted(worst):
            mine = weak.filter(pl.col("a") == gpu)
            rank = who.of_index(host, gpu.removeprefix("GPU"))  # the matrix counts as NVML does
            found = _finding(
                f"{gpu} of {host or 'a host'}{f' (rank {rank})' if rank is not None else ''} reaches {mine.height} of {total - 1} GPUs {wanted} ({', '.join(sorted(set(mine['relation'].to_list())))})",
                "All other pairs of the matrix are joined better; the collectives' rings are built for the weakest GPU.",
                mine,
                "cell of the topology matrix",
                severity="error",
                confidence="high",
                host=host,
                gpu=gpu,
                rank=rank,
                subject=("matrix",),
            )
            yield tied(found, job.place(host))


def _unlinked(rows: pl.DataFrame, gpus: pl.DataFrame, job: Job) -> Iterator[Finding]:
    """Hosts whose matrix joins no two GPUs by NVLink, although their model has NVLinks on its board."""
    names = gpus.drop_nulls(["host", "name"]).group_by("host").agg(pl.col("name").unique())
    models = {host: nvlink_model(found[0]) for host, found in names.iter_rows() if len(found) == 1}
    pairs = rows.filter(pl.col("a").str.starts_with("GPU") & pl.col("b").str.starts_with("GPU") & (pl.col("relation") != "X"))
    for (host,), group in pairs.group_by("host", maintain_order=True):
        model = models.get(host)
        count = group["a"].n_unique()
        if model is None or group["nvlinks"].drop_nulls().len() or (count < 4 and model.links < _OF_SWITCHED):
            continue
        found = _finding(
            f"no two GPUs of {host} are joined by NVLink, of a model that has {model.links} each",
            f"The matrix has {', '.join(sorted(set(group['relation'].to_list())))} between all {count} GPUs: the links are off, "
            "or a hypervisor hides them, and NCCL goes over PCIe or host memory.",
            group,
            "cell of the topology matrix",
            severity="error",
            confidence="medium",
            host=host,
            subject=("matrix", "none"),
        )
        yield tied(found, job.place(host))


def _link(link: object) -> str:
    return "" if link is None else f"link {link} "


def _counters(rows: pl.DataFrame, factor: float, least: float, who: People) -> Iterator[Finding]:
    whose = pl.coalesce("uuid", pl.col("gpu_index").cast(pl.String))
    one = ["host", "gpu", "link", "counter"]
    # Of several samples of one GPU the last value counts, and by how much it grew.
    known = pl.col("uuid").is_not_null() | pl.col("host").is_not_null()
    marked = rows.with_columns(gpu=whose).with_columns(
        grew=pl.when(known).then(pl.col("value").max() - pl.col("value").min()).otherwise(0.0).over(one)
    )
    certain = marked.filter(pl.col("counter").is_in(_BAD_COUNTERS) & (pl.col("value") > 0))
    noisy = marked.filter(pl.col("counter").is_in(["Replay Errors", "CRC Errors"]))
    noisy = noisy.with_columns(usual=pl.col("value").median().over("source_id", "counter")).filter(
        (pl.col("value") >= least) & (pl.col("value") > factor * pl.col("usual"))
    )
    bad = pl.concat([certain.with_columns(usual=pl.lit(None, dtype=pl.Float64())), noisy])
    for (host, gpu), part in bad.group_by("host", "gpu", maintain_order=True):
        latest = part.sort("value", descending=True, maintain_order=True).unique(one, keep="first", maintain_order=True)
        grown = latest.filter(pl.col("grew") > 0)
        shown = grown if grown.height else latest
        first = shown.row(0, named=True)
        name = first["bus_id"] or (f"index {first['gpu_index']}" if first["gpu_index"] is not None else str(gpu))
        listed = ", ".join(f"{_link(r['link'])}{r['counter']} {r['raw']}" for r in shown.head(4).iter_rows(named=True))
        yield _finding(
            f"{place(host, name)}: NVLink error counters {'grow' if grown.height else 'stand out'} ({listed})",
            f"Between two samples the first of them grew by {grown['grew'][0]:g}."
            if grown.height
            else "Counters since the last reset: they say that it happened, not when; two samples would show whether they grow.",
            part,
            "counter of the link",
            severity="error" if grown.height else "warning",
            confidence="medium",
            host=host,
            gpu=name,
            link=first["link"] if shown["link"].n_unique() == 1 else None,
            rank=who.of_listed(host, first["bus_id"], first["gpu_index"]),
            subject=("counters",),
        )
