"""NCCL_IB_GID_INDEX names a GID that is not the routable one of a port.

## What it finds
The setting NCCL_IB_GID_INDEX together with listings of GIDs (show_gids) in which this index is missing on a port, is RoCE v1, or has no IPv4
address, while another index of the same port is RoCE v2 with one.

## Why it matters
Queue pairs are then made with an address that the fabric does not route: connections time out (ibv_modify_qp 110) or fail at once (22).

## What would refute it
The fabric is InfiniBand, where the index does not matter, or the job uses other devices.

## What to do next
Unset NCCL_IB_GID_INDEX (NCCL 2.21 and later choose by themselves), or set the index that is RoCE v2 with an address on every host.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Culprit, Finding, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import located, place
from nccl_forensics.words import first_label


@rule(
    name="gid-index",
    code="SE08",
    cause="bad-setting",
    severity="error",
    at_most=32,
    explains=("connection-failed", "ib-link", "rank-never-joined"),
)
def gid_index(
    rdma_gids: pl.LazyFrame, settings: pl.LazyFrame, source_hosts: pl.LazyFrame | None, nccl_errors: pl.LazyFrame | None = None
) -> Iterator[Finding]:
    """One finding per host and index: its ports on which the index does not lead to a routable address. Where NCCL could not connect queue
    pairs by that index there, it is what stopped the job."""
    refused = (
        nccl_errors.filter((pl.col("kind") == "ib-modify-qp") & (pl.col("level") == "WARN")).collect() if nccl_errors is not None else None
    )
    set_to = settings.filter((pl.col("name") == "NCCL_IB_GID_INDEX") & pl.col("value").str.contains(r"^\d{1,3}$")).collect()
    rows = located(rdma_gids, source_hosts)
    for setting in set_to.iter_rows(named=True):
        index = int(setting["value"])
        for (_, host), own in rows.group_by("source_id", "host", maintain_order=True):
            if setting["hosts"] and host is not None and first_label(host) not in setting["hosts"]:
                continue  # each host has its own index
            wrong: list[tuple[str, int]] = []
            shown: list[dict[str, object]] = []
            for (device, port), part in own.group_by("device", "port", maintain_order=True):
                good = part.filter((pl.col("roce") == "v2") & pl.col("address").is_not_null())
                if good.height and index not in good["index"].to_list():
                    wrong.append((f"{device}:{port}", int(good["index"][0])))
                    shown += [*part.filter(pl.col("index") == index).to_dicts(), good.row(0, named=True)]
            if not wrong:
                continue
            ports = ", ".join(p for p, _ in wrong[:4])
            hosts = names_of(host)
            stopped = _refused(refused, index, host)
            yield Finding(
                title=f"NCCL_IB_GID_INDEX={index} is not the routable address of {ports} on {place(host)}: that is index {wrong[0][1]}",
                summary="The index that is set is missing there, is RoCE v1, or has no IPv4 address.",
                severity="critical" if stopped.height else None,
                confidence="high" if stopped.height else "medium",
                hosts=hosts,
                culprits=tuple(Culprit(host=name_of(host), nic=p) for p, _ in wrong[:8]),
                subject=("gid", str(index), str(host)),
                evidence=(
                    *cite([setting], "the setting"),
                    *cite(shown, "GIDs of the port"),
                    *cite(stopped.head(4), "a queue pair that could not be connected by it"),
                ),
                evidence_total=1 + len(shown) + stopped.height,
                remedy="Unset NCCL_IB_GID_INDEX, or set the index that is RoCE v2 with an address on every host.",
                prevention="Compare show_gids of all hosts in the job's prologue.",
                would_refute=("the job's traffic does not use these ports",),
                actions=(Action("change-setting", hosts=hosts, command="unset NCCL_IB_GID_INDEX", confidence="medium"),),
            )


def _refused(rows: pl.DataFrame | None, index: int, host: object) -> pl.DataFrame:
    """Queue pairs that NCCL could not connect from this index of the host (NCCL 2.22 and later say which it is)."""
    if rows is None or host is None:
        return pl.DataFrame()
    home = pl.col("host").str.split(".").list.first() == first_label(host)
    return rows.filter(home & pl.col("message").str.contains(rf"\blocal GID index {index}\b")).sort("source_id", "line_no")
