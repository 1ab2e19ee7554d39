"""Topology and graph files of NCCL: NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE, NCCL_GRAPH_DUMP_FILE (NCCL 2.6 to 2.30.7)."""

from __future__ import annotations

import re

from nccl_forensics.decoding import safe_xml
from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Row
from nccl_forensics.tables import TABLES
from nccl_forensics.values import pci

_ROOT = re.compile(rb"<(system|graphs) version=")
_ELEMENTS = ("cpu", "pci", "gpu", "nvlink", "c2c", "nic", "net")


def sniff(head: bytes) -> bool:
    """The root element, after an optional declaration and comment."""
    return head.lstrip().startswith(b"<") and _ROOT.search(head) is not None


def read(data: bytes) -> Reading:
    """Elements of a topology, or graphs of a graph dump."""
    root, error = safe_xml.parse(data)
    gaps = (Gap(error),) if error else ()
    if root is None or root.tag not in ("system", "graphs"):
        return Reading(gaps=gaps or (Gap("unparsed: no topology in it"),))
    if root.tag == "graphs":
        graphs = [_graph(node, number) for number, node in enumerate(root.all("graph"))]
        return Reading(frames={"nccl_graphs": TABLES["nccl_graphs"].frame(graphs)}, gaps=gaps, records=len(graphs))
    rows: list[Row] = []
    _collect(root, "system", {}, rows)
    return Reading(frames={"nccl_topo": TABLES["nccl_topo"].frame(rows)}, gaps=gaps, records=len(rows))


def _collect(node: safe_xml.Node, record: str, around: Row, rows: list[Row]) -> None:
    seen: dict[str, int] = {}
    for child in node.children:
        number = seen[child.tag] = seen.get(child.tag, -1) + 1
        own = f"{record}/{child.tag}[{number}]"
        inside = dict(around)
        if child.tag == "cpu":
            numa = _number(child.attributes.get("numaid"))
            inside |= {"numa": numa if numa is not None and numa >= 0 else None, "host_hash": child.attributes.get("host_hash")}
        if child.tag == "pci":
            inside |= {"bus_id": pci.normal(child.attributes.get("busid"))}
        if child.tag in _ELEMENTS:
            rows.append({"record": own, "line_no": child.line, "element": child.tag, "parent": record, **inside, **_attributes(child)})
        _collect(child, own, inside, rows)


def _attributes(node: safe_xml.Node) -> Row:
    told = {name: value for name, value in node.attributes.items() if value != ""}
    return {
        "pci_class": told.get("class"),
        "link_speed": told.get("link_speed"),
        "link_width": _number(told.get("link_width")),
        "dev": _number(told.get("dev")),
        "rank": _number(told.get("rank")),
        "sm": _number(told.get("sm")),
        "gdr": told["gdr"] == "1" if "gdr" in told else None,
        "name": told.get("name"),
        "speed_mbps": _number(told.get("speed")),
        "port": _number(told.get("port")),
        "target": pci.normal(told.get("target")),
        "count": _number(told.get("count")),
    }


def _graph(node: safe_xml.Node, number: int) -> Row:
    told = node.attributes
    first = node.find("channel")
    return {
        "record": f"graphs/graph[{number}]",
        "line_no": node.line,
        "id": _number(told.get("id")),
        "pattern": _number(told.get("pattern")),
        "channels": _number(told.get("nchannels")),
        "bw_intra": _decimal(told.get("speedintra")),
        "bw_inter": _decimal(told.get("speedinter")),
        "type_intra": told.get("typeintra"),
        "type_inter": told.get("typeinter"),
        "gpus": [gpu.attributes.get("dev", "") for gpu in first.all("gpu")] if first is not None else [],
    }


def _number(text: str | None) -> int | None:
    number = _decimal(text)
    return int(number) if number is not None else None


def _decimal(text: str | None) -> float | None:
    return float(text) if text is not None and re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,9})?", text) else None


FORMAT = DocumentFormat(
    name="nccl-topology",
    title="NCCL topology or graph file",
    tables=("nccl_topo", "nccl_graphs"),
    sniff=sniff,
    read=read,
    priority=40,
)
