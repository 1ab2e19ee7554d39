"""The kernel says that a network card or its link failed: firmware that stopped, links that went down, cables, resets.

## What it finds
Adapters whose firmware reports an error that it cannot recover from or no longer answers, links that went down after they had been up
(several lines of one flap count once), cables and modules that the adapter refuses, cards that their driver resets or cannot start, members
that a bond lost, and adapters that run hot.

## Why it matters
Every connection over such a card ends with retries exceeded, or stands still until a timeout does. NCCL names both ends of a connection that
broke; the kernel of the host with the bad link names the card.

## What would refute it
The card is not one that the job uses, or somebody unplugged or restarted it on purpose. A link that came back within the transport's retries
(about 30 s by NCCL's defaults) does no more than slow the job down.

## What to do next
Read state and counters of the port (mlxlink -d DEVICE -m -c -e, ethtool IFNAME); reseat or swap cable and optic, then the adapter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.frames import has_rows
from nccl_forensics.model import Action, Confidence, Culprit, Finding, Severity, name_of, names_of
from nccl_forensics.rules import rule
from nccl_forensics.rules.common.hosts import located, near_job, place, untimely_finding
from nccl_forensics.rules.common.thresholds import BESIDE_S, ZONES_H, AroundHours, NearSeconds

_JUDGED = ("nic-health", "nic-link", "carrier", "nic-module", "nic-reset", "bond-down", "nic-heat", "nic-start-failed")
#: Interfaces that containers and virtual machines come and go with; no cable ends there.
_VIRTUAL = r"(?i)^(?:lo$|veth|docker|br-|virbr|cali|cni|flannel|cilium|lxc|lxd|tap|tun|vnet|dummy|ifb|azv|eni|kube|podman|nodelocal|wg|gre)"
#: What says that the firmware is gone, and not that one command was refused or late.
_GONE = r"(?i)print_health_info|poll_health|health_recover|error_sw_reset|unrecoverable|miss count|internal error"
_SECOND = 1_000_000_000
_EXPLAINS = (
    "timeout",
    "closed",
    "collective-stuck",
    "connection-failed",
    "packet-loss",
    "low-bus-bandwidth",
    "straggler",
    "nic-underused",
    "rank-died",
    "rank-never-joined",
    # What NCCL says of both ends of a connection that broke.
    "ib-link",
)


#: Right after a boot links come and go while drivers and the network are set up.
_BOOT_S = 600


@dataclass(frozen=True, slots=True)
class _Job:
    """What is known of the job beside the kernel's lines."""

    seen: bool
    failed: bool

    @property
    def loss(self) -> Severity:
        """How much a card counts that misbehaves: while the job goes well it is not one that the job stands on."""
        return "warning" if self.seen and not self.failed else "error"


@rule(name="nic-events", code="NE21", cause="ib-link", severity="error", at_most=64, explains=_EXPLAINS)
def nic_events(
    kernel_events: pl.LazyFrame,
    processes: pl.LazyFrame | None,
    source_hosts: pl.LazyFrame | None,
    job_times: pl.LazyFrame | None,
    failures: pl.LazyFrame | None,
    *,
    window_h: AroundHours = ZONES_H,
    near_s: NearSeconds = BESIDE_S,
) -> Iterator[Finding]:
    """One finding per host, card and kind. What happened at another time than the job is named and not judged."""
    rows = located(kernel_events.filter(pl.col("kind").is_in(_JUDGED)), source_hosts).sort("source_id", "line_no")
    rows = rows.filter(~pl.col("ifname").fill_null("").str.contains(_VIRTUAL))
    rows = near_job(rows, job_times, near_s, window_h)
    old = rows.filter(~pl.col("inside") & (pl.col("severity") != "info"))
    if old.height:
        yield untimely_finding(old, "events of network cards")
    rows = rows.filter("inside")
    seen = processes is not None and has_rows(processes.filter(pl.col("rank").is_not_null()))
    job = _Job(seen, has_rows(failures))
    yield from _health(rows, job)
    yield from _links(rows, job)
    yield from _others(rows, job)


def _health(rows: pl.DataFrame, job: _Job) -> Iterator[Finding]:
    bad = rows.filter((pl.col("kind") == "nic-health") & (pl.col("severity") == "fatal"))
    for (host, device), part in bad.group_by("host", "device", maintain_order=True):
        gone = bool(part["message"].str.contains(_GONE).any())
        sure = bool((part["close"] & (part["time_kind"] == "epoch")).any())
        stop = gone and job.loss == "error"
        yield _finding(
            part,
            host,
            device,
            f"network card {_card(host, device)} failed: its firmware "
            + ("reports an error of its own or no longer answers" if gone else "let a command time out"),
            f'The driver wrote: "{part["message"][0]}". '
            + ("Every connection over this card is dead until it is reset." if gone else "It may recover."),
            "critical" if stop else "error" if gone else job.loss,
            "low" if not gone else "high" if stop and sure else "medium",
            "health",
            "what the driver says of the card's health",
        )


def _links(rows: pl.DataFrame, job: _Job) -> Iterator[Finding]:
    """Flaps and links that stay down. A port that was never up is one without a cable."""
    told = rows.filter(pl.col("kind").is_in(["nic-link", "carrier"]) & pl.col("state").is_in(["up", "down"]))
    cards = told.filter(pl.col("device").is_not_null() & pl.col("ifname").is_not_null()).select("host", "ifname", card="device")
    told = told.join(
        cards.unique(["host", "ifname"], keep="first"), on=["host", "ifname"], how="left", nulls_equal=True, maintain_order="left"
    ).with_columns(device=pl.coalesce("device", "card"), port=pl.coalesce("ifname", "device"))
    for (host, port), part in told.group_by("host", "port", maintain_order=True):
        steps = part.filter(pl.col("state") != pl.col("state").shift(1).fill_null("")).with_columns(
            was_up=(pl.col("state").shift(1) == "up").fill_null(False) | (pl.col("kind") == "carrier") | pl.col("close"),
            booting=(pl.col("time_kind") == "monotonic") & (pl.col("time_raw_ns") < _BOOT_S * _SECOND),
        )
        downs = steps.filter((pl.col("state") == "down") & pl.col("was_up") & ~pl.col("booting").fill_null(False))
        if not downs.height:
            continue
        down, close = steps["state"][-1] == "down", bool(downs["close"].any())
        device = next((d for d in part["device"].to_list() if d), None)
        away = _away(steps)
        yield _finding(
            steps,
            host,
            device or port,
            f"the link of {port}{f' ({device})' if device and device != port else ''} of {host or 'a host'} went down "
            + ("once" if downs.height == 1 else f"{downs.height} times")
            + (" and is still down where the log ends" if down else ""),
            (f"It was down for {away:.0f} s in all. " if away is not None else "")
            + ("Connections over it wait or break." if down else "It came back; connections that it kept waiting for longer broke."),
            "critical" if close and job.failed else job.loss,
            "medium" if close or (not job.seen and (down or downs.height > 1)) else "low",
            f"link {port}",
            "the link's state",
            {"times_down": downs.height, "down_s": away},
        )


def _away(steps: pl.DataFrame) -> float | None:
    """Seconds that the link was down between a line that says so and the next one that says it is up."""
    if steps["time_raw_ns"].null_count() or steps["time_kind"].n_unique() != 1:
        return None
    spans = steps.with_columns(until=pl.col("time_raw_ns").shift(-1)).filter((pl.col("state") == "down") & pl.col("until").is_not_null())
    total = float((spans["until"] - spans["time_raw_ns"]).sum()) / _SECOND
    return total if spans.height and total >= 0 else None


def _others(rows: pl.DataFrame, job: _Job) -> Iterator[Finding]:
    """Modules that are refused, cards that were reset, members that a bond lost, heat."""
    bad = rows.filter(~pl.col("severity").is_in(["info", "benign"]) & (pl.col("state").fill_null("down") == "down"))
    for kind, (words, summary, counts) in _WORDS.items():
        of_kind = bad.filter(pl.col("kind") == kind).with_columns(card=pl.coalesce("ifname", "device"))
        for (host, card), part in of_kind.group_by("host", "card", maintain_order=True):
            detail = str(part["detail"][0] or "")
            # Ports without a cable say so whenever the host starts.
            bare = detail.endswith("unplugged") and not part["close"].any()
            yield _finding(
                part,
                host,
                card,
                words.format(card=_card(host, card), detail=f": {detail}" if detail else ""),
                summary,
                job.loss if counts and not bare else "warning",
                "medium",
                kind,
                "what the kernel says of the card",
            )


#: Of each kind the words, what it means, and whether it can end a job.
_WORDS: dict[str, tuple[str, str, bool]] = {
    "nic-module": ("network card {card} refuses its cable or module{detail}", "What is plugged into the card does not work.", True),
    "nic-reset": ("the driver reset network card {card}{detail}", "What was under way over this interface is lost or late.", True),
    "bond-down": (
        "network card {card} dropped out of its bond{detail}",
        "The bond goes on with the bandwidth of those that are left, and streams gather on fewer cables.",
        False,
    ),
    # A virtual function that nobody uses may be one of these.
    "nic-start-failed": (
        "the driver could not start network card {card}{detail}",
        "There is neither an interface nor an RDMA device of it, and jobs run over those that are left.",
        False,
    ),
    "nic-heat": ("network card {card} is too hot", "A hot card or module slows down, or switches its link off.", False),
}


def _card(host: object, card: object) -> str:
    return f"{card or 'of unknown address'} of {place(host)}"


def _finding(
    part: pl.DataFrame,
    host: object,
    nic: object,
    title: str,
    summary: str,
    severity: Severity,
    confidence: Confidence,
    subject: str,
    why: str,
    metrics: dict[str, float | int | str | None] | None = None,
) -> Finding:
    hosts = names_of(host)
    card = name_of(nic)
    mellanox = part["message"].str.contains("mlx5", literal=True).any()
    look = f"mlxlink -d {card} -m -c -e" if mellanox and card else f"ethtool {card}" if card else "ip -s link"
    remedy, action = _DO.get(subject, ("Reseat or swap the cable or optic, then look at the switch port.", "check_cable_or_optic"))
    return Finding(
        title=title,
        summary=summary,
        severity=severity,
        confidence=confidence,
        hosts=hosts,
        culprits=(Culprit(host=name_of(host), nic=card),),
        subject=(str(host or ""), card or "", subject),
        evidence=cite(part, why),
        evidence_total=part.height,
        remedy=remedy,
        prevention="Watch the kernel log of the hosts for lost links and health reports of their network cards, and drain a host at the first.",
        would_refute=("the job does not use this card", "somebody unplugged or restarted it on purpose"),
        actions=(Action(action, hosts=hosts, command=look, confidence=confidence),),
        metrics=metrics or {},
    )


#: What to do where it is not the cable.
_DO = {
    "health": (
        "Keep the host out of the next start, reset the card (mlxfwreset) or reboot; replace it if it happens again.",
        "drain_and_reset",
    ),
    "nic-start-failed": (
        "Compare the card's firmware with what the driver needs (mstflint -d), and look at the lines before this one.",
        "update_sw_fw",
    ),
    "nic-reset": ("Keep the host out of the next start; compare driver and firmware with its peers.", "update_sw_fw"),
    "nic-heat": ("Check fans, air flow and the module's temperature.", "check_power_or_cooling"),
}
