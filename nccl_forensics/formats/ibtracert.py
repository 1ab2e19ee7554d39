"""``ibtracert``: the path of one pair of nodes through an InfiniBand fabric, hop by hop."""

from __future__ import annotations

import polars as pl

from nccl_forensics.formats.base import Reading, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import classify, whole

_OURS = (
    r"^\s*(?:From (?:ca|switch|router) \{0x|\[\d+\] -> (?:ca|switch|router) port \{0x|To (?:ca|switch|router) \{0x|ibtracert: iberror: )"
)


def read(text: Text) -> Reading:
    """One row per hop; the end of a path only says again who its last hop was."""
    rows: list[dict[str, object]] = []
    claimed: list[int] = []
    route, hop = -1, 0
    for line in classify(text.lines.filter(pl.col("text").str.contains(_OURS)), "ibtracert", strip=True):
        get = line.get
        match line.kind:
            case "sender":
                route, hop = route + 1, 0
            case "hop":
                hop += 1
            case "failed":
                # Without any hop before it, the trace failed at its start and is a path of its own.
                route, hop = (route, hop + 1) if rows and rows[-1]["error"] is None and hop >= 0 else (route + 1, 0)
            case "receiver":
                claimed.append(line.number)
                hop = -1
                continue
            case _:
                continue
        rows.append(
            {
                **line.where,
                "route": max(route, 0),
                "hop": hop,
                "node": (get("name") or "").strip('"') or None,
                "kind": get("kind"),
                "guid": get("guid"),
                "lid": whole(get("lid")),
                "port_in": whole(get("port_in")),
                "port_out": whole(get("port_out")),
                "error": get("message"),
            }
        )
        claimed.append(line.number)
    return Reading(frames=filled({"ib_routes": rows}), lines=line_numbers(claimed))


FORMAT = TextFormat(
    name="ibtracert",
    title="ibtracert",
    tables=("ib_routes",),
    anchors=("From ca {", "From switch {", "From router {", "] -> ", "ibtracert: "),
    read=read,
    priority=41,
)
