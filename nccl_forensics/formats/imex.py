"""``nvidia-imex-ctl -N``, as text and as JSON (``-j``): the nodes of an IMEX domain and whom each of them reaches.

IMEX shares GPU memory over NVLink between hosts (GB200 NVL72 and later); without it NCCL's multi-node NVLink does not come up. The daemon's
log has the form of the fabric manager's and is read with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from nccl_forensics.formats._documents import of_json
from nccl_forensics.formats.base import DocumentFormat, Gap, Reading, Row, Text, TextFormat, filled, line_numbers
from nccl_forensics.grammar.blocks import Line, after, classify, whole
from nccl_forensics.values.documents import mapping
from nccl_forensics.values.units import local_time

_OPENS = r"^(?:Connectivity Table Legend:|\d{1,2}/\d{1,2}/\d{4} \d\d:\d\d:\d\d|Node #\d+ )"
#: States of a connection as the JSON spells them, and the letters of the text.
_LETTERS = {
    "C": "connected",
    "N": "never-connected",
    "D": "disconnected",
    "R": "recovering",
    "I": "invalid",
    "A": "authenticating",
    "!V!": "version-mismatch",
    "!M!": "node-map-mismatch",
}


def read(text: Text) -> Reading:
    """One row per node of a listing; the state of the domain stands at its end and goes into each."""
    rows: list[Row] = []
    claimed: list[int] = []
    block: dict[int, Row] = {}
    columns: list[int] = []
    stamp: Row = {}
    legend = False
    for line in classify(after(text.lines, pl.col("text").str.contains(_OPENS)), "imex", strip=True):
        match line.kind:
            case "legend_head" | "nodes_head":
                legend = line.kind == "legend_head"
            case "legend" if legend:
                pass
            case "stamp":
                stamp, block, columns = _time(line), {}, []
            case "node" if (number := whole(line.get("node"))) is not None:
                block[number] = _node(line, number) | stamp
                rows.append(block[number])
            case "matrix_head":
                columns = [int(c) for c in (line.get("columns") or "").split()]
            case "matrix_row" if columns and (number := whole(line.get("from"))) in block:
                cells = zip(columns, (line.get("cells") or "").split(), strict=False)
                block[number]["broken"] = [f"{peer} {_LETTERS.get(cell, cell)}" for peer, cell in cells if cell != "C"]
            case "domain" if block:
                for row in block.values():
                    row["domain_state"] = line.get("domain_state")
                block, columns, stamp = {}, [], {}
            case _:
                continue
        claimed.append(line.number)
    return Reading(frames=filled({"imex_nodes": rows}), lines=line_numbers(claimed if rows else []))


def _node(line: Line, number: int) -> Row:
    told = {name: line.get(name) for name in ("address", "state", "version")}
    name = line.get("hostname")
    return {**line.where, **told, "node": number, "name": None if name == "N/A" else name}


def _time(line: Line) -> Row:
    """``5/12/2025 06:08:10.580``: month first, no zone."""
    return local_time(f"{line.get('date')} {(line.get('clock') or '')[:8]}", "%m/%d/%Y %H:%M:%S")


def sniff(head: bytes) -> bool:
    """An object of nodes, each with its connections."""
    return head.lstrip().startswith(b"{") and b'"nodes"' in head and b'"connections"' in head and b'"CONNECTED"' in head.upper()


@of_json("unparsed")
def read_json(document: object) -> Reading:
    """The same of the JSON."""
    told = mapping(document)
    nodes = told.get("nodes")
    if not isinstance(nodes, Mapping):
        return Reading(gaps=(Gap("unparsed: no nodes"),))
    rows = list(_json_rows(nodes, told.get("status")))
    return Reading(frames=filled({"imex_nodes": rows}), records=len(rows))


def _json_rows(nodes: Mapping[str, object], state: object) -> Iterator[Row]:
    for key, node in nodes.items():
        if not isinstance(node, Mapping):
            continue
        links = node.get("connections")
        name = node.get("hostName") or node.get("hostname")
        yield {
            "record": f"nodes.{key}",
            "node": whole(key),
            "address": node.get("host"),
            "name": None if name in (None, "", "N/A") else name,
            "state": node.get("status"),
            "version": node.get("version"),
            "domain_state": state,
            "broken": [
                f"{peer} {str(link.get('status')).lower().replace('_', '-')}"
                for peer, link in (links.items() if isinstance(links, Mapping) else ())
                if isinstance(link, Mapping) and link.get("status") != "CONNECTED"
            ],
        }


FORMATS = (
    TextFormat(
        name="imex",
        title="nvidia-imex-ctl -N",
        tables=("imex_nodes",),
        anchors=("Node #", "Nodes From\\To", "Domain State: "),
        read=read,
        priority=42,
    ),
    DocumentFormat(name="imex-json", title="nvidia-imex-ctl -N -j", tables=("imex_nodes",), sniff=sniff, read=read_json, priority=41),
)
