"""The IMEX domain, by which hosts share GPU memory over NVLink, is not whole.

## What it finds
Nodes of nvidia-imex-ctl -N that are not ready or not connected to others; nodes with another version; connections that the daemon's log
says were lost in the job's time.

## Why it matters
NCCL's NVLink between hosts (MNNVL) needs IMEX on every host of the job: without it NCCL ends with an error when it starts, or falls back to the
network.

## What would refute it
The named nodes are configured but not part of the job: a domain with unused nodes is degraded and serves the others all the same.

## What to do next
systemctl status nvidia-imex on the named nodes; compare /etc/nvidia-imex/nodes_config.cfg and the versions of the driver.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Culprit, Finding, Severity, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import located, timely
from nccl_forensics.rules.common.thresholds import ZONES_H, AroundHours
from nccl_forensics.words import first_label

_MISMATCH = r"(?:version|node-map)-mismatch"


@rule(name="imex-domain", code="NL02", cause="nvlink-fault", severity="warning", at_most=16)
def imex_domain(
    imex_nodes: pl.LazyFrame | None,
    fabric_events: pl.LazyFrame | None,
    processes: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    job_times: pl.LazyFrame | None,
    *,
    window_h: AroundHours = ZONES_H,
) -> Iterator[Finding]:
    """One finding per listing with trouble, then one per host whose log tells of lost connections."""
    jobs = _hosts(processes)
    if imex_nodes is not None:
        rows = located(imex_nodes, source_hosts)
        for (_, host), part in rows.group_by("source_id", "host", maintain_order=True):
            yield from _listing(part, host, jobs)
    if fabric_events is not None:
        lost = located(fabric_events.filter(pl.col("kind") == "imex-disconnect"), source_hosts)
        for (host,), part in lost.filter(timely(lost, job_times, window_h)).group_by("host", maintain_order=True):
            yield _finding(
                part,
                host,
                f"{host or 'a host'} lost IMEX connections to other hosts",
                f'The log says: "{part["message"][0]}". It is a consequence where the other host went away first.',
                "warning",
                (),
                "lost",
            )


def _hosts(processes: pl.LazyFrame | None) -> frozenset[str]:
    if processes is None:
        return frozenset()
    names = processes.select(pl.col("host").drop_nulls().unique()).collect()["host"].to_list()
    return frozenset(label for name in names if (label := first_label(name)) is not None)


def _listing(rows: pl.DataFrame, host: object, jobs: frozenset[str]) -> Iterator[Finding]:
    away = rows.filter(pl.col("state").is_not_null() & (pl.col("state") != "READY"))
    apart = rows.filter((pl.col("state") == "READY") & (pl.col("broken").list.len() > 0))
    differ = rows.filter(pl.col("broken").list.eval(pl.element().str.contains(_MISMATCH)).list.any().fill_null(False))
    # Nodes that are ready and disagree only about one that is away tell nothing of themselves.
    gone = {str(n) for n in away["node"].to_list()}
    apart = apart.filter(
        pl.Series([any(peer.split(" ")[0] not in gone for peer in broken or ()) for broken in apart["broken"].to_list()], dtype=pl.Boolean)
    )
    bad = pl.concat([away, apart, differ]).unique(["line_no", "record"], maintain_order=True)
    if not bad.height:
        return
    state = next((s for s in rows["domain_state"].to_list() if s), None)
    ours = {_label(row) for row in away.iter_rows(named=True)} & jobs
    severity: Severity = "error" if state == "DOWN" or differ.height or ours else "warning"
    listed = "; ".join(_words(row) for row in bad.head(3).iter_rows(named=True))
    more = f" and {bad.height - 3} more" if bad.height > 3 else ""
    versions = sorted({v for v in rows["version"].to_list() if v})
    yield _finding(
        bad,
        host,
        f"the IMEX domain{f' is {state}' if state else ' is not whole'}: {listed}{more}",
        f"{rows.height} nodes are configured, {away.height} of them are not ready."
        + (f" They run different versions: {', '.join(versions[:4])}." if len(versions) > 1 else "")
        + ("" if ours or severity == "error" else " Nothing tells that the job ran on them."),
        severity,
        tuple(sorted(name for name in ours if name)),
        "domain",
    )


def _label(row: dict[str, object]) -> str | None:
    return first_label(row["name"]) if row["name"] else first_label(row["address"]) if not str(row["address"])[:1].isdigit() else None


def _words(row: dict[str, object]) -> str:
    node = f"node {row['node']} ({row['name'] or row['address'] or '?'})"
    broken = row["broken"] if isinstance(row["broken"], list) else []
    if row["state"] != "READY":
        return f"{node} is {row['state']}"
    return f"{node} is not connected to {', '.join(str(b).replace(' ', ' (', 1) + ')' for b in broken[:3])}"


def _finding(
    rows: pl.DataFrame, host: object, title: str, summary: str, severity: Severity, named: tuple[str, ...], subject: str
) -> Finding:
    hosts = named or names_of(host)
    return Finding(
        title=title,
        summary=summary,
        severity=severity,
        confidence="medium" if severity == "error" else "low",
        hosts=hosts,
        culprits=tuple(Culprit(host=h) for h in named),
        subject=(subject, *hosts),
        evidence=cite(rows, "what IMEX says of the node"),
        evidence_total=rows.height,
        remedy="Start nvidia-imex on every host of the domain with one list of nodes and one version; until then NCCL_MNNVL_ENABLE=0 keeps NCCL off it.",
        prevention="Run nvidia-imex-ctl -N in the job's prologue and wait for Domain State: UP.",
        would_refute=("the named nodes are not part of the job",),
        actions=(Action("fix_config", hosts=hosts, command="systemctl status nvidia-imex; nvidia-imex-ctl -N"),),
    )
