"""Links of an InfiniBand fabric as its switches and its subnet manager tell them: ibnetdiscover, saquery, ``smpquery portinfo``."""

from __future__ import annotations

import re

import polars as pl

from nccl_forensics.facts.link_rates import lanes, physical_state, port_state
from nccl_forensics.formats.base import Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import Line, after, classify, whole

_OPENS = r'^\s*(?:# Port info: Lid |(?:Node|PortInfo)Record dump:|(?:switch|ca|rt)guid=0x|(?:Switch|Ca|Rt)\s+\d+ "[SHR]-|# Topology file: )'
#: Rate of a lane on the wire (Gbit/s) to the name of the speed (IBTA).
_SPEEDS = {
    "2.5": "SDR",
    "5.0": "DDR",
    "10.0": "QDR",
    "14.0625": "FDR",
    "25.78125": "EDR",
    "53.125": "HDR",
    "106.25": "NDR",
    "212.5": "XDR",
}
_DEVICE = re.compile(r"^(?:HCA-\d+|[a-z][a-z0-9]*_\w+)$")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def read(text: Text) -> Reading:
    """One row per end of a link."""
    rows: list[Row] = []
    claimed: list[int] = []
    names: dict[object, str] = {}
    node: Row = {}
    record: dict[str, str] = {}
    holder: Row | None = None
    for line in classify(after(text.lines, pl.col("text").str.contains(_OPENS), reach=4000), "ib_subnet", strip=True):
        get = line.get
        match line.kind:
            case "node":
                node, holder = {**_named(get("node")), "lid": whole(get("lid"))}, None
            case "link_of_adapter" | "link_of_switch" if node:
                guid = get("guid")
                rows.append({**line.where, "tool": "ibnetdiscover", **node, "guid": f"0x{guid}" if guid else None, **_link(line)})
            case "record" | "port_info":
                record = {}
                holder = None if get("record") == "Node" else {**line.where, "tool": "smpquery" if line.kind == "port_info" else "saquery"}
                if holder is not None:
                    holder |= {"lid": whole(get("lid")), "port": whole(get("port"))}
                    rows.append(holder)
            case "field" if record is not None and (holder is not None or line.text[:1] in (" ", "\t")):
                _field(line, record, holder, names)
            case "attribute" | "comment" | "part":
                pass
            case _:
                continue
        claimed.append(line.number)
    for row in rows:
        if row.get("tool") != "ibnetdiscover":
            row |= _named(names[row["lid"]]) if row.get("lid") in names else {}
    return Reading(frames=filled({"ib_links": rows}), lines=line_numbers(claimed if rows or names else []))


def _named(name: str | None) -> Row:
    """Host and device of an adapter's description; any other is the name of a node that is no host."""
    words = (name or "").split()
    adapter = len(words) == 2 and _DEVICE.match(words[1]) is not None
    return {"node": " ".join(words) or None, "host": words[0] if adapter else None, "device": words[1] if adapter else None}


def _link(line: Line) -> Row:
    get = line.get
    told: Row = {"port": whole(get("port")), "width": lanes(get("width")), "speed": get("speed"), "state": "active", "phys_state": "linkup"}
    told |= {"peer": get("peer"), "peer_port": whole(get("peer_port")), "peer_lid": whole(get("peer_lid"))}
    return told if get("lid") is None else told | {"lid": whole(get("lid"))}


def _field(line: Line, record: dict[str, str], holder: Row | None, names: dict[object, str]) -> None:
    """saquery writes ``link_width_active``, libibmad ``LinkWidthActive:``."""
    key = (line.get("key") or "").replace("_", "").replace(" ", "").lower()
    value = (line.get("value") or "").strip()
    record[key] = value
    if holder is None:
        if key == "nodedescription" and "lid" in record:
            names[whole(record["lid"])] = value
        return
    match key:
        case "endportlid" | "lid" | "baselid" if holder.get("lid") is None:
            holder["lid"] = whole(value)
        case "portnum" if holder.get("port") is None:
            holder["port"] = whole(value)
        case "linkstate" | "portstate":
            holder["state"] = port_state(value)
        case "physlinkstate" | "portphysstate":
            holder["phys_state"] = physical_state(value)
        case "linkwidthactive":
            holder["width"] = lanes(value)
            most = max((int(n) for n in _NUMBER.findall(record.get("linkwidthenabled", ""))), default=0)
            if holder["width"] is not None and most > int(str(holder["width"])):
                holder["could_be"] = f"Could be {most}X"
        case "linkspeedactive" | "linkspeedextactive" if (rate := _NUMBER.search(value)) and rate.group(0) in _SPEEDS:
            holder["speed"] = _SPEEDS[rate.group(0)]


FORMAT = TextFormat(
    name="ib-subnet",
    title="ibnetdiscover, saquery, smpquery portinfo",
    tables=("ib_links",),
    anchors=('"S-', '"H-', "Record dump:", "# Port info: Lid "),
    read=read,
    priority=40,
)
