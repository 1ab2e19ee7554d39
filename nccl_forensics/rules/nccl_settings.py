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

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.facts.settings import EFFECTS
from nccl_forensics.model import Action, Culprit, Finding
from nccl_forensics.rules import rule
from nccl_forensics.words import ranks_words


def _found(settings: pl.LazyFrame, cause: str) -> Iterator[Finding]:
    for effect in EFFECTS:
        if effect.cause != cause:
            continue
        rows = settings.filter(pl.col("name") == effect.name).collect()
        for row in rows.iter_rows(named=True):
            if effect.values is not None and row["value"] not in effect.values:
                continue
            ranks = tuple(row["ranks"])
            everywhere = row["processes"] >= row["of"] and bool(ranks or row["origin"] == "nccl")
            where = "on every rank" if everywhere else (f"on {ranks_words(ranks)} only" if ranks else _somewhere(row))
            yield Finding(
                title=f"{effect.name}={row['value']} {effect.words} {where}",
                summary="The setting stands in the log of the ranks that read it."
                if row["origin"] == "nccl"
                else "The setting stands in an environment that was saved with the evidence.",
                confidence="high" if row["origin"] == "nccl" or ranks else "medium",
                ranks=ranks,
                hosts=tuple(row["hosts"]),
                culprits=tuple(Culprit(rank=r) for r in ranks),
                subject=(effect.name, str(row["value"])),
                evidence=cite([row], f"{effect.name} is set"),
                evidence_total=row["processes"],
                remedy=f"Remove {effect.name} from the environment of the job (and from nccl.conf), or say in the job why it is there.",
                prevention="Print and compare NCCL_* settings of all ranks at the start of each job.",
                would_refute=("a hardware reason to keep it",),
                actions=(
                    Action("change-setting", hosts=tuple(row["hosts"]), ranks=ranks, command=f"unset {effect.name}", confidence="high"),
                ),
            )


def _somewhere(row: dict[str, object]) -> str:
    """Where a setting of unknown ranks stands."""
    return f"in {row['processes']} of {row['of']} processes" if row["origin"] == "nccl" else "in a saved environment"


@rule(
    name="p2p-disabled-by-setting",
    code="SE01",
    cause="p2p-disabled",
    severity="error",
    at_most=4,
    explains=("few-channels", "environment-mismatch", "socket-fallback", "low-bus-bandwidth"),
)
def p2p_disabled_by_setting(settings: pl.LazyFrame) -> Iterator[Finding]:
    """NCCL_P2P_DISABLE and NCCL_P2P_LEVEL."""
    yield from _found(settings, "p2p-disabled")


@rule(
    name="socket-fallback-by-setting",
    code="SE02",
    cause="socket-fallback",
    severity="error",
    at_most=4,
    explains=("gdr-disabled", "few-channels", "environment-mismatch", "low-bus-bandwidth", "nic-underused"),
)
def socket_fallback_by_setting(settings: pl.LazyFrame, host_ranks: pl.LazyFrame) -> Iterator[Finding]:
    """NCCL_IB_DISABLE, NCCL_NET and FI_PROVIDER, where the job spans hosts."""
    if host_ranks.collect().height > 1:
        yield from _found(settings, "socket-fallback")


@rule(name="gdr-disabled-by-setting", code="SE03", cause="gdr-disabled", severity="error", at_most=4, explains=("low-bus-bandwidth",))
def gdr_disabled_by_setting(settings: pl.LazyFrame) -> Iterator[Finding]:
    """NCCL_NET_GDR_LEVEL, NCCL_IB_CUDA_SUPPORT, FI_EFA_USE_DEVICE_RDMA."""
    yield from _found(settings, "gdr-disabled")


@rule(name="nvls-disabled-by-setting", code="SE04", cause="nvls-disabled", severity="error", at_most=4, explains=("low-bus-bandwidth",))
def nvls_disabled_by_setting(settings: pl.LazyFrame) -> Iterator[Finding]:
    """NCCL_NVLS_ENABLE."""
    yield from _found(settings, "nvls-disabled")


@rule(name="few-channels-by-setting", code="SE05", cause="few-channels", severity="error", at_most=4, explains=("low-bus-bandwidth",))
def few_channels_by_setting(
    settings: pl.LazyFrame,
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
    rows = settings.filter(pl.col("name").is_in(["NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "NCCL_MAX_NRINGS"])).collect()
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
            culprits=tuple(Culprit(rank=r) for r in row["ranks"]),
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
            remedy=f"Remove {row['name']}.",
            prevention="Compare the number of channels with an earlier run of the same job.",
            would_refute=("the GPUs' links could not feed more channels",),
            actions=(Action("change-setting", command=f"unset {row['name']}", confidence="high"),),
        )
