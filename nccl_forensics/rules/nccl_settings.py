"""A setting switches a fast path off, on all ranks or on some.

## What it finds
Settings of NCCL and libfabric, in NCCL's log or in a dump of an environment, that alone take a fast path away: direct GPU copies,
InfiniBand, GPUDirect RDMA, NVLink SHARP, channels.

## Why it matters
Left-overs of an earlier debugging session slow every collective down, often several times, without any error.

## What would refute it
The hardware has no such path, so nothing is lost; or the setting works around a fault that is worse.

## What to do next
Find where the setting comes from (job script, image, profile, nccl.conf) and run once without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.facts.settings import EFFECTS, IN_CONFIG
from nccl_forensics.frames import has_rows
from nccl_forensics.model import Action, Finding
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.ties import Job, closest, job_of, tied
from nccl_forensics.words import ranks_words

#: NVLink of an A100, of the last kind without NVLink SHARP: twelve links of 20 GB/s, as NCCL counts (NCCL 2.27 src/graph/topo.h).
_BEFORE_NVLS_GB_S = 240.0


def _found(settings: pl.LazyFrame, cause: str, job: Job, *, sure: bool = True, sure_of_some: bool = False) -> Iterator[Finding]:
    """``sure``: the hardware has what the setting switches off; ``sure_of_some``: a setting of some ranks alone is not meant for the
    hardware."""
    for effect in EFFECTS:
        if effect.cause != cause:
            continue
        rows = settings.filter(pl.col("name") == effect.name).collect()
        for row in rows.iter_rows(named=True):
            if effect.values is not None and row["value"] not in effect.values:
                continue
            ranks = tuple(row["ranks"])
            everywhere = row["processes"] >= row["of"] and bool(ranks or row["origin"] == "nccl")
            where = "on every rank" if everywhere else _somewhere(row)
            found = Finding(
                title=f"{effect.name}={row['value']} {effect.words} {where}",
                summary="The setting stands in the log of the ranks that read it."
                if row["origin"] == "nccl"
                else "The setting stands in an environment that was saved with the evidence.",
                confidence="high" if (sure or (sure_of_some and not everywhere)) and (row["origin"] == "nccl" or ranks) else "medium",
                ranks=ranks,
                hosts=tuple(row["hosts"]),
                subject=(effect.name, str(row["value"])),
                evidence=cite([row], f"{effect.name} is set"),
                evidence_total=row["processes"],
                remedy="Take it out of the configuration that the program hands to NCCL when it makes a communicator (ncclConfig_t)."
                if effect.name.startswith(IN_CONFIG)
                else f"Remove {effect.name} from the environment of the job (and from nccl.conf), or say in the job why it is there.",
                prevention="Print and compare NCCL_* settings of all ranks at the start of each job.",
                would_refute=("a hardware reason to keep it",),
                actions=(Action("change-setting", hosts=tuple(row["hosts"]), ranks=ranks, command=_unset(effect.name), confidence="high"),),
            )
            yield tied(found, closest(() if ranks else [job.place(host) for host in row["hosts"]]), "error")


def _unset(name: str) -> str | None:
    """What takes a setting away; nothing in a shell does it to one that the program makes itself."""
    return None if name.startswith(IN_CONFIG) else f"unset {name}"


def _somewhere(row: Mapping[str, Any]) -> str:
    """Where a setting of some ranks stands, or of processes whose ranks are not all known."""
    if row["ranks"] and len(row["ranks"]) >= row["processes"]:
        return f"on {ranks_words(row['ranks'])} only"
    return f"in {row['processes']} of {row['of']} processes" if row["origin"] == "nccl" else "in a saved environment"


@rule(
    name="p2p-disabled-by-setting",
    code="SE01",
    cause="p2p-disabled",
    severity="error",
    at_most=4,
    explains=("few-channels", "environment-mismatch", "socket-fallback", "low-bus-bandwidth"),
)
def p2p_disabled_by_setting(
    job_settings: pl.LazyFrame,
    gpu_links: pl.LazyFrame | None = None,
    job_signs: pl.LazyFrame | None = None,
    failures: pl.LazyFrame | None = None,
    nccl_network: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """NCCL_P2P_DISABLE and NCCL_P2P_LEVEL; less sure on all ranks of GPUs without NVLink, some of which cannot copy to each other, and where NCCL
    found that they do not."""
    best = _most_nvlink(gpu_links)
    unable = nccl_network is not None and has_rows(nccl_network.filter(pl.col("item") == "p2p-not-enabled"))
    yield from _found(
        job_settings,
        "p2p-disabled",
        job_of(job_signs, None, failures),
        sure=(best is None or best > 0) and not unable,
        sure_of_some=not unable,
    )


def _most_nvlink(gpu_links: pl.LazyFrame | None) -> float | None:
    """The most NVLink bandwidth of any GPU in GB/s, where NCCL's topology dump tells it."""
    best = gpu_links.select(pl.col("nvlink_gb_s").max()).collect().item() if gpu_links is not None else None
    return float(best) if best is not None else None


@rule(
    name="socket-fallback-by-setting",
    code="SE02",
    cause="socket-fallback",
    severity="error",
    at_most=4,
    explains=("gdr-disabled", "few-channels", "environment-mismatch", "low-bus-bandwidth", "nic-underused"),
)
def socket_fallback_by_setting(
    job_settings: pl.LazyFrame,
    host_ranks: pl.LazyFrame,
    job_signs: pl.LazyFrame | None = None,
    failures: pl.LazyFrame | None = None,
    bandwidth_tests: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """NCCL_IB_DISABLE, NCCL_NET and FI_PROVIDER, where the job, or a bandwidth test, spans hosts."""
    tested = bandwidth_tests.select(pl.col("hosts").list.len().max()).collect().item() if bandwidth_tests is not None else None
    if host_ranks.collect().height > 1 or (tested or 0) > 1:
        yield from _found(job_settings, "socket-fallback", job_of(job_signs, None, failures))


@rule(
    name="gdr-disabled-by-setting",
    code="SE03",
    cause="gdr-disabled",
    severity="error",
    at_most=4,
    explains=("low-bus-bandwidth", "gdr-disabled"),
)
def gdr_disabled_by_setting(
    job_settings: pl.LazyFrame,
    comms: pl.LazyFrame | None = None,
    job_signs: pl.LazyFrame | None = None,
    failures: pl.LazyFrame | None = None,
    nccl_placement: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """NCCL_NET_GDR_LEVEL, NCCL_IB_CUDA_SUPPORT, FI_EFA_USE_DEVICE_RDMA, unless all ranks of the job are on one host: they use no network.
    Where those that are known are, and NCCL does not say over how many hosts they spread, it is less sure."""
    most = nccl_placement.select(pl.col("nodes").max()).collect().item() if nccl_placement is not None else None
    ranks, size, hosts = _largest(comms) if comms is not None else (0, None, 0)
    if most == 1 or (most is None and hosts == 1 and size is not None and ranks >= size):
        return
    yield from _found(job_settings, "gdr-disabled", job_of(job_signs, None, failures), sure=most is not None or hosts != 1)


def _largest(comms: pl.LazyFrame) -> tuple[int, int | None, int]:
    """Of the largest communicator: how many of its ranks are known, its size, and on how many hosts these are."""
    world = comms.filter((pl.col("nranks") == pl.col("nranks").max()) & pl.col("rank").is_not_null())
    return world.select(pl.col("rank").n_unique(), size=pl.col("nranks").max(), hosts=pl.col("host").n_unique()).collect().row(0)


@rule(name="nvls-disabled-by-setting", code="SE04", cause="nvls-disabled", severity="error", at_most=4, explains=("low-bus-bandwidth",))
def nvls_disabled_by_setting(
    job_settings: pl.LazyFrame,
    gpu_links: pl.LazyFrame | None = None,
    job_signs: pl.LazyFrame | None = None,
    failures: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """NCCL_NVLS_ENABLE; for sure where the GPUs have the NVLinks of those with NVLink SHARP."""
    best = _most_nvlink(gpu_links)
    yield from _found(job_settings, "nvls-disabled", job_of(job_signs, None, failures), sure=best is not None and best > _BEFORE_NVLS_GB_S)


@rule(name="few-channels-by-setting", code="SE05", cause="few-channels", severity="error", at_most=4, explains=("low-bus-bandwidth",))
def few_channels_by_setting(
    job_settings: pl.LazyFrame,
    trace_bandwidth: pl.LazyFrame | None = None,
    *,
    enough: Annotated[int, "channels from which a limit is taken to be harmless"] = 8,
    hardly: Annotated[int, "channels up to which nobody limits them on purpose"] = 2,
) -> Iterator[Finding]:
    """NCCL_MAX_NCHANNELS and NCCL_MAX_CTAS below what fast links need, on all ranks (on some of them it is an environment mismatch).

    Profiler traces show what came of it: NCCL starts one block of its kernel per channel."""
    traced = (
        trace_bandwidth.filter(pl.col("channels").is_not_null()).sort("channels", descending=True).head(1).collect()
        if trace_bandwidth is not None
        else None
    )
    rows = job_settings.filter(
        pl.col("name").is_in(["NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "NCCL_MAX_NRINGS", f"{IN_CONFIG} Max CTAs"])
    ).collect()
    for row in rows.iter_rows(named=True):
        if not str(row["value"]).isdigit() or int(row["value"]) >= enough or row["processes"] < row["of"]:
            continue
        yield Finding(
            title=f"{row['name']}={row['value']} limits every communicator to {row['value']} channels",
            summary=f"Fast links need more channels than {row['value']}; NCCL would choose their number itself. Whether it was meant so the logs do not tell.",
            # The limit is certain; that it does harm is not: a job may leave the GPU's multiprocessors to its own kernels on purpose.
            confidence="high" if int(row["value"]) <= hardly else "medium",
            ranks=tuple(row["ranks"]),
            hosts=tuple(row["hosts"]),
            subject=(str(row["name"]), str(row["value"])),
            evidence=(
                *cite([row], f"{row['name']} is set"),
                *(
                    cite(traced, f"no kernel of NCCL in the traces has more than {traced['channels'][0]} blocks")
                    if traced is not None and traced.height
                    else ()
                ),
            ),
            evidence_total=row["processes"],
            remedy="Take the limit out of the configuration that the program hands to NCCL (ncclConfig_t, maxCTAs)."
            if row["name"].startswith(IN_CONFIG)
            else f"Remove {row['name']}.",
            prevention="Compare the number of channels with an earlier run of the same job.",
            would_refute=("the GPUs' links could not feed more channels",),
            actions=(Action("change-setting", command=_unset(str(row["name"])), confidence="high"),),
        )
