"""Counters of RDMA ports: one name for each, what it means, where it saturates, and how much it says.

Names are those of Linux sysfs (``/sys/class/infiniband/<device>/ports/<n>/counters`` and ``hw_counters``). Sources: rdma-core
infiniband-diags and libibmad, Linux drivers/infiniband (mlx5, efa), NVIDIA's "Understanding mlx5 counters", host catalogue section 3.2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Family = Literal["link", "loss", "congestion", "peer", "corruption", "misuse"]
Weight = Literal["fatal", "degraded", "suspect", "benign"]


@dataclass(frozen=True, slots=True)
class Counter:
    """One counter that can tell of trouble.

    ``maximum``: the basic counter stops there, so that value means "this or more". ``threshold``: what ibqueryerrors lets pass by default.
    ``weight`` is how bad growth during a job is; a single sample is always weaker.
    """

    name: str
    family: Family
    weight: Weight
    meaning: str
    threshold: int = 0
    maximum: int | None = None


_8, _16, _32, _4 = 255, 65535, 4294967295, 15

COUNTERS: dict[str, Counter] = {
    c.name: c
    for c in (
        Counter("link_downed", "link", "fatal", "the link went down", 10, _8),
        Counter("link_error_recovery", "link", "degraded", "the link retrained without going down", 10, _8),
        Counter("symbol_error", "link", "degraded", "symbols were received wrong (after FEC on HDR and newer)", 10, _16),
        Counter("port_rcv_errors", "link", "degraded", "packets arrived with errors", 10, _16),
        Counter("local_link_integrity_errors", "link", "degraded", "local physical errors passed their limit", 10, _4),
        Counter(
            "port_rcv_remote_physical_errors", "link", "suspect", "packets arrived already marked bad: the fault lies upstream", 100, _16
        ),
        Counter("excessive_buffer_overrun_errors", "link", "benign", "flow-control buffer overrun; 15 stands on healthy ports", 10, _4),
        Counter("port_rcv_switch_relay_errors", "link", "benign", "a switch could not forward, often multicast", 100, _16),
        Counter("vl15_dropped", "link", "benign", "management packets were dropped", 100, _16),
        Counter("port_xmit_discards", "loss", "degraded", "outbound packets were dropped: peer down or congestion", 100, _16),
        Counter("port_xmit_constraint_errors", "misuse", "suspect", "packets refused by partition or raw filter", 100, _8),
        Counter("port_rcv_constraint_errors", "misuse", "suspect", "packets refused by partition or raw filter", 100, _8),
        Counter("port_xmit_wait", "congestion", "suspect", "ticks with data to send but no credits", 0, _32),
        Counter("local_ack_timeout_err", "peer", "fatal", "the sender's timer ran out: path broken or peer stuck"),
        Counter("rnr_nak_retry_err", "peer", "degraded", "the receiver had no buffer posted"),
        Counter("out_of_sequence", "loss", "degraded", "packets arrived out of order: loss, or adaptive routing"),
        Counter("packet_seq_err", "loss", "degraded", "the receiver asked for packets again"),
        Counter("implied_nak_seq_err", "loss", "degraded", "an acknowledgement implied lost packets"),
        Counter("duplicate_request", "loss", "suspect", "requests arrived twice"),
        Counter("roce_adp_retrans", "loss", "suspect", "adaptive retransmissions"),
        Counter("roce_adp_retrans_to", "loss", "degraded", "adaptive retransmissions that timed out"),
        Counter("rx_icrc_encapsulated", "corruption", "degraded", "packets arrived with a wrong checksum"),
        Counter("np_ecn_marked_roce_packets", "congestion", "suspect", "packets arrived marked by a congested switch"),
        Counter("np_cnp_sent", "congestion", "suspect", "this receiver told senders to slow down"),
        Counter("rp_cnp_handled", "congestion", "suspect", "this sender was told to slow down"),
        Counter("rp_cnp_ignored", "congestion", "degraded", "this sender was told to slow down and did not"),
        Counter("req_cqe_error", "peer", "suspect", "requests completed with an error"),
        Counter("resp_cqe_error", "peer", "suspect", "responses completed with an error"),
        Counter("req_remote_access_errors", "misuse", "suspect", "memory of the peer was not accessible"),
        Counter("resp_remote_access_errors", "misuse", "suspect", "the peer asked for memory it may not use"),
        Counter("retrans_timeout_events", "peer", "fatal", "EFA: a retransmission timed out"),
        Counter("unresponsive_remote_events", "peer", "fatal", "EFA: the remote host did not answer"),
        Counter("impaired_remote_conn_events", "peer", "degraded", "EFA: connection to a remote host is impaired"),
        Counter("retrans_pkts", "loss", "suspect", "EFA: packets sent again"),
        Counter("rx_drops", "loss", "suspect", "EFA: packets dropped at the receiver"),
    )
}

#: Spellings of perfquery, ibqueryerrors and others that do not become the sysfs name by rule.
_SPELLINGS: dict[str, str] = {
    "symbolerrorcounter": "symbol_error",
    "symbolerrors": "symbol_error",
    "linkerrorrecoverycounter": "link_error_recovery",
    "linkrecovers": "link_error_recovery",
    "linkdownedcounter": "link_downed",
    "linkdowned": "link_downed",
    "rcverrors": "port_rcv_errors",
    "rcvremotephyserrors": "port_rcv_remote_physical_errors",
    "rcvswrelayerrors": "port_rcv_switch_relay_errors",
    "xmtdiscards": "port_xmit_discards",
    "xmtconstrainterrors": "port_xmit_constraint_errors",
    "rcvconstrainterrors": "port_rcv_constraint_errors",
    "linkintegrityerrors": "local_link_integrity_errors",
    "excbufoverrunerrors": "excessive_buffer_overrun_errors",
    "vl15dropped": "vl15_dropped",
    "xmtwait": "port_xmit_wait",
    "qp1dropped": "qp1_dropped",
    "portxmitpkts": "port_xmit_packets",
    "portrcvpkts": "port_rcv_packets",
    "portunicastxmitpkts": "unicast_xmit_packets",
    "portunicastrcvpkts": "unicast_rcv_packets",
    "portmulticastxmitpkts": "multicast_xmit_packets",
    "portmulticastrcvpkts": "multicast_rcv_packets",
    "xmtdata": "port_xmit_data",
    "rcvdata": "port_rcv_data",
    "xmtpkts": "port_xmit_packets",
    "rcvpkts": "port_rcv_packets",
}
_EDGE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def counter_name(spelling: str) -> str:
    """The sysfs name: ``LinkDownedCounter`` and ``link_downed_total`` are ``link_downed``."""
    known = _SPELLINGS.get(spelling.replace("_", "").lower())
    if known:
        return known
    plain = spelling.removeprefix("node_infiniband_").removesuffix("_total")
    return plain.lower() if "_" in plain else _EDGE.sub("_", plain).lower()
