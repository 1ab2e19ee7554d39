"""Links and diagnosis of an InfiniBand fabric: iblinkinfo, ibnetdiscover, ibdiagnet, ibping, sminfo."""

from __future__ import annotations

import re

import polars as pl

from nccl_forensics.facts.link_rates import lanes, physical_state, port_state
from nccl_forensics.formats.base import Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import Line, classify, real, whole

_OURS = (
    r"^\s*(?:(?:CA|SW|RT) +\d+ +\d+ +0x|(?:CA|Switch): .*:$|.*\] ==\(|-[IWE]- |Pong from |\d+ packets transmitted, \d+ received, \d+% packet loss, time"
    r"|sminfo: )"
)
#: How adapters are called behind the name of their host; a switch may be called by two words as well.
_DEVICE = re.compile(r"^(?:HCA-\d+|[a-z]\w*\d)$")
_NODE_IN_ERROR = re.compile(r"\b([A-Za-z][\w.-]*)/([UPL]?\w+)/P?(\d+)\b")


def read(text: Text) -> Reading:
    """Links, stages, errors and answers."""
    links: list[Row] = []
    notes: list[Row] = []
    pings: list[Row] = []
    claimed: list[int] = []
    node: Row = {}
    ibping = False
    for line in classify(text.lines.filter(pl.col("text").str.contains(_OURS)), "ib_fabric", strip=True):
        get = line.get
        match line.kind:
            case "discover_pair" | "discover_lone":
                links.append({**line.where, "tool": "ibnetdiscover", **_named(get("node")), **_link(line), "peer": get("peer")})
            case "linkinfo_node":
                node = _named(get("node_text")) if get("linktype") == "CA" else _switch(get("node_text") or "")
            case "linkinfo":
                own = _named(get("name")) if get("name") else node  # one line each (-l), or below the heading of their node
                link = {k: v for k, v in _link(line).items() if k != "guid" or v is not None}
                links.append(
                    {
                        **line.where,
                        "tool": "iblinkinfo",
                        **own,
                        **link,
                        "peer": get("peer_text"),
                        "could_be": (get("could") or "").strip() or None,
                    }
                )
            case "diag_error" | "diag_warning":
                named = _NODE_IN_ERROR.search(get("message") or "")
                kind = "error" if line.kind == "diag_error" else "warning"
                notes.append(
                    {**line.where, "tool": "ibdiagnet", "kind": kind, "name": named.group(0) if named else None, "message": get("message")}
                )
            case "diag_stage":
                counts = {"warnings": whole(get("warnings")), "errors": whole(get("errors"))}
                notes.append({**line.where, "tool": "ibdiagnet", "kind": "stage", "name": (get("stage") or "").strip(), **counts})
            case "pong":
                ibping = True
                pings.append(
                    {**line.where, "tool": "ibping", "outcome": "reply", "target": get("node_word"), "rtt_ms": real(get("milliseconds"))}
                )
            case "ping_statistics" if ibping:
                counts = {"sent": whole(get("sent")), "received": whole(get("received"))}
                pings.append({**line.where, "tool": "ibping", "outcome": "statistics", **counts, "loss_percent": real(get("loss"))})
            case "sminfo":
                notes.append({**line.where, "tool": "sminfo", "kind": "summary", "name": f"lid {get('lid')}", "message": get("message")})
            case _:
                continue
        claimed.append(line.number)
    found = {"ib_links": links, "ib_diagnostics": notes, "pings": pings}
    return Reading(frames=filled(found), lines=line_numbers(claimed))


def _named(name: str | None) -> Row:
    """Host and device of an adapter's description; any other is the name of a node that is no host."""
    words = (name or "").strip().split()
    adapter = len(words) == 2 and _DEVICE.match(words[1]) is not None
    return {"node": " ".join(words) or None, "host": words[0] if adapter else None, "device": words[1] if adapter else None}


def _switch(text: str) -> Row:
    """``0x506b4b0300820910 MF0;leaf1:MSB7700/U1``: the GUID stands with the name, and not on the lines of its ports."""
    guid, _, name = text.partition(" ")
    return {"node": name.strip(), "guid": guid} if guid.startswith("0x") and name.strip() else {"node": text.strip()}


def _link(line: Line) -> Row:
    get = line.get
    speed = get("speed") or get("rate")
    return {
        "lid": whole(get("lid")),
        "port": whole(get("port")),
        "guid": get("guid"),
        "width": lanes(get("width")),
        "speed": None if speed and "?" in speed else speed,
        "state": port_state(get("state")),
        "phys_state": physical_state(get("phys")),
        "peer_lid": whole(get("peer_lid")),
        "peer_port": whole(get("peer_port")),
    }


FORMAT = TextFormat(
    name="ib-fabric",
    title="iblinkinfo, ibnetdiscover -p, ibdiagnet, ibping, sminfo",
    tables=("ib_links", "ib_diagnostics", "pings"),
    anchors=("CA ", "SW ", "CA: ", "Switch: ", "] ==(", "-E- ", "-W- ", "-I- ", "Pong from ", "sminfo: "),
    read=read,
    priority=41,
)
