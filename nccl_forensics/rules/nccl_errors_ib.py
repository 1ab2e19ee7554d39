"""RDMA completions and port events with errors, as NCCL reports them.

## What it finds
Work completions with errors, queue pairs whose peer is out of reach, and port events, by the RDMA device that they name.

## Why it matters
A link drops traffic until a timeout: restarting on the same hosts brings it back.

## What would refute it
The peer's process had already died for a reason of its own: it no longer acknowledges, and no link is at fault.

## What to do next
Check the state and the error counters of the port on both ends, and the switch port between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.facts.work_completions import EVENT, FAULTS, OTHERWISE, UNANSWERED, status_words
from nccl_forensics.frames import ranks_in
from nccl_forensics.model import Action, Culprit, Finding, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.errors import own_addresses, still_trying, where_reported
from nccl_forensics.views.lost_hosts import addresses
from nccl_forensics.words import folded, natural

_UNREACHABLE = (
    "The queue pair could not be connected to the peer's address: no route between the two ports' GIDs (RoCE: GID index, subnet, interface "
    "without address), or the port is not active."
)
_NO_ANSWER = "The link or its far end stopped answering; status 12 is no acknowledgement within all retries (cable, switch, peer)."
_OWN_WORD = (
    "The adapter says so itself: a port error is a link that was lost (cable, optic, switch port), another error is one of the card."
)
#: The peer of a connection.
_FAR_END = pl.col("message").str.extract(r"from peer ([0-9A-Fa-f:.]+<[0-9]+>)")
#: NCCL names the device behind "hca" or in front; UCX behind "on".
_HCA = re.compile(
    r"\bhca ([\w.-]{1,32})|^NET/IB ?: ?([\w.-]{1,32}):[0-9]+ |\bon ([\w.-]{1,32}):(?:[0-9]+/(?:IB|RoCE)| )|, on dev ([\w.-]{1,32}):[0-9]+, "
)


@rule(
    name="ib-error",
    code="NE13",
    cause="ib-link",
    severity="critical",
    at_most=8,
    explains=(
        "connection-failed",
        "collective-stuck",
        "rank-died",
        "host-stall",
        "timeout",
        "gpu-stall",
        "collective-skipped",
        # What the port itself and the kernel say of the card at which it stands.
        "ib-link",
    ),
)
def ib_error(
    nccl_errors: pl.LazyFrame,
    processes: pl.LazyFrame,
    stalls: pl.LazyFrame | None = None,
    nccl_tails: pl.LazyFrame | None = None,
    lost_hosts: pl.LazyFrame | None = None,
    host_nics: pl.LazyFrame | None = None,
    ib_ports: pl.LazyFrame | None = None,
    nccl_network: pl.LazyFrame | None = None,
) -> Iterator[Finding]:
    """Work completions with errors other than flushes, queue pairs whose peer is out of reach to the end of the log, and port errors that
    NCCL's async thread reports, by host and device. That a far end no longer answers on which a process had ended, or whose port is down,
    says nothing of the host that reports it."""
    rows, trying = _device_errors(nccl_errors, nccl_tails, processes)
    if not rows.height:
        return
    over = _gone(rows, lost_hosts, nccl_network)
    dark = _port_down(host_nics, ib_ports)
    middle = _common_end(rows, nccl_network)
    seen = processes.select("host").drop_nulls().unique().collect().height > 1
    # One that fell silent before its peers did, and tells of no error, may be the far end that is gone.
    silent = ranks_in(stalls, pl.col("cause") == "host-stall")
    silent -= set(rows["rank"].to_list())
    # A card that reports its own port speaks for itself; what others say of connections that broke is then the far end of them.
    failed = set(rows.filter(pl.col("kind") == "ib-async-event")["host"].to_list())
    here: dict[object, set[object]] = {}
    for home, rank in processes.filter(pl.col("rank").is_not_null()).select("host", "rank").collect().iter_rows():
        here.setdefault(home, set()).add(rank)
    if middle is not None and middle not in rows["host"].to_list() and middle not in over:
        yield _far_end(middle, rows, known=middle in {host for host, _ in addresses(nccl_network)})
    for (host,), part in rows.group_by("host", maintain_order=True):
        peers = set(part.select(_FAR_END.str.split("<").list.first()).to_series().to_list())
        if host not in failed | dark and part["kind"].eq("ib-completion").all() and part["message"].str.contains(UNANSWERED).all():
            if peers <= set(over):
                yield _unanswered(host, part, [over[p] for p in sorted(peers)])
                continue
            if dark and peers <= own_addresses(nccl_network, tuple(sorted(dark))):
                yield _towards_dark(host, part, sorted(dark))
                continue
            if middle is not None and host != middle:
                yield _towards_common(host, part, middle)
                continue
        gone = () if host in failed else tuple(sorted(silent - here.get(host, set())))
        alone = host in failed or (seen and not failed and not gone)
        elsewhere = sorted(str(h) for h in failed) if host not in failed else []
        yield _at_devices(host, part, gone=gone, elsewhere=elsewhere, sure=alone and not trying, seen=seen or host in failed)


def _gone(rows: pl.DataFrame, lost_hosts: pl.LazyFrame | None, nccl_network: pl.LazyFrame | None) -> dict[object, dict[str, object]]:
    """The hosts that were gone by address. Where the job lost hosts that tell no address, and no more addresses than these are of no other
    host, the addresses are theirs."""
    lost = lost_hosts.collect().to_dicts() if lost_hosts is not None else []
    over: dict[object, dict[str, object]] = {r["address"]: r for r in lost if r["address"] is not None}
    nameless = [r for r in lost if r["address"] is None]
    known = {address for _, address in addresses(nccl_network)}
    ends = set(rows.select(_FAR_END.str.split("<").list.first()).to_series().drop_nulls().to_list()) - known
    return {**over, **dict.fromkeys(ends, nameless[0])} if 0 < len(ends) <= len(nameless) else over


def _device_errors(nccl_errors: pl.LazyFrame, nccl_tails: pl.LazyFrame | None, processes: pl.LazyFrame) -> tuple[pl.DataFrame, bool]:
    """What NCCL says of devices that is a fault, and whether that is no more than retries to the end of the log."""
    wanted = pl.col("kind").is_in(["ib-completion", "ib-modify-qp", "ib-async-event", "ib-qp-retry"])
    rows = where_reported(nccl_errors.filter(wanted & (pl.col("level") == "WARN")), processes)
    trying = not rows.height
    if trying and nccl_tails is not None:
        retries = still_trying(nccl_errors, nccl_tails, "ib-qp-retry")
        rows = where_reported(retries.with_columns(kind=pl.lit("ib-modify-qp")), processes)
    # Status 5 (flush) only follows an earlier error; events such as a GID change or port active are no faults.
    rows = rows.filter(
        ~(pl.col("message").str.contains(r"status=(?:5\b|IBV_WC_WR_FLUSH_ERR)") | pl.col("message").str.contains(r"with error 5,"))
    )
    rows = rows.filter((pl.col("kind") != "ib-async-event") | pl.col("message").str.contains(FAULTS))
    # torch prints NCCL's last error again, without the host that stands in NCCL's own line.
    again = _FAR_END.is_in(_FAR_END.filter(pl.col("host").is_not_null()).implode()).fill_null(value=False)
    return rows.filter(pl.col("host").is_not_null() | ~again), trying


def _common_end(rows: pl.DataFrame, nccl_network: pl.LazyFrame | None) -> str | None:
    """The one host, or address of a host that is not seen, at an end of all connections of several hosts that went unanswered: as long as
    there are two of them at least, no other host is at an end of all."""
    home = {address: host for host, address in addresses(nccl_network)}
    late = rows.filter((pl.col("kind") == "ib-completion") & pl.col("message").str.contains(UNANSWERED) & pl.col("host").is_not_null())
    ends = late.select("host", far=_FAR_END.str.split("<").list.first()).drop_nulls().unique().sort("host", "far")
    links = {frozenset((str(host), home.get(str(far), str(far)))) for host, far in ends.iter_rows()}
    shared = frozenset.intersection(*links) if len(links) > 1 else frozenset()
    return min(shared) if len(shared) == 1 else None


def _at_devices(host: object, part: pl.DataFrame, *, gone: tuple[int, ...], elsewhere: list[str], sure: bool, seen: bool) -> Finding:
    """What a host says of its devices. ``gone``: ranks of other hosts that fell silent before. ``elsewhere``: the hosts that report their own
    port. ``seen``: the far end would be seen, were it the one that is gone."""
    hosts = names_of(host)
    devices = sorted({d for text in part["message"].to_list() if (m := _HCA.search(str(text))) for d in m.groups() if d}, key=natural)
    _, other, instead, look = next((o for o in OTHERWISE if part["message"].str.contains(o[0]).all()), ("", None, None, ""))
    unreachable = part["kind"].eq("ib-modify-qp").all()
    remedy = look or "Check port state and error counters of this device and of its switch port; reseat or replace the cable."
    if unreachable:
        summary = _UNREACHABLE
        remedy = (
            "Compare the GIDs and the RoCE settings of the two hosts (show_gids, NCCL_IB_GID_INDEX, the addresses and subnets of both interfaces); "
            "check that both ports are active."
        )
        action = Action("fix_config", hosts=hosts, command="show_gids; ibstat")
    elif other:
        summary, action = other, Action("collect_more", hosts=hosts, command="dmesg -T")
    else:
        summary = _OWN_WORD if part["kind"].eq("ib-async-event").all() else _NO_ANSWER
        summary += f" The port that failed is told by {', '.join(elsewhere)}." if elsewhere else ""
        action = Action("check_cable_or_optic", hosts=hosts, command=f"ibstat {devices[0]}; perfquery" if devices else "ibstat")
    if gone:
        alternatives: tuple[tuple[str, tuple[int, ...], str | None], ...] = (("rank-died", gone, "nothing says that it ended"),)
    elif instead:
        alternatives = ((instead, (), None),)
    else:
        # A peer that died does not answer either: where the far end is not seen, that is as likely as a link.
        alternatives = () if seen or unreachable or other else (("rank-died", (), None),)
    return Finding(
        title=_at(host, devices, part),
        summary=summary,
        severity="warning" if elsewhere else None,
        confidence="low" if other else "high" if devices and sure else "medium",
        hosts=hosts,
        alternatives=alternatives,
        culprits=tuple(Culprit(host=name_of(host), nic=d) for d in (devices or [None])),
        subject=("ib", str(host), *devices),
        evidence=cite(part, "reported by NCCL"),
        evidence_total=part.height,
        remedy=remedy,
        prevention="Watch link_downed, symbol and retry counters of all ports; drain hosts whose counters rise.",
        would_refute=("clean counters on both ends and a peer that died first",),
        actions=(action,),
    )


def _far_end(middle: str, rows: pl.DataFrame, *, known: bool) -> Finding:
    """What several hosts say of the one that answered none of them, and which says nothing itself."""
    reporters = sorted({str(h) for h in rows["host"].drop_nulls().to_list()}, key=natural)
    return Finding(
        title=f"{middle} no longer answered {', '.join(reporters[:4])}{' …' if len(reporters) > 4 else ''} over RDMA: retry exceeded (status 12)",
        summary="Several hosts wait for the same one, and for no other. Whether its port failed or its processes were gone, it does not tell itself.",
        confidence="medium",
        hosts=(middle,) if known else (),
        culprits=(Culprit(host=middle),) if known else (),
        alternatives=(("rank-died", (), None), ("node-failed", (), None)),
        subject=("ib", middle),
        evidence=cite(rows, "reported by NCCL"),
        evidence_total=rows.height,
        remedy="Look at that host first: does it still run, are its ports active, do their error counters rise?",
        prevention="Watch link_downed, symbol and retry counters of all ports; drain hosts whose counters rise.",
        would_refute=("a process there ended before", "errors in the counters of the others' ports"),
        actions=(Action("collect_more", hosts=(middle,) if known else (), command="ibstat; perfquery; dmesg -T"),),
    )


def _at(host: object, devices: list[str], part: pl.DataFrame) -> str:
    """What happened at which adapters, in words where NCCL's first line is of a kind that has some."""
    message, where = str(part["message"][0]), f" of {host}" if host else ""
    at = ", ".join(folded(devices)) or "an adapter"
    event, status = EVENT.search(message), status_words(message)
    if event is not None:
        return f"{at}{where} reports: {event[1]}"
    if status is not None:
        peers = part.select(_FAR_END.str.split("<").list.first()).to_series().drop_nulls().unique().to_list()
        far = folded(sorted((str(p) for p in peers), key=natural))
        to = f" to {', '.join(far[:3])}{' …' if len(far) > 3 else ''}" if far else ""
        return f"RDMA over {at}{where}{to} failed: {status}"
    return f"RDMA errors on {host or 'a host'}{' at ' + ', '.join(devices) if devices else ''}: {message[:140]}"


def _port_down(host_nics: pl.LazyFrame | None, ib_ports: pl.LazyFrame | None) -> set[str]:
    """Hosts of which a port that NCCL used is found down."""
    if host_nics is None or ib_ports is None:
        return set()
    used = host_nics.select("host", device=pl.col("device").str.replace(r":[0-9]+$", "")).unique()
    down = ib_ports.filter(pl.col("state").str.to_lowercase() == "down").join(used, on=["host", "device"], how="semi")
    return set(down.select(pl.col("host").unique()).collect()["host"].to_list())


def _unanswered(host: object, part: pl.DataFrame, gone: list[dict[str, object]]) -> Finding:
    """Of connections whose far ends were gone: no fault of a link is seen."""
    ends = sorted({str(g["host"]) for g in gone})
    return _consequence(
        host,
        part,
        f"{ends[0]}{f' and {len(ends) - 1} more' if len(ends) > 1 else ''} no longer answered: {gone[0]['why']}",
        "A process that is gone does not acknowledge: that its peers' retries ran out says nothing of the link between them.",
        f"the connections broke before that, or the port counters of {ends[0]} rise",
    )


def _towards_dark(host: object, part: pl.DataFrame, dark: list[str]) -> Finding:
    """Of connections to a host whose own port is down."""
    return _consequence(
        host,
        part,
        f"{dark[0]}, of which a port is down, no longer answered",
        "The port that failed is at the far end: this side only waited for its acknowledgement.",
        "errors in the counters of this host's own port",
    )


def _towards_common(host: object, part: pl.DataFrame, middle: str) -> Finding:
    """Of connections to the host that those of other hosts went to in vain as well."""
    return _consequence(
        host,
        part,
        f"{middle} no longer answered, nor did it answer other hosts",
        "Several hosts wait for the same one, and for no other: its port, or what it stands behind, is the common end.",
        "errors in the counters of this host's own port",
    )


def _consequence(host: object, part: pl.DataFrame, what: str, summary: str, refuted: str) -> Finding:
    return Finding(
        title=f"connections {f'of {host} ' if host else ''}failed as {what}",
        summary=summary,
        cause="connection-failed",
        severity="warning",
        confidence="medium",
        hosts=names_of(host),
        subject=("far-end", str(host)),
        evidence=cite(part, "reported by NCCL"),
        evidence_total=part.height,
        remedy="Nothing to do on this host: look at the far end.",
        would_refute=(refuted,),
    )
