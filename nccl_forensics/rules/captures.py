"""A packet capture shows what the network did: segments sent again, connections that nobody answered, resets.

## What it finds
TCP conversations and RoCE queue pairs of a capture (pcap, or the text of tshark or tcpdump) in which much was sent twice; hosts whose SYNs stay without an answer or are refused.

## Why it matters
A capture is proof: it shows which direction lost packets and which host did not answer, where counters only add up.

## What would refute it
The capture itself dropped packets (tcpdump says how many), or was taken where packets pass twice.

## What to do next
Capture at the other end at the same time: what left here and did not arrive there was lost on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import polars as pl

from nccl_forensics.evidence import cite
from nccl_forensics.model import Action, Culprit, Finding
from nccl_forensics.rules import rule


@rule(
    name="capture-loss",
    code="NE06",
    cause="packet-loss",
    severity="warning",
    at_most=16,
    explains=("timeout", "closed", "collective-stuck", "connection-failed", "low-bus-bandwidth", "straggler"),
)
def capture_loss(
    conversations: pl.LazyFrame,
    *,
    loss_share: Annotated[float, "share of packets sent again that is worth a warning"] = 0.01,
    bad_share: Annotated[float, "share from which it is an error"] = 0.05,
    least: Annotated[int, "packets sent again below which nothing is said"] = 20,
) -> Iterator[Finding]:
    """Pairs of hosts and directions by what was sent again, the worst first."""
    pairs = (
        conversations.group_by("source_id", "protocol", "source", "destination")
        .agg(pl.col("packets").sum(), pl.col("resent").sum(), pl.col("naks").sum(), pl.col("record", "line_no").sort_by("resent").last())
        .with_columns(share=pl.col("resent") / pl.col("packets"))
        .filter((pl.col("resent") >= least) & (pl.col("share") >= loss_share))
        .sort("share", "source", "destination", descending=[True, False, False])
        .collect()
    )
    for row in pairs.iter_rows(named=True):
        protocol = "RoCE" if row["protocol"] == "roce" else "TCP"
        link = f"{row['source']} -> {row['destination']}"
        yield Finding(
            title=f"{row['resent']} of {row['packets']} {protocol} packets from {row['source']} to {row['destination']} were sent again "
            f"({100 * row['share']:.1f} %)",
            summary="The sender got no acknowledgement in time: packets of this direction, or the answers to them, were lost or came late.",
            severity="error" if row["share"] >= bad_share else "warning",
            confidence="medium",
            culprits=(Culprit(link=link),),
            subject=("capture", link, protocol),
            evidence=cite([row], "the conversation that was resent most"),
            remedy="Compare discards, pauses and link errors of the ports on this path.",
            prevention="Watch retransmissions and discards of every host while jobs run.",
            would_refute=("the capture was taken where packets pass twice (bridge and bond, or both directions of a mirror port)",),
            actions=(Action("check_cable_or_optic", confidence="low"),),
            metrics={"resent": row["resent"], "packets": row["packets"], "share": round(row["share"], 4)},
        )


@rule(
    name="capture-unanswered",
    code="NE07",
    cause="connection-failed",
    severity="warning",
    at_most=16,
    explains=("rank-never-joined", "collective-stuck"),
)
def capture_unanswered(
    conversations: pl.LazyFrame, *, tries: Annotated[int, "SYNs without any answer from which a peer counts as unreachable"] = 3
) -> Iterator[Finding]:
    """Hosts and ports that never answered a connection, or only with resets."""
    tcp = conversations.filter(pl.col("protocol") == "tcp")
    back = tcp.select(
        "source_id",
        source="destination",
        source_port="destination_port",
        destination="source",
        destination_port="source_port",
        answers="syn_acks",
        refusals="resets",
    )
    ends = ["source_id", "source", "source_port", "destination", "destination_port"]
    asked = tcp.filter(pl.col("syns") > 0).join(back, on=ends, how="left").with_columns(pl.col("answers", "refusals").fill_null(0))
    ports = (
        asked.group_by("source_id", "source", "destination", "destination_port")
        .agg(pl.col("syns").sum(), pl.col("answers").sum(), pl.col("refusals").sum(), pl.col("record", "line_no").first())
        .filter((pl.col("answers") == 0) & ((pl.col("syns") >= tries) | (pl.col("refusals") > 0)))
        .sort("source_id", "source", "destination", "destination_port")
        .collect()
    )
    for row in ports.iter_rows(named=True):
        refused = row["refusals"] > 0
        peer = f"{row['destination']} port {row['destination_port']}"
        yield Finding(
            title=f"{peer} {'refused' if refused else 'never answered'} {row['syns']} connection attempt{'s' if row['syns'] != 1 else ''} of {row['source']}",
            summary="Nobody listens there: the process is not up, or it is another port."
            if refused
            else "No answer at all: a firewall, a missing route or a dead host.",
            confidence="medium",
            culprits=(Culprit(link=f"{row['source']} -> {row['destination']}:{row['destination_port']}"),),
            subject=("capture", str(row["destination"]), str(row["destination_port"]), "refused" if refused else "silent"),
            evidence=cite([row], "connection attempts"),
            remedy="Check that the process listens, then firewall and routes between these hosts.",
            prevention="Probe the rendezvous port of every host from every other one in the job's prologue (nc -zv).",
            would_refute=("the answers took another path past the place of the capture",),
            actions=(Action("fix_config", command=f"nc -zv {row['destination']} {row['destination_port']}", confidence="low"),),
        )
