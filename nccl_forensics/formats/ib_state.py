"""State of RDMA ports as ibstat, ibstatus, ibv_devinfo, ``rdma link`` and ibdev2netdev print it."""

from __future__ import annotations

import polars as pl

from nccl_forensics.facts.link_rates import lanes, physical_state, port_state, rate
from nccl_forensics.formats._documents import of_json
from nccl_forensics.formats.base import DocumentFormat, Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import Line, after, classify, whole
from nccl_forensics.tables import TABLES
from nccl_forensics.values.documents import items

_HEADING = r"^\s*(?:CA:? '|Infiniband device '|hca_id:|link [A-Za-z][\w.-]*/\d+ |[A-Za-z][\w.-]* port \d+ ==> )"
#: Key of a line (lower case, blanks as _) to column, for text that is kept as it stands.
_WORDS = {
    "ca_type": "hca_type",
    "firmware_version": "firmware",
    "fw_ver": "firmware",
    "node_guid": "node_guid",
    "port_guid": "port_guid",
    "board_id": "board",
}
_NUMBERS = {"base_lid": "lid", "port_lid": "lid", "sm_lid": "sm_lid"}
#: What ibstat says of a port (infiniband-diags/ibstat.c, port_dump).
_OF_ONE_PORT = frozenset({"State", "Physical state", "Rate", "Base lid", "LMC", "SM lid", "Capability mask", "Port GUID", "Link layer"})
_OPENS = ("ibstat_device", "ibstatus_port", "devinfo_device")
_TOOL = {"ibstat_device": "ibstat", "ibstatus_port": "ibstatus", "devinfo_device": "ibv_devinfo"}


def read(text: Text) -> Reading:
    """One row per port."""
    lines = classify(after(text.lines, pl.col("text").str.contains(_HEADING), reach=120), "ib_state", strip=True)
    rows: list[Row] = []
    claimed: list[int] = []
    device: Row = {}
    port: Row | None = None
    flush = False
    for line in lines:
        if line.kind in ("rdma_link", "netdev"):
            rows.append(_one_line(line))
            claimed.append(line.number)
            device, port = {}, None
        elif line.kind in _OPENS:
            device = {"tool": _TOOL[f"{line.kind}"], "device": line.get("device")}
            port = None
            flush = line.text.startswith("CA: ")  # ibstat of one port (ibstat mlx5_0 1) indents nothing
            if line.kind == "ibstatus_port":
                port = {**line.where, **device, "port": whole(line.get("port"))}
                rows.append(port)
            claimed.append(line.number)
        elif not device:
            continue
        elif line.kind == "ibstat_port" or (line.kind == "value" and line.get("key") == "port" and whole(line.get("value")) is not None):
            port = {**line.where, **device, "port": whole(line.get("port") or line.get("value"))}
            rows.append(port)
            claimed.append(line.number)
        elif line.kind in ("value", "gid") and (line.text[:1] in (" ", "\t") or (flush and (line.get("key") or "") in _OF_ONE_PORT)):
            if line.kind == "value":
                _value(device if port is None else port, line.get("key") or "", line.get("value"))
            claimed.append(line.number)
        elif line.text.strip():
            device, port = {}, None
    for row in rows:
        width, lane = row.pop("_width", None), row.pop("_lane", None)
        if isinstance(width, int) and isinstance(lane, float) and row.get("rate_gbit_s") is None:
            row["rate_gbit_s"] = width * lane
    return Reading(frames=filled({"ib_states": rows}), lines=line_numbers(claimed))


def _one_line(line: Line) -> Row:
    up = (line.get("state") or "").lower()
    return {
        **line.where,
        "tool": "rdma-link" if line.kind == "rdma_link" else "ibdev2netdev",
        "device": line.get("device"),
        "port": whole(line.get("port")),
        "state": port_state(up) if line.kind == "rdma_link" else {"up": "active", "down": "down"}.get(up),
        "phys_state": physical_state(line.get("phys_state")),
        "netdev": line.get("netdev"),
        "lid": whole(line.get("lid")),
        "sm_lid": whole(line.get("sm_lid")),
    }


def _value(row: Row, key: str, value: str | None) -> None:
    name = key.strip().lower().replace(" ", "_")
    match name:
        case "state":
            row["state"] = port_state(value)
        case "physical_state" | "phys_state":
            row["phys_state"] = physical_state(value)
        case "rate":
            row["rate_gbit_s"], row["width"], row["speed"] = rate(value)
        case "link_layer":
            row["link_layer"] = (value or "").strip().lower() or None
        case "active_mtu":
            row["mtu_bytes"] = whole((value or "").split("(")[0])
        case "max_mtu":
            row["mtu_max_bytes"] = whole((value or "").split("(")[0])
        case "active_width":
            row["_width"] = row["width"] = lanes(value)
        case "active_speed":
            row["_lane"] = rate((value or "").replace("Gbps", "").split("(")[0])[0]
        case _ if name in _WORDS:
            row[_WORDS[name]] = value
        case _ if name in _NUMBERS:
            row[_NUMBERS[name]] = whole(value)
        case _:
            pass


def _sniff_json(head: bytes) -> bool:
    return head.lstrip()[:1] == b"[" and b'"physical_state"' in head and b'"ifname"' in head


@of_json("unreadable")
def _read_json(document: object) -> Reading:
    rows: list[Row] = [
        {
            "record": f"[{i}]",
            "tool": "rdma-link",
            "device": link.get("ifname"),
            "port": link.get("port"),
            "state": port_state(str(link.get("state") or "")),
            "phys_state": physical_state(str(link.get("physical_state") or "")),
            "netdev": link.get("netdev"),
            "lid": link.get("lid"),
            "sm_lid": link.get("sm_lid"),
        }
        for i, link in enumerate(items(document))
        if isinstance(link, dict)
    ]
    return Reading(frames={"ib_states": TABLES["ib_states"].frame(rows)}, records=len(rows))


FORMATS = (
    TextFormat(
        name="ib-state",
        title="ibstat, ibstatus, ibv_devinfo, rdma link, ibdev2netdev",
        tables=("ib_states",),
        anchors=("CA '", "CA: '", "Infiniband device '", "hca_id:", " physical_state ", " ==> "),
        read=read,
        priority=40,
    ),
    DocumentFormat(
        name="rdma-link-json", title="rdma link (JSON, -j)", tables=("ib_states",), sniff=_sniff_json, read=_read_json, priority=40
    ),
)
